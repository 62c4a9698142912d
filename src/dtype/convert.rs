//! Conversions of elements of files and caches to f32 and back, rounded to nearest even, and other loops over numbers.
//!
//! Loops over whole caches: they are here since the model crate is compiled for size, and never inlined there.

use super::Dtype;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Elements per conversion.
const RUN: usize = 256;

/// The order of an element's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endian {
    /// Weights files.
    Little,
    /// Caches: native order.
    Native,
}

impl Endian {
    fn two(self, bytes: [u8; 2]) -> u16 {
        if self == Endian::Little { u16::from_le_bytes(bytes) } else { u16::from_ne_bytes(bytes) }
    }

    fn four(self, bytes: [u8; 4]) -> u32 {
        if self == Endian::Little { u32::from_le_bytes(bytes) } else { u32::from_ne_bytes(bytes) }
    }
}

/// Converts elements of `dtype`, a float, to f32. Both slices have the same number of elements.
#[inline(never)]
pub fn widen(dtype: Dtype, endian: Endian, from: &[u8], to: &mut [f32]) {
    assert_eq!(from.len(), to.len() * dtype.bytes());
    let words = from.as_chunks::<2>().0.chunks(RUN).zip(to.chunks_mut(RUN));
    match dtype {
        Dtype::F16 => words.for_each(|(from, to)| {
            let mut run = [f16::ZERO; RUN];
            run.iter_mut().zip(from).for_each(|(x, bytes)| *x = f16::from_bits(endian.two(*bytes)));
            run[..to.len()].convert_to_f32_slice(to);
        }),
        Dtype::Bf16 => words.for_each(|(from, to)| {
            to.iter_mut().zip(from).for_each(|(x, bytes)| *x = bf16::from_bits(endian.two(*bytes)).to_f32());
        }),
        _ => {
            for (x, bytes) in to.iter_mut().zip(from.as_chunks::<4>().0) {
                *x = f32::from_bits(endian.four(*bytes));
            }
        }
    }
}

/// Converts numbers to elements of `dtype`, a float.
#[inline(never)]
pub fn narrow(dtype: Dtype, endian: Endian, from: &[f32], to: &mut [u8]) {
    assert_eq!(to.len(), from.len() * dtype.bytes());
    let two = |bits: u16| if endian == Endian::Little { bits.to_le_bytes() } else { bits.to_ne_bytes() };
    let words = from.chunks(RUN).zip(to.as_chunks_mut::<2>().0.chunks_mut(RUN));
    match dtype {
        Dtype::F16 => words.for_each(|(from, to)| {
            let mut run = [f16::ZERO; RUN];
            run[..from.len()].convert_from_f32_slice(from);
            to.iter_mut().zip(run).for_each(|(bytes, x)| *bytes = two(x.to_bits()));
        }),
        Dtype::Bf16 => words.for_each(|(from, to)| {
            to.iter_mut().zip(from).for_each(|(bytes, x)| *bytes = two(bf16::from_f32(*x).to_bits()));
        }),
        _ => {
            for (bytes, x) in to.as_chunks_mut::<4>().0.iter_mut().zip(from) {
                *bytes = if endian == Endian::Little { x.to_le_bytes() } else { x.to_ne_bytes() };
            }
        }
    }
}

/// Rounds numbers to `dtype`.
#[inline(never)]
pub fn round(dtype: Dtype, values: &mut [f32]) {
    match dtype {
        Dtype::F16 => values.chunks_mut(RUN).for_each(|values| {
            let mut run = [f16::ZERO; RUN];
            run[..values.len()].convert_from_f32_slice(values);
            run[..values.len()].convert_to_f32_slice(values);
        }),
        Dtype::Bf16 => values.iter_mut().for_each(|x| *x = bf16::from_f32(*x).to_f32()),
        _ => {}
    }
}

/// As [`round`], for one number.
pub fn rounded(dtype: Dtype, mut value: f32) -> f32 {
    round(dtype, std::slice::from_mut(&mut value));
    value
}

/// Rounds to `dtype` and replaces negative numbers by 0. NaN stays NaN.
#[inline(never)]
pub fn activate(dtype: Dtype, values: &mut [f32]) {
    round(dtype, values);
    values.iter_mut().for_each(|x| *x = if *x < 0.0 { 0.0 } else { *x });
}

/// The index of the first NaN or infinity.
#[inline(never)]
pub fn first_not_finite(values: &[f32]) -> Option<usize> {
    values.iter().position(|x| !x.is_finite())
}

/// The largest magnitude; NaN and infinity are above all numbers, and no values have 0.
#[inline(never)]
pub fn largest_magnitude(values: &[f32]) -> f32 {
    // The bits of magnitudes are ordered as the numbers, with those of NaN and infinity above.
    f32::from_bits(values.iter().map(|x| x.to_bits() & (u32::MAX >> 1)).max().unwrap_or(0))
}

#[cfg(test)]
mod tests;
