//! Packed KV caches: the positions of elements, and tokens that are gathered, scattered, moved and cleared.
//!
//! A layer's cache is one buffer for K and one for V, one region per KV head inside. [`Layout`] checks a host's
//! description and computes the geometry once; every buffer is then walked as [`plane::Plane`]s, since MNN's layouts, the
//! quantised ones included, are one shape with different numbers. A [`Cache`] is a layout and buffers of its sizes.
//!
//! Every function checks ranges before it touches a byte. Padding (where a dimension is not a multiple of its packing)
//! and bytes outside the named tokens are never written. [`int8`] keeps what INT8 V has beside its tokens.

mod cache;
mod clear;
mod compact;
mod dense;
mod floats;
mod head;
mod int8;
mod kind;
mod panels;
mod plane;
mod rows;
mod tensor;

pub use cache::{Cache, CacheRef};
pub use clear::{Padding, for_each_run, release, release_apart, whole_pages, zero};
pub use compact::{Pair, check_pairs, compact, move_tokens};
pub use dense::{copy_dense, gather, gather_head, scatter};
pub use floats::{keys_to_panels, values_to_panels};
pub use head::Head;
pub use int8::{appended, changed, gather_scales, mended, scatter_scales};
pub use kind::{Int8Unit, Kind};

use crate::status::{Result, bail};
use int8::ValueScales;
use std::fmt;
use tensor::{Extents, Strides, Tensor};

/// A host's description of a layer's cache; the fields of `mnnkv_layout`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// How K is stored.
    pub key: Kind,
    /// How V is stored.
    pub value: Kind,
    /// KV heads.
    pub kv_heads: u32,
    /// Elements per head and token.
    pub head_dim: u32,
    /// Interleave of the reduction dimension of floating-point elements (MNN's lP).
    pub l_pack: u32,
    /// Interleave of the output dimension of floating-point elements (MNN's hP).
    pub h_pack: u32,
    /// Interleaves of INT8; not read without.
    pub int8: Int8Unit,
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

/// The dense order `[head][token][row]` of a layer's tokens, for any packing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// How K is stored.
    pub key: Kind,
    /// How V is stored.
    pub value: Kind,
    /// KV heads.
    pub heads: usize,
    /// Elements per head and token.
    pub dims: usize,
}

impl Rows {
    /// Bytes of `count` tokens of K.
    pub fn key_bytes(&self, count: usize) -> usize {
        self.heads * count * self.key.key_row(self.dims)
    }

    /// Bytes of `count` tokens of V.
    pub fn value_bytes(&self, count: usize) -> usize {
        self.heads * count * self.value.value_row(self.dims)
    }

    /// Bytes of a token, K and V of all heads.
    pub fn token_bytes(&self) -> usize {
        self.key_bytes(1) + self.value_bytes(1)
    }

    /// Whether K or V is quantised.
    pub fn is_quantised(&self) -> bool {
        self.key.is_quantised() || self.value.is_quantised()
    }

    /// Parts of K that are encoded apart, and as many of V: the heads of floating-point rows, all heads of quantised ones.
    pub fn parts(&self) -> usize {
        if self.is_quantised() { 1 } else { self.heads }
    }
}

/// For errors, such as "2 heads x 64 (F16, F16)"; `{:#}` omits "heads".
impl fmt::Display for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heads = if f.alternate() { "" } else { " heads" };
        write!(f, "{}{heads} x {} ({}, {})", self.heads, self.dims, self.key.name(), self.value.name())
    }
}

/// A checked layout with its geometry.
#[derive(Clone, Debug)]
pub struct Layout {
    key: Tensor,
    value: Tensor,
    /// The key sums of INT8 K.
    key_sums: Option<Tensor>,
    /// The scales and sums of INT8 V.
    value_scales: Option<ValueScales>,
    rows: Rows,
    max_tokens: usize,
}

