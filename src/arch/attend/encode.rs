//! Rows of a block to codes: the steps that read every number. Rows are `[token][channel]` in whole lanes.

use super::{BLOCK, Dots, LANES, Line, VALUE_GROUP};
use crate::arch::estimates::Sixteen;
use half::f16;

/// Codes of V below the middle, and one less above it.
pub(super) const VALUE_CODES: f32 = 8.0;
/// Two's complement of codes that count from 8 up.
const SIGNS: u8 = 0x88;

/// Scale and middle of each group of V and token, as f16, and how far the codes are from the numbers.
pub struct ValueScales<'a> {
    /// `[group][token]`.
    pub scales: &'a mut [[u8; 2]],
    /// `[group][token]`.
    pub mids: &'a mut [[u8; 2]],
    /// The error of the worst group: the distances of its numbers, of all tokens, from their codes, as a share of their
    /// distances from the mean of their token. The mean and its distances are without the least and the greatest number of a
    /// token, which alone may make the scale.
    pub error: f32,
}

/// Distances below this share of a middle do not count: those of f16 are as large.
pub(super) const LEAST_ERROR: f32 = 1.0 / 4096.0;

/// The least f16 that is not below a number, which is not negative; `None` above all.
pub fn at_least(x: f32) -> Option<f16> {
    let near = f16::from_f32(x);
    let up = if near.to_f32() < x { f16::from_bits(near.to_bits() + 1) } else { near };
    up.is_finite().then_some(up)
}

/// The middle and the scale of numbers from a least to a greatest one, whose codes reach from `-codes` to `codes - 1`: the f16 nearest
/// to what lies as far between them, and the least f16 that reaches both. `None` where f16 has no such numbers.
pub fn middle_and_scale(low: f32, high: f32, codes: f32) -> Option<(f16, f16)> {
    let mid = f16::from_f32(low + (high - low) * (codes / (2.0 * codes - 1.0)));
    let (below, above) = (mid.to_f32() - low, high - mid.to_f32());
    let scale = at_least((below / codes).max(above / (codes - 1.0)))?;
    mid.is_finite().then_some((mid, scale))
}

/// What a number less its middle is multiplied by to be a code.
pub fn inverse(scale: f16) -> f32 {
    if scale == f16::ZERO { 0.0 } else { 1.0 / scale.to_f32() }
}

/// Of each channel of a block's K.
pub struct KeyRanges<'a> {
    /// The least number.
    pub low: &'a mut [f32],
    /// The greatest one.
    pub high: &'a mut [f32],
    /// The least of the mean magnitudes of 16 tokens each: that of most, where some are far greater.
    pub size: &'a mut [f32],
}

/// See [`super::AttendKernels::key_ranges`].
///
/// # Safety
/// As [`Dots`], here and below.
#[inline(always)]
pub(in crate::arch) unsafe fn key_ranges<V: Dots>(rows: &[f32], out: &mut KeyRanges) -> bool {
    let (rows, lanes) = (rows.as_chunks::<LANES>().0, out.low.len() / LANES);
    let mut is_finite = true;
    let ends = out.low.as_chunks_mut::<LANES>().0.iter_mut().zip(out.high.as_chunks_mut::<LANES>().0);
    for (at, ((low, high), size)) in ends.zip(out.size.as_chunks_mut::<LANES>().0).enumerate() {
        // SAFETY: the caller's.
        unsafe {
            let least = V::Floats::splat(f32::NEG_INFINITY);
            let (mut most, mut most_negated, mut zeros) = (least, least, V::Floats::splat(0.0));
            let mut negated_size = least;
            for panel in rows.chunks_exact(lanes * LANES).take(BLOCK / LANES) {
                let mut sum = V::Floats::splat(0.0);
                for row in panel.chunks_exact(lanes) {
                    let x = V::Floats::load(&row[at]);
                    most = x.max(most);
                    most_negated = x.mul(V::Floats::splat(-1.0)).max(most_negated);
                    // NaN shows a number that is not finite.
                    zeros = zeros.add(x.mul(V::Floats::splat(0.0)));
                    sum = sum.add(V::abs(x).mul(V::Floats::splat(-1.0 / LANES as f32)));
                }
                negated_size = sum.max(negated_size);
            }
            negated_size.mul(V::Floats::splat(-1.0)).store(size);
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
        let (mut ends, mut middles) = (0.0, 0.0);
        out.error = 0.0;
        for (at, line) in lines.iter_mut().enumerate() {
            let (group, quad) = (at / (BLOCK / 4), at % (BLOCK / 4));
            if quad == 0 {
                (noise, spread) = (V::Floats::splat(0.0), V::Floats::splat(0.0));
                (ends, middles) = (0.0, 0.0);
            }
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
                let Some((mid, scale)) = middle_and_scale(low, high, VALUE_CODES) else { return false };
                let place = group * BLOCK + token;
                (out.scales[place], out.mids[place]) = (scale.to_le_bytes(), mid.to_le_bytes());
                let (mid, unit, inverse) = (mid.to_f32(), scale.to_f32(), V::Floats::splat(inverse(scale)));
                let mean = (sum - low - high) / (VALUE_GROUP - 2) as f32;
                ends += (low - mean).abs() + (high - mean).abs();
                middles += mid.abs();
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
            if quad == BLOCK / 4 - 1 {
                let noise = noise.sum() - middles * (VALUE_GROUP as f32 * LEAST_ERROR);
                let spread = spread.sum() - ends;
                if noise > 0.0 {
                    out.error = out.error.max(if spread > 0.0 { noise / spread } else { f32::INFINITY });
                }
            }
        }
    }
    true
}
