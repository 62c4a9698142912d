//! Gauss summaries: mean and variance of a block's keys, per channel, in 4 bits each.

use super::{code_of, scale_of, set_short, tame};
use crate::arch::estimates::{CodePair, GaussScales, LANES, high_weight, low_weight};

/// Writes the summary of keys `[token][dim]` of a head to one lane of a tile, whose codes are `[dim]`.
///
/// Means and variances (their divisor is the number of tokens) are f64, rounded to f32. Each has one scale,
/// `bf16(max |mean| / 7)` and `bf16(max variance / 15)`; codes are the ratios to the nearest integer, ties to even,
/// within ±7 and 0 to 15.
///
/// `moments` is room for mean and variance of each dim.
pub(super) fn write(keys: &[f32], lane: usize, moments: &mut [f32], codes: &mut [CodePair], scales: &mut GaussScales) {
    let (means, variances) = moments.split_at_mut(codes.len());
    for (part, (means, variances)) in means.chunks_mut(LANES).zip(variances.chunks_mut(LANES)).enumerate() {
        let columns = || keys.chunks_exact(codes.len()).map(|key| &key[part * LANES..][..means.len()]);
        let count = (keys.len() / codes.len()) as f64;
        let mut mean = [0.0f64; LANES];
        columns().for_each(|xs| mean.iter_mut().zip(xs).for_each(|(sum, x)| *sum += f64::from(tame(*x))));
        mean.iter_mut().for_each(|sum| *sum /= count);
        let mut squares = [0.0f64; LANES];
        for xs in columns() {
            for ((sum, mean), x) in squares.iter_mut().zip(&mean).zip(xs) {
                let away = f64::from(tame(*x)) - mean;
                *sum += away * away;
            }
        }
        means.iter_mut().zip(mean).for_each(|(to, mean)| *to = mean as f32);
        variances.iter_mut().zip(squares).for_each(|(to, sum)| *to = (sum / count) as f32);
    }
    let largest = |numbers: &[f32]| numbers.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let (of_means, of_variances) = (scale_of(largest(means), 7.0), scale_of(largest(variances), 15.0));
    set_short(&mut scales.means, lane, of_means);
    set_short(&mut scales.variances, lane, of_variances);
    for (pair, (mean, variance)) in codes.iter_mut().zip(means.iter().zip(&*variances)) {
        let low = code_of(*mean, of_means, -7.0, 7.0) as u8 & 15;
        pair[lane] = low | (code_of(*variance, of_variances, 0.0, 15.0) as u8) << 4;
    }
}

/// Writes the weights of a query row, already times the factor of logits.
pub(super) fn weights(query: &[f32], weights: &mut [[f32; 2]]) {
    let pair = |q: f32| [low_weight(q), high_weight(q * q * 0.5)];
    weights.iter_mut().zip(query).for_each(|(weights, q)| *weights = pair(*q));
}
