//! Summaries against their rule in f64.

mod arena;
mod nibbles;

use super::*;
use crate::arch::estimates::DIRECTIONS;
use crate::status::Status;
use crate::sys::memory::shortage;
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
    let (means, directions) = summaries.basis_for_tests(head).expect("directions are learned");
    let base = dot(query.iter().copied(), wide(means));
    let column = |d: usize| directions.iter().map(move |row| row[d]);
    let weights: Vec<f64> = (0..DIRECTIONS).map(|d| dot(query.iter().copied(), column(d).map(f64::from))).collect();
    log_sum(keys.chunks_exact(query.len()).map(|key| {
        let centred: Vec<f32> = key.iter().zip(means).map(|(k, m)| k - m).collect();
        let part = |d: usize| centred.iter().zip(column(d)).fold(0.0, |sum, (x, w)| sum + x * w);
        let z: Vec<f32> = (0..DIRECTIONS).map(part).collect();
        let scale = half::bf16::from_f32(z.iter().fold(0.0f32, |most, x| most.max(x.abs())) / 7.0).to_f32();
        let coded = |z: &f32| if scale == 0.0 { 0.0 } else { (z / scale).round_ties_even().clamp(-7.0, 7.0) };
        base + dot(weights.iter().copied(), z.iter().map(|z| f64::from(scale) * f64::from(coded(z))))
    }))
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
        kv_heads in 1usize..4, group in 1usize..7, dims in 1usize..70, block_tokens in 4usize..65,
        size in prop_oneof![Just(0.0f32), 0.01f32..3.0], seed: u64, script in prop::collection::vec((any::<u16>(), 0u8..4), 1..160),
    ) {
        let mut summaries = Summaries::new(kv_heads, dims, block_tokens);
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

#[test]
fn log_masses_are_those_of_f64_and_add_to_what_was_there() {
    for (kv_heads, group, dims, tokens) in [(1, 1, 1, 1), (2, 3, 64, 63), (3, 1, 40, 64), (2, 4, 128, 200)] {
        let keys = numbers(1, kv_heads * tokens * dims, 2.0);
        for scale in [0.1, 300.0, -4.0] {
            let row = numbers(2, kv_heads * group * dims, 2.0);
            let mut masses: Vec<f32> = (0..kv_heads * group).map(|h| [f32::NEG_INFINITY, 3.0][h % 2]).collect();
            let expected: Vec<f64> = (0..masses.len())
                .map(|h| {
                    let query = wide(&row[h * dims..][..dims]).collect::<Vec<_>>();
                    let of_head = keys[h / group * tokens * dims..][..tokens * dims].chunks_exact(dims);
                    let logits = of_head.map(|key| dot(query.iter().copied(), wide(key)) * f64::from(scale));
                    log_sum(logits.chain([f64::from(masses[h])]).collect::<Vec<_>>())
                })
                .collect();
            log_masses(&row, scale, &keys, tokens, kv_heads, &mut masses);
            for (mass, expected) in masses.iter().zip(expected) {
                let tolerance = 1e-5 + f64::from(scale.abs()) * dims as f64 * 4e-6;
                assert!((f64::from(*mass) - expected).abs() < tolerance, "{mass} {expected} for {dims} by {scale}");
            }
        }
    }
    let mut masses = [2.0];
    log_masses(&[1.0], 1.0, &[f32::NAN, 2.0], 2, 1, &mut masses);
    assert!((masses[0] - (2.0 + 2f32.ln())).abs() < 1e-6, "a token whose logit is NaN has no mass: {masses:?}");
}

/// Keys of rank `rank` around a mean.
fn keys_of_rank(rank: usize, tokens: usize, dims: usize) -> Vec<f32> {
    let (mean, base, parts) = (numbers(7, dims, 2.0), numbers(8, rank * dims, 1.0), numbers(9, tokens * rank, 1.0));
    let key = |t: usize, d: usize| mean[d] + (0..rank).map(|r| parts[t * rank + r] * base[r * dims + d]).sum::<f32>();
    (0..tokens * dims).map(|i| key(i / dims, i % dims)).collect()
}

#[test]
fn sketches_of_keys_of_low_rank_give_back_the_mass_of_a_block() {
    let (dims, tokens) = (64, 320);
    let keys = keys_of_rank(6, tokens, dims);
    let mut summaries = Summaries::new(1, dims, 16);
    summaries.learn(&keys, tokens).unwrap();
    for block in keys.chunks_exact(16 * dims) {
        summaries.insert(block, 16).unwrap();
    }
    let (row, scale) = (numbers(10, dims, 1.0), 1.0 / (dims as f32).sqrt());
    let mut shares = vec![0.0; summaries.slots()];
    summaries.estimate(&row, scale, &[f32::NEG_INFINITY], &mut Scratch::default(), &mut shares).unwrap();
    let mass = |keys: &[f32]| {
        let mut mass = [f32::NEG_INFINITY];
        log_masses(&row, scale, keys, keys.len() / dims, 1, &mut mass);
        mass[0]
    };
    for (block, share) in keys.chunks_exact(16 * dims).zip(&shares) {
        let expected = mass(block) - mass(&keys);
        assert!((share.ln() - expected).abs() < 0.1, "{} {expected}", share.ln());
    }
    assert!((shares.iter().sum::<f32>() - 1.0).abs() < 1e-5, "{shares:?}");
}

#[test]
fn directions_are_orthonormal_and_hold_nearly_all_that_sixteen_can() {
    // The variance of channel d falls, so the best 16 directions are the first 16 channels.
    let (dims, tokens) = (64usize, 700usize);
    let sizes: Vec<f32> = (0..dims).map(|d| 0.85f32.powi(d as i32)).collect();
    let falling: Vec<f32> =
        numbers(3, tokens * dims, 1.0).iter().zip(sizes.iter().cycle()).map(|(x, s)| x * s).collect();
    let variances: Vec<f32> = sizes.iter().map(|s| s * s).collect();
    for (keys, dims) in
        [(falling, dims), (keys_of_rank(3, 40, 64), 64), (vec![1.5; 64], 64), (numbers(1, 50 * 5, 1.0), 5)]
    {
        let mut summaries = Summaries::new(1, dims, 16);
        summaries.learn(&keys, keys.len() / dims).unwrap();
        let (_, directions) = summaries.basis_for_tests(0).unwrap();
        let column = |d: usize| directions.iter().map(move |row| f64::from(row[d]));
        for (a, b) in (0..DIRECTIONS).flat_map(|a| (0..=a).map(move |b| (a, b))) {
            let expected = if a == b && a < dims { 1.0 } else { 0.0 };
            assert!((dot(column(a), column(b)) - expected).abs() < 1e-6, "{a} {b} of {dims}");
        }
        if keys.len() == tokens * 64 {
            let held: f64 = (0..DIRECTIONS).map(|a| dot(column(a).map(|x| x * x), wide(&variances))).sum();
            let best: f64 = wide(&variances[..DIRECTIONS]).sum();
            assert!(held > 0.99 * best, "{held} of {best}");
        }
    }
}

#[test]
fn sketches_need_directions() {
    let mut summaries = Summaries::new(2, 24, 16);
    let keys = numbers(4, 2 * 16 * 24, 1.0);
    assert_eq!(summaries.insert(&keys, 16).unwrap_err().status(), Status::InvalidArgument);
}

#[test]
fn extreme_numbers_stay_in_their_block_and_shares_stay_shares() {
    {
        let (dims, block) = (32, numbers(5, 16 * 32, 1.0));
        let mut summaries = Summaries::new(1, dims, 16);
        summaries.learn(&block, 16).unwrap();
        summaries.insert(&block, 16).unwrap();
        let with = |x: f32| [&[x], &block[1..]].concat();
        summaries.insert(&with(f32::NAN), 16).unwrap();
        summaries.insert(&with(0.0), 16).unwrap();
        let mut shares = [0.0; 3];
        summaries.estimate(&block[..dims], 0.1, &[0.0], &mut Scratch::default(), &mut shares).unwrap();
        assert!(shares[1] == shares[2] && shares[0] > 0.1, "{shares:?}");
        for x in [f32::INFINITY, f32::NEG_INFINITY, f32::MAX] {
            summaries.insert(&with(x), 16).unwrap();
        }
        for (row, scale) in
            [(numbers(6, dims, 3.0), 1e4), (vec![f32::MAX; 32], 1.0), (vec![f32::NAN; 32], 1.0), (vec![0.0; 32], 1.0)]
        {
            for protected in [f32::NEG_INFINITY, 0.0, 1e4, f32::INFINITY, f32::NAN] {
                let mut shares = vec![f32::NAN; summaries.slots()];
                summaries.estimate(&row, scale, &[protected], &mut Scratch::default(), &mut shares).unwrap();
                let sum: f32 = shares.iter().sum();
                assert!(shares.iter().all(|share| (0.0..=1.0).contains(share)) && sum < 1.00001, "{shares:?}");
                assert!(protected > 0.0 || sum > 0.1, "{shares:?}");
            }
        }
    }
}

#[test]
fn memory_that_is_refused_changes_nothing() {
    let keys = numbers(1, 2 * 16 * 64, 1.0);
    {
        let mut summaries = Summaries::new(2, 64, 16);
        let (mut shares, mut blocks, mut refused) = (vec![0.0; 4096], 0, 0);
        shortage::set_least(1);
        for round in 0..400 {
            shortage::set(3, round);
            refused += usize::from(summaries.learn(&keys, 16).is_err_and(|e| e.status() == Status::OutOfMemory));
            match summaries.insert(&keys, 16) {
                Ok(slot) => {
                    assert_eq!(slot, blocks);
                    blocks += 1;
                }
                Err(_) => refused += 1,
            }
            shares.fill(7.0);
            match summaries.estimate(&keys[..128], 0.1, &[0.0; 2], &mut Scratch::default(), &mut shares) {
                Ok(()) => assert_eq!(shares.iter().filter(|share| **share > 0.0).count(), blocks as usize),
                Err(_) => assert_eq!(shares, [7.0; 4096]),
            }
            shortage::set(0, 0);
            assert_eq!(summaries.slots(), blocks as usize);
        }
        shortage::set_least(1024);
        assert!(blocks > 100 && refused > 10, "{blocks} blocks, {refused} refusals");
        (0..blocks).for_each(|slot| summaries.remove(slot));
        assert!(summaries.basis_for_tests(0).is_some());
    }
}

#[test]
fn summaries_take_at_most_two_hundredths_of_a_cache_of_128_dims() {
    {
        let (kv_heads, dims, blocks) = (8, 128, 512);
        let mut summaries = Summaries::new(kv_heads, dims, 16);
        summaries.learn(&vec![0.0; kv_heads * dims], 1).unwrap();
        let without = summaries.bytes();
        let keys = numbers(1, kv_heads * 16 * dims, 1.0);
        for _ in 0..blocks {
            summaries.insert(&keys, 16).unwrap();
        }
        let cache = blocks * 16 * kv_heads * dims * 2 * 2;
        let share = (summaries.bytes() - without) as f64 / cache as f64;
        assert!(share < 0.02, "{share}");
    }
}
