//! Tokens that each layer keeps, and elements of a token.

use mnnkv::status::{Result, bail};

/// One decoder layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayerShape {
    /// A layer with a cache of its own.
    Attention(Attention),
    /// A layer that reads the cache of an earlier one.
    Shared,
    /// A layer with a state of fixed size instead of a cache: linear attention, a state space model, a convolution.
    Recurrent {
        /// Elements of the state of one sequence, if the config states them.
        state_elements: Option<u64>,
    },
}

/// The cache of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attention {
    /// Elements of a token.
    pub kv: Kv,
    /// Tokens that the layer keeps.
    pub span: Span,
}

/// The elements of a token in a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kv {
    /// A key and a value for each KV head (MHA, GQA, MQA).
    Heads {
        /// KV heads, at least 1.
        kv_heads: u32,
        /// Elements of a key, and of a value, at least 1.
        head_dim: u32,
    },
    /// One latent vector and one rotated key for all heads (MLA).
    Latent {
        /// Elements of the latent vector, at least 1.
        kv_lora_rank: u32,
        /// Elements of the rotated key.
        qk_rope_head_dim: u32,
    },
}

/// The tokens that a layer keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Span {
    /// All of them.
    Full,
    /// The last ones, at most this many.
    Sliding(u32),
    /// Those of the current chunk. A whole chunk is counted, since the next token may fill it.
    Chunked(u32),
}

impl LayerShape {
    /// The layer's own cache.
    pub fn attention(&self) -> Option<&Attention> {
        match self {
            LayerShape::Attention(attention) => Some(attention),
            LayerShape::Shared | LayerShape::Recurrent { .. } => None,
        }
    }
}

impl Span {
    /// The number of tokens kept at a length of `tokens`.
    pub fn held(self, tokens: u64) -> u64 {
        match self {
            Span::Full => tokens,
            Span::Sliding(most) | Span::Chunked(most) => tokens.min(u64::from(most)),
        }
    }
}

impl Kv {
    /// Elements per token on each of `ranks` tensor-parallel ranks.
    ///
    /// Heads are distributed evenly; with fewer heads than ranks each rank has a copy of one. A latent vector serves
    /// all heads, so every rank has all of it.
    pub fn elements(self, ranks: u32) -> Result<u64> {
        if ranks == 0 {
            bail!(InvalidArgument, "the number of tensor-parallel ranks is 0; at least 1 expected");
        }
        match self {
            Kv::Heads { kv_heads, head_dim } => {
                if kv_heads == 0 || head_dim == 0 {
                    bail!(InvalidArgument, "kv_heads is {kv_heads} and head_dim {head_dim}; at least 1 expected");
                }
                if kv_heads > ranks && !kv_heads.is_multiple_of(ranks) {
                    bail!(
                        InvalidArgument,
                        "{kv_heads} KV heads cannot be dealt out to {ranks} tensor-parallel ranks; a divisor of \
                         {kv_heads} expected, or at least {kv_heads} ranks, each with a copy of one head"
                    );
                }
                let elements = u64::from((kv_heads / ranks).max(1)) * u64::from(head_dim);
                match elements.checked_mul(2) {
                    Some(elements) => Ok(elements),
                    None => bail!(InvalidArgument, "{kv_heads} KV heads of head_dim {head_dim} are too many elements"),
                }
            }
            Kv::Latent { kv_lora_rank, qk_rope_head_dim } => {
                if kv_lora_rank == 0 {
                    bail!(InvalidArgument, "kv_lora_rank is 0; at least 1 expected");
                }
                Ok(u64::from(kv_lora_rank) + u64::from(qk_rope_head_dim))
            }
        }
    }
}
