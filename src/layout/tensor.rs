//! K or V of all heads: the planes in one buffer of the host, by the description of its cache.

use super::kind::{F32, Int8Unit, Kind, QUANTISED_BLOCK};
use super::plane::{Plane, Span};
use crate::status::{Error, Result, bail, error};
use std::ops::Range;

/// The dimensions of a tensor of elements, in tokens, dims and elements.
pub(super) struct Extents {
    pub(super) heads: u64,
    pub(super) dims: u64,
    pub(super) tokens: u64,
    pub(super) block: u64,
    pub(super) group: u64,
    pub(super) pack: u64,
}

/// Bytes from one head to the next and from one token to the next; 0 = without a gap.
#[derive(Clone, Copy)]
pub(super) struct Strides {
    pub(super) head: u64,
    pub(super) token: u64,
}

/// A plane, and the place of its elements in a dense row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) plane: Plane,
    /// The first byte in a dense row.
    pub(super) column: usize,
}

/// The geometry of one buffer, in bytes. Every part has blocks of the same tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tensor {
    heads: usize,
    head_len: usize,
    head_stride: usize,
    /// Bytes of a block, and from one to the next.
    block_len: usize,
    block_stride: usize,
    /// The first block has data that other blocks need: it is never given back as a whole.
    keeps_first_block: bool,
    first: Part,
    second: Option<Part>,
}

impl Tensor {
    /// Elements of `element_bytes` each, in one plane.
    pub(super) fn of_elements(
        name: &'static str,
        extents: &Extents,
        element_bytes: usize,
        strides: Strides,
    ) -> Result<Self> {
        let Extents { heads, dims, tokens, block, group, pack } = *extents;
        let bytes = element_bytes as u64;
        let sizes = Sizes { name, heads, tokens, dims };
        let row_stride = sizes.product(&[block.div_ceil(pack), pack, group])?;
        let block_len = sizes.product(&[row_stride, dims.div_ceil(group)])?;
        let block_bytes = sizes.product(&[block_len, bytes])?;
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
        let head_bytes = sizes.product(&[tokens.div_ceil(block) - 1, token_bytes])?.checked_add(block_bytes);
        let head_bytes = head_bytes.ok_or_else(|| sizes.too_large())?;
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
        sizes.check_total(head_bytes, head_stride)?;
        // Every number above is at most the total, so it fits.
        let plane = Plane {
            dims: dims as usize,
            block: block as usize,
            group: group as usize,
            pack: pack as usize,
            offset: 0,
            row_stride: row_stride as usize,
            block_stride: (token_bytes / bytes) as usize,
            element_bytes,
        };
        Ok(Tensor {
            heads: heads as usize,
            head_len: head_bytes as usize,
            head_stride: head_stride as usize,
            block_len: block_bytes as usize,
            block_stride: token_bytes as usize,
            keeps_first_block: false,
            first: Part { plane, column: 0 },
            second: None,
        })
    }

    /// TurboQuant records: tokens are neighbours.
    pub(super) fn of_records(name: &'static str, extents: &Extents, kind: Kind, strides: Strides) -> Result<Self> {
        // The record's alignment.
        const ELEMENT: usize = 2;
        no_token_stride(name, kind.name(), strides)?;
        let dims = kind.value_row(extents.dims as usize) / ELEMENT;
        let extents = Extents { dims: dims as u64, block: 1, group: 1, pack: 1, ..*extents };
        Tensor::of_elements(name, &extents, ELEMENT, strides)
    }

