//! Groups tensors into linears, norms and KV scales, and checks each for completeness.

mod kv;
mod linear;
mod names;
mod norm;

pub use kv::{KvLayer, KvSide};
pub use linear::{Granularity, QuantizedLinear};
pub(super) use linear::{Sibling, siblings};
pub(super) use names::QUANTISED_PARTS;
pub use norm::Norm;

use super::description::Description;
use super::files::{Files, Located};
use super::finding::{FindingKind, Findings};
use super::survey::Survey;
use crate::names::{Joined, Name, NameSet};
use crate::safetensors::FileDtype;
use mnnkv::status::{Error, Result};
use mnnkv::sys::memory;
use std::fmt;

/// All layers of a directory.
#[derive(Debug, Default)]
pub(super) struct Layers {
    pub(super) linears: Vec<QuantizedLinear>,
    pub(super) norms: Vec<Norm>,
    pub(super) kv: Vec<KvLayer>,
}

/// Groups the tensors and reports contradictions of names, types and shapes.
pub(super) fn resolve(survey: &Survey, findings: &mut Findings) -> Result<Layers> {
    let nothing = Description::default();
    let mut inspector = Inspector {
        files: &survey.files,
        description: survey.description.as_ref().unwrap_or(&nothing),
        described: survey.description.is_some(),
        lost: &survey.lost,
        blind: survey.blind,
        findings,
        error: None,
    };
    if inspector.described {
        inspector.compare_names()?;
    }
    let (mut linears, mut norms) = (Vec::new(), Vec::new());
    for base in inspector.bases()? {
        if inspector.is_norm(base) {
            memory::push(&mut norms, base)?;
        } else if let Some(linear) = inspector.linear(base)? {
            memory::push(&mut linears, linear)?;
        }
    }
    let mut layers = Layers { linears, norms: inspector.norms(norms)?, kv: inspector.kv(&survey.config)? };
    inspector.compare_group_sizes(&mut layers.linears)?;
    inspector.compare_siblings(&layers.linears)?;
    Ok(layers)
}

/// The inputs of the layer checks.
struct Inspector<'a> {
    files: &'a Files,
    description: &'a Description,
    /// Whether there is a description.
    described: bool,
    lost: &'a NameSet,
    blind: bool,
    findings: &'a mut Findings,
    /// The first fault of the layer at hand, which is unusable then.
    error: Option<Error>,
}

/// Whether a layer requires a tensor.
#[derive(Clone, Copy, PartialEq)]
enum Need {
    Must,
    /// Its absence is a warning.
    Should,
    May,
}

impl<'a> Inspector<'a> {
    /// A tensor of a layer.
    fn part(&mut self, layer: &str, part: &str, need: Need) -> Result<Option<Located<'a>>> {
        let name = Name::of(layer, part);
        let found = self.files.get(name);
        // Described tensors, and those of lost files, are reported already.
        let reported = self.description.has(name) || self.lost.contains(name) || self.blind;
        let text = format_args!("{layer} has no tensor {name}");
        let file = self.description.file.as_str();
        match need {
            _ if found.is_some() => {}
            Need::Must if reported => keep(&mut self.error, || Error::kept(FindingKind::MissingTensor.status(), text))?,
            Need::Must => {
                let finding = self.findings.error(FindingKind::IncompleteLayer, name, file, text)?;
                keep(&mut self.error, || finding.kept_error())?;
            }
            Need::Should if !reported => {
                let text = format_args!("{text}; zeros are taken");
                self.findings.warn(FindingKind::IncompleteLayer, name, file, text)?;
            }
            Need::Should | Need::May => {}
        }
        Ok(found)
    }

    /// Checks the type of a tensor.
    fn expect_dtype(&mut self, located: Located<'_>, allowed: &[FileDtype]) -> Result<()> {
        let tensor = located.tensor;
        if allowed.contains(&tensor.dtype) {
            return Ok(());
        }
        let names = memory::collect(allowed.iter().map(|dtype| dtype.name()))?;
        let (name, dtype, allowed) = (&tensor.name, tensor.dtype.name(), Joined(&names, " or "));
        let text = format_args!("tensor {name} is {dtype}; {allowed} expected");
        self.fault(located, FindingKind::DtypeMismatch, text)
    }

    fn wrong_shape(&mut self, located: Located<'_>, expected: impl fmt::Display) -> Result<()> {
        let (name, shape) = (&located.tensor.name, &located.tensor.shape);
        let text = format_args!("tensor {name} has shape {shape:?}; {expected} expected");
        self.fault(located, FindingKind::ShapeMismatch, text)
    }

    fn fault(&mut self, located: Located<'_>, kind: FindingKind, text: fmt::Arguments<'_>) -> Result<()> {
        let finding = self.findings.error(kind, &located.tensor.name, &located.file.name, text)?;
        keep(&mut self.error, || finding.kept_error())
    }
}

/// Keeps the first error of a layer.
fn keep(error: &mut Option<Error>, make: impl FnOnce() -> Result<Error>) -> Result<()> {
    if error.is_none() {
        *error = Some(make()?);
    }
    Ok(())
}

/// Legal types of scales, biases and unquantised weights.
const FLOATS: &[FileDtype] = &[FileDtype::F32, FileDtype::F16, FileDtype::Bf16];
