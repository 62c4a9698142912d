//! Flat files: words alone, `[head][token][dim]`, described by their names.

use super::files::{Tree, Words};
use super::names;
use super::tensors::Tensor;
use crate::error::{Error, Result};
use std::path::Path;

/// Whether the name says that the file is meant to be of this format.
pub(super) fn is_meant(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    names::EXTENSIONS.iter().any(|(name, _)| Some(*name) == extension)
}

/// The tensor of a file.
pub(super) fn read(tree: &Tree, path: &Path) -> Result<Tensor> {
    let Some(file) = path.file_name().and_then(|name| name.to_str()).and_then(names::flat) else {
        let text = "the name is not like l0_k_h2_t1088_d64.f16";
        return Err(Error::new(path.display(), text));
    };
    let words = Words::whole(path, &file.shape, file.dtype)?;
    let place = path.display().to_string();
    Ok(Tensor { run: tree.run(path), layer: file.layer, kind: file.kind, shape: file.shape, words, place })
}
