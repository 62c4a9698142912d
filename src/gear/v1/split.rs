//! Words to byte planes and back.

use crate::arch;
use crate::dtype::Dtype;

/// Bytes per word, which is also the number of planes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::gear) enum Width {
    /// int8. The reference has no such frames.
    One,
    /// fp16 (and, bit for bit, bf16).
    Two,
    /// fp32.
    Four,
}

impl Width {
    /// The width of a type's words. bf16 is split like fp16: frames have bytes, not numbers.
    pub(in crate::gear) const fn of(dtype: Dtype) -> Self {
        match dtype {
            Dtype::Int8 => Width::One,
            Dtype::F16 | Dtype::Bf16 => Width::Two,
            Dtype::F32 => Width::Four,
        }
    }

    /// Bytes per word.
    pub(in crate::gear) const fn bytes(self) -> usize {
        match self {
            Width::One => 1,
            Width::Two => 2,
            Width::Four => 4,
        }
    }
}

/// Byte `i` of every word goes to plane `i`; planes lie one after the other in `planes`, which is as long as `words`.
pub(super) fn split(width: Width, words: &[u8], planes: &mut [u8]) {
    let k = arch::kernels();
    match width {
        Width::One => planes.copy_from_slice(words),
        Width::Two => (k.split2)(words, planes),
        Width::Four => (k.split4)(words, planes),
    }
}

/// The inverse of [`split`].
pub(super) fn merge(width: Width, planes: &[u8], words: &mut [u8]) {
    let k = arch::kernels();
    match width {
        Width::One => words.copy_from_slice(planes),
        Width::Two => (k.merge2)(planes, words),
        Width::Four => (k.merge4)(planes, words),
    }
}
