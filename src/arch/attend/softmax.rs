//! The softmax of a query vector so far.

use super::{Dots, LANES, Running};
use crate::arch::estimates::{LEAST_EXPONENT, ROUNDING, Sixteen};

/// See [`super::AttendKernels::soften`].
#[inline(always)]
pub(in crate::arch) unsafe fn soften<V: Dots>(logits: &mut [[f32; LANES]], running: &mut Running) -> f32 {
    // SAFETY: the caller's.
    unsafe {
        let highest = highest::<V>(logits);
        let peak = if highest > running.peak { highest } else { running.peak };
        if peak == f32::NEG_INFINITY {
            logits.iter_mut().for_each(|logits| *logits = [0.0; LANES]);
            return 1.0;
        }
        let mut sum = V::Floats::splat(0.0);
        for logits in logits.iter_mut() {
            let weight = weight(V::Floats::load(logits), peak);
            weight.store(logits);
            sum = sum.add(weight);
        }
        raise::<V>(running, peak, sum)
    }
}

#[inline(always)]
pub(super) unsafe fn highest<V: Dots>(logits: &[[f32; LANES]]) -> f32 {
    // SAFETY: the caller's.
    unsafe {
        let mut highest = V::Floats::splat(f32::NEG_INFINITY);
        for logits in logits {
            highest = V::Floats::load(logits).max(highest);
        }
        V::highest(highest)
    }
}

/// Adds weights below a peak that is not below the earlier one. Returns the factor of earlier sums.
#[inline(always)]
pub(super) unsafe fn raise<V: Dots>(running: &mut Running, peak: f32, weights: V::Floats) -> f32 {
    // SAFETY: the caller's.
    unsafe {
        let factor = if peak > running.peak {
            let mut factor = [0.0; LANES];
            weight(V::Floats::splat(running.peak), peak).store(&mut factor);
            factor[0]
        } else {
            1.0
        };
        *running = Running { peak, sum: running.sum * factor + weights.sum(), skipped: running.skipped * factor };
        factor
    }
}

/// `2^r - 1` for r from -1/2 to 1/2, divided by r, from its highest power of r on.
const POWERS: [f32; 4] = [0.009_582_853, 0.055_906_426, 0.240_240_99, 0.693_124_2];

/// `exp(logit - peak)` for logits up to the peak with a relative error below 2^-18; 0 below [`LEAST_EXPONENT`], and NaN where
/// the logit or the peak is NaN or infinite, but for a logit of -inf.
#[inline(always)]
pub(super) unsafe fn weight<V: Sixteen>(logit: V, peak: f32) -> V {
    // SAFETY: the caller's.
    unsafe {
        let (x, least) = (logit.add(V::splat(-peak)), V::splat(LEAST_EXPONENT));
        let twos = least.max(x).mul(V::splat(std::f32::consts::LOG2_E));
        let shifted = twos.add(V::splat(ROUNDING));
        let r = twos.add(shifted.add(V::splat(-ROUNDING)).mul(V::splat(-1.0)));
        let mut series = V::splat(POWERS[0]);
        for c in &POWERS[1..] {
            series = series.mul(r).add(V::splat(*c));
        }
        x.unless_less(least, series.mul(r).add(V::splat(1.0)).add_exponent(shifted))
    }
}
