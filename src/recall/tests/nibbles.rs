//! The 4-bit codec.

use super::numbers;
use crate::recall::nibbles::{decode, encode, encoded_len};
use half::f16;
use proptest::prelude::*;

fn there_and_back(rows: &[f32], dims: usize) -> Option<Vec<f32>> {
    let mut codes = vec![0xEE; encoded_len(rows.len() / dims, dims)];
    let mut decoded = vec![f32::NAN; rows.len()];
    encode(rows, dims, &mut codes).then(|| decode(&codes, dims, &mut decoded))?;
    Some(decoded)
}

fn rounded(rows: &[f32]) -> Vec<f32> {
    rows.iter().map(|x| f16::from_f32(*x).to_f32()).collect()
}

/// The distance of two F16 in units in the last place.
fn units(a: f32, b: f32) -> i32 {
    let place = |x: f32| {
        let bits = i32::from(f16::from_f32(x).to_bits());
        if bits & 0x8000 == 0 { bits } else { 0x8000 - bits }
    };
    (place(a) - place(b)).abs()
}

proptest! {
    #[test]
    fn an_element_of_f16_is_within_the_bound_and_stays_there_when_it_is_encoded_again(
        dims in 1usize..140, tokens in 1usize..5, seed: u64, offset in -300.0f32..300.0,
        size in prop_oneof![Just(0.0f32), 1e-6f32..1e-2, 1e-2f32..10.0, 10.0f32..2000.0],
    ) {
        let rows: Vec<f32> = rounded(&numbers(seed, tokens * dims, size).iter().map(|x| x + offset * size.min(1.0)).collect::<Vec<_>>());
        let decoded = there_and_back(&rows, dims).unwrap();
        for (group, decoded) in rows.chunks(dims).zip(decoded.chunks(dims)).flat_map(|(r, d)| r.chunks(32).zip(d.chunks(32))) {
            let range = group.iter().copied().fold(f32::MIN, f32::max) - group.iter().copied().fold(f32::MAX, f32::min);
            for (x, y) in group.iter().zip(decoded) {
                prop_assert!((x - y).abs() <= (range / 29.0).max(1.0 / 65_536.0) * 1.000_01 + x.abs() * 1e-6, "{x} {y} {range}");
            }
        }
        let first = rounded(&decoded);
        let second = rounded(&there_and_back(&first, dims).unwrap());
        prop_assert!(first.iter().zip(&second).all(|(a, b)| units(*a, *b) <= 1), "{first:?} {second:?}");
        let mut last = second.clone();
        for _ in 0..100 {
            last = rounded(&there_and_back(&last, dims).unwrap());
        }
        prop_assert_eq!(last, second);
    }
}

#[test]
fn four_bits_take_at_most_three_tenths_of_f16() {
    for dims in [32, 64, 96, 128, 256] {
        assert!(encoded_len(16, dims) * 10 <= 16 * dims * 2 * 3, "{dims}");
    }
    assert_eq!(encoded_len(2, 33), 2 * (19 + 4));
}

#[test]
fn numbers_that_have_no_code_are_refused() {
    let with = |at: usize, x: f32| {
        let mut rows = numbers(1, 128, 1.0);
        rows[at] = x;
        there_and_back(&rows, 64)
    };
    for x in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 65_001.0, -70_000.0, 4_500.0] {
        assert!([0, 31, 32, 127].iter().all(|at| with(*at, x).is_none()), "{x}");
    }
    assert!(with(64, 4_400.0).is_some());
}
