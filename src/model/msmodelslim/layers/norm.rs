//! Norms: a row of weights, perhaps with a second pair of tensors for linears that were smoothed.

use super::{FLOATS, Inspector, Need};
use crate::status::Error;
use std::collections::BTreeSet;

/// A norm.
#[derive(Clone, Debug)]
pub struct Norm {
    /// Name of its weight without `.weight`.
    pub name: String,
    /// Elements.
    pub len: usize,
    /// Whether `<name>.bias` is there; norms that have none of their own get one by smoothing.
    pub bias: bool,
    /// Whether `<name>.module.weight` is there: the pair for quantised linears, beside the plain one for others.
    pub smoothed: bool,
    /// Whether `<name>.weight` is there.
    pub(in crate::model::msmodelslim) plain: bool,
    pub(in crate::model::msmodelslim) error: Option<Error>,
}

impl Inspector<'_> {
    /// The norms whose weights are `<base>.weight`, where base may end in `.module`.
    pub(super) fn norms(&mut self, bases: &[String]) -> Vec<Norm> {
        let names: BTreeSet<&str> = bases.iter().map(|base| base.strip_suffix(".module").unwrap_or(base)).collect();
        names.into_iter().map(|name| self.norm(name)).collect()
    }

    fn norm(&mut self, name: &str) -> Norm {
        let mut error = None;
        let parts = ["weight", "bias", "module.weight", "module.bias"].map(|part| format!("{name}.{part}"));
        let found = parts.each_ref().map(|part| self.part(name, part, Need::May, &mut error));
        let [plain, bias, module, _] = found;
        let len = module.or(plain).map_or(0, |weight| weight.tensor.elements());
        for part in found.into_iter().flatten() {
            self.expect_dtype(part, FLOATS, &mut error);
            if part.tensor.elements() != len {
                self.wrong_shape(part, &format!("[{len}]"), &mut error);
            }
        }
        Norm {
            name: name.to_owned(),
            len: usize::try_from(len).unwrap_or(0),
            bias: bias.is_some(),
            smoothed: module.is_some(),
            plain: plain.is_some(),
            error,
        }
    }
}
