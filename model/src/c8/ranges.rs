//! Ranges of a calibration: the least and the greatest number of each channel, over all tokens of all batches.
//!
//! A range is two arrays of one number per channel; [`clear`] begins it. The result does not depend on the split and
//! the order of batches. Ranges of several threads or machines may be merged.

use super::CacheShape;
use mnnkv::dtype::convert::widen_ranges;
use mnnkv::status::{Result, bail};

/// Empties all ranges.
pub fn clear(min: &mut [f32], max: &mut [f32]) {
    min.fill(f32::INFINITY);
    max.fill(f32::NEG_INFINITY);
}

/// Adds a batch of K or V. A NaN or an infinity is an error that names token and channel. A range that is neither empty
/// nor finite is an error. Errors change nothing.
pub fn update(shape: &CacheShape, values: &[u8], min: &mut [f32], max: &mut [f32]) -> Result<()> {
    shape.check_values(values)?;
    shape.check_channels("min", min.len())?;
    shape.check_channels("max", max.len())?;
    check(min, max)?;
    shape.rows(values, |token, first, _, numbers| shape.check_finite(token, first, numbers))?;
    shape.rows(values, |_, first, _, numbers| {
        widen_ranges(&mut min[first..], &mut max[first..], numbers, numbers);
        Ok(())
    })
}

/// Adds other ranges. A range that is neither empty nor finite is an error. Errors change nothing.
pub fn merge(min: &mut [f32], max: &mut [f32], other_min: &[f32], other_max: &[f32]) -> Result<()> {
    check(min, max)?;
    check(other_min, other_max)?;
    if min.len() != other_min.len() {
        bail!(InvalidArgument, "ranges of {} channels to merge with {}", other_min.len(), min.len());
    }
    widen_ranges(min, max, other_min, other_max);
    Ok(())
}

/// Whether the range of a channel is empty.
pub(super) fn is_clear(min: f32, max: f32) -> bool {
    min == f32::INFINITY && max == f32::NEG_INFINITY
}

/// Fails unless every range is empty or two finite numbers in order.
pub(super) fn check(min: &[f32], max: &[f32]) -> Result<()> {
    if min.len() != max.len() {
        bail!(InvalidArgument, "min of {} channels and max of {}; equal numbers expected", min.len(), max.len());
    }
    for (channel, (min, max)) in min.iter().zip(max).enumerate() {
        if !(is_clear(*min, *max) || min.is_finite() && max.is_finite() && min <= max) {
            bail!(
                InvalidArgument,
                "channel {channel} ranges from {min} to {max}; finite numbers in order expected, or a cleared range"
            );
        }
    }
    Ok(())
}
