//! Fields of a meta file. Errors name the file and the field.

use super::files;
use crate::error::{Error, Result};
use mnnkv::dtype::Dtype;
use mnnkv_model::sizing::CacheElement;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

pub(super) struct Fields {
    path: PathBuf,
    fields: Map<String, Value>,
}

impl Fields {
    /// The fields of the meta file at `path`.
    pub(super) fn new(path: &Path, fields: Map<String, Value>) -> Fields {
        Fields { path: path.to_owned(), fields }
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

    /// The element type that the field names; `None` where it is absent.
    pub(super) fn dtype(&self, field: &str) -> Result<Option<Dtype>> {
        let name = self.text(field)?;
        name.map(|name| {
            float(name).ok_or_else(|| self.wrong(field, format!("is {name:?}; fp16, bf16 or fp32 expected")))
        })
        .transpose()
    }

    /// `dtype`, which must have `bytes` bytes; F16 or F32 where it is absent.
    pub(super) fn dtype_of(&self, bytes: usize) -> Result<Dtype> {
        let (usual, names) = if bytes == 4 { (Dtype::F32, "fp32") } else { (Dtype::F16, "fp16 or bf16") };
        match self.text("dtype")? {
            None => Ok(usual),
            Some(name) => float(name).filter(|dtype| dtype.bytes() == bytes).ok_or_else(|| {
                self.wrong("dtype", format!("is {name:?} with {bytes} bytes per element; {names} expected"))
            }),
        }
    }

    /// The path of the file that the field names.
    pub(super) fn file(&self, field: &str) -> Result<Option<PathBuf>> {
        let name = self.text(field)?;
        name.map(|name| files::beside(&self.path, field, name)).transpose()
    }
}

/// The float type with this name, as in configs: `fp16`, `float16`, `torch.float16`.
fn float(name: &str) -> Option<Dtype> {
    match CacheElement::from_name(name)? {
        CacheElement::F16 => Some(Dtype::F16),
        CacheElement::Bf16 => Some(Dtype::Bf16),
        CacheElement::F32 => Some(Dtype::F32),
        _ => None,
    }
}
