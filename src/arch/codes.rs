//! Rows of numbers to int8 codes and back, with a scale and an offset for each column.
//!
//! Loops over whole rows that compilers vectorise; a level compiles them for its instructions. Every operation is one of
//! IEEE 754 in f32, so codes and values are the same to the bit at every level. With scales of at least 2^-100 no
//! denormal f32 matters, so the host's treatment of denormals changes nothing.

use super::values::{Bf16, F16, F32, Value};

/// A type of `N` bytes that f32 is rounded to.
pub(super) trait Number<const N: usize>: Value<N> {
    /// The nearest number of the type, ties to even. Not for NaN.
    fn narrow(number: f32) -> [u8; N];
}

impl Number<4> for F32 {
    #[inline(always)]
    fn narrow(number: f32) -> [u8; 4] {
        number.to_ne_bytes()
    }
}

impl Number<2> for Bf16 {
    #[inline(always)]
    fn narrow(number: f32) -> [u8; 2] {
        ((rounded(number.to_bits(), 16) >> 16) as u16).to_ne_bytes()
    }
}

impl Number<2> for F16 {
    #[inline(always)]
    fn narrow(number: f32) -> [u8; 2] {
        /// The difference of the exponents of f32 and f16, in place.
        const BIAS: u32 = (127 - 15) << 23;
        /// The least number of f16 that is not a denormal.
        const NORMAL: u32 = BIAS + (1 << 23);
        const INFINITY: u32 = 0x7c00;
        let bits = number.to_bits();
        let magnitude = bits & 0x7fff_ffff;
        let normal = rounded(magnitude, 13).wrapping_sub(BIAS) >> 13;
        // From 0.5 on, the unit of f32 is that of f16's denormals: the addition rounds.
        let denormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
        let half = if magnitude < NORMAL { denormal } else { normal }.min(INFINITY);
        ((half | (bits >> 16) & 0x8000) as u16).to_ne_bytes()
    }
}

/// The bits of a number, changed so that a cut of the lowest `cut` rounds it to nearest, ties to even.
#[inline(always)]
fn rounded(bits: u32, cut: u32) -> u32 {
    bits + ((1 << (cut - 1)) - 1) + (bits >> cut & 1)
}

/// The code of `value`: `rint(value / scale + offset)` in -128 ..= 127; that of 0 for NaN.
#[inline(always)]
fn code(value: f32, scale: f32, offset: f32) -> i8 {
    /// From here to 2^24 the unit of f32 is 1: an addition rounds, and the lowest byte holds the sum.
    const WHOLE: f32 = (3 << 22) as f32;
    let steps = value / scale;
    let steps = if steps.is_nan() { 0.0 } else { steps } + offset;
    // Clamping before rounding has the same result, and single instructions in this form.
    let steps = if steps > -128.0 { steps } else { -128.0 };
    let steps = if steps < 127.0 { steps } else { 127.0 };
    (steps + WHOLE).to_bits() as i8
}

/// See [`super::ModelKernels::quantize_f32`] and the others.
#[inline(always)]
pub(super) fn quantize<V: Number<N>, const N: usize>(values: &[u8], scale: &[f32], offset: &[f32], codes: &mut [i8]) {
    let values = values.as_chunks::<N>().0;
    let columns = columns(values.len(), scale, offset, codes.len());
    for (codes, values) in codes.chunks_exact_mut(columns).zip(values.chunks_exact(columns)) {
        for (((to, value), scale), offset) in codes.iter_mut().zip(values).zip(scale).zip(offset) {
            *to = code(V::widen(*value) * V::UNIT, *scale, *offset);
        }
    }
}

/// See [`super::ModelKernels::dequantize_f32`] and the others.
#[inline(always)]
pub(super) fn dequantize<V: Number<N>, const N: usize>(codes: &[i8], scale: &[f32], offset: &[f32], values: &mut [u8]) {
    let values = values.as_chunks_mut::<N>().0;
    let columns = columns(values.len(), scale, offset, codes.len());
    for (values, codes) in values.chunks_exact_mut(columns).zip(codes.chunks_exact(columns)) {
        for (((to, code), scale), offset) in values.iter_mut().zip(codes).zip(scale).zip(offset) {
            *to = V::narrow((f32::from(*code) - *offset) * *scale);
        }
    }
}

/// Checks the shape of a kernel's arguments. Returns the number of columns.
#[inline(always)]
pub(super) fn columns(values: usize, scale: &[f32], offset: &[f32], codes: usize) -> usize {
    let columns = scale.len();
    assert!(columns > 0 && offset.len() == columns, "a scale and an offset for every column");
    assert!(codes.is_multiple_of(columns) && values == codes, "whole rows and equal lengths");
    columns
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    /// Every f32 whose upper bits are different, and the neighbours of what rounds up or down.
    fn numbers() -> impl Iterator<Item = f32> {
        let edges = [0, 1, 0xfff, 0x1000, 0x1001, 0x1fff, 0x7fff, 0x8000, 0x8001, 0xffff];
        (0..=u16::MAX).flat_map(move |high| edges.map(|low| f32::from_bits(u32::from(high) << 16 | low)))
    }

    #[test]
    fn numbers_are_rounded_to_the_nearest_and_ties_to_even() {
        for number in numbers().filter(|n| !n.is_nan()) {
            let (ours, theirs) = (F16::narrow(number), f16::from_f32(number).to_ne_bytes());
            assert_eq!(ours, theirs, "{number:e} to f16");
            let (ours, theirs) = (Bf16::narrow(number), bf16::from_f32(number).to_ne_bytes());
            assert_eq!(ours, theirs, "{number:e} to bf16");
            assert_eq!(F32::narrow(number), number.to_ne_bytes());
        }
    }
}
