//! Linears: a weight of n rows by k columns and its parameters.

use super::names::QUANTISED_PARTS;
use super::{FLOATS, Inspector, Need, keep};
use crate::msmodelslim::files::Located;
use crate::msmodelslim::finding::FindingKind;
use crate::msmodelslim::tags::Tag;
use crate::names::Name;
use crate::safetensors::FileDtype;
use mnnkv::status::{Error, Result, Status};
use mnnkv::sys::memory;
use std::fmt;

/// The extent of one scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Granularity {
    /// Not quantised.
    None,
    /// The whole weight.
    Tensor,
    /// Each row.
    Channel,
    /// Each run of this many columns of a row.
    Group(usize),
}

/// A weight of two dimensions.
#[derive(Clone, Debug)]
pub struct QuantizedLinear {
    /// Name of its weight without `.weight`.
    pub name: String,
    /// Its tag.
    pub tag: Tag,
    /// Rows: outputs.
    pub n: usize,
    /// Columns: inputs.
    pub k: usize,
    /// Extent of one scale.
    pub granularity: Granularity,
    /// Whether the weight uses weight_scale, not deq_scale over input_scale.
    pub(in crate::msmodelslim) by_weight_scale: bool,
    /// The reason if it is unusable.
    pub(in crate::msmodelslim) error: Option<Error>,
}

impl QuantizedLinear {
    /// Fails if it is unusable.
    pub(in crate::msmodelslim) fn usable(&self) -> Result<()> {
        self.error.clone().map_or(Ok(()), Err)
    }

    /// The name of one of its tensors.
    pub(in crate::msmodelslim) fn part<'a>(&'a self, part: &'a str) -> Name<'a> {
        Name::of(&self.name, part)
    }
}

