//! Fields of a meta file. Errors name the file and the field.

use super::files;
use crate::error::{Error, Result};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// The largest meta file in bytes.
const MAX_META: u64 = 1 << 20;

pub(super) struct Fields {
    path: PathBuf,
    fields: Map<String, Value>,
}

impl Fields {
    /// The fields of the meta file at `path`, which was read before.
    pub(super) fn new(path: &Path, fields: Map<String, Value>) -> Fields {
        Fields { path: path.to_owned(), fields }
    }

    pub(super) fn read(path: &Path) -> Result<Fields> {
        let bytes = files::read_small(path, MAX_META)?;
        match serde_json::from_slice(&bytes) {
            Ok(Value::Object(fields)) => Ok(Fields::new(path, fields)),
            Ok(_) => Err(Error::new(path.display(), "is not a JSON object")),
            Err(e) => Err(Error::new(path.display(), format!("is not JSON: {e}"))),
        }
    }

    pub(super) fn wrong(&self, field: &str, text: impl std::fmt::Display) -> Error {
        Error::new(format!("{}: {field}", self.path.display()), text)
    }

    /// A whole number of 32 bits, at least `min`; `None` where the field is absent.
    pub(super) fn optional(&self, field: &str, min: u32) -> Result<Option<u32>> {
        let Some(value) = self.fields.get(field) else { return Ok(None) };
        let number = value.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|n| *n >= min);
        let text = || format!("is {value}; a whole number from {min} to {} expected", u32::MAX);
        number.map(Some).ok_or_else(|| self.wrong(field, text()))
    }

    pub(super) fn number(&self, field: &str, min: u32) -> Result<u32> {
        self.optional(field, min)?.ok_or_else(|| self.wrong(field, "is missing"))
    }

    /// A number above 0; `None` where the field is absent.
    pub(super) fn positive(&self, field: &str) -> Result<Option<f32>> {
        let Some(value) = self.fields.get(field) else { return Ok(None) };
        let number = value.as_f64().map(|number| number as f32).filter(|n| n.is_finite() && *n > 0.0);
        number.map(Some).ok_or_else(|| self.wrong(field, format!("is {value}; a number above 0 expected")))
    }

    pub(super) fn text(&self, field: &str) -> Result<Option<&str>> {
        match self.fields.get(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(field, format!("is {other}; a string expected"))),
        }
    }

    /// The path of the file that the field names.
    pub(super) fn file(&self, field: &str) -> Result<Option<PathBuf>> {
        let name = self.text(field)?;
        name.map(|name| files::beside(&self.path, field, name)).transpose()
    }
}
