//! Rows of a block to codes: the steps that read every number. Rows are `[token][channel]` in whole lanes.

use super::{BLOCK, Dots, LANES, Line, VALUE_GROUP};
use crate::arch::estimates::Sixteen;
use half::f16;

/// Codes of V below the middle, and one less above it.
const VALUE_CODES: f32 = 8.0;
/// Two's complement of codes that count from 8 up.
const SIGNS: u8 = 0x88;

/// Scale and middle of each group of V and token, as f16, and how far the codes are from the numbers.
pub struct ValueScales<'a> {
    /// `[group][token]`.
    pub scales: &'a mut [[u8; 2]],
    /// `[group][token]`.
    pub mids: &'a mut [[u8; 2]],
    /// The sum of distances from the numbers to the codes.
    pub noise: f32,
    /// The sum of distances from the numbers to the mean of their group, without the least and the greatest of each, which
    /// alone may make the scale.
    pub spread: f32,
}

/// The least f16 that is not below a number, which is not negative; `None` above all.
pub fn at_least(x: f32) -> Option<f16> {
    let near = f16::from_f32(x);
    let up = if near.to_f32() < x { f16::from_bits(near.to_bits() + 1) } else { near };
    up.is_finite().then_some(up)
}

/// See [`super::AttendKernels::key_ranges`].
///
/// # Safety
/// As [`Dots`], here and below.
#[inline(always)]
pub(in crate::arch) unsafe fn key_ranges<V: Dots>(rows: &[f32], low: &mut [f32], high: &mut [f32]) -> bool {
    let (rows, lanes) = (rows.as_chunks::<LANES>().0, low.len() / LANES);
    let mut is_finite = true;
    let ends = low.as_chunks_mut::<LANES>().0.iter_mut().zip(high.as_chunks_mut::<LANES>().0);
    for (at, (low, high)) in ends.enumerate() {
        // SAFETY: the caller's.
        unsafe {
            let least = V::Floats::splat(f32::NEG_INFINITY);
            let (mut most, mut most_negated, mut zeros) = (least, least, V::Floats::splat(0.0));
            for row in rows.chunks_exact(lanes).take(BLOCK) {
                let x = V::Floats::load(&row[at]);
                most = x.max(most);
                most_negated = x.mul(V::Floats::splat(-1.0)).max(most_negated);
                // NaN shows a number that is not finite.
                zeros = zeros.add(x.mul(V::Floats::splat(0.0)));
            }
            most.store(high);
            most_negated.mul(V::Floats::splat(-1.0)).store(low);
            is_finite &= zeros.sum() == 0.0;
        }
    }
    is_finite
}

/// See [`super::AttendKernels::key_codes`].
#[inline(always)]
pub(in crate::arch) unsafe fn key_codes<V: Dots>(
    rows: &[f32],
    mids: &[f32],
    inverses: &[f32],
    quads: usize,
    lines: &mut [Line],
) {
    let (rows, mids, inverses) = (rows.as_chunks().0, mids.as_chunks().0, inverses.as_chunks().0);
    for (token, row) in rows.chunks_exact(mids.len()).take(BLOCK).enumerate() {
        let lines = &mut lines[token / LANES * quads..][..quads];
        let lanes = row.iter().zip(mids).zip(inverses).zip(lines.chunks_mut(4));
        for (((x, mid), inverse), lines) in lanes {
            let mut codes = [0; LANES];
            // SAFETY: the caller's.
            unsafe {
                let distance = V::Floats::load(x).add(V::Floats::load(mid).mul(V::Floats::splat(-1.0)));
                V::bytes(V::nearest(distance.mul(V::Floats::load(inverse))), &mut codes);
            }
            for (line, codes) in lines.iter_mut().zip(codes.as_chunks::<4>().0) {
                let to = &mut line.0.as_chunks_mut::<4>().0[token % LANES];
                *to = [0, 1, 2, 3].map(|i| codes[i] as u8 ^ 0x80);
            }
        }
    }
}

/// See [`super::AttendKernels::value_codes`].
#[inline(always)]
pub(in crate::arch) unsafe fn value_codes<V: Dots>(
    rows: &[f32],
    groups: usize,
    lines: &mut [Line],
    out: &mut ValueScales,
) -> bool {
    let rows = rows.as_chunks::<VALUE_GROUP>().0;
    // SAFETY: the caller's.
    unsafe {
        let negative = V::Floats::splat(-1.0);
        let (mut noise, mut spread) = (V::Floats::splat(0.0), V::Floats::splat(0.0));
        let mut ends = 0.0;
        for (at, line) in lines.iter_mut().enumerate() {
            let (group, quad) = (at / (BLOCK / 4), at % (BLOCK / 4));
            let mut words = V::zero();
            // The first token has the lowest byte.
            for token in (4 * quad..4 * quad + 4).rev() {
                let [a, b] = rows[token * groups + group].as_chunks::<LANES>().0 else { return false };
                let (a, b) = (V::Floats::load(a), V::Floats::load(b));
                let high = V::highest(a.max(b));
                let low = -V::highest(a.mul(negative).max(b.mul(negative)));
                let sum = a.add(b).sum();
                if !sum.is_finite() {
                    return false;
                }
                let mid = f16::from_f32(low + (high - low) * (VALUE_CODES / (2.0 * VALUE_CODES - 1.0)));
                let (below, above) = (mid.to_f32() - low, high - mid.to_f32());
                let Some(scale) = at_least((below / VALUE_CODES).max(above / (VALUE_CODES - 1.0))) else {
                    return false;
                };
                let place = group * BLOCK + token;
                (out.scales[place], out.mids[place]) = (scale.to_le_bytes(), mid.to_le_bytes());
                let (mid, unit) = (mid.to_f32(), scale.to_f32());
                let inverse = V::Floats::splat(if unit > 0.0 { 1.0 / unit } else { 0.0 });
                let mean = (sum - low - high) / (VALUE_GROUP - 2) as f32;
                ends += (low - mean).abs() + (high - mean).abs();
                let (mid, unit, mean) = (V::Floats::splat(-mid), V::Floats::splat(-unit), V::Floats::splat(-mean));
                let codes = [V::nearest(a.add(mid).mul(inverse)), V::nearest(b.add(mid).mul(inverse))];
                for (x, codes) in [(a, codes[0]), (b, codes[1])] {
                    noise = noise.add(V::abs(V::floats(codes).mul(unit).add(mid).add(x)));
                    spread = spread.add(V::abs(x.add(mean)));
                }
                let pairs = V::join::<4>(V::add_all(codes[1], 8), V::add_all(codes[0], 8));
                words = V::join::<8>(words, pairs);
            }
            V::line(words, line);
            line.0 = line.0.map(|pair| pair ^ SIGNS);
        }
        (out.noise, out.spread) = (noise.sum(), spread.sum() - ends);
    }
    true
}
