//! Query rows of a host, and the last of them.

use crate::dtype::Dtype;
use crate::dtype::convert::{Endian, first_not_finite, widen};
use crate::status::{Result, bail};
use crate::sys::memory;

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

    fn row(&self, head: usize, row: usize) -> &'a [u8] {
        &self.data[head * self.head_stride + row * self.row_stride..][..self.dims * self.dtype.bytes()]
    }
}

/// The last query rows of a step, `[row][head][dim]`, in the order of their tokens.
#[derive(Debug, Default)]
pub(super) struct LastRows {
    values: Vec<f32>,
    /// Rows that are not checked yet.
    next: Vec<f32>,
    heads: usize,
    dims: usize,
    scale: f32,
}

impl LastRows {
    /// Takes the last rows, at most `most`. On an error nothing has changed.
    /// INVALID_ARGUMENT: if `data` is too short, or an element is not finite.
    pub(super) fn take(&mut self, queries: &Queries<'_>, most: usize) -> Result<()> {
        let Queries { dtype, heads, rows, dims, scale, data, .. } = *queries;
        let expected = queries.bytes()?;
        if data.len() < expected {
            bail!(InvalidArgument, "data has {} bytes; {expected} expected", data.len());
        }
        if !(0.0..=f32::MAX).contains(&scale) {
            bail!(InvalidArgument, "scale is {scale}; 0 or a finite number above it expected");
        }
        let first = rows.saturating_sub(most);
        memory::resize(&mut self.next, (rows - first) * heads * dims)?;
        let places = (first..rows).flat_map(|row| (0..heads).map(move |head| (head, row)));
        for ((head, row), to) in places.zip(self.next.chunks_exact_mut(dims)) {
            widen(dtype, Endian::Native, queries.row(head, row), to);
            if let Some(dim) = first_not_finite(to) {
                bail!(
                    InvalidArgument,
                    "element {dim} of row {row} of head {head} is {}; a finite one expected",
                    to[dim]
                );
            }
        }
        std::mem::swap(&mut self.values, &mut self.next);
        self.scale = if scale == 0.0 { 1.0 / (dims as f32).sqrt() } else { scale };
        (self.heads, self.dims) = (heads, dims);
        Ok(())
    }

    pub(super) fn clear(&mut self) {
        self.values.clear();
    }

    /// The factor of a logit.
    pub(super) fn scale(&self) -> f32 {
        self.scale
    }

    /// Query heads.
    pub(super) fn heads(&self) -> usize {
        self.heads
    }

    /// The rows, `[head][dim]` each.
    pub(super) fn rows(&self) -> impl Iterator<Item = &[f32]> {
        self.values.chunks_exact((self.heads * self.dims).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_that_are_refused_leave_those_given_before() {
        let bytes: Vec<u8> = (0..12u8).flat_map(|x| f32::from(x).to_ne_bytes()).collect();
        let (dtype, scale) = (Dtype::F32, 0.5);
        let given = |data| Queries { dtype, heads: 2, rows: 2, dims: 3, head_stride: 12, row_stride: 24, scale, data };
        let mut rows = LastRows::default();
        rows.take(&given(&bytes), 1).unwrap();
        let mut wrong = bytes.clone();
        wrong[24..28].copy_from_slice(&f32::NAN.to_ne_bytes());
        let error = rows.take(&given(&wrong), 1).unwrap_err();
        assert!(error.message().contains("element 0 of row 1 of head 0 is NaN"), "{error}");
        assert_eq!(rows.rows().collect::<Vec<_>>(), [&[6.0, 7.0, 8.0, 9.0, 10.0, 11.0]]);
    }
}
