//! Directions and sketches against their rules in f64.

use crate::arch::estimates::LANES;
use crate::arch::kernels;
use crate::attend::basis::{Basis, widen};
use crate::attend::sketch::{self, Group, Sketches, directions};
use crate::status::{Status, bail};
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

fn log_sum(logs: impl IntoIterator<Item = f64>) -> f64 {
    let logs: Vec<f64> = logs.into_iter().collect();
    let peak = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if peak == f64::NEG_INFINITY { peak } else { peak + logs.iter().map(|l| (l - peak).exp()).sum::<f64>().ln() }
}

/// The checksum of codes that sketches are of here.
const CODES: u64 = 77;

/// Sketches of keys `[token][dim]` of a head, in whole blocks, as a file has them.
fn sketched(keys: &[f32], basis: &Basis, head: usize) -> Vec<u8> {
    let (dims, mut bytes) = (basis.mean(head).len(), Vec::new());
    for keys in keys.chunks(64 * dims) {
        sketch::put(keys, (basis, head), CODES, &mut vec![0.0; dims], &mut bytes).unwrap();
    }
    bytes
}

/// The logits of a query for all tokens of sketches, and the peak.
fn logits(sketches: &[u8], query: &[f32], basis: &Basis, head: usize) -> (Vec<f32>, f32) {
    let (row, mut all, mut most) = (sketch::row(query, basis, head), Vec::new(), f32::MIN);
    for bytes in sketches.to_vec().chunks_exact_mut(Sketches::bytes(query.len())) {
        let (mut logits, mut peak) = ([[0.0; LANES]; 4], [f32::MIN]);
        (kernels().estimates.sketch)(&sketch::read(bytes, CODES, query.len()).unwrap(), &[row], &mut logits, &mut peak);
        all.extend(logits.as_flattened());
        most = most.max(peak[0]);
    }
    (all, most)
}

/// The directions of a head, `[direction][dim]`.
fn columns(basis: &Basis, head: usize) -> Vec<Vec<f32>> {
    let panel =
        |panel: &[[[u8; 2]; 16]]| (0..16).map(|d| panel.iter().map(|row| widen(row[d])).collect()).collect::<Vec<_>>();
    basis.panels(head).flat_map(panel).collect()
}

/// The logit of a key for a query: codes by the rule, in f32 as it says, and the rest in f64. And how far the rounding of the
/// query's parts may take it.
fn logit_by_rule(key: &[f32], query: &[f32], basis: &Basis, head: usize) -> (f64, f64) {
    let (mean, columns) = (basis.mean(head), columns(basis, head));
    let centred: Vec<f32> = key.iter().zip(mean).map(|(k, m)| k - m).collect();
    let part = |column: &Vec<f32>| centred.iter().zip(column).fold(0.0, |sum, (x, w)| sum + x * w);
    let z: Vec<f32> = columns.iter().map(part).collect();
    let scale = half::bf16::from_f32(z.iter().fold(0.0f32, |most, x| most.max(x.abs())) / 7.0).to_f32();
    let coded = |z: &f32| if scale == 0.0 { 0.0 } else { (z / scale).round_ties_even().clamp(-7.0, 7.0) };
    let weights: Vec<f64> = columns.iter().map(|column| dot(wide(query), wide(column))).collect();
    let codes: Vec<f64> = z.iter().map(|z| f64::from(scale) * f64::from(coded(z))).collect();
    let half_step = weights.iter().fold(0.0f64, |most, x| most.max(x.abs())) / 254.0;
    let most = codes.iter().map(|x| x.abs() * half_step).sum();
    (dot(wide(query), wide(mean)) + dot(weights, codes), most)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn logits_of_sketches_are_those_of_the_rule(
        heads in 1usize..4, dims in prop_oneof![1usize..70, Just(128), Just(256)],
        size in prop_oneof![Just(0.0f32), 0.01f32..3.0], seed: u64,
    ) {
        let basis = Basis::learn(&numbers(seed, heads * 100 * dims, size + 0.1), 100, heads, dims).unwrap();
        for head in 0..heads {
            let keys = numbers(seed ^ head as u64, 64 * dims, size);
            let query = numbers(!seed, dims, 1.0);
            let tiles = sketched(&keys, &basis, head);
            let (found, peak) = logits(&tiles, &query, &basis, head);
            for (logit, key) in found.iter().zip(keys.chunks_exact(dims)) {
                let (expected, rounding) = logit_by_rule(key, &query, &basis, head);
                let near = (f64::from(*logit) - expected).abs() < rounding + 1e-4 * f64::from(size + 1.0) * dims as f64;
                prop_assert!(near, "{logit} {expected}");
            }
            prop_assert_eq!(peak, found.iter().copied().fold(f32::MIN, f32::max));
            let rows = [sketch::row(&query, &basis, head)];
            let mass = sketch::log_masses(&sketch::read(&mut tiles.clone(), CODES, dims).unwrap(), &rows, |_| f32::MIN)[0];
            prop_assert!((f64::from(mass) - log_sum(wide(&found))).abs() < 1e-3);
        }
    }
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
    let basis = Basis::learn(&keys, tokens, 1, dims).unwrap();
    let query = numbers(10, dims, 1.0 / (dims as f32).sqrt());
    let (found, _) = logits(&sketched(&keys, &basis, 0), &query, &basis, 0);
    for (block, logits) in keys.chunks_exact(16 * dims).zip(found.chunks_exact(16)) {
        let expected = log_sum(block.chunks_exact(dims).map(|key| dot(wide(&query), wide(key))));
        let mass = log_sum(wide(logits));
        assert!((mass - expected).abs() < 0.1, "{mass} {expected}");
    }
}

