//! The output of a command, as text or as JSON.

use crate::failure::Failure;
use mnnkv_model::file::NewFile;
use serde_json::Value;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Both forms of the output of a command, and its exit code.
pub struct Output {
    /// Lines, each with a newline.
    pub text: String,
    /// The same content as one object.
    pub json: Value,
    /// False when a check or gate failed: exit code 1.
    pub clean: bool,
}

impl Output {
    /// An output with exit code 0.
    pub fn new(text: String, json: Value) -> Self {
        Output { text, json, clean: true }
    }

    /// Writes one of the forms to standard output. Returns the exit code.
    pub fn print(&self, json: bool) -> ExitCode {
        let printed = if json {
            print(&object(&self.json))
        } else {
            print(&self.text.lines().map(|line| visible(line) + "\n").collect::<String>())
        };
        match printed {
            Err(e) => Failure::of_output(&e).print(false),
            Ok(()) if self.clean => ExitCode::SUCCESS,
            Ok(()) => ExitCode::from(1),
        }
    }
}

/// Writes to standard output. A closed pipe, as behind `head`, is not a failure.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => done,
    }
}

/// Refuses to replace a file that was not to be replaced.
pub fn refuse_existing(path: &Path, overwrite: bool) -> Result<(), Failure> {
    if !overwrite && path.symlink_metadata().is_ok() {
        return Err(Failure(format!("{} exists; a new file or --overwrite expected", path.display())));
    }
    Ok(())
}

/// Refuses outputs that are inputs: input files are never changed.
pub fn refuse_inputs<'a>(
    outputs: impl IntoIterator<Item = &'a PathBuf>,
    inputs: impl IntoIterator<Item = &'a PathBuf>,
) -> Result<(), Failure> {
    let real = |path: &PathBuf| path.canonicalize().ok();
    let inputs: Vec<PathBuf> = inputs.into_iter().filter_map(real).collect();
    match outputs.into_iter().find(|path| real(path).is_some_and(|path| inputs.contains(&path))) {
        Some(path) => Err(Failure(format!("{} is an input; another file expected for the output", path.display()))),
        None => Ok(()),
    }
}

/// Writes files that appear under their names when all are complete.
pub fn write_files<'a>(files: impl IntoIterator<Item = (&'a Path, &'a str)>) -> Result<(), Failure> {
    let (mut begun, mut names) = (Vec::new(), Vec::new());
    for (path, text) in files {
        let name = full_name(path);
        if name.is_some() && names.contains(&name) {
            let text = format!("{} is named for two outputs; a name of its own expected for each", path.display());
            return Err(Failure(text));
        }
        names.push(name);
        let mut file = NewFile::create(path)?;
        file.write(text.as_bytes())?;
        file.sync()?;
        begun.push(file);
    }
    begun.into_iter().try_for_each(|file| Ok(file.finish()?))
}

/// The name of a file that need not exist, in its folder without links.
fn full_name(path: &Path) -> Option<PathBuf> {
    let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    Some(folder.canonicalize().ok()?.join(path.file_name()?))
}

/// Whether a character controls a terminal: Unicode categories Cc, Cf, Zl and Zp. They include the characters that
/// change the direction of writing.
fn steers(c: char) -> bool {
    const FORMAT: [(char, char); 20] = [
        ('\u{ad}', '\u{ad}'),
        ('\u{600}', '\u{605}'),
        ('\u{61c}', '\u{61c}'),
        ('\u{6dd}', '\u{6dd}'),
        ('\u{70f}', '\u{70f}'),
        ('\u{890}', '\u{891}'),
        ('\u{8e2}', '\u{8e2}'),
        ('\u{180e}', '\u{180e}'),
        ('\u{200b}', '\u{200f}'),
        ('\u{2028}', '\u{202e}'),
        ('\u{2060}', '\u{206f}'),
        ('\u{feff}', '\u{feff}'),
        ('\u{fff9}', '\u{fffb}'),
        ('\u{110bd}', '\u{110bd}'),
        ('\u{110cd}', '\u{110cd}'),
        ('\u{13430}', '\u{1343f}'),
        ('\u{1bca0}', '\u{1bca3}'),
        ('\u{1d173}', '\u{1d17a}'),
        ('\u{e0001}', '\u{e0001}'),
        ('\u{e0020}', '\u{e007f}'),
    ];
    c.is_control() || FORMAT.iter().any(|(first, last)| (*first..=*last).contains(&c))
}

/// Text from a file or the command line as one line. Control characters are escaped, except tabs.
pub fn visible(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if c != '\t' && steers(c) => line.extend(c.escape_default()),
            c => line.push(c),
        }
    }
    line
}

/// An object as JSON text with control characters escaped. They occur in strings only, so the meaning stays the same.
pub fn object(object: &Value) -> String {
    let mut text = String::new();
    for c in format!("{object:#}").chars() {
        match c {
            c if c != '\n' && steers(c) => {
                c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| text += &format!("\\u{unit:04x}"));
            }
            c => text.push(c),
        }
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_shows_no_character_that_steers_and_means_the_same() {
        let steering =
            "\u{7f}\u{80}\u{85}\u{9b}\u{ad}\u{61c}\u{200b}\u{200e}\u{2028}\u{202e}\u{2066}\u{2069}\u{feff}\u{e0041}";
        let object = serde_json::json!({ steering: [steering, "tab\tline\n\u{1b}[31m é 鍵 \u{1f511}"] });
        let text = super::object(&object);
        assert!(text.chars().all(|c| c == '\n' || !steers(c)), "{text}");
        assert!(steering.chars().all(steers) && text.contains("\\u009b") && text.contains("\\udb40\\udc41"), "{text}");
        assert!(text.contains("é 鍵 \u{1f511}") && text.lines().count() > 3, "{text}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), object);
    }
}
