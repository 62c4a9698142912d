//! safetensors: a run in a file, its tensors `[head][token][dim]` named by layer and kind.

use super::files::{self, Tree, Words};
use super::names;
use super::tensors::{Tensor, three};
use crate::error::{Error, Finding, Result};
use mnnkv_model::safetensors::{self, Tensor as Stored};
use std::path::Path;

/// The tensors of a file. One of another type or shape is a finding.
pub(super) fn read(tree: &Tree, path: &Path, findings: &mut Vec<Finding>) -> Result<Vec<Tensor>> {
    let stored = safetensors::read(&files::open(path)?).map_err(|e| files::failure(path, &e))?;
    let run = run(tree, path);
    let named = stored.iter().filter_map(|stored| Some((stored, names::tensor(&stored.name)?)));
    let named: Vec<_> = named.collect();
    if named.is_empty() {
        let text = format!("none of {} tensors has a name like layers.0.key or layers.0.self_attn.v", stored.len());
        return Err(Error::new(path.display(), text));
    }
    let mut tensors = Vec::new();
    for (stored, (layer, kind)) in named {
        let place = format!("{}: tensor {:?}", path.display(), stored.name);
        match words(path, stored) {
            Ok((shape, words)) => tensors.push(Tensor { run: run.clone(), layer, kind, shape, words, place }),
            Err(text) => findings.push(Finding::new("tensor", place, text)),
        }
    }
    Ok(tensors)
}

fn words(path: &Path, stored: &Stored) -> std::result::Result<([usize; 3], Words), String> {
    let Some(dtype) = stored.dtype.native().filter(|dtype| dtype.is_float()) else {
        return Err(format!("has the type {}; F16, BF16 or F32 expected", stored.dtype.name()));
    };
    let shape = three(&stored.shape)?;
    let range = (stored.begin, stored.begin + stored.bytes);
    Ok((shape, Words::at(path, range, &shape, dtype, false).map_err(|e| e.to_string())?))
}

/// The stem of the file, without the number of a part, below the run of its folder.
fn run(tree: &Tree, path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let parts: Vec<&str> = stem.rsplitn(4, '-').collect();
    let stem = match parts[..] {
        [of, "of", part, stem] if [of, part].iter().all(|n| n.len() == 5 && n.parse::<u32>().is_ok()) => stem,
        _ => &stem,
    };
    if path.parent() == Some(tree.root()) { stem.into() } else { format!("{}/{stem}", tree.run(path)) }
}
