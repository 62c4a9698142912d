//! Attention to keys that are there.

use crate::arch::estimates::LANES;
use crate::arch::kernels;

/// Tokens of a batch, whose logits stay in the first-level cache.
const BATCH: usize = 4 * LANES;
/// Bound of logits, so that differences stay finite.
const LARGEST_LOGIT: f32 = 1e30;

/// Adds the log of `sum over tokens of exp(scale * query . key)` to `log_masses`, one for each query head, by log-add.
/// `row` is `[query head][dim]`, `keys` is `[KV head][token][dim]`; consecutive query heads share a KV head. A token whose
/// logit is NaN has no mass.
pub fn log_masses(row: &[f32], scale: f32, keys: &[f32], tokens: usize, kv_heads: usize, log_masses: &mut [f32]) {
    if tokens == 0 || log_masses.is_empty() {
        return;
    }
    let (dims, group) = (row.len() / log_masses.len(), log_masses.len() / kv_heads);
    assert!(row.len() == log_masses.len() * dims && group * kv_heads == log_masses.len(), "whole rows and groups");
    assert!(keys.len() == kv_heads * tokens * dims, "a key for each token and KV head");
    for (head, (query, total)) in row.chunks_exact(dims).zip(log_masses).enumerate() {
        let keys = &keys[head / group * tokens * dims..][..tokens * dims];
        *total = log_add(*total, log_mass(query, scale, keys));
    }
}

fn log_mass(query: &[f32], scale: f32, keys: &[f32]) -> f32 {
    let kernels = &kernels().estimates;
    let (mut peak, mut mass) = (f32::MIN, 0.0f64);
    for keys in keys.chunks(BATCH * query.len()) {
        let mut logits = [[f32::NEG_INFINITY; LANES]; BATCH / LANES];
        let some = &mut logits.as_flattened_mut()[..keys.len() / query.len()];
        (kernels.dots)(query, keys, query.len(), some);
        let mut highest = peak;
        for logit in some {
            let x = *logit * scale;
            *logit = if x.is_nan() { f32::NEG_INFINITY } else { x.clamp(-LARGEST_LOGIT, LARGEST_LOGIT) };
            highest = highest.max(*logit);
        }
        let mut masses = [0.0; BATCH / LANES];
        (kernels.masses)(&logits, highest, LANES, &mut masses);
        mass *= (f64::from(peak) - f64::from(highest)).exp();
        mass += masses.iter().map(|mass| f64::from(*mass)).sum::<f64>();
        peak = highest;
    }
    (f64::from(peak) + mass.ln()) as f32
}

/// `log(exp(a) + exp(b))`.
fn log_add(a: f32, b: f32) -> f32 {
    let (low, high) = if a < b { (a, b) } else { (b, a) };
    if low == f32::NEG_INFINITY || high == f32::INFINITY {
        return high;
    }
    (f64::from(high) + (f64::from(low) - f64::from(high)).exp().ln_1p()) as f32
}
