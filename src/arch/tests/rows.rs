//! Kernels of a host's rows: the same bits at every level, and nothing read or written beyond their rows.

use super::*;
use crate::arch::attend::rows::{RowKernels, RowTile, RowType, UNIT};
use crate::arch::attend::{self, BLOCK, QUERIES};

/// Rows of any bytes; scales are small, and no half is infinite or NaN.
fn rows(kind: RowType, dims: usize, stride: usize, tokens: usize) -> Vec<u8> {
    let mut bytes = noise((tokens - 1) * stride + kind.bytes(dims));
    for row in bytes.chunks_mut(stride) {
        let row = &mut row[..kind.bytes(dims)];
        let unit = kind.bytes(UNIT);
        match kind {
            RowType::F16 => row.iter_mut().skip(1).step_by(2).for_each(|high| *high &= 0xBF),
            _ => row.iter_mut().skip(1).step_by(unit).for_each(|high| *high = *high & 0x83 | 0x20),
        }
    }
    bytes
}

#[test]
fn every_level_attends_to_rows_with_the_same_bits() {
    let floats = |len: usize| noise(len).into_iter().map(|b| f32::from(b as i8) / 37.0).collect::<Vec<_>>();
    for (kind, dims) in
        [RowType::F16, RowType::Q8_0, RowType::Q4_0].into_iter().flat_map(|k| [32, 64, 96, 576].map(|d| (k, d)))
    {
        for (tokens, count, gap) in [(1, 1, 0), (2, 4, 3), (5, 2, 64), (63, 3, 1), (BLOCK, QUERIES, 0), (BLOCK, 1, 7)] {
            let stride = kind.bytes(dims) + gap;
            let bytes = rows(kind, dims, stride, tokens);
            let tile = RowTile { bytes: &bytes, stride, tokens, dims };
            let (queries, weights) = (floats(count * dims), floats(count * BLOCK));
            let queries: Vec<&[f32]> = queries.chunks(dims).collect();
            let len = dims + 5;
            let run = |k: &RowKernels| {
                let (mut logits, mut sums) = (vec![[f32::NAN; BLOCK]; count], floats(count * len + 1));
                (k.logits[kind as usize])(&tile, &queries, 0.125, &mut logits);
                (k.values[kind as usize])(&tile, weights.as_chunks().0, &mut sums, len);
                logits.concat().into_iter().chain(sums).map(f32::to_bits).collect::<Vec<_>>()
            };
            let expected = run(&attend::rows::PORTABLE);
            for level in Available::all() {
                let name = level.kernels().level;
                let is_equal = run(level.row_kernels()) == expected;
                assert!(is_equal, "{kind:?} {name:?}: {dims} dims, {tokens} tokens, {count} queries");
            }
            let (logits, sums) = expected.split_at(count * BLOCK);
            for logits in logits.chunks(BLOCK) {
                assert!(logits[tokens..].iter().all(|bits| *bits == f32::NEG_INFINITY.to_bits()));
            }
            let untouched = floats(count * len + 1);
            for at in (0..count).flat_map(|n| n * len + dims..(n + 1) * len).chain([count * len]) {
                assert_eq!(sums[at], untouched[at].to_bits(), "behind the sums");
            }
        }
    }
}

#[test]
fn tiles_that_do_not_fit_are_refused() {
    let bytes = [0; 640];
    let query = [0.0; 64];
    for (len, stride, tokens, dims) in [
        (255, 64, 4, 32),
        (639, 64, 10, 32),
        (640, 64, 0, 32),
        (640, 1, BLOCK + 1, 32),
        (640, 64, 4, 31),
        (640, usize::MAX, 3, 32),
        (640, 64, 4, 96),
    ] {
        let tile = RowTile { bytes: &bytes[..len], stride, tokens, dims };
        for level in Available::all() {
            let call = || (level.row_kernels().logits[0])(&tile, &[&query], 1.0, &mut [[0.0; BLOCK]]);
            assert!(std::panic::catch_unwind(call).is_err(), "{len} {stride} {tokens} {dims}");
        }
    }
}

#[test]
fn every_level_caps_logits_as_tanh_and_to_the_same_bits() {
    let steps = (-3000..=3000).map(|i| i as f32 * 0.004);
    let small = (0..1500).map(|i| 10f32.powf(i as f32 * 0.025 - 37.0));
    let mut numbers: Vec<f32> = steps.chain(small).collect();
    numbers.extend([0.0, -0.0, 1e30, f32::MAX, f32::MIN, f32::INFINITY, f32::NEG_INFINITY, f32::NAN]);
    numbers.resize(numbers.len().next_multiple_of(16), 1.0);
    for cap in [f32::MIN_POSITIVE, 0.3, 1.0, 50.0, 1e6] {
        let capped = |kernels: &attend::AttendKernels| {
            let mut logits: Vec<f32> = numbers.iter().map(|x| x * cap).collect();
            (kernels.soft_cap)(logits.as_chunks_mut().0, cap);
            logits
        };
        let expected = capped(&attend::PORTABLE);
        for kernels in available_attend() {
            assert!(capped(kernels).iter().map(|x| x.to_bits()).eq(expected.iter().map(|x| x.to_bits())));
        }
        for (x, y) in numbers.iter().zip(expected) {
            let exact = f64::from(x * cap / cap).tanh();
            let allowed = exact.abs() * 2f64.powi(-21);
            let off = (f64::from(y) / f64::from(cap) - exact).abs();
            assert!(off <= allowed || x.is_nan() && y.is_nan() || y.is_subnormal(), "cap {cap}, {x}: {off:e} off");
        }
    }
}
