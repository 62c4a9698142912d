//! The shape that packed K and packed V share.
//!
//! A head is a sequence of blocks of `block` tokens. A block holds one row per `group` dims, and a row is
//! `[block / pack][group][pack]`: panels in which `pack` neighbouring tokens are interleaved per dim.
//!
//! ```text
//! element(t, d) = offset + (t / block) * block_stride + (d / group) * row_stride
//!               + (u / pack) * group * pack + (d % group) * pack + u % pack        with u = t % block
//! ```
//! MNN's float key `[max/hP][D/lP][hP][lP]` is block = hP, group = lP, pack = 1; its float value
//! `[max/F][D/hP][F/lP][hP][lP]` is block = F, group = hP, pack = lP. Row-major caches are blocks of one token, which may
//! lie apart: `block_stride` is then the token stride, and the heads of a token may lie inside it. `tensor` makes these
//! numbers of a description, those of quantised caches, too.
//!
//! The formula is for single look-ups and for tests. Everything else walks [`Span`]s (the tokens of a range that lie
//! in one block) and [`Tile`]s (a strided matrix inside a span).

use super::TokenRange;

/// Strides are in elements. Two planes may lie in one block: INT8 K has codes, and scales and biases behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plane {
    pub(super) dims: usize,
    pub(super) block: usize,
    pub(super) group: usize,
    pub(super) pack: usize,
    /// The first element of the first block.
    pub(super) offset: usize,
    /// From one row to the next; larger than a row where something else lies between rows.
    pub(super) row_stride: usize,
    /// From one block to the next; larger than a block where tokens lie apart, or something else lies between blocks.
    pub(super) block_stride: usize,
    pub(super) element_bytes: usize,
}

/// Tokens of a range that lie in one block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    /// First element of the block, within its head.
    pub(super) base: usize,
    /// First token, counted from the start of the block.
    pub(super) first: usize,
    /// Number of tokens.
    pub(super) count: usize,
    /// First token, counted from the start of the range.
    pub(super) at: usize,
}

/// A matrix of `dims x tokens` elements within a head; one of the two strides is 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tile {
    pub(super) start: usize,
    pub(super) dims: usize,
    pub(super) dim_stride: usize,
    pub(super) tokens: usize,
    pub(super) token_stride: usize,
    /// First dim of the tile.
    pub(super) dim: usize,
    /// First token of the tile, counted from the start of the range.
    pub(super) at: usize,
}

/// A part of a move that lies in one block on either side, and in one panel too where tokens are interleaved.
pub(super) struct Chunk {
    pub(super) src: Place,
    pub(super) dst: Place,
    pub(super) count: usize,
}

/// A token: the first element of its block, and its number inside.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) base: usize,
    pub(super) first: usize,
}

impl Plane {
    /// Elements of a row, its padding included.
    pub(super) fn row_len(&self) -> usize {
        self.block.div_ceil(self.pack) * self.pack * self.group
    }

    /// Elements of a block, its padding included.
    pub(super) fn block_len(&self) -> usize {
        (self.dims.div_ceil(self.group) - 1) * self.row_stride + self.row_len()
    }

    /// Rows whose dims are all real; a last row may hold padding.
    pub(super) fn full_rows(&self) -> usize {
        self.dims / self.group
    }

    /// Real dims of the last row when it holds padding, else 0.
    pub(super) fn tail_dims(&self) -> usize {
        self.dims % self.group
    }

    /// Whether a block is all real elements, without padding or gaps.
    pub(super) fn is_solid(&self) -> bool {
        self.tail_dims() == 0 && self.block.is_multiple_of(self.pack) && self.row_len() == self.row_stride
    }

    /// Whether blocks are all real elements, and lie side by side.
    pub(super) fn is_seamless(&self) -> bool {
        self.is_solid() && self.block_len() == self.block_stride
    }

    /// The formula above.
    #[cfg(test)]
    pub(super) fn element(&self, token: usize, dim: usize) -> usize {
        let u = token % self.block;
        self.offset
            + (token / self.block) * self.block_stride
            + (dim / self.group) * self.row_stride
            + (u / self.pack) * self.group * self.pack
            + (dim % self.group) * self.pack
            + u % self.pack
    }

    pub(super) fn place(&self, token: usize) -> Place {
        Place { base: self.offset + (token / self.block) * self.block_stride, first: token % self.block }
    }

    /// The spans of a range, in order.
    pub(super) fn spans(&self, range: TokenRange) -> impl Iterator<Item = Span> + use<> {
        let (block, block_stride) = (self.block, self.block_stride);
        let Place { mut base, mut first } = self.place(range.begin);
        let mut at = 0;
        std::iter::from_fn(move || {
            if at == range.count {
                return None;
            }
            let count = (block - first).min(range.count - at);
            let span = Span { base, first, count, at };
            (first, base, at) = (0, base + block_stride, at + count);
            Some(span)
        })
    }

    /// Calls `visit` with tiles that cover the real elements of a span exactly once.
    #[inline]
    pub(super) fn tiles(&self, span: Span, mut visit: impl FnMut(Tile)) {
        if self.pack == 1 && self.group == 1 {
            // Rows are dims: one tile, whose neighbours in memory are tokens. In a block of one token they are dims.
            let token_stride = if self.block == 1 { self.dims } else { 1 };
            return visit(Tile {
                start: span.base + span.first,
                dims: self.dims,
                dim_stride: self.row_stride,
                tokens: span.count,
                token_stride,
                dim: 0,
                at: span.at,
            });
        }
        let panel = self.group * self.pack;
        for (row, dim) in (0..self.dims).step_by(self.group).enumerate() {
            let row_base = span.base + row * self.row_stride;
            let dims = self.group.min(self.dims - dim);
            if self.pack == 1 {
                visit(Tile {
                    start: row_base + span.first * self.group,
                    dims,
                    dim_stride: 1,
                    tokens: span.count,
                    token_stride: self.group,
                    dim,
                    at: span.at,
                });
                continue;
            }
            let mut done = 0;
            while done < span.count {
                let u = span.first + done;
                let pack = u % self.pack;
                let tokens = (self.pack - pack).min(span.count - done);
                visit(Tile {
                    start: row_base + (u / self.pack) * panel + pack,
                    dims,
                    dim_stride: self.pack,
                    tokens,
                    token_stride: 1,
                    dim,
                    at: span.at + done,
                });
                done += tokens;
            }
        }
    }
}
