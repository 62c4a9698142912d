//! Which names belong together, and whether description and files have the same ones.

use super::Inspector;
use crate::model::msmodelslim::finding::Kind;
use crate::model::msmodelslim::tags::Tag;
use crate::model::safetensors::Dtype;
use std::collections::BTreeSet;

/// What a quantised linear has besides its weight.
pub(in crate::model::msmodelslim) const QUANTISED_PARTS: &[&str] =
    &["weight_scale", "weight_offset", "input_scale", "input_offset", "deq_scale", "quant_bias"];

/// Tensors that writers of the format do not describe.
const NEVER_DESCRIBED: &[&str] = &[".heads_rotation", ".kronecker_rotation_m", ".kronecker_rotation_n"];

impl Inspector<'_> {
    /// Description against files.
    pub(super) fn compare_names(&mut self) {
        for name in self.description.tags.keys() {
            if self.files.get(name).is_none() && !self.lost.contains(name) && !self.blind {
                let text = format!("the description has {name}; no file has a tensor of that name");
                let finding = self.findings.error(Kind::MissingTensor, name, text);
                self.description.file.clone_into(&mut finding.file);
            }
        }
        for (name, (file, _)) in &self.files.places {
            let exempt = NEVER_DESCRIBED.iter().any(|suffix| name.ends_with(suffix));
            if !exempt && !self.description.tags.contains_key(name) {
                let text = format!("the description has no entry for tensor {name}");
                let finding = self.findings.error(Kind::UndescribedTensor, name, text);
                self.files.files[*file].name.clone_into(&mut finding.file);
            }
        }
        // A layer's other tensors are not read by their tags; who does read them finds two answers.
        for (name, tag) in &self.description.tags {
            let Some((base, suffix)) = name.rsplit_once('.') else { continue };
            let (Some(tag), true) = (tag, QUANTISED_PARTS.contains(&suffix)) else { continue };
            let weight = format!("{base}.weight");
            if let Some(of_weight) = self.description.tag(&weight)
                && of_weight != *tag
            {
                let text = format!("{name} has the type {}; {weight} has {}", tag.word(), of_weight.word());
                let finding = self.findings.warn(Kind::InconsistentTags, name, text);
                self.description.file.clone_into(&mut finding.file);
            }
        }
    }

    /// Names of layers that have a weight, or something that only linears with a weight have.
    pub(super) fn bases(&self) -> BTreeSet<String> {
        let names = self.files.places.keys().chain(self.description.tags.keys());
        let base = |name: &String| {
            let (base, suffix) = name.rsplit_once('.')?;
            (suffix == "weight" || QUANTISED_PARTS.contains(&suffix)).then(|| base.to_owned())
        };
        names.filter_map(base).collect()
    }

    /// Whether a layer scales its input element by element: its weight is one row of floats, whatever its tag says.
    pub(super) fn is_norm(&self, base: &str) -> bool {
        match self.files.get(&format!("{base}.weight")) {
            Some(weight) => weight.tensor.dtype.is_float() && weight.tensor.shape.len() == 1,
            None => false,
        }
    }

    /// A tensor that is not quantised must not hold codes: readers would take them for numbers.
    pub(super) fn is_codes(&self, dtype: Dtype, tag: Tag) -> bool {
        tag == Tag::Float && matches!(dtype, Dtype::I8 | Dtype::U8)
    }
}
