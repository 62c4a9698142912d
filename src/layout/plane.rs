//! The shape that packed K and packed V share.
//!
//! A head is a sequence of blocks of `block` tokens. A block holds one row per `group` dims, and a row is
//! `[block / pack][group][pack]`: panels in which `pack` neighbouring tokens are interleaved per dim.
//!
//! ```text
//! element(t, d) = (t / block) * block_stride + (d / group) * row_stride
//!               + (u / pack) * group * pack + (d % group) * pack + u % pack        with u = t % block
//! ```
//! MNN's float key `[max/hP][D/lP][hP][lP]` is block = hP, group = lP, pack = 1; its float value
//! `[max/F][D/hP][F/lP][hP][lP]` is block = F, group = hP, pack = lP. Row-major caches are blocks of one token, which may
//! lie apart: `block_stride` is then the token stride, and the heads of a token may lie inside it.
//!
//! The formula is for single look-ups and for tests. Everything else walks [`Span`]s (the tokens of a range that lie
//! in one block) and [`Tile`]s (a strided matrix inside a span).

use super::TokenRange;
use crate::status::{Result, bail, error};

/// The dimensions of a plane, in tokens, dims and elements.
pub(super) struct Extents {
    pub(super) heads: u64,
    pub(super) dims: u64,
    pub(super) tokens: u64,
    pub(super) block: u64,
    pub(super) group: u64,
    pub(super) pack: u64,
}

/// Bytes from one head to the next and from one token to the next; 0 = without a gap.
pub(super) struct Strides {
    pub(super) head: u64,
    pub(super) token: u64,
}

/// Strides are in elements unless a name says bytes.
#[derive(Clone, Debug)]
pub(super) struct Plane {
    heads: usize,
    dims: usize,
    tokens: usize,
    block: usize,
    group: usize,
    pack: usize,
    row_stride: usize,
    /// Elements of a block; `block_stride` is larger where tokens lie apart.
    block_len: usize,
    block_stride: usize,
    head_len: usize,
    head_stride: usize,
    element_bytes: usize,
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
    pub(super) fn new(name: &str, shape: &Extents, element_bytes: usize, strides: &Strides) -> Result<Self> {
        let Extents { heads, dims, tokens, block, group, pack } = *shape;
        let bytes = element_bytes as u64;
        let too_large = || {
            error!(
                InvalidArgument,
                "layout: the {name} buffer of {heads} heads, {tokens} tokens, {dims} dims overflows memory"
            )
        };
        let product = |factors: &[u64]| factors.iter().try_fold(1u64, |p, f| p.checked_mul(*f)).ok_or_else(too_large);

        let row_stride = product(&[block.div_ceil(pack), pack, group])?;
        let block_len = product(&[row_stride, dims.div_ceil(group)])?;
        let block_bytes = product(&[block_len, bytes])?;
        let token_bytes = if strides.token == 0 { block_bytes } else { strides.token };
        if strides.token > 0 && block > 1 {
            bail!(
                InvalidArgument,
                "layout->{name}_token_stride is {token_bytes}; 0 expected where {block} tokens are packed together"
            );
        }
        if token_bytes < block_bytes {
            bail!(InvalidArgument, "layout->{name}_token_stride is {token_bytes}; at least {block_bytes} expected");
        }
        // From the first block to the end of the last.
        let head_bytes = product(&[tokens.div_ceil(block) - 1, token_bytes])?.checked_add(block_bytes);
        let head_bytes = head_bytes.ok_or_else(too_large)?;
        // The heads of a token lie between it and the next, if they can.
        let inside = |stride: u64| {
            let end = (heads - 1).checked_mul(stride).and_then(|start| start.checked_add(block_bytes));
            strides.token > 0 && stride >= block_bytes && end.is_some_and(|end| end <= token_bytes)
        };
        let head_stride = match strides.head {
            0 if strides.token > 0 => block_bytes,
            0 => head_bytes,
            given => given,
        };
        if strides.head == 0 && strides.token > 0 && !inside(block_bytes) {
            bail!(
                InvalidArgument,
                "layout->{name}_token_stride is {token_bytes}; at least {heads} heads of {block_bytes} bytes expected, or \
                 a {name}_head_stride"
            );
        }
        if head_stride < head_bytes && !inside(head_stride) {
            let between = if strides.token > 0 { ", or heads that fit between a token and the next" } else { "" };
            bail!(
                InvalidArgument,
                "layout->{name}_head_stride is {head_stride}; at least {head_bytes}{between} expected"
            );
        }
        for (what, stride) in [("head", head_stride), ("token", token_bytes)] {
            if stride % bytes != 0 {
                bail!(InvalidArgument, "layout->{name}_{what}_stride is {stride}; a multiple of {bytes} expected");
            }
        }
        let total = product(&[heads - 1, head_stride])?.checked_add(head_bytes).ok_or_else(too_large)?;
        if isize::try_from(total).is_err() {
            return Err(too_large());
        }
        // Every number above is at most `total`, so it fits.
        Ok(Plane {
            heads: heads as usize,
            dims: dims as usize,
            tokens: tokens as usize,
            block: block as usize,
            group: group as usize,
            pack: pack as usize,
            row_stride: row_stride as usize,
            block_len: block_len as usize,
            block_stride: (token_bytes / bytes) as usize,
            head_len: (head_bytes / bytes) as usize,
            head_stride: (head_stride / bytes) as usize,
            element_bytes,
        })
    }