#[test]
fn mean_and_first_direction_are_those_of_the_tokens() {
    let dims = 24;
    let (near, along) = (numbers(11, dims, 2.0), numbers(12, dims, 1.0));
    for (tokens, apart) in [(5, 1), (13, 1), (40, 3), (700, 90)] {
        // The last tokens of the second head are apart from the others.
        let size = |t: usize| if t + apart >= tokens { 8.0 } else { 0.0 };
        let key = |t: usize| near.iter().zip(&along).map(move |(x, a)| x + size(t) * a);
        let keys: Vec<f32> = numbers(13, tokens * dims, 1.0).into_iter().chain((0..tokens).flat_map(key)).collect();
        let basis = Basis::learn(&keys, tokens, 2, dims).unwrap();
        let share = 8.0 * apart as f32 / tokens as f32;
        for ((mean, x), a) in basis.mean(1).iter().zip(&near).zip(&along) {
            assert!((mean - (x + share * a)).abs() < 0.02, "of {tokens} tokens");
        }
        let length = dot(wide(&along), wide(&along)).sqrt();
        let first = &columns(&basis, 1)[0];
        assert!(dot(wide(first), wide(&along)).abs() > 0.999 * length, "of {tokens} tokens");
    }
}

#[test]
fn directions_are_orthonormal_and_hold_nearly_all_that_so_many_can() {
    // The variance of channel d falls, so the best directions are the first channels.
    let (dims, tokens) = (64usize, 700usize);
    let sizes: Vec<f32> = (0..dims).map(|d| 0.85f32.powi(d as i32)).collect();
    let falling: Vec<f32> =
        numbers(3, tokens * dims, 1.0).iter().zip(sizes.iter().cycle()).map(|(x, s)| x * s).collect();
    let variances: Vec<f32> = sizes.iter().map(|s| s * s).collect();
    for (keys, dims) in
        [(falling, dims), (keys_of_rank(3, 40, 64), 64), (vec![1.5; 64], 64), (numbers(1, 50 * 5, 1.0), 5)]
    {
        let basis = Basis::learn(&keys, keys.len() / dims, 1, dims).unwrap();
        let (columns, count) = (columns(&basis, 0), directions(dims));
        let column = |d: usize| wide(&columns[d]);
        assert_eq!((columns.len(), count), (32, 32));
        for (a, b) in (0..count).flat_map(|a| (0..=a).map(move |b| (a, b))) {
            let expected = if a == b && a < dims { 1.0 } else { 0.0 };
            // They have 8 bits.
            assert!((dot(column(a), column(b)) - expected).abs() < 4e-3, "{a} {b} of {dims}");
        }
        if keys.len() == tokens * 64 {
            let held: f64 = (0..count).map(|a| dot(column(a).map(|x| x * x), wide(&variances))).sum();
            let best: f64 = wide(&variances[..count]).sum();
            assert!(held > 0.99 * best, "{held} of {best}");
        }
    }
}

