//! What calibration saw of each channel: the least and the greatest number, over all tokens of all batches.
//!
//! Two arrays of one number per channel, which begin with [`clear`]. Batches may come in any split and order, and
//! ranges of several threads or machines may be merged: the result is the same.

use super::CacheShape;
use mnnkv::status::{Result, bail};

/// Nothing seen yet.
pub fn clear(min: &mut [f32], max: &mut [f32]) {
    min.fill(f32::INFINITY);
    max.fill(f32::NEG_INFINITY);
}

/// Adds a batch of K or V. A NaN or an infinity is an error that names token and channel, and so are ranges that are
/// neither cleared nor finite; nothing has changed then.
pub fn update(shape: &CacheShape, values: &[u8], min: &mut [f32], max: &mut [f32]) -> Result<()> {
    shape.check_values(values)?;
    shape.check_channels("min", min.len())?;
    shape.check_channels("max", max.len())?;
    check(min, max)?;
    shape.rows(values, |token, first, _, numbers| shape.check_finite(token, first, numbers))?;
    shape.rows(values, |_, first, _, numbers| {
        for ((min, max), number) in min[first..].iter_mut().zip(&mut max[first..]).zip(numbers) {
            widen_range(min, max, *number, *number);
        }
        Ok(())
    })
}

/// Adds what others saw. Ranges that are neither cleared nor finite are an error; nothing has changed then.
pub fn merge(min: &mut [f32], max: &mut [f32], other_min: &[f32], other_max: &[f32]) -> Result<()> {
    check(min, max)?;
    check(other_min, other_max)?;
    if min.len() != other_min.len() {
        bail!(InvalidArgument, "ranges of {} channels to merge with {}", other_min.len(), min.len());
    }
    for ((min, max), (low, high)) in min.iter_mut().zip(max).zip(other_min.iter().zip(other_max)) {
        widen_range(min, max, *low, *high);
    }
    Ok(())
}

fn widen_range(min: &mut f32, max: &mut f32, low: f32, high: f32) {
    *min = if low < *min { low } else { *min };
    *max = if high > *max { high } else { *max };
}

/// Whether nothing was seen of a channel.
pub(super) fn is_clear(min: f32, max: f32) -> bool {
    min == f32::INFINITY && max == f32::NEG_INFINITY
}

/// Every range is cleared, or two finite numbers in order.
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
