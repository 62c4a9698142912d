//! Sums over a range of columns of a packed matrix, row by row: the kernels of attention scores.
//!
//! Values are widened to f32 and added to several partial sums that do not depend on one another, in loops that compilers
//! vectorise; a level compiles them for its instructions, with its own [`Value::add`]. The order of additions is fixed,
//! so the sums are the same to the bit at every level.

use std::ops::Range;

/// Partial sums of contiguous values.
const PARTS: usize = 16;
/// Packs that are summed at once: few enough streams for any cache, and enough to make the additions across a pack, once
/// per row, cheap.
const PACKS: usize = 4;

/// The values of a matrix that are summed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedRows {
    /// Interleaved columns: values are `[columns / pack, rounded up][rows][pack]`. 0 for plain rows, `[rows][columns]`.
    pub pack: usize,
    /// Rows of the matrix.
    pub rows: usize,
    /// Columns, without padding.
    pub columns: usize,
    /// The first row that is summed.
    pub first_row: usize,
    /// The columns that are summed.
    pub range: Range<usize>,
}

/// A type of `N` bytes.
pub(super) trait Value<const N: usize> {
    /// The factor from a widened value to the value.
    const UNIT: f32;
    /// The most widened values, of at most 1 each, whose sum fits f32.
    const MAX_RUN: usize = usize::MAX;

    /// The value divided by [`Value::UNIT`], exactly; infinity and NaN stay what they are.
    fn widen(bytes: [u8; N]) -> f32;

    /// Adds widened values to partial sums.
    #[inline(always)]
    fn add<const P: usize>(sums: &mut [f32; P], values: &[[u8; N]; P]) {
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum += Self::widen(*value);
        }
    }
}

pub(super) struct F32;
pub(super) struct F16;
pub(super) struct Bf16;

impl Value<4> for F32 {
    const UNIT: f32 = 1.0;

    #[inline(always)]
    fn widen(bytes: [u8; 4]) -> f32 {
        f32::from_ne_bytes(bytes)
    }
}

impl Value<2> for Bf16 {
    const UNIT: f32 = 1.0;

    #[inline(always)]
    fn widen(bytes: [u8; 2]) -> f32 {
        f32::from_bits(u32::from(u16::from_ne_bytes(bytes)) << 16)
    }
}

/// The difference of the largest exponents of f32 and f16, in place. Moved by it, infinity and NaN of f16 are infinity
/// and NaN of f32, and numbers are multiplied by 2^112.
const EXPONENT: u32 = (255 - 31) << 23;

impl Value<2> for F16 {
    const UNIT: f32 = f32::from_bits((127 - 112) << 23);
    const MAX_RUN: usize = 1 << 15;

    /// Never computes with a denormal f32: that may be slow, or wrong where the host has them turned off.
    #[inline(always)]
    fn widen(bytes: [u8; 2]) -> f32 {
        /// The least number that is not a denormal of f16.
        const NORMAL: f32 = f32::from_bits(EXPONENT + (1 << 23));
        let half = u32::from(u16::from_ne_bytes(bytes));
        let number = f32::from_bits(((half & 0x7fff) << 13) + EXPONENT);
        // Denormals, which are below NORMAL, got a hidden bit that they do not have, and half of their unit: the value is
        // twice the number, less NORMAL.
        // Selected by sign: a comparison would become a branch in the loops of codes.
        let below = (number - NORMAL).to_bits();
        let number = number + f32::from_bits(below & ((below as i32) >> 31) as u32);
        f32::from_bits(number.to_bits() | (half & 0x8000) << 16)
    }
}

/// The sum of whole values.
///
/// Apart from [`rows`], because attention of one token calls it about once for 64 tokens.
#[inline(always)]
pub(super) fn sum<V: Value<N>, const N: usize>(values: &[u8]) -> f32 {
    contiguous_sum::<V, N>(values.as_chunks::<N>().0)
}

/// The sums of a matrix's rows.
#[inline(always)]
pub(super) fn rows<V: Value<N>, const N: usize>(shape: &PackedRows, values: &[u8], sums: &mut [f32]) {
    let values = values.as_chunks::<N>().0;
    let PackedRows { pack, rows, columns, first_row, ref range } = *shape;
    sums.fill(0.0);
    // Every row by itself: there are no packs, or no more than one, or no other rows between them.
    let row_len = if pack == 0 || rows == 1 { columns } else { pack };
    if row_len >= columns {
        for (row, total) in values.chunks_exact(row_len).skip(first_row).zip(sums) {
            *total = contiguous_sum::<V, N>(&row[range.clone()]);
        }
        return;
    }
    match pack {
        4 => add_packs::<V, N, 4>(shape, values, sums),
        8 => add_packs::<V, N, 8>(shape, values, sums),
        16 => add_packs::<V, N, 16>(shape, values, sums),
        pack => {
            for column in range.clone() {
                let column = &values[column / pack * rows * pack + column % pack..];
                for (value, total) in column.iter().step_by(pack).skip(first_row).zip(&mut *sums) {
                    *total += V::widen(*value) * V::UNIT;
                }
            }
        }
    }
}