impl Inspector<'_> {
    /// The linear of this name; `None` if it is something else, or has no tag.
    pub(super) fn linear(&mut self, base: &str) -> Result<Option<QuantizedLinear>> {
        let weight_name = Name::of(base, "weight");
        let weight = self.files.get(weight_name);
        let tag = match self.description.tag(weight_name) {
            Some(tag) => tag,
            // Without a description, or without a known word: reported already.
            None if weight.is_some() || self.description.has(weight_name) => return Ok(None),
            None => {
                let mut tags = QUANTISED_PARTS.iter().filter_map(|part| self.description.tag(Name::of(base, part)));
                match tags.find(|tag| tag.is_int8()) {
                    Some(tag) => tag,
                    None => return Ok(None),
                }
            }
        };
        let mut linear = QuantizedLinear {
            name: memory::text(base)?,
            tag,
            n: 0,
            k: 0,
            granularity: Granularity::None,
            by_weight_scale: tag.needs_weight_scale() || self.files.get(Name::of(base, "weight_scale")).is_some(),
            error: None,
        };
        self.error = None;
        let weight = self.part(base, "weight", Need::Must)?;
        if let Some(weight) = weight {
            match matrix(&weight.tensor.shape) {
                Some(size) => (linear.n, linear.k) = size,
                None if tag == Tag::Float => return self.other_float(weight, tag).map(|()| None),
                None if tag.is_int8() => self.wrong_shape(weight, "[n, k], both at least 1,")?,
                None => {}
            }
        }
        match tag {
            Tag::Float => {
                if let Some(weight) = weight.filter(|weight| !weight.tensor.dtype.is_float()) {
                    if self.is_codes(weight.tensor.dtype, tag) {
                        self.expect_dtype(weight, FLOATS)?;
                    } else {
                        return Ok(None);
                    }
                }
            }
            _ if tag.is_int8() => self.quantised(&mut linear, weight)?,
            _ => {
                let text = format_args!("{base} has the type {}, which this library does not read", tag.word());
                self.findings.warn(FindingKind::UnsupportedQuantType, weight_name, &self.description.file, text)?;
                self.error = Some(Error::kept(Status::Unsupported, text)?);
            }
        }
        linear.error = self.error.take();
        Ok(Some(linear))
    }

    /// An unquantised weight of another rank: no linear, but it may contain codes.
    fn other_float(&mut self, weight: Located<'_>, tag: Tag) -> Result<()> {
        match self.is_codes(weight.tensor.dtype, tag) {
            true => self.expect_dtype(weight, FLOATS),
            false => Ok(()),
        }
    }

    fn quantised(&mut self, linear: &mut QuantizedLinear, weight: Option<Located<'_>>) -> Result<()> {
        if let Some(weight) = weight {
            self.expect_dtype(weight, &[FileDtype::I8])?;
        }
        // Only a weight of two dimensions has shapes to compare.
        let size = (linear.n > 0).then_some((linear.n as u64, linear.k as u64));
        if linear.tag.needs_weight_scale() || linear.by_weight_scale {
            let (must, should) =
                if linear.tag.needs_weight_scale() { (Need::Must, Need::Should) } else { (Need::May, Need::May) };
            let scale = self.part(&linear.name, "weight_scale", must)?;
            let offset = self.part(&linear.name, "weight_offset", should)?;
            for part in scale.into_iter().chain(offset) {
                self.expect_dtype(part, FLOATS)?;
            }
            if let (Some(scale), Some(size)) = (scale, size) {
                let found = granularity(&scale.tensor.shape, size);
                match found {
                    Some(granularity) => linear.granularity = granularity,
                    None => self.wrong_shape(scale, Allowed(size))?,
                }
                if let Some(offset) = offset {
                    let of_offset = granularity(&offset.tensor.shape, size);
                    if of_offset.is_none() {
                        self.wrong_shape(offset, Allowed(size))?;
                    } else if found.is_some() && of_offset != found {
                        let expected = format_args!("weight_scale's {:?}", scale.tensor.shape);
                        self.wrong_shape(offset, expected)?;
                    }
                }
            }
        }
        if linear.tag.has_static_input() {
            self.static_input(linear, size)?;
        }
        if let Some(bias) = self.part(&linear.name, "bias", Need::May)? {
            self.expect_dtype(bias, FLOATS)?;
            self.expect_rows(bias, size)?;
        }
        Ok(())
    }

    /// Checks for one element per row.
    fn expect_rows(&mut self, located: Located<'_>, size: Option<(u64, u64)>) -> Result<()> {
        match size {
            Some((n, _)) if located.tensor.elements() != n => self.wrong_shape(located, format_args!("[{n}]")),
            _ => Ok(()),
        }
    }

    /// The parameters of inputs, and of the conversion of sums.
    fn static_input(&mut self, linear: &mut QuantizedLinear, size: Option<(u64, u64)>) -> Result<()> {
        for part in ["input_scale", "input_offset"] {
            if let Some(part) = self.part(&linear.name, part, Need::Must)? {
                self.expect_dtype(part, FLOATS)?;
                if part.tensor.elements() != 1 {
                    self.wrong_shape(part, "[1]")?;
                }
            }
        }
        if let Some(deq) = self.part(&linear.name, "deq_scale", Need::Must)? {
            self.expect_dtype(deq, &[FileDtype::I64, FileDtype::F32])?;
            if let Some(size) = size {
                match granularity(&deq.tensor.shape, size) {
                    Some(Granularity::Group(_)) | None => {
                        self.wrong_shape(deq, format_args!("[{}] or [1]", linear.n))?;
                    }
                    Some(granularity) if !linear.by_weight_scale => linear.granularity = granularity,
                    Some(_) => {}
                }
            }
        }
        if let Some(bias) = self.part(&linear.name, "quant_bias", Need::Must)? {
            self.expect_dtype(bias, &[FileDtype::I32])?;
            self.expect_rows(bias, size)?;
        }
        Ok(())
    }

    /// Compares group_size of the description with the shapes of scales. If other linears have the described size, a
    /// different one is the fault; otherwise the description is.
    pub(super) fn compare_group_sizes(&mut self, linears: &mut [QuantizedLinear]) -> Result<()> {
        let Some(described) = self.description.group_size else { return Ok(()) };
        let (kind, key, file) = (FindingKind::GroupSizeMismatch, "group_size", self.description.file.as_str());
        let group = |linear: &QuantizedLinear| match linear.granularity {
            Granularity::Group(size) => Some(size as u64),
            _ => None,
        };
        let any_fits = linears.iter().any(|linear| group(linear) == Some(described));
        // Scales of an unsupported or broken linear may have the groups.
        let unknown = linears.iter().any(|linear| linear.error.is_some());
        let could = |linear: &&QuantizedLinear| linear.tag.needs_weight_scale() && linear.k as u64 != described;
        if let (true, Some(first)) = (described > 0 && !unknown, linears.iter().find(could))
            && linears.iter().all(|linear| group(linear).is_none())
        {
            let text = format_args!("group_size is {described}; no linear has groups, {} has none either", first.name);
            return self.findings.warn(kind, key, file, text);
        }
        let mut reported = false;
        for linear in linears {
            let Some(size) = group(linear).filter(|size| *size != described) else { continue };
            let scale = Name::of(&linear.name, "weight_scale");
            let text = format_args!("{scale} has groups of {size} columns; group_size is {described}");
            let finding = match any_fits {
                true => self.findings.error(FindingKind::ShapeMismatch, scale, "", text)?,
                false if reported => continue,
                false => self.findings.error(kind, key, "", text)?,
            };
            reported = true;
            keep(&mut linear.error, || finding.kept_error())?;
        }
        Ok(())
    }

    /// Linears that runtimes merge must have one tag.
    pub(super) fn compare_siblings(&mut self, linears: &[QuantizedLinear]) -> Result<()> {
        for siblings in siblings(linears)?.chunk_by(Sibling::of_one) {
            let first = siblings[0].linear;
            for other in siblings.iter().map(|sibling| sibling.linear).filter(|other| other.tag != first.tag) {
                let text = format_args!(
                    "{} has the type {}, {} has {}; runtimes that load them as one linear refuse that",
                    first.name,
                    first.tag.word(),
                    other.name,
                    other.tag.word()
                );
                let (name, file) = (other.part("weight"), &self.description.file);
                self.findings.warn(FindingKind::InconsistentTags, name, file, text)?;
            }
        }
        Ok(())
    }
}

