//! What the tensors of a directory amount to: linears, norms and KV scales, and whether each has what it needs.

mod kv;
mod linear;
mod names;
mod norm;

pub use kv::{KvLayer, KvSide};
pub(super) use linear::siblings;
pub use linear::{Granularity, Linear};
pub(super) use names::QUANTISED_PARTS;
pub use norm::Norm;

use super::description::Description;
use super::files::{Files, Located};
use super::finding::{Findings, Kind};
use super::survey::Survey;
use crate::model::safetensors::Dtype;
use crate::status::Error;
use std::collections::BTreeSet;

/// Everything that a directory has.
#[derive(Debug, Default)]
pub(super) struct Layers {
    pub(super) linears: Vec<Linear>,
    pub(super) norms: Vec<Norm>,
    pub(super) kv: Vec<KvLayer>,
}

/// Puts the tensors together and reports what does not fit, from names, types and shapes alone.
pub(super) fn resolve(survey: &Survey, findings: &mut Findings) -> Layers {
    let nothing = Description::default();
    let mut inspector = Inspector {
        files: &survey.files,
        description: survey.description.as_ref().unwrap_or(&nothing),
        described: survey.description.is_some(),
        lost: &survey.lost,
        blind: survey.blind,
        findings,
    };
    if inspector.described {
        inspector.compare_names();
    }
    let names = inspector.bases();
    let (norms, linears) = names.into_iter().partition::<Vec<_>, _>(|base| inspector.is_norm(base));
    let linears = linears.iter().filter_map(|base| inspector.linear(base)).collect::<Vec<_>>();
    let mut layers = Layers { linears, norms: inspector.norms(&norms), kv: inspector.kv(&survey.config) };
    inspector.compare_group_sizes(&mut layers.linears);
    inspector.compare_siblings(&layers.linears);
    layers
}

/// What is needed to judge a layer.
struct Inspector<'a> {
    files: &'a Files,
    description: &'a Description,
    /// Whether there is a description.
    described: bool,
    lost: &'a BTreeSet<String>,
    blind: bool,
    findings: &'a mut Findings,
}

/// Whether a layer can do without a tensor.
#[derive(Clone, Copy, PartialEq)]
enum Need {
    Must,
    /// A warning where it is missing.
    Should,
    May,
}

impl<'a> Inspector<'a> {
    /// A tensor of a layer. `error` is set where the layer cannot be used without it.
    fn part(&mut self, layer: &str, name: &str, need: Need, error: &mut Option<Error>) -> Option<Located<'a>> {
        let found = self.files.get(name);
        // What is described, or was in a file that is lost, has been reported.
        let reported = self.description.tags.contains_key(name) || self.lost.contains(name) || self.blind;
        let text = || format!("{layer} has no tensor {name}");
        match need {
            _ if found.is_some() => {}
            Need::Must if reported => {
                error.get_or_insert_with(|| Error::new(Kind::MissingTensor.status(), text()));
            }
            Need::Must => {
                let finding = self.findings.error(Kind::IncompleteLayer, name, text());
                self.description.file.clone_into(&mut finding.file);
                error.get_or_insert_with(|| finding.error());
            }
            Need::Should if !reported => {
                let finding = self.findings.warn(Kind::IncompleteLayer, name, format!("{}; zeros are taken", text()));
                self.description.file.clone_into(&mut finding.file);
            }
            Need::Should | Need::May => {}
        }
        found
    }

    /// Checks the type of a tensor.
    fn expect_dtype(&mut self, located: Located<'_>, allowed: &[Dtype], error: &mut Option<Error>) {
        let tensor = located.tensor;
        if !allowed.contains(&tensor.dtype) {
            let names: Vec<_> = allowed.iter().map(|dtype| dtype.name()).collect();
            let text = format!("tensor {} is {}; {} expected", tensor.name, tensor.dtype.name(), names.join(" or "));
            self.fault(located, Kind::DtypeMismatch, text, error);
        }
    }

    fn wrong_shape(&mut self, located: Located<'_>, expected: &str, error: &mut Option<Error>) {
        let text = format!("tensor {} has shape {:?}; {expected} expected", located.tensor.name, located.tensor.shape);
        self.fault(located, Kind::ShapeMismatch, text, error);
    }

    fn fault(&mut self, located: Located<'_>, kind: Kind, text: String, error: &mut Option<Error>) {
        let finding = self.findings.error(kind, &located.tensor.name, text);
        located.file.name.clone_into(&mut finding.file);
        error.get_or_insert_with(|| finding.error());
    }
}

/// Types that scales, biases and weights that are not quantised may have.
const FLOATS: &[Dtype] = &[Dtype::F32, Dtype::F16, Dtype::Bf16];
