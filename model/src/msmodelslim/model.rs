//! An open directory.

use super::check;
use super::files::Files;
use super::finding::{CheckReport, FindingKind, Findings, Severity};
use super::folder::{DiskFolder, Folder};
use super::layers::{self, KvLayer, Layers, Norm, QuantizedLinear};
use super::survey::survey;
use mnnkv::json::Quoted;
use mnnkv::status::{Result, bail};
use std::path::Path;

/// A directory of quantised weights, open for reading. Any number of threads may read at once.
pub struct Model {
    pub(super) files: Files,
    layers: Layers,
}

impl Model {
    /// Opens the directory at a path. NOT_FOUND, INVALID_ARGUMENT: if it is not one.
    pub fn open(path: &Path) -> Result<Model> {
        Model::open_folder(&DiskFolder::new(path)?)
    }

    /// Opens a folder: reads its documents and the headers of its files, and keeps the files open.
    ///
    /// A broken or missing file is an error that names it. A broken layer is an error when it is used; [`check_folder`]
    /// reports all of them.
    pub fn open_folder(folder: &dyn Folder) -> Result<Model> {
        let survey = survey(folder)?;
        let fatal = |f: &&super::Finding| f.severity == Severity::Error && f.kind != FindingKind::UnknownQuantType;
        if let Some(finding) = survey.findings.0.iter().find(fatal) {
            return Err(finding.error());
        }
        let layers = layers::resolve(&survey, &mut Findings::default())?;
        Ok(Model { files: survey.files, layers })
    }

    /// Linears, by name. Those with [`QuantizedLinear::tag`] FLOAT include embeddings and other matrices.
    pub fn linears(&self) -> &[QuantizedLinear] {
        &self.layers.linears
    }

    /// The linear with this name.
    pub fn linear(&self, name: &str) -> Result<&QuantizedLinear> {
        named(self.linears(), "linear", name, |linear| &linear.name)
    }

    /// The norm with this name.
    pub fn norm(&self, name: &str) -> Result<&Norm> {
        named(self.norms(), "norm", name, |norm| &norm.name)
    }

    /// The layer with KV scales under this prefix.
    pub fn kv_layer(&self, prefix: &str) -> Result<&KvLayer> {
        named(self.kv_layers(), "layer with KV scales", prefix, |layer| &layer.prefix)
    }

    /// Norms, by name.
    pub fn norms(&self) -> &[Norm] {
        &self.layers.norms
    }

    /// Layers with KV scales, by number.
    pub fn kv_layers(&self) -> &[KvLayer] {
        &self.layers.kv
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        let tensors = self.files.files.iter().flat_map(|file| &file.tensors);
        tensors.fold(0, |sum, tensor| sum.saturating_add(tensor.bytes))
    }
}

fn named<'a, T>(items: &'a [T], what: &str, name: &str, of: impl Fn(&T) -> &str) -> Result<&'a T> {
    match items.iter().find(|item| of(item) == name) {
        Some(item) => Ok(item),
        None => bail!(NotFound, "the directory has no {what} {}", Quoted(name)),
    }
}

/// Checks the directory at a path, as [`check_folder`]. A missing directory is a finding, too.
pub fn check_path(path: &Path) -> Result<CheckReport> {
    match DiskFolder::new(path) {
        Ok(folder) => check_folder(&folder),
        Err(e) => {
            let mut findings = Findings::default();
            findings.unreadable("", "", e)?;
            Ok(CheckReport { findings: findings.0 })
        }
    }
}

/// Checks all that can be checked without the original model: files, names, types, shapes, and every number of scales,
/// offsets and codes. Reads everything once, in pieces, and continues after broken parts. The only error is
/// OUT_OF_MEMORY.
pub fn check_folder(folder: &dyn Folder) -> Result<CheckReport> {
    let mut survey = survey(folder)?;
    let mut findings = std::mem::take(&mut survey.findings);
    let layers = layers::resolve(&survey, &mut findings)?;
    check::values(&survey.files, &layers, &mut findings)?;
    Ok(CheckReport { findings: findings.0 })
}
