//! Failures of commands.

use crate::output;
use mnnkv::status::Error;
use std::any::Any;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

/// The text of an error for the user.
#[derive(Debug)]
pub struct Failure(pub String);

impl Failure {
    /// The failure for a caught panic.
    pub fn bug(panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Failure(format!("a bug in mnnkv, please report it: {}", text.unwrap_or("no text")))
    }

    /// The failure of standard output.
    pub fn of_output(e: &io::Error) -> Self {
        Failure(format!("cannot write to standard output: {e}"))
    }

    /// The failure of a directory that msmodelslim has written. Its files have plain names in errors.
    pub fn of_quantised(directory: &Path, error: &Error) -> Self {
        Failure(format!("{}: {} (mnnkv check {0} lists all findings)", directory.display(), error.message()))
    }

    /// Prints text to standard error, or JSON to standard output. Returns exit code 3.
    pub fn print(&self, json: bool) -> ExitCode {
        if json {
            // A failed write has no other channel to be reported on.
            let _ = output::print(&output::object(&serde_json::json!({ "error": self.0 })));
        } else {
            let _ = writeln!(io::stderr(), "mnnkv: {}", output::visible(&self.0));
        }
        ExitCode::from(3)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure(error.message().to_owned())
    }
}

/// JSON of the library's own is right.
impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Failure(format!("a bug in mnnkv: {error}"))
    }
}

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Failure(text)
    }
}
