//! The form of the rows of a blob, and their bytes as planes.

use crate::arch;
use crate::dtype::Dtype;
use crate::gear::v2::planes::PlaneShape;

/// The type and number of a row's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::gear::v2) struct RowForm {
    pub(in crate::gear::v2) dtype: Dtype,
    /// Elements per row.
    pub(in crate::gear::v2) len: usize,
}

impl RowForm {
    pub(in crate::gear::v2) fn bytes(&self) -> usize {
        self.len * self.dtype.bytes()
    }

    /// The extents of the planes of `rows` rows.
    pub(in crate::gear::v2) fn shape(&self, rows: usize) -> PlaneShape {
        PlaneShape { planes: self.dtype.bytes(), channels: self.len, rows }
    }

    /// Rows to planes, `[plane][channel][row]`.
    pub(in crate::gear::v2) fn to_planes(self, rows: &[u8], planes: &mut [u8]) {
        let k = arch::kernels();
        match self.dtype.bytes() {
            1 => (k.planes1)(rows, self.len, planes),
            2 => (k.planes2)(rows, self.len, planes),
            _ => (k.planes4)(rows, self.len, planes),
        }
    }

    /// The inverse of [`RowForm::to_planes`].
    pub(in crate::gear::v2) fn to_rows(self, planes: &[u8], rows: &mut [u8]) {
        let k = arch::kernels();
        match self.dtype.bytes() {
            1 => (k.unplanes1)(planes, self.len, rows),
            2 => (k.unplanes2)(planes, self.len, rows),
            _ => (k.unplanes4)(planes, self.len, rows),
        }
    }

    /// Whether [`RowForm::align_exponents`] changes the words. The upper byte of an f16 word has its sign, exponent and
    /// two bits of mantissa, which code best together.
    pub(in crate::gear::v2) fn has_split_exponents(self) -> bool {
        matches!(self.dtype, Dtype::Bf16 | Dtype::F32)
    }

    /// Moves the sign of bf16 and f32 words to the low end, so that the exponent fills a byte.
    pub(in crate::gear::v2) fn align_exponents(self, words: &mut [u8]) {
        match self.dtype {
            Dtype::F16 | Dtype::Int8 => {}
            Dtype::Bf16 => each(words, |word| u16::from_le_bytes(word).rotate_left(1).to_le_bytes()),
            Dtype::F32 => each(words, |word| u32::from_le_bytes(word).rotate_left(1).to_le_bytes()),
        }
    }

    /// The inverse of [`RowForm::align_exponents`].
    pub(in crate::gear::v2) fn restore_exponents(self, words: &mut [u8]) {
        match self.dtype {
            Dtype::F16 | Dtype::Int8 => {}
            Dtype::Bf16 => each(words, |word| u16::from_le_bytes(word).rotate_right(1).to_le_bytes()),
            Dtype::F32 => each(words, |word| u32::from_le_bytes(word).rotate_right(1).to_le_bytes()),
        }
    }
}

fn each<const N: usize>(words: &mut [u8], change: impl Fn([u8; N]) -> [u8; N]) {
    for word in words.as_chunks_mut::<N>().0 {
        *word = change(*word);
    }
}