    /// INT8 K: `[max/h]` blocks of codes `[D/l][h][l]`, then `h` f32 scales, then `h` f32 biases.
    pub(super) fn of_int8_key(extents: &Extents, unit: Int8Unit, strides: Strides) -> Result<Self> {
        let Extents { heads, dims, tokens, .. } = *extents;
        let (l, h) = (u64::from(unit.l_pack), u64::from(unit.h_pack));
        let sizes = Sizes { name: "key", heads, tokens, dims };
        let codes = sizes.product(&[dims.div_ceil(l), l, h])?;
        let block = codes.checked_add(2 * F32 as u64 * h).ok_or_else(|| sizes.too_large())?;
        let frame = sizes.frame(tokens.div_ceil(h), block, strides)?;
        let (l, h, dims, codes, block) = (l as usize, h as usize, dims as usize, codes as usize, block as usize);
        let plane = |dims, group, element_bytes, offset: usize| Plane {
            dims,
            block: h,
            group,
            pack: 1,
            offset: offset / element_bytes,
            row_stride: h * group,
            block_stride: block / element_bytes,
            element_bytes,
        };
        // Runs of 4 codes of a token move as one. With lP8 = 4 scales and biases are two more rows of them.
        let (first, second) = if l == F32 && dims.is_multiple_of(F32) {
            (plane(dims / F32 + 2, 1, F32, 0), None)
        } else {
            let first =
                if dims.is_multiple_of(F32) { plane(dims / F32, l / F32, F32, 0) } else { plane(dims, l, 1, 0) };
            // Bytes where rows are not multiples of 4.
            let second = if first.element_bytes == 1 { plane(2 * F32, F32, 1, codes) } else { plane(2, 1, F32, codes) };
            (first, Some(Part { plane: second, column: dims }))
        };
        Ok(Tensor { first: Part { plane: first, column: 0 }, second, ..frame })
    }

    /// INT8 V: `[max/F][D/h]` groups of codes `[F/l][h][l]`, then `h` f32 scales, then `h` f32 biases, which are no token's.
    pub(super) fn of_int8_value(extents: &Extents, unit: Int8Unit, strides: Strides) -> Result<Self> {
        let Extents { heads, dims, tokens, .. } = *extents;
        let (h, block_tokens) = (u64::from(unit.h_pack), u64::from(QUANTISED_BLOCK));
        let sizes = Sizes { name: "value", heads, tokens, dims };
        let group = h * (block_tokens + 2 * F32 as u64);
        let block = sizes.product(&[dims.div_ceil(h), group])?;
        let frame = sizes.frame(tokens.div_ceil(block_tokens), block, strides)?;
        let plane = Plane {
            dims: dims as usize,
            block: block_tokens as usize,
            group: h as usize,
            pack: unit.l_pack as usize,
            offset: 0,
            row_stride: group as usize,
            block_stride: block as usize,
            element_bytes: 1,
        };
        Ok(Tensor { first: Part { plane, column: 0 }, keeps_first_block: true, ..frame })
    }

    /// Key sums, an array beside INT8 K: one f32 per token. `column` is their place in a dense row of K.
    pub(super) fn of_key_sums(extents: &Extents, unit: Int8Unit, column: usize) -> Result<Self> {
        let tokens = extents.tokens.next_multiple_of(u64::from(unit.h_pack));
        let sizes = Sizes { name: "key_sum", heads: extents.heads, tokens, dims: 1 };
        let frame = sizes.frame(1, sizes.product(&[tokens, F32 as u64])?, Strides { head: 0, token: 0 })?;
        let element_bytes = if column.is_multiple_of(F32) { F32 } else { 1 };
        let group = F32 / element_bytes;
        let plane = Plane {
            dims: group,
            block: tokens as usize,
            group,
            pack: 1,
            offset: 0,
            row_stride: tokens as usize * group,
            block_stride: tokens as usize * group,
            element_bytes,
        };
        Ok(Tensor { first: Part { plane, column }, ..frame })
    }

    /// The plane of the codes or elements.
    pub(super) fn plane(&self) -> &Plane {
        &self.first.plane
    }

    /// KV heads.
    pub(super) fn heads(&self) -> usize {
        self.heads
    }

    /// Every plane.
    pub(super) fn parts(&self) -> impl Iterator<Item = &Part> {
        std::iter::once(&self.first).chain(&self.second)
    }

