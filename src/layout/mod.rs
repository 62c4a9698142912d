//! Packed KV caches: the positions of elements, and tokens that are gathered, scattered, moved and cleared.
//!
//! A layer's cache is one buffer for K and one for V, one region per KV head inside. [`Layout`] checks a host's
//! description and computes the geometry once; both buffers are then walked as a [`plane::Plane`], since MNN's key
//! and value layouts are one shape with different numbers.
//!
//! Every function checks ranges and buffer sizes before it touches a byte. Padding (where a dimension is not a
//! multiple of its packing) and bytes outside the named tokens are never written.

mod clear;
mod compact;
mod dense;
mod plane;
mod rows;

pub use clear::{Padding, for_each_run, release, whole_pages, zero};
pub use compact::{Pair, check_pairs, compact, move_tokens};
pub use dense::{gather, scatter};

use crate::dtype::Dtype;
use crate::status::{Result, bail};
use plane::Plane;

/// A host's description of a layer's cache; the fields of `mnnkv_layout`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Element type of K.
    pub key_dtype: Dtype,
    /// Element type of V.
    pub value_dtype: Dtype,
    /// KV heads.
    pub kv_heads: u32,
    /// Elements per head and token.
    pub head_dim: u32,
    /// Interleave of the reduction dimension (MNN's lP).
    pub l_pack: u32,
    /// Interleave of the output dimension (MNN's hP).
    pub h_pack: u32,
    /// Tokens per value block.
    pub flash_block: u32,
    /// Tokens the buffers have room for.
    pub max_tokens: u32,
    /// Bytes from one head's K to the next; 0 = without a gap.
    pub key_head_stride: u64,
    /// Bytes from one head's V to the next; 0 = without a gap.
    pub value_head_stride: u64,
    /// Bytes from one token's K to the next of the same head, where `h_pack` is 1; 0 = without a gap.
    pub key_token_stride: u64,
    /// Bytes from one token's V to the next of the same head, where `flash_block` is 1; 0 = without a gap.
    pub value_token_stride: u64,
}

/// The dense order `[head][token][dim]` of a layer's tokens, for any packing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Element type of K.
    pub key_dtype: Dtype,
    /// Element type of V.
    pub value_dtype: Dtype,
    /// KV heads.
    pub heads: usize,
    /// Elements per head and token.
    pub dims: usize,
}

impl Rows {
    /// Bytes of `count` tokens of K.
    pub fn key_bytes(&self, count: usize) -> usize {
        self.heads * count * self.dims * self.key_dtype.bytes()
    }

    /// Bytes of `count` tokens of V.
    pub fn value_bytes(&self, count: usize) -> usize {
        self.heads * count * self.dims * self.value_dtype.bytes()
    }
}

/// A checked layout with its geometry.
#[derive(Clone, Debug)]
pub struct Layout {
    key: Plane,
    value: Plane,
    rows: Rows,
}

/// Tokens `begin .. begin + count`, which lie inside a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenRange {
    begin: usize,
    count: usize,
}

impl TokenRange {
    /// First token.
    pub fn begin(self) -> usize {
        self.begin
    }

    /// Number of tokens.
    pub fn count(self) -> usize {
        self.count
    }

    /// The token after the last.
    pub fn end(self) -> usize {
        self.begin + self.count
    }

    /// Both ranges as one, if `next` begins at the end of this.
    pub fn joined(self, next: TokenRange) -> Option<Self> {
        (self.end() == next.begin).then_some(TokenRange { begin: self.begin, count: self.count + next.count })
    }

    /// Whether the range has no token.
    pub fn is_empty(self) -> bool {
        self.count == 0
    }
}

impl Layout {
    /// Checks a description. Errors name the field.
    pub fn new(spec: &Spec) -> Result<Self> {
        for (name, value) in [
            ("kv_heads", spec.kv_heads),
            ("head_dim", spec.head_dim),
            ("l_pack", spec.l_pack),
            ("h_pack", spec.h_pack),
            ("flash_block", spec.flash_block),
            ("max_tokens", spec.max_tokens),
        ] {
            if value == 0 {
                bail!(InvalidArgument, "layout->{name} is 0; at least 1 expected");
            }
        }
        // K is [max/hP][D/lP][hP][lP], V is [max/F][D/hP][F/lP][hP][lP]; see Plane for the shape they share.
        let (heads, dims, tokens) = (spec.kv_heads as u64, spec.head_dim as u64, spec.max_tokens as u64);
        let (l_pack, h_pack, flash_block) = (spec.l_pack as u64, spec.h_pack as u64, spec.flash_block as u64);
        let key = plane::Extents { heads, dims, tokens, block: h_pack, group: l_pack, pack: 1 };
        let value = plane::Extents { heads, dims, tokens, block: flash_block, group: h_pack, pack: l_pack };
        let key_strides = plane::Strides { head: spec.key_head_stride, token: spec.key_token_stride };
        let value_strides = plane::Strides { head: spec.value_head_stride, token: spec.value_token_stride };
        Ok(Layout {
            key: Plane::new("key", &key, spec.key_dtype.bytes(), &key_strides)?,
            value: Plane::new("value", &value, spec.value_dtype.bytes(), &value_strides)?,
            rows: Rows {
                key_dtype: spec.key_dtype,
                value_dtype: spec.value_dtype,
                heads: spec.kv_heads as usize,
                dims: spec.head_dim as usize,
            },
        })
    }