/// A linear that runtimes merge with others.
pub(in crate::msmodelslim) struct Sibling<'a> {
    /// Its module, and its role there.
    one: (&'a str, u8),
    pub(in crate::msmodelslim) linear: &'a QuantizedLinear,
}

impl Sibling<'_> {
    pub(in crate::msmodelslim) fn of_one(&self, other: &Self) -> bool {
        self.one == other.one
    }
}

/// Linears that runtimes merge, siblings side by side.
pub(in crate::msmodelslim) fn siblings(linears: &[QuantizedLinear]) -> Result<Vec<Sibling<'_>>> {
    fn sibling(linear: &QuantizedLinear) -> Option<Sibling<'_>> {
        let (module, name) = linear.name.rsplit_once('.')?;
        let kind = match name {
            "q_proj" | "k_proj" | "v_proj" => 0,
            "gate_proj" | "up_proj" => 1,
            _ => return None,
        };
        Some(Sibling { one: (module, kind), linear })
    }
    let mut siblings = memory::collect(linears.iter().filter_map(sibling))?;
    siblings.sort_unstable_by(|a, b| (a.one, &a.linear.name).cmp(&(b.one, &b.linear.name)));
    Ok(siblings)
}

/// Rows and columns of a shape of rank 2.
fn matrix(shape: &[u64]) -> Option<(usize, usize)> {
    match *shape {
        [n, k] if n > 0 && k > 0 => usize::try_from(n).ok().zip(usize::try_from(k).ok()),
        _ => None,
    }
}

/// The granularity of scales of this shape, for a weight of `n` rows by `k` columns.
fn granularity(shape: &[u64], (n, k): (u64, u64)) -> Option<Granularity> {
    match *shape {
        [rows] | [rows, 1] if rows == n => Some(Granularity::Channel),
        [] | [1] | [1, 1] => Some(Granularity::Tensor),
        [rows, groups] if rows == n && groups > 0 && k % groups == 0 => Some(Granularity::Group((k / groups) as usize)),
        _ => None,
    }
}

/// The legal shapes of scales of a weight of this size.
struct Allowed((u64, u64));

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (n, k) = self.0;
        write!(f, "[{n}, 1], [{n}], [1], or [{n}, groups] with groups a divisor of {k}")
    }
}