    /// Bytes from the first head to the end of the last.
    pub(super) fn bytes(&self) -> usize {
        (self.heads - 1) * self.head_stride + self.head_len
    }

    /// Bytes of a token of all heads: its part of its block, padding included.
    pub(super) fn token_bytes(&self) -> usize {
        self.heads * self.block_len.div_ceil(self.plane().block)
    }

    /// Bytes from one block to the next.
    pub(super) fn block_stride(&self) -> usize {
        self.block_stride
    }

    /// The bytes of each head.
    pub(super) fn head_ranges(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (stride, len) = (self.head_stride, self.head_len);
        (0..self.heads).map(move |h| h * stride..h * stride + len)
    }

    /// Whether the heads of a token lie between it and the next token.
    pub(super) fn heads_share_tokens(&self) -> bool {
        self.heads > 1 && self.head_stride < self.head_len
    }

    /// The bytes, within a head, of the whole block of a span, of its elements and of what lies between them, which may be
    /// given back as one; `None` where only its elements may.
    pub(super) fn whole_block(&self, span: Span) -> Option<Range<usize>> {
        if self.keeps_first_block && span.base == 0 {
            return None;
        }
        let start = span.base * self.plane().element_bytes;
        Some(start..start + self.block_len)
    }
}

/// Refuses a token stride, which quantised tokens do not have.
fn no_token_stride(name: &str, kind: &str, strides: Strides) -> Result<()> {
    if strides.token > 0 {
        bail!(
            InvalidArgument,
            "layout->{name}_token_stride is {}; 0 expected where {name}_dtype is {kind}",
            strides.token
        );
    }
    Ok(())
}

/// Numbers of a tensor for error texts, and products that may overflow.
struct Sizes {
    name: &'static str,
    heads: u64,
    tokens: u64,
    dims: u64,
}

impl Sizes {
    fn too_large(&self) -> Error {
        let Sizes { name, heads, tokens, dims } = *self;
        error!(
            InvalidArgument,
            "layout: the {name} buffer of {heads} heads, {tokens} tokens, {dims} dims overflows memory"
        )
    }

    fn product(&self, factors: &[u64]) -> Result<u64> {
        let product = factors.iter().try_fold(1u64, |p, f| p.checked_mul(*f));
        product.ok_or_else(|| self.too_large())
    }

    fn check_total(&self, head_bytes: u64, head_stride: u64) -> Result<()> {
        let total = self.product(&[self.heads - 1, head_stride])?.checked_add(head_bytes);
        if total.is_none_or(|total| isize::try_from(total).is_err()) {
            return Err(self.too_large());
        }
        Ok(())
    }

    /// A tensor of blocks without gaps, whose planes are still to be named.
    fn frame(&self, blocks: u64, block_bytes: u64, strides: Strides) -> Result<Tensor> {
        let name = self.name;
        no_token_stride(name, Kind::Int8.name(), strides)?;
        let head_bytes = self.product(&[blocks, block_bytes])?;
        let head_stride = if strides.head == 0 { head_bytes } else { strides.head };
        if head_stride < head_bytes {
            bail!(InvalidArgument, "layout->{name}_head_stride is {head_stride}; at least {head_bytes} expected");
        }
        if !head_stride.is_multiple_of(F32 as u64) {
            bail!(InvalidArgument, "layout->{name}_head_stride is {head_stride}; a multiple of {F32} expected");
        }
        self.check_total(head_bytes, head_stride)?;
        let nothing =
            Plane { dims: 0, block: 1, group: 1, pack: 1, offset: 0, row_stride: 0, block_stride: 0, element_bytes: 1 };
        Ok(Tensor {
            heads: self.heads as usize,
            head_len: head_bytes as usize,
            head_stride: head_stride as usize,
            block_len: block_bytes as usize,
            block_stride: block_bytes as usize,
            keeps_first_block: false,
            first: Part { plane: nothing, column: 0 },
            second: None,
        })
    }
}