    /// Bytes of the K buffer, all heads, up to the end of the last head.
    pub fn key_bytes(&self) -> usize {
        self.key.bytes()
    }

    /// Bytes of the V buffer, all heads, up to the end of the last head.
    pub fn value_bytes(&self) -> usize {
        self.value.bytes()
    }

    /// The dense order of this cache's tokens.
    pub fn rows(&self) -> Rows {
        self.rows
    }

    /// Tokens the buffers have room for.
    pub fn max_tokens(&self) -> usize {
        self.key.tokens()
    }

    /// The index of K of `token` and `dim` within a head, in elements.
    pub fn key_index(&self, token: u32, dim: u32) -> Result<u64> {
        self.index(&self.key, token, dim)
    }

    /// The index of V of `token` and `dim` within a head, in elements.
    pub fn value_index(&self, token: u32, dim: u32) -> Result<u64> {
        self.index(&self.value, token, dim)
    }

    fn index(&self, plane: &Plane, token: u32, dim: u32) -> Result<u64> {
        self.range(token, 1)?;
        if dim as usize >= self.rows.dims {
            bail!(InvalidArgument, "dim is {dim}; below head_dim {} expected", self.rows.dims);
        }
        Ok(plane.element(token as usize, dim as usize) as u64)
    }

    /// The range. Fails unless it lies inside the layout.
    pub fn range(&self, begin: u32, count: u32) -> Result<TokenRange> {
        let (begin, count) = (begin as usize, count as usize);
        if begin.checked_add(count).is_none_or(|end| end > self.max_tokens()) {
            bail!(InvalidArgument, "{count} tokens from {begin} on; max_tokens is {}", self.max_tokens());
        }
        Ok(TokenRange { begin, count })
    }

    /// The tokens behind the first `kv_len`.
    pub fn tail(&self, kv_len: u32) -> Result<TokenRange> {
        let (begin, max) = (kv_len as usize, self.max_tokens());
        if begin > max {
            bail!(InvalidArgument, "kv_len is {kv_len}; max_tokens is {max}");
        }
        Ok(TokenRange { begin, count: max - begin })
    }

    /// Tokens of V that share their pages. A release of fewer, or of others than whole multiples from the first token on,
    /// returns less than their bytes. In a value block a token is spread over one row per `h_pack` dims; in a
    /// row-major cache it is one row.
    pub fn tokens_sharing(&self, page: usize) -> usize {
        let value = &self.value;
        if value.block() == 1 {
            return page.div_ceil(value.block_stride() * value.element_bytes());
        }
        let token_in_row = value.group() * value.element_bytes();
        page.div_ceil(token_in_row).min(value.block()).max(1)
    }

    /// Bytes of `count` tokens of K in the dense order `[head][token][dim]`.
    pub fn dense_key_bytes(&self, count: usize) -> usize {
        self.rows.key_bytes(count)
    }

    /// Bytes of `count` tokens of V in the dense order `[head][token][dim]`.
    pub fn dense_value_bytes(&self, count: usize) -> usize {
        self.rows.value_bytes(count)
    }

    fn check_buffers(&self, key: &[u8], value: &[u8]) -> Result<()> {
        for (name, given, expected) in
            [("key", key.len(), self.key_bytes()), ("value", value.len(), self.value_bytes())]
        {
            if given != expected {
                bail!(InvalidArgument, "the {name} buffer has {given} bytes; {expected} expected");
            }
        }
        Ok(())
    }
}

/// Runs a generic body with elements of the plane's size: 2-byte and 4-byte arrays have no alignment, so any buffer
/// can be seen as a slice of them.
macro_rules! by_element {
    ($plane:expr, $body:ident($($args:tt)*), $src:ident, $dst:ident) => {
        match $plane.element_bytes() {
            2 => $body($plane, $src.as_chunks::<2>().0, $dst.as_chunks_mut::<2>().0, $($args)*),
            _ => $body($plane, $src.as_chunks::<4>().0, $dst.as_chunks_mut::<4>().0, $($args)*),
        }
    };
    ($plane:expr, $body:ident($($args:tt)*), $packed:ident) => {
        match $plane.element_bytes() {
            2 => $body($plane, $packed.as_chunks_mut::<2>().0, $($args)*),
            _ => $body($plane, $packed.as_chunks_mut::<4>().0, $($args)*),
        }
    };
}
pub(crate) use by_element;