#[test]
fn extreme_numbers_stay_in_their_token() {
    let (dims, keys) = (32, numbers(5, 64 * 32, 1.0));
    let basis = Basis::learn(&keys, 64, 1, dims).unwrap();
    let with = |x: f32| [&[x], &keys[1..]].concat();
    let query = numbers(6, dims, 0.5);
    let of = |x: f32| logits(&sketched(&with(x), &basis, 0), &query, &basis, 0).0;
    assert_eq!(of(f32::NAN), of(0.0), "a NaN counts as 0");
    for (x, bound) in [(f32::INFINITY, 65_504.0), (f32::MAX, 65_504.0), (f32::NEG_INFINITY, -65_504.0)] {
        assert_eq!(of(x), of(bound));
        assert!(of(x).iter().all(|logit| logit.is_finite()) && of(x)[1..] == of(0.0)[1..]);
        let learnt = Basis::learn(&with(x), 64, 1, dims).unwrap();
        assert!(learnt.mean(0).iter().chain(columns(&learnt, 0).iter().flatten()).all(|x| x.is_finite()));
    }
}

#[test]
fn memory_that_is_refused_makes_no_basis() {
    let keys = numbers(1, 2 * 16 * 64, 1.0);
    let mut refused = 0;
    shortage::set_least(1);
    for round in 0..40 {
        shortage::set(3, round);
        refused += usize::from(Basis::learn(&keys, 16, 2, 64).is_err_and(|e| e.status() == Status::OutOfMemory));
        shortage::set(0, 0);
    }
    shortage::set_least(1024);
    assert!(refused > 10, "{refused} refusals");
}

#[test]
fn a_sketch_is_of_its_codes_alone() {
    let keys = numbers(1, 64 * 64, 1.0);
    let basis = Basis::learn(&keys, 64, 1, 64).unwrap();
    let bytes = sketched(&keys, &basis, 0);
    assert_eq!(bytes.len(), Sketches::bytes(64));
    let is_read = |bytes: &[u8], sum| sketch::read(&mut bytes.to_vec(), sum, 64).is_some();
    assert!(
        is_read(&bytes, CODES) && !is_read(&bytes, CODES + 1) && !is_read(&bytes[1..], CODES) && !is_read(&[1], CODES)
    );
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        assert!(!is_read(&changed, CODES), "byte {at}");
    }
}

#[test]
fn sketches_of_a_group_have_all_of_its_bytes_once() {
    for (blocks, heads, dims) in [(16, 3, 64), (1, 1, 256), (5, 2, 80)] {
        let (mut group, mut taken) = (Group::new(100, blocks, dims), Vec::new());
        for block in 0..blocks {
            let mut all: Vec<_> = group.rest((heads, dims)).chain(taken.iter().cloned()).collect();
            all.sort_by_key(|place| place.start);
            all.windows(2).for_each(|pair| assert_eq!(pair[0].end, pair[1].start));
            assert_eq!((all[0].start, all.last().unwrap().end), (100, 100 + Group::bytes(blocks, heads, dims)));
            let own = group.next(1, (heads, dims), |_| bail!(Busy, "there is no room")).unwrap();
            taken.extend(own.places(heads, dims));
            assert_eq!(own.places(heads, dims).count(), heads);
            group.advance(dims);
            let next = group.next(1, (heads, dims), |_| bail!(Busy, "there is no room"));
            let next = next.ok().map(|next| next.places(1, dims).next().unwrap());
            // A step reads those of a head in turn.
            assert_eq!(
                next.map(|next| next.start),
                (block + 1 < blocks).then_some(own.first + Sketches::bytes(dims) as u64)
            );
        }
    }
}