    pub(super) fn dims(&self) -> usize {
        self.dims
    }

    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }

    pub(super) fn element_bytes(&self) -> usize {
        self.element_bytes
    }

    pub(super) fn block(&self) -> usize {
        self.block
    }

    pub(super) fn group(&self) -> usize {
        self.group
    }

    pub(super) fn pack(&self) -> usize {
        self.pack
    }

    pub(super) fn row_stride(&self) -> usize {
        self.row_stride
    }

    /// Elements of a block, its padding included.
    pub(super) fn block_len(&self) -> usize {
        self.block_len
    }

    /// Whether the heads of a token lie between it and the next token.
    pub(super) fn heads_share_tokens(&self) -> bool {
        self.heads > 1 && self.head_stride < self.head_len
    }

    /// Whether blocks are all real elements, without padding, and lie side by side.
    pub(super) fn is_seamless(&self) -> bool {
        self.is_solid() && self.block_len == self.block_stride
    }

    pub(super) fn block_stride(&self) -> usize {
        self.block_stride
    }

    /// Rows whose dims are all real; a last row may hold padding.
    pub(super) fn full_rows(&self) -> usize {
        self.dims / self.group
    }

    /// Real dims of the last row when it holds padding, else 0.
    pub(super) fn tail_dims(&self) -> usize {
        self.dims % self.group
    }

    /// The elements of each head.
    pub(super) fn head_ranges(&self) -> impl Iterator<Item = std::ops::Range<usize>> + use<> {
        let (stride, len) = (self.head_stride, self.head_len);
        (0..self.heads).map(move |h| h * stride..h * stride + len)
    }

    /// Bytes from the first head to the end of the last.
    pub(super) fn bytes(&self) -> usize {
        ((self.heads - 1) * self.head_stride + self.head_len) * self.element_bytes
    }

    /// The formula above.
    pub(super) fn element(&self, token: usize, dim: usize) -> usize {
        let u = token % self.block;
        (token / self.block) * self.block_stride
            + (dim / self.group) * self.row_stride
            + (u / self.pack) * self.group * self.pack
            + (dim % self.group) * self.pack
            + u % self.pack
    }

    pub(super) fn place(&self, token: usize) -> Place {
        Place { base: (token / self.block) * self.block_stride, first: token % self.block }
    }

    /// Whether a block is all real elements, without padding.
    pub(super) fn is_solid(&self) -> bool {
        self.tail_dims() == 0 && self.block.is_multiple_of(self.pack)
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
