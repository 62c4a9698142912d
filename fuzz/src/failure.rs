//! Failures of the command line, as the readers that `bodies::checkpoint` includes from it name them.

use mnnkv::status::Error;

/// The text of an error.
#[derive(Debug)]
#[allow(dead_code)] // only formatted
pub struct Failure(pub String);

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure(error.message().to_owned())
    }
}

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Failure(text)
    }
}
