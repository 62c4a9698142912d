//! Failures and findings, each with its place.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A failure: the place is a file, a field of a file, or an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    pub(crate) place: String,
    pub(crate) text: String,
}

/// The result of everything that may fail here.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A failure at `place`.
    pub fn new(place: impl fmt::Display, text: impl fmt::Display) -> Self {
        Error { place: place.to_string(), text: text.to_string() }
    }

    /// The same as a finding of the kind `reason`.
    pub fn finding(&self, reason: &str) -> Finding {
        Finding::new(reason, &self.place, &self.text)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.text)
    }
}

impl std::error::Error for Error {}

/// Something that a reader of results must know, and that stopped nothing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Finding {
    /// The kind of finding, such as `gap`; findings of one kind can be counted.
    pub reason: String,
    /// A file, a field of a file, or a layer.
    pub place: String,
    /// The finding as a sentence.
    pub text: String,
}

impl Finding {
    /// A finding of the kind `reason` at `place`.
    pub fn new(reason: &str, place: impl fmt::Display, text: impl fmt::Display) -> Self {
        Finding { reason: reason.into(), place: place.to_string(), text: text.to_string() }
    }

    /// The same as a failure.
    pub fn error(&self) -> Error {
        Error::new(&self.place, &self.text)
    }
}