/// The sum of contiguous values.
#[inline(always)]
fn contiguous_sum<V: Value<N>, const N: usize>(values: &[[u8; N]]) -> f32 {
    if values.len() <= V::MAX_RUN {
        return run_sum::<V, N>(values);
    }
    values.chunks(V::MAX_RUN).map(run_sum::<V, N>).sum()
}

#[inline(always)]
fn run_sum<V: Value<N>, const N: usize>(values: &[[u8; N]]) -> f32 {
    let (parts, rest) = values.as_chunks::<PARTS>();
    let mut parts_of_sum = [0.0; PARTS];
    for part in parts {
        V::add(&mut parts_of_sum, part);
    }
    let mut total = across(parts_of_sum);
    if !rest.is_empty() {
        let (parts, rest) = rest.as_chunks::<4>();
        let mut parts_of_sum = [0.0; 4];
        for part in parts {
            V::add(&mut parts_of_sum, part);
        }
        total += rest.iter().fold(across(parts_of_sum), |sum, value| sum + V::widen(*value));
    }
    total * V::UNIT
}

/// [`rows`] of packs of `P`.
#[inline(always)]
fn add_packs<V: Value<N>, const N: usize, const P: usize>(shape: &PackedRows, values: &[[u8; N]], sums: &mut [f32]) {
    let packs = values.as_chunks::<P>().0;
    let PackedRows { rows, first_row, range: Range { start: mut column, end }, .. } = *shape;
    while column < end {
        let (index, place) = (column / P, column % P);
        let whole = ((end - column) / P).min(PACKS);
        if place == 0 && whole > 0 {
            add_whole::<V, N, P>(&packs[index * rows..(index + whole) * rows], rows, first_row, sums);
            column += whole * P;
        } else {
            let places = place..P.min(place + (end - column));
            column += places.len();
            add_part::<V, N, P>(&packs[index * rows + first_row..(index + 1) * rows], places, sums);
        }
    }
}

/// Adds whole packs, `[pack][row]`, to the sums of their rows.
#[inline(always)]
fn add_whole<V: Value<N>, const N: usize, const P: usize>(
    packs: &[[[u8; N]; P]],
    rows: usize,
    first_row: usize,
    sums: &mut [f32],
) {
    for (row, total) in (first_row..rows).zip(sums) {
        let mut parts_of_sum = [0.0; P];
        let mut at = row;
        while at < packs.len() {
            V::add(&mut parts_of_sum, &packs[at]);
            at += rows;
        }
        *total += across(parts_of_sum) * V::UNIT;
    }
}

/// Adds some places of a pack, `[row]`, to the sums of its rows.
#[inline(always)]
fn add_part<V: Value<N>, const N: usize, const P: usize>(
    pack: &[[[u8; N]; P]],
    places: Range<usize>,
    sums: &mut [f32],
) {
    // The others are masked by their bits, because they may be NaN.
    let mask: [u32; P] = std::array::from_fn(|i| if places.contains(&i) { u32::MAX } else { 0 });
    for (values, total) in pack.iter().zip(sums) {
        let parts_of_sum = std::array::from_fn::<_, P, _>(|i| f32::from_bits(V::widen(values[i]).to_bits() & mask[i]));
        *total += across(parts_of_sum) * V::UNIT;
    }
}

/// The sum of partial sums, a power of two of them, by halves.
#[inline(always)]
pub(super) fn across<const P: usize>(mut sums: [f32; P]) -> f32 {
    let mut half = P / 2;
    while half > 0 {
        for i in 0..half {
            sums[i] += sums[i + half];
        }
        half /= 2;
    }
    sums[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    #[test]
    fn every_f16_is_widened_exactly() {
        for bits in 0..=u16::MAX {
            let (ours, exact) = (F16::widen(bits.to_ne_bytes()) * F16::UNIT, f16::from_bits(bits).to_f32());
            assert!(ours.to_bits() == exact.to_bits() || ours.is_nan() && exact.is_nan(), "{bits:#x}: {ours} {exact}");
        }
    }
}
