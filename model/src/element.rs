//! Conversions of elements of files and caches to f32 and back, rounded to nearest even.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use mnnkv::dtype::Dtype;

/// Elements per conversion.
const RUN: usize = 256;

/// The order of an element's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endian {
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
pub(crate) fn widen(dtype: Dtype, endian: Endian, from: &[u8], to: &mut [f32]) {
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
pub(crate) fn narrow(dtype: Dtype, endian: Endian, from: &[f32], to: &mut [u8]) {
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
pub(crate) fn round(dtype: Dtype, values: &mut [f32]) {
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
pub(crate) fn rounded(dtype: Dtype, mut value: f32) -> f32 {
    round(dtype, std::slice::from_mut(&mut value));
    value
}
