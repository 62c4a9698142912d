//! Gauss summaries: mean and variance of a block's keys, per channel, in 4 bits each.

use super::{code_of, scale_of, set_short, tame};
use crate::arch::estimates::{CodePair, GaussScales, high_weight, low_weight};

/// Writes the summary of keys `[token][dim]` of a head to one lane of a tile, whose codes are `[dim]`.
///
/// Means and variances (their divisor is the number of tokens) are f64, rounded to f32. Each has one scale,
/// `bf16(max |mean| / 7)` and `bf16(max variance / 15)`; codes are the ratios to the nearest integer, ties to even,
/// within ±7 and 0 to 15.
pub(super) fn write(keys: &[f32], lane: usize, codes: &mut [CodePair], scales: &mut GaussScales) {
    let dims = codes.len();
    let moments = |d: usize| {
        let column = || keys.iter().skip(d).step_by(dims).map(|x| f64::from(tame(*x)));
        let count = (keys.len() / dims) as f64;
        let mean = column().sum::<f64>() / count;
        (mean as f32, (column().map(|x| (x - mean) * (x - mean)).sum::<f64>() / count) as f32)
    };
    let largest = (0..dims).map(moments).fold((0.0f32, 0.0f32), |most, (m, v)| (most.0.max(m.abs()), most.1.max(v)));
    let (of_means, of_variances) = (scale_of(largest.0, 7.0), scale_of(largest.1, 15.0));
    set_short(&mut scales.means, lane, of_means);
    set_short(&mut scales.variances, lane, of_variances);
    for (d, pair) in codes.iter_mut().enumerate() {
        let (mean, variance) = moments(d);
        let low = code_of(mean, of_means, -7.0, 7.0) as u8 & 15;
        pair[lane] = low | (code_of(variance, of_variances, 0.0, 15.0) as u8) << 4;
    }
}

/// Writes the weights of a query row, already times the factor of logits.
pub(super) fn weights(query: &[f32], weights: &mut [[f32; 2]]) {
    let pair = |q: f32| [low_weight(q), high_weight(q * q * 0.5)];
    weights.iter_mut().zip(query).for_each(|(weights, q)| *weights = pair(*q));
}
