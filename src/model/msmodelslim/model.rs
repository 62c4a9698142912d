//! An open directory.

use super::check;
use super::description::Description;
use super::files::Files;
use super::finding::{Findings, Kind, Report, Severity};
use super::folder::{DiskFolder, Folder};
use super::layers::{self, KvLayer, Layers, Linear, Norm};
use super::survey::survey;
use crate::status::{Result, bail};
use serde_json::json;
use std::path::Path;

/// A directory of quantised weights, open for reading. Any number of threads may read at once.
pub struct Model {
    pub(super) files: Files,
    layers: Layers,
    description: Description,
}

impl Model {
    /// Opens the directory at a path. Of a path that is none: NOT_FOUND or INVALID_ARGUMENT.
    pub fn open(path: &Path) -> Result<Model> {
        Model::open_folder(&DiskFolder::new(path)?)
    }

    /// Opens a folder: reads its documents and the headers of its files, and keeps the files open.
    ///
    /// A file that is broken or missing is an error that names it. A layer that is broken is one when it is used;
    /// [`check_folder`] names them all.
    pub fn open_folder(folder: &dyn Folder) -> Result<Model> {
        let survey = survey(folder);
        let fatal = |f: &&super::Finding| f.severity == Severity::Error && f.kind != Kind::UnknownQuantType;
        if let Some(finding) = survey.findings.0.iter().find(fatal) {
            return Err(finding.error());
        }
        let layers = layers::resolve(&survey, &mut Findings::default());
        Ok(Model { files: survey.files, layers, description: survey.description.unwrap_or_default() })
    }

    /// What the description says.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// Linears, by name. With [`Linear::tag`] FLOAT they are embeddings and other matrices, too.
    pub fn linears(&self) -> &[Linear] {
        &self.layers.linears
    }

    /// The linear of this number.
    pub fn linear(&self, index: usize) -> Result<&Linear> {
        let all = self.linears();
        match all.get(index) {
            Some(linear) => Ok(linear),
            None => bail!(NotFound, "linear {index} asked for; the directory has {}", all.len()),
        }
    }

    /// The number of the linear of this name.
    pub fn find_linear(&self, name: &str) -> Result<usize> {
        match self.linears().binary_search_by(|linear| linear.name.as_str().cmp(name)) {
            Ok(index) => Ok(index),
            Err(_) => bail!(NotFound, "the directory has no linear {name}"),
        }
    }

    /// Norms, by name.
    pub fn norms(&self) -> &[Norm] {
        &self.layers.norms
    }

    /// Layers whose KV cache has scales, by number.
    pub fn kv_layers(&self) -> &[KvLayer] {
        &self.layers.kv
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        let tensors = self.files.files.iter().flat_map(|file| &file.tensors);
        tensors.fold(0, |sum, tensor| sum.saturating_add(tensor.bytes))
    }

    /// Files with weights.
    pub fn weight_files(&self) -> usize {
        self.files.files.len()
    }

    /// Everything that is in the directory as JSON: an object with `model_quant_type`, `version`, `group_size`,
    /// `kv_cache_type`, `bytes`, and the lists `linears` (`name`, `tag`, `n`, `k`, `granularity`, `group_size`, `bias`,
    /// `bytes`), `norms` (`name`, `len`, `bias`, `smoothed`) and `kv` (`prefix`, `layer`, `key_channels`,
    /// `value_channels`). What cannot be used has an `error`.
    pub fn layers_json(&self) -> String {
        let linears = self.linears().iter().map(|l| {
            json!({
                "name": l.name, "tag": l.tag.word(), "n": l.n, "k": l.k, "granularity": l.granularity.word(),
                "group_size": l.granularity.group_size(), "bias": l.bias, "bytes": l.bytes,
                "error": l.error.as_ref().map(|e| e.message()),
            })
        });
        let norms = self.norms().iter().map(|n| {
            json!({"name": n.name, "len": n.len, "bias": n.bias, "smoothed": n.smoothed,
                   "error": n.error.as_ref().map(|e| e.message())})
        });
        let kv = self.kv_layers().iter().map(|l| {
            json!({"prefix": l.prefix, "layer": l.layer, "key_channels": l.key.channels,
                   "value_channels": l.value.channels, "error": l.error.as_ref().map(|e| e.message())})
        });
        json!({
            "model_quant_type": self.description.model_quant_type,
            "version": self.description.version,
            "group_size": self.description.group_size,
            "kv_cache_type": self.description.kv_cache_type,
            "bytes": self.bytes(),
            "linears": linears.collect::<Vec<_>>(),
            "norms": norms.collect::<Vec<_>>(),
            "kv": kv.collect::<Vec<_>>(),
        })
        .to_string()
    }
}

/// Checks the directory at a path, as [`check_folder`]; that there is none is a finding, too.
pub fn check_path(path: &Path) -> Report {
    match DiskFolder::new(path) {
        Ok(folder) => check_folder(&folder),
        Err(e) => {
            let mut findings = Findings::default();
            findings.error(Kind::Unreadable, "", e.message().to_owned()).status = e.status();
            Report { findings: findings.0 }
        }
    }
}

/// Checks everything that can be checked without the model that was quantised: files, names, types, shapes, and every
/// number of scales, offsets and codes. Reads all of it once, in pieces, and goes on behind whatever is broken.
pub fn check_folder(folder: &dyn Folder) -> Report {
    let mut survey = survey(folder);
    let mut findings = std::mem::take(&mut survey.findings);
    let layers = layers::resolve(&survey, &mut findings);
    check::values(&survey.files, &layers, &mut findings);
    Report { findings: findings.0 }
}
