//! The soft cap of logits, by arithmetic that compilers vectorise: results are the same to the bit on every CPU.

use super::LANES;

/// `tanh` of this is 1 in f32.
const MOST: f32 = 9.0;

/// Logits x become `cap * tanh(x / cap)`, of which tanh has a relative error below 2^-21.
///
/// `tanh(x)` is `2t / (1 + t^2)` with `t = tanh(x / 2)`, and `t` is `n / d`, the seventh convergent of Lambert's fraction.
#[inline(always)]
pub(in crate::arch) fn soft_cap(logits: &mut [[f32; LANES]], cap: f32) {
    for x in logits.as_flattened_mut() {
        let half = (*x / cap).clamp(-MOST, MOST) * 0.5;
        let u = half * half;
        let n = half * (((u + 378.0) * u + 17325.0) * u + 135135.0);
        let d = ((28.0 * u + 3150.0) * u + 62370.0) * u + 135135.0;
        *x = cap * (2.0 * n * d / (n * n + d * d));
    }
}
