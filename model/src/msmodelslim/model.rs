//! An open directory.

use super::check;
use super::description::Description;
use super::files::Files;
use super::finding::{CheckReport, FindingKind, Findings, Severity};
use super::folder::{DiskFolder, Folder};
use super::layers::{self, KvLayer, Layers, Norm, QuantizedLinear};
use super::survey::survey;
use crate::json::{ToJson, Writer};
use crate::names::Name;
use mnnkv::json::Quoted;
use mnnkv::status::{Error, Result, bail};
use std::path::Path;

/// A directory of quantised weights, open for reading. Any number of threads may read at once.
pub struct Model {
    pub(super) files: Files,
    layers: Layers,
    description: Description,
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
        Ok(Model { files: survey.files, layers, description: survey.description.unwrap_or_default() })
    }

    /// The description.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// Linears, by name. Those with [`QuantizedLinear::tag`] FLOAT include embeddings and other matrices.
    pub fn linears(&self) -> &[QuantizedLinear] {
        &self.layers.linears
    }

    /// The linear with this number.
    pub fn linear(&self, index: usize) -> Result<&QuantizedLinear> {
        let all = self.linears();
        match all.get(index) {
            Some(linear) => Ok(linear),
            None => bail!(NotFound, "linear is {index}; the directory has {}", all.len()),
        }
    }

    /// The number of the linear with this name.
    pub fn find_linear(&self, name: &str) -> Result<usize> {
        match Name::from(name).find(self.linears(), |linear| &linear.name) {
            Some(index) => Ok(index),
            None => bail!(NotFound, "the directory has no linear {}", Quoted(name)),
        }
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

    /// Files with weights.
    pub fn weight_files(&self) -> usize {
        self.files.files.len()
    }

    /// The contents of the directory as a JSON object: `model_quant_type`, `version`, `group_size`, `kv_cache_type`,
    /// `bytes`, and the lists `linears` (`name`, `tag`, `n`, `k`, `granularity`, `group_size`, `bias`, `bytes`),
    /// `norms` (`name`, `len`, `bias`, `smoothed`) and `kv` (`prefix`, `layer`, `key_channels`, `value_channels`).
    /// Unusable entries have an `error`.
    pub fn layers_json(&self) -> Result<String> {
        let description = &self.description;
        Writer::compact(|to| {
            to.object(|to| {
                to.field("model_quant_type", &description.model_quant_type)?;
                to.field("version", &description.version)?;
                to.field("group_size", description.group_size)?;
                to.field("kv_cache_type", &description.kv_cache_type)?;
                to.field("bytes", self.bytes())?;
                to.key("linears")?.list(self.linears(), |to, linear| linear.write(to))?;
                to.key("norms")?.list(self.norms(), |to, norm| norm.write(to))?;
                to.key("kv")?.list(self.kv_layers(), |to, layer| layer.write(to))
            })
        })
    }
}

fn write_error(to: &mut Writer, error: &Option<Error>) -> Result<()> {
    to.field("error", error.as_ref().map(Error::message))
}

impl ToJson for QuantizedLinear {
    fn write(&self, to: &mut Writer) -> Result<()> {
        to.object(|to| {
            to.field("name", &self.name)?;
            to.field("tag", self.tag.word())?;
            to.field("n", self.n)?;
            to.field("k", self.k)?;
            to.field("granularity", self.granularity.word())?;
            to.field("group_size", self.granularity.group_size())?;
            to.field("bias", self.bias)?;
            to.field("bytes", self.bytes)?;
            write_error(to, &self.error)
        })
    }
}

impl ToJson for Norm {
    fn write(&self, to: &mut Writer) -> Result<()> {
        to.object(|to| {
            to.field("name", &self.name)?;
            to.field("len", self.len)?;
            to.field("bias", self.bias)?;
            to.field("smoothed", self.smoothed)?;
            write_error(to, &self.error)
        })
    }
}

impl ToJson for KvLayer {
    fn write(&self, to: &mut Writer) -> Result<()> {
        to.object(|to| {
            to.field("prefix", &self.prefix)?;
            to.field("layer", self.layer)?;
            to.field("key_channels", self.key.channels)?;
            to.field("value_channels", self.value.channels)?;
            write_error(to, &self.error)
        })
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