/// Tokens `begin .. begin + count`, which lie inside a layout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
        let float = !(spec.key.is_quantised() && spec.value.is_quantised());
        for (name, value, is_read) in [
            ("kv_heads", spec.kv_heads, true),
            ("head_dim", spec.head_dim, true),
            ("l_pack", spec.l_pack, float),
            ("h_pack", spec.h_pack, float),
            ("flash_block", spec.flash_block, true),
            ("max_tokens", spec.max_tokens, true),
        ] {
            if value == 0 && is_read {
                bail!(InvalidArgument, "layout->{name} is 0; at least 1 expected");
            }
        }
        kind::check(spec)?;
        // K is [max/hP][D/lP][hP][lP], V is [max/F][D/hP][F/lP][hP][lP]; see Plane for the shape they share.
        let (heads, dims, tokens) = (spec.kv_heads as u64, spec.head_dim as u64, spec.max_tokens as u64);
        let (l_pack, h_pack, flash_block) = (spec.l_pack as u64, spec.h_pack as u64, spec.flash_block as u64);
        let key = Extents { heads, dims, tokens, block: h_pack, group: l_pack, pack: 1 };
        let value = Extents { heads, dims, tokens, block: flash_block, group: h_pack, pack: l_pack };
        let key_strides = Strides { head: spec.key_head_stride, token: spec.key_token_stride };
        let value_strides = Strides { head: spec.value_head_stride, token: spec.value_token_stride };
        let mut layout = Layout {
            key: match spec.key {
                Kind::Float(dtype) => Tensor::of_elements("key", &key, dtype.bytes(), key_strides)?,
                Kind::Int8 => Tensor::of_int8_key(&key, spec.int8, key_strides)?,
                Kind::Tq3 | Kind::Tq4 => Tensor::of_records("key", &key, spec.key, key_strides)?,
            },
            value: match spec.value {
                Kind::Float(dtype) => Tensor::of_elements("value", &value, dtype.bytes(), value_strides)?,
                Kind::Int8 => Tensor::of_int8_value(&value, spec.int8, value_strides)?,
                Kind::Tq3 | Kind::Tq4 => Tensor::of_records("value", &value, spec.value, value_strides)?,
            },
            key_sums: None,
            value_scales: None,
            rows: Rows {
                key: spec.key,
                value: spec.value,
                heads: spec.kv_heads as usize,
                dims: spec.head_dim as usize,
            },
            max_tokens: spec.max_tokens as usize,
        };
        if spec.key == Kind::Int8 {
            let column = spec.key.key_row(layout.rows.dims) - kind::F32;
            layout.key_sums = Some(Tensor::of_key_sums(&key, spec.int8, column)?);
        }
        if spec.value == Kind::Int8 {
            layout.value_scales = Some(ValueScales::new(&layout.value, spec)?);
        }
        Ok(layout)
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

    /// Bytes that a token takes in the buffers: as [`Rows::token_bytes`], with padding and the scales of INT8 V.
    pub fn token_bytes(&self) -> usize {
        self.key.token_bytes() + self.value.token_bytes() + self.key_sums.map_or(0, |sums| sums.token_bytes())
    }

    /// Tokens the buffers have room for.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// Bytes of the key sums, `[head][token]` f32 for the tokens of whole key blocks; 0 where K has none.
    pub fn key_sum_bytes(&self) -> usize {
        self.key_sums.map_or(0, |sums| sums.bytes())
    }

    /// Bytes of the value sums, `[head][value block][dim]` f32 for whole groups of dims; 0 where V has none.
    pub fn value_sum_bytes(&self) -> usize {
        self.value_scales.map_or(0, |scales| scales.sum_bytes())
    }

    /// Bytes of the scales of V, `[head][2][dim]` f32, scales before biases; 0 where V has none.
    pub fn scale_bytes(&self) -> usize {
        if self.value_scales.is_some() { self.rows.heads * 2 * self.rows.dims * kind::F32 } else { 0 }
    }

    /// Whether MNN's append of tokens from `begin` on writes behind them, too: the scales of every later block of INT8 V.
    pub fn append_writes_tail(&self, begin: u32) -> bool {
        self.value_scales.is_some() && begin.is_multiple_of(kind::QUANTISED_BLOCK)
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
        let value = self.value.plane();
        if value.block == 1 {
            return page.div_ceil(self.value.block_stride());
        }
        let token_in_row = value.group * value.element_bytes;
        page.div_ceil(token_in_row).min(value.block).max(1)
    }

    /// Bytes of `count` tokens of K in the dense order `[head][token][dim]`.
    pub fn dense_key_bytes(&self, count: usize) -> usize {
        self.rows.key_bytes(count)
    }

    /// Bytes of `count` tokens of V in the dense order `[head][token][dim]`.
    pub fn dense_value_bytes(&self, count: usize) -> usize {
        self.rows.value_bytes(count)
    }
}

/// Runs a generic body with elements of the plane's size: byte arrays have no alignment, so any buffer can be seen as a
/// slice of them.
macro_rules! by_element {
    ($plane:expr, $body:ident($($args:tt)*), $packed:expr) => {
        match $plane.element_bytes {
            1 => $body($plane, $packed.as_chunks_mut::<1>().0, $($args)*),
            2 => $body($plane, $packed.as_chunks_mut::<2>().0, $($args)*),
            _ => $body($plane, $packed.as_chunks_mut::<4>().0, $($args)*),
        }
    };
}
pub(crate) use by_element;
