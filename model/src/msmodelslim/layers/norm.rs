//! Norms: a row of weights, optionally with a second pair of tensors for smoothed linears.

use super::{FLOATS, Inspector, Need};
use mnnkv::status::{Error, Result};
use mnnkv::sys::memory;

/// A norm.
#[derive(Clone, Debug)]
pub struct Norm {
    /// Name of its weight without `.weight`.
    pub name: String,
    /// Elements.
    pub len: usize,
    /// Whether `<name>.bias` exists; smoothing adds one to norms without their own.
    pub bias: bool,
    /// Whether `<name>.module.weight` exists: the pair for quantised linears, beside the plain one.
    pub smoothed: bool,
    /// Whether `<name>.weight` exists.
    pub(in crate::msmodelslim) plain: bool,
    pub(in crate::msmodelslim) error: Option<Error>,
}

impl Inspector<'_> {
    /// The norms with weights `<base>.weight`, where base may end in `.module`. Sorted by name.
    pub(super) fn norms(&mut self, mut bases: Vec<&str>) -> Result<Vec<Norm>> {
        bases.iter_mut().for_each(|base| *base = base.strip_suffix(".module").unwrap_or(base));
        bases.sort_unstable();
        bases.dedup();
        memory::try_collect(bases.into_iter().map(|name| self.norm(name)))
    }

    fn norm(&mut self, name: &str) -> Result<Norm> {
        self.error = None;
        let mut part = |part| self.part(name, part, Need::May);
        let (plain, bias) = (part("weight")?, part("bias")?);
        let (module, module_bias) = (part("module.weight")?, part("module.bias")?);
        let len = module.or(plain).map_or(0, |weight| weight.tensor.elements());
        for part in [plain, bias, module, module_bias].into_iter().flatten() {
            self.expect_dtype(part, FLOATS)?;
            if part.tensor.elements() != len {
                self.wrong_shape(part, format_args!("[{len}]"))?;
            }
        }
        Ok(Norm {
            name: memory::text(name)?,
            len: usize::try_from(len).unwrap_or(0),
            bias: bias.is_some(),
            smoothed: module.is_some(),
            plain: plain.is_some(),
            error: self.error.take(),
        })
    }
}
