//! Scales and offsets: computed from ranges, checked before use.

use super::ranges;
use mnnkv::dtype::Dtype;
use mnnkv::dtype::convert::rounded;
use mnnkv::status::{Result, bail};
use std::ops::Range;

/// The least scale, 2^-100: no step of the arithmetic then depends on the CPU's treatment of denormals. Computed scales
/// are at least 2^-23.
pub const LEAST_SCALE: f32 = f32::from_bits((127 - 100) << 23);

/// Whether codes have an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Symmetry {
    /// Equal steps below and above 0, without offset. The default of exporters, and the only form that all runtimes
    /// read.
    Symmetric = 1,
    /// 255 steps from the least to the greatest number (or 0); the offset is the code of 0.
    Asymmetric = 2,
}

impl Symmetry {
    /// The mode with this number in the C ABI. `what` names the argument in the error.
    pub fn from_code(code: u32, what: &str) -> Result<Self> {
        Ok(match code {
            1 => Symmetry::Symmetric,
            2 => Symmetry::Asymmetric,
            _ => bail!(InvalidArgument, "{what} is {code}; symmetric (1) or asymmetric (2) expected"),
        })
    }
}

/// Computes a scale and an offset from each range. All slices have one length.
///
/// ```text
/// lo = min(min, 0)    hi = max(max, 0)
/// symmetric:   scale = max(-lo, hi) / 127      offset = 0
/// asymmetric:  scale = (hi - lo) / 255         offset = rint(-lo / scale) - 128
/// ```
/// in f32. A scale below 2^-23 (f32's epsilon) is raised to it before the offset is computed; rounding to `dtype` then
/// keeps it. `dtype` is F16, BF16 or F32: exporters write parameters in the type of their statistics.
///
/// An empty range is an error, and so is a scale that is not finite in `dtype`. The error names the channel, and
/// nothing is written.
pub fn parameters(
    min: &[f32],
    max: &[f32],
    symmetry: Symmetry,
    dtype: Dtype,
    scale: &mut [f32],
    offset: &mut [f32],
) -> Result<()> {
    ranges::check(min, max)?;
    if scale.len() != min.len() || offset.len() != min.len() {
        bail!(
            InvalidArgument,
            "ranges of {} channels for {} scales and {} offsets; equal numbers expected",
            min.len(),
            scale.len(),
            offset.len()
        );
    }
    if dtype == Dtype::Int8 {
        bail!(InvalidArgument, "parameters in INT8; F16, BF16 or F32 expected");
    }
    let round = |x| rounded(dtype, x);
    for (channel, (min, max)) in min.iter().zip(max).enumerate() {
        if ranges::is_clear(*min, *max) {
            bail!(InvalidArgument, "channel {channel}: nothing was observed, so it has no scale");
        }
        if !round(of_range(*min, *max, symmetry).0).is_finite() {
            bail!(
                InvalidArgument,
                "channel {channel} ranges from {min:e} to {max:e}: too wide for a scale in {}",
                dtype.name()
            );
        }
    }
    for ((min, max), (scale, offset)) in min.iter().zip(max).zip(scale.iter_mut().zip(offset)) {
        let (exact, whole) = of_range(*min, *max, symmetry);
        (*scale, *offset) = (round(exact), whole);
    }
    Ok(())
}

/// Scale and offset of one range in f32, for weights too. The offset is an integer of 8 bits and exact in every type.
pub(crate) fn of_range(min: f32, max: f32, symmetry: Symmetry) -> (f32, f32) {
    let (lo, hi) = (min.min(0.0), max.max(0.0));
    match symmetry {
        Symmetry::Symmetric => ((hi.max(-lo) / 127.0).max(f32::EPSILON), 0.0),
        Symmetry::Asymmetric => {
            let scale = ((hi - lo) / 255.0).max(f32::EPSILON);
            (scale, (-lo / scale).round_ties_even() - 128.0)
        }
    }
}

/// Checked scales and offsets, one per channel, in f32.
#[derive(Clone, Copy, Debug)]
pub struct Scales<'a> {
    pub(super) scale: &'a [f32],
    pub(super) offset: &'a [f32],
}

impl<'a> Scales<'a> {
    /// Fails unless both have one length, scales are finite and at least [`LEAST_SCALE`], and offsets are integers in
    /// -128 ..= 127. The error names the first wrong channel.
    pub fn new(scale: &'a [f32], offset: &'a [f32]) -> Result<Self> {
        if scale.len() != offset.len() {
            bail!(InvalidArgument, "{} scales and {} offsets; equal numbers expected", scale.len(), offset.len());
        }
        for (channel, (scale, offset)) in scale.iter().zip(offset).enumerate() {
            if !(LEAST_SCALE..=f32::MAX).contains(scale) {
                bail!(
                    InvalidArgument,
                    "the scale of channel {channel} is {scale:e}; a finite number of at least 2^-100 expected"
                );
            }
            if !((-128.0..=127.0).contains(offset) && offset.fract() == 0.0) {
                bail!(
                    InvalidArgument,
                    "the offset of channel {channel} is {offset}; an integer from -128 to 127 expected"
                );
            }
        }
        Ok(Scales { scale, offset })
    }

    /// The scales of some channels, such as those of a head.
    pub fn of(&self, channels: Range<usize>) -> Scales<'a> {
        Scales { scale: &self.scale[channels.clone()], offset: &self.offset[channels] }
    }
}
