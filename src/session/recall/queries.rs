//! Query rows of a host, and the last of them.

use crate::attend::Queries;
use crate::dtype::convert::{Endian, first_not_finite, widen};
use crate::status::{Result, bail};
use crate::sys::memory;

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
    use crate::dtype::Dtype;

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
