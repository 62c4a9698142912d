//! Compares the names of description and files, and derives those of layers.

use super::Inspector;
use crate::msmodelslim::finding::FindingKind;
use crate::msmodelslim::tags::Tag;
use crate::names::Name;
use crate::safetensors::FileDtype;
use mnnkv::status::Result;
use mnnkv::sys::memory;

/// Tensors of a quantised linear besides its weight.
pub(in crate::msmodelslim) const QUANTISED_PARTS: &[&str] =
    &["weight_scale", "weight_offset", "input_scale", "input_offset", "deq_scale", "quant_bias"];

/// Tensors that writers of the format do not describe.
const NEVER_DESCRIBED: &[&str] = &[".heads_rotation", ".kronecker_rotation_m", ".kronecker_rotation_n"];

impl<'a> Inspector<'a> {
    /// Compares description and files.
    pub(super) fn compare_names(&mut self) -> Result<()> {
        let file = self.description.file.as_str();
        for (name, _) in &self.description.tags {
            if self.files.get(name).is_none() && !self.lost.contains(name) && !self.blind {
                let text = format_args!("the description has {name}; no file has a tensor of that name");
                self.findings.error(FindingKind::MissingTensor, name, file, text)?;
            }
        }
        for located in self.files.all() {
            let name = &located.tensor.name;
            let exempt = NEVER_DESCRIBED.iter().any(|suffix| name.ends_with(suffix));
            if !exempt && !self.description.has(name) {
                let text = format_args!("the description has no entry for tensor {name}");
                self.findings.error(FindingKind::UndescribedTensor, name, &located.file.name, text)?;
            }
        }
        // This library ignores the tags of a layer's other tensors; readers that use them find a contradiction.
        for (name, tag) in &self.description.tags {
            let Some((base, suffix)) = name.rsplit_once('.') else { continue };
            let (Some(tag), true) = (tag, QUANTISED_PARTS.contains(&suffix)) else { continue };
            let weight = Name::of(base, "weight");
            if let Some(of_weight) = self.description.tag(weight)
                && of_weight != *tag
            {
                let text = format_args!("{name} has the type {}; {weight} has {}", tag.word(), of_weight.word());
                self.findings.warn(FindingKind::InconsistentTags, name, file, text)?;
            }
        }
        Ok(())
    }

    /// Every existing or described tensor, in no order.
    pub(super) fn names(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let described = self.description.tags.iter().map(|(name, _)| name.as_str());
        self.files.all().map(|located| located.tensor.name.as_str()).chain(described)
    }

    /// Names of layers with a weight, or with a tensor that only linears with a weight have, sorted.
    pub(super) fn bases(&self) -> Result<Vec<&'a str>> {
        let base = |name: &'a str| {
            let (base, suffix) = name.rsplit_once('.')?;
            (suffix == "weight" || QUANTISED_PARTS.contains(&suffix)).then_some(base)
        };
        let mut bases = memory::collect(self.names().filter_map(base))?;
        bases.sort_unstable();
        bases.dedup();
        Ok(bases)
    }

    /// Whether a layer scales its input element-wise: its weight is one row of floats, with any tag.
    pub(super) fn is_norm(&self, base: &str) -> bool {
        match self.files.get(Name::of(base, "weight")) {
            Some(weight) => weight.tensor.dtype.is_float() && weight.tensor.shape.len() == 1,
            None => false,
        }
    }

    /// An unquantised tensor must not contain codes: readers would take them for numbers.
    pub(super) fn is_codes(&self, dtype: FileDtype, tag: Tag) -> bool {
        tag == Tag::Float && matches!(dtype, FileDtype::I8 | FileDtype::U8)
    }
}
