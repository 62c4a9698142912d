//! Estimates against f64 arithmetic on the stored codes, and the codes against the rule.

use super::*;
use crate::arch::estimates::DIRECTIONS;
use proptest::prelude::*;

/// Numbers in -1..1 without a pattern.
fn noise(seed: u64) -> impl FnMut() -> f32 {
    let mut state = seed ^ 0x9E37_79B9_7F4A_7C15;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / 8_388_608.0 - 1.0
    }
}

fn numbers(seed: u64, len: usize, size: f32) -> Vec<f32> {
    let mut next = noise(seed);
    (0..len).map(|_| next() * size).collect()
}

fn dot(a: impl IntoIterator<Item = f64>, b: impl IntoIterator<Item = f64>) -> f64 {
    a.into_iter().zip(b).map(|(a, b)| a * b).sum()
}

fn wide(numbers: &[f32]) -> impl Iterator<Item = f64> {
    numbers.iter().map(|x| f64::from(*x))
}

/// A block as it was given: keys of each KV head `[token][dim]`.
type Block = Vec<Vec<f32>>;

/// `log(mass)` of a block for a query: codes by the rule, in f32 as it says, and the rest in f64.
fn log_mass_by_rule(summaries: &Summaries, keys: &[f32], head: usize, query: &[f64]) -> f64 {
    let dims = query.len();
    let tokens = keys.len() / dims;
    let scale = |largest: f32, codes: f32| half::bf16::from_f32(largest / codes).to_f32();
    let coded = |x: f32, scale: f32, low: f32, high: f32| match scale {
        0.0 => 0.0,
        scale => f64::from(scale) * f64::from((x / scale).round_ties_even().clamp(low, high)),
    };
    let largest = |numbers: &[f32]| numbers.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    if let Some((means, directions)) = summaries.basis_for_tests(head) {
        let base = dot(query.iter().copied(), wide(means));
        let column = |d: usize| directions.iter().map(move |row| row[d]);
        let weights: Vec<f64> = (0..DIRECTIONS).map(|d| dot(query.iter().copied(), column(d).map(f64::from))).collect();
        let logits = keys.chunks_exact(dims).map(|key| {
            let centred: Vec<f32> = key.iter().zip(means).map(|(k, m)| k - m).collect();
            let z: Vec<f32> =
                (0..DIRECTIONS).map(|d| centred.iter().zip(column(d)).fold(0.0, |sum, (x, w)| sum + x * w)).collect();
            let scale = scale(largest(&z), 7.0);
            base + dot(weights.iter().copied(), z.iter().map(|z| coded(*z, scale, -7.0, 7.0)))
        });
        return log_sum(logits);
    }
    let column = |d: usize| keys.iter().skip(d).step_by(dims).map(|x| f64::from(*x));
    let mean = |d: usize| column(d).sum::<f64>() / tokens as f64;
    let variance = |d: usize| column(d).map(|x| (x - mean(d)) * (x - mean(d))).sum::<f64>() / tokens as f64;
    let means: Vec<f32> = (0..dims).map(|d| mean(d) as f32).collect();
    let variances: Vec<f32> = (0..dims).map(|d| variance(d) as f32).collect();
    let (of_mean, of_variance) = (scale(largest(&means), 7.0), scale(largest(&variances), 15.0));
    let first = means.iter().map(|m| coded(*m, of_mean, -7.0, 7.0));
    let second = variances.iter().map(|v| coded(*v, of_variance, 0.0, 15.0));
    dot(query.iter().copied(), first) + dot(query.iter().map(|q| q * q / 2.0), second) + (tokens as f64).ln()
}

fn log_sum(logs: impl IntoIterator<Item = f64>) -> f64 {
    let logs: Vec<f64> = logs.into_iter().collect();
    let peak = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if peak == f64::NEG_INFINITY { peak } else { peak + logs.iter().map(|l| (l - peak).exp()).sum::<f64>().ln() }
}

/// Shares by definition, from log masses `[query head][block]`.
fn shares_of(log_masses: &[Vec<f64>], protected: &[f32]) -> Vec<f64> {
    let mut shares = vec![0.0; log_masses[0].len()];
    for (blocks, protected) in log_masses.iter().zip(protected) {
        let all = log_sum(blocks.iter().copied().chain([f64::from(*protected)]));
        shares.iter_mut().zip(blocks).filter(|(_, m)| m.is_finite()).for_each(|(s, m)| *s += (m - all).exp());
    }
    shares
}

fn joined(block: &Block) -> Vec<f32> {
    block.concat()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn shares_are_those_of_the_rule_whatever_was_inserted_and_removed_before(
        sketch: bool, kv_heads in 1usize..4, group in 1usize..7, dims in 1usize..70, block_tokens in 4usize..65,
        size in prop_oneof![Just(0.0f32), 0.01f32..3.0], seed: u64, script in prop::collection::vec((any::<u16>(), 0u8..4), 1..160),
    ) {
        let kind = if sketch { Kind::Sketch } else { Kind::Gauss };
        let mut summaries = Summaries::new(kind, kv_heads, dims, block_tokens);
        prop_assert_eq!(summaries.is_ready(), !sketch);
        summaries.learn(&numbers(seed, kv_heads * 100 * dims, size + 0.1), 100).unwrap();
        let mut blocks: Vec<Option<Block>> = Vec::new();
        for (step, (number, action)) in script.iter().enumerate() {
            if *action == 0 && !blocks.is_empty() {
                let slot = usize::from(*number) % blocks.len();
                summaries.remove(slot as u32);
                blocks[slot] = None;
                continue;
            }
            let tokens = 1 + usize::from(*number) % block_tokens;
            let block: Block = (0..kv_heads).map(|h| numbers(seed ^ (step * 8 + h) as u64, tokens * dims, size)).collect();
            let lowest = blocks.iter().position(Option::is_none).unwrap_or(blocks.len());
            prop_assert_eq!(summaries.insert(&joined(&block), tokens).unwrap() as usize, lowest);
            blocks.resize_with(blocks.len().max(lowest + 1), || None);
            blocks[lowest] = Some(block);
        }
        prop_assert_eq!(summaries.slots(), blocks.len());
        let heads = kv_heads * group;
        let (row, scale) = (numbers(!seed, heads * dims, 3.0), 1.0 / (dims as f32).sqrt());
        let protected: Vec<f32> = (0..heads).map(|h| if h % 3 == 0 { f32::NEG_INFINITY } else { h as f32 }).collect();
        let log_masses: Vec<Vec<f64>> = (0..heads).map(|h| {
            let query: Vec<f64> = row[h * dims..][..dims].iter().map(|q| f64::from(q * scale)).collect();
            let of = |block: &Block| log_mass_by_rule(&summaries, &block[h / group], h / group, &query);
            blocks.iter().map(|block| block.as_ref().map_or(f64::NEG_INFINITY, of)).collect()
        }).collect();
        let mut shares = vec![f32::NAN; blocks.len()];
        summaries.estimate(&row, scale, &protected, &mut Scratch::default(), &mut shares).unwrap();
        for (slot, expected) in shares_of(&log_masses, &protected).into_iter().enumerate() {
            prop_assert!((f64::from(shares[slot]) - expected).abs() < 1e-4 * expected + 1e-7, "{slot}: {} {expected}", shares[slot]);
            prop_assert!(blocks[slot].is_some() || shares[slot] == 0.0);
        }
    }
}
