//! The rows of a head that count, and their sums over a tile's pieces.

use super::tile::CheckedTile;
use crate::arch::{PackedRows, Sum, kernels};
use crate::dtype::Dtype;
use std::ops::Range;

/// The last rows of a head, or the last rows of each of several heads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    /// All rows of a tile.
    pub(super) queries: usize,
    per_head: usize,
    last: usize,
}

impl Default for Rows {
    fn default() -> Self {
        Rows::all(0)
    }
}

impl Rows {
    pub(super) fn all(queries: usize) -> Self {
        Rows { queries, per_head: queries.max(1), last: queries }
    }

    /// The last `last` of each of `heads` heads, which is at least 1.
    pub(super) fn last(queries: usize, heads: usize, last: usize) -> Self {
        let per_head = (queries / heads).max(1);
        if last >= per_head { Rows::all(queries) } else { Rows { queries, per_head, last } }
    }

    pub(super) fn counted(&self) -> usize {
        self.queries / self.per_head * self.last
    }

    pub(super) fn ranges(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let Rows { queries, per_head, last } = *self;
        (1..=queries / per_head).map(move |head| head * per_head - last..head * per_head)
    }

    /// Writes the sums of a tile, which begins `offset` tokens into a block: `[piece][counted row]`.
    pub(super) fn sum_pieces(&self, tile: &CheckedTile<'_>, block_tokens: usize, offset: usize, mut sums: &mut [f32]) {
        let CheckedTile { dtype, pack, queries, tokens: columns, data, .. } = *tile;
        let first_piece = 0..columns.min(block_tokens - offset);
        let mut shape = PackedRows { pack, rows: queries, columns, first_row: 0, range: first_piece };
        let kernels = kernels();
        let row_sums = match dtype {
            Dtype::F32 => kernels.row_sums_f32,
            Dtype::F16 => kernels.row_sums_f16,
            Dtype::Bf16 => kernels.row_sums_bf16,
            Dtype::Int8 => unreachable!("no CheckedTile has it"),
        };
        while !shape.range.is_empty() {
            for rows in self.ranges() {
                let piece;
                (piece, sums) = sums.split_at_mut(rows.len());
                shape.first_row = rows.start;
                // The length of `piece` is the number of rows.
                row_sums(&shape, data, piece);
            }
            shape.range = shape.range.end..columns.min(shape.range.end.saturating_add(block_tokens));
        }
    }
}

/// The kernel that sums consecutive values.
pub(super) fn sum_of(dtype: Dtype) -> Sum {
    let kernels = kernels();
    match dtype {
        Dtype::F32 => kernels.sum_f32,
        Dtype::F16 => kernels.sum_f16,
        Dtype::Bf16 => kernels.sum_bf16,
        Dtype::Int8 => unreachable!("no CheckedTile has it"),
    }
}
