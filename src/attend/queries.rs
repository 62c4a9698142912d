//! Query rows of a host.

use crate::dtype::Dtype;
use crate::status::{Result, bail};

/// Query rows of a step of a layer, with their rotation, as its attention gets them.
#[derive(Clone, Copy, Debug)]
pub struct Queries<'a> {
    /// Their floating-point type.
    pub dtype: Dtype,
    /// Query heads: a multiple of the KV heads. Consecutive ones share a KV head.
    pub heads: usize,
    /// Rows of each head, in the order of their tokens.
    pub rows: usize,
    /// Elements of a row.
    pub dims: usize,
    /// Bytes from a head to the next.
    pub head_stride: usize,
    /// Bytes from a row to the next.
    pub row_stride: usize,
    /// The factor of a logit; 0 = 1 / sqrt(dims).
    pub scale: f32,
    /// The elements.
    pub data: &'a [u8],
}

impl<'a> Queries<'a> {
    /// The bytes from the first element to the last. INVALID_ARGUMENT: if rows overlap, or there are too many.
    pub fn bytes(&self) -> Result<usize> {
        let Queries { dtype, heads, rows, dims, head_stride, row_stride, .. } = *self;
        if !dtype.is_float() {
            bail!(Unsupported, "dtype is {}; F16 (1), BF16 (2) or F32 (3) expected", dtype.name());
        }
        if heads == 0 || rows == 0 || dims == 0 {
            bail!(InvalidArgument, "heads is {heads}, rows {rows} and head_dim {dims}; at least 1 of each expected");
        }
        let row = dims.saturating_mul(dtype.bytes());
        for (name, stride, count) in [("head_stride", head_stride, heads), ("row_stride", row_stride, rows)] {
            if count > 1 && stride < row {
                bail!(
                    InvalidArgument,
                    "{name} is {stride}; {row} bytes or more expected, those of a row, or 0 for both strides"
                );
            }
        }
        let last = |stride: usize, count: usize| stride.checked_mul(count - 1);
        let end =
            last(head_stride, heads).zip(last(row_stride, rows)).and_then(|(h, r)| h.checked_add(r)?.checked_add(row));
        match end.filter(|end| *end <= isize::MAX as usize) {
            Some(end) => Ok(end),
            None => bail!(InvalidArgument, "{heads} heads and {rows} rows with these strides exceed the address space"),
        }
    }

    /// The bytes of a row.
    pub(crate) fn row(&self, head: usize, row: usize) -> &'a [u8] {
        &self.data[head * self.head_stride + row * self.row_stride..][..self.dims * self.dtype.bytes()]
    }
}
