//! The kernels of gear: codes, matches, and rows of words.

use super::*;
use crate::arch::words::{Bf16, F16, F32, Int8, Real, Word};

#[test]
fn every_level_lists_the_places_of_a_byte() {
    for len in lengths() {
        for src in contents(len) {
            let byte = src.get(len / 2).copied().unwrap_or(7);
            let expected: Vec<u16> = (0..len).filter(|i| src[*i] == byte).map(|i| i as u16).collect();
            for k in available() {
                let mut places = vec![0; len];
                let count = (k.places)(&src, byte, &mut places);
                assert_eq!(places[..count], expected, "{:?} {len}", k.level);
            }
        }
    }
}

#[test]
fn every_level_finds_the_first_of_the_closest_sketches() {
    for blocks in (0..20).chain([64, 256]) {
        // Few values, so that many are as close.
        let numbers: Vec<u8> =
            noise(blocks * ABREAST * SKETCH).iter().map(|n| n % 5 * if blocks == 3 { 63 } else { 1 }).collect();
        let blocks: Vec<SketchBlock> = numbers.as_chunks::<ABREAST>().0.as_chunks::<SKETCH>().0.to_vec();
        let sketch = [1, 3, 0, 2, 2, 4, 1, 0];
        let sum = |slot: &usize| -> u32 {
            let number = |i: usize| blocks[slot / ABREAST][i][slot % ABREAST];
            (0..SKETCH).map(|i| number(i).abs_diff(sketch[i]) as u32).sum()
        };
        let expected = (0..blocks.len() * ABREAST).min_by_key(sum).filter(|slot| sum(slot) < 255);
        for k in available() {
            assert_eq!((k.closest)(&blocks, &sketch), expected, "{:?} {}", k.level, blocks.len());
        }
    }
}

/// The results of every kernel for rows of `W`, as bits.
fn rows<W: Word>(k: &Kernels, len: usize) -> Vec<u64> {
    let kernels = W::kernels(k);
    let bits = |row: &[W::Real]| row.iter().map(|r| r.to_f32().to_bits() as u64).collect::<Vec<_>>();
    let bytes = noise(1 + 2 * len * W::BYTES);
    let (words, other) = bytes[1..].split_at(len * W::BYTES);
    let other = &other[..words.len()];
    let mut row = vec![W::Real::default(); len];
    (kernels.read)(words, &mut row);
    let mut all = bits(&row);
    let (mut nearest, mut steps) = (words.to_vec(), words.to_vec());
    (kernels.nearest)(&row, &mut nearest);
    all.push((kernels.steps)(words, other, &mut steps));
    all.extend(nearest.iter().chain(&steps).map(|b| *b as u64));
    (kernels.walk)(other, &mut steps);
    assert_eq!(steps, words, "{:?} walks back", k.level);
    all.push((kernels.are_moderate)(words) as u64);
    // Numbers whose sums and products are finite.
    let numbers: Vec<W::Real> = noise(len + 3).iter().map(|b| W::Real::from_f64(*b as f64 / 7.0 - 18.0)).collect();
    let (mut a, mut b) = (numbers[..len].to_vec(), numbers[3..].to_vec());
    all.extend((kernels.sums)(&a).map(|sum| sum.to_bits() as u64));
    all.extend([(kernels.size)(&a), (kernels.distance)(&a, &b)].map(|sum| sum.to_bits() as u64));
    let frequencies: Vec<f32> = (0..len).map(|i| [1e6, 1.0, 0.03, 1e-13, 0.0][i % 5] / (1 + i) as f32).collect();
    let (mut cos, mut sin) = (a.clone(), b.clone());
    for position in [0, 1, 77, 131_071, u32::MAX] {
        (kernels.turns)(position, &frequencies, &mut cos, &mut sin);
        for back in [false, true] {
            (kernels.turn)(back, &mut a, &mut b, &cos, &sin);
        }
        all.extend([&cos, &sin, &a, &b].into_iter().flat_map(|row| bits(row)));
    }
    all
}

#[test]
fn every_level_computes_rows_to_the_bit_as_portable() {
    for len in (0..=70).chain([127, 128, 1500, 2100]) {
        for k in available() {
            assert!(rows::<F16>(k, len) == rows::<F16>(&PORTABLE, len), "{:?} F16 {len}", k.level);
            assert!(rows::<Bf16>(k, len) == rows::<Bf16>(&PORTABLE, len), "{:?} BF16 {len}", k.level);
            assert!(rows::<F32>(k, len) == rows::<F32>(&PORTABLE, len), "{:?} F32 {len}", k.level);
            assert!(rows::<Int8>(k, len) == rows::<Int8>(&PORTABLE, len), "{:?} INT8 {len}", k.level);
        }
    }
}
