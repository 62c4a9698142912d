//! Norms of smoothed models.

use super::layers::Norm;
use super::model::Model;
use crate::names::Name;
use mnnkv::status::{Result, bail};
use mnnkv::sys::memory;

/// The linears after a norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormUse {
    /// Quantised ones: the pair in `<norm>.module`, if present.
    Quantized,
    /// Float ones: the plain pair.
    Float,
}

/// The parameters of a norm.
#[derive(Clone, Debug, PartialEq)]
pub struct NormParameters {
    /// Factors.
    pub weight: Vec<f32>,
    /// Summands; zeros if the file has none.
    pub bias: Vec<f32>,
    /// Whether the file has a bias. A runtime must add it even if the norm's kind has none.
    pub has_bias: bool,
}

impl Model {
    /// The parameters of a norm of [`Model::norms`].
    ///
    /// Older files have four tensors for a smoothed norm: `<norm>.module.weight` and `.bias` for quantised linears,
    /// `<norm>.weight` and `.bias` for others. A missing `.module.bias` is zeros. Newer files have one pair. NOT_FOUND:
    /// if its plain pair for float linears does not exist.
    pub fn norm_parameters(&self, norm: &Norm, usage: NormUse) -> Result<NormParameters> {
        if let Some(error) = &norm.error {
            return Err(error.clone());
        }
        let module = norm.smoothed && usage == NormUse::Quantized;
        if !module && !norm.plain {
            bail!(NotFound, "tensor {}.weight does not exist, only the pair for quantised linears", norm.name);
        }
        let [weight, bias] = if module { ["module.weight", "module.bias"] } else { ["weight", "bias"] };
        let weight = self.files.need(Name::of(&norm.name, weight))?.floats(0, norm.len as u64)?;
        let bias = self.files.get(Name::of(&norm.name, bias));
        let has_bias = bias.is_some();
        let bias = match bias {
            Some(bias) => bias.floats(0, norm.len as u64)?,
            None => memory::filled(0.0, norm.len)?,
        };
        Ok(NormParameters { weight, bias, has_bias })
    }
}
