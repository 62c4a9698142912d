//! How much to keep.

use crate::status::{Result, bail};

/// Where the number of tokens to keep comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// This share of the cache, 0 to 1.
    KeepRatio(f32),
    /// One token in this many; below 1 counts as 1.
    LossyRatio(f32),
    /// This many tokens, whatever the length.
    Tokens(u32),
}

/// What a plan protects and aims at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlanConfig {
    /// Tokens per block; blocks are kept or evicted whole.
    pub block_tokens: u32,
    /// The first tokens, which always stay (with the blocks they touch).
    pub sink_tokens: u32,
    /// The last tokens, which always stay (with the blocks they touch).
    pub recent_tokens: u32,
    /// How many tokens to keep.
    pub target: Target,
}

impl Default for PlanConfig {
    fn default() -> Self {
        PlanConfig { block_tokens: 64, sink_tokens: 32, recent_tokens: 256, target: Target::LossyRatio(3.5) }
    }
}

impl Target {
    /// Tokens to keep of `len` (at least 1) before floor and blocks are considered: at least 1, at most `len`.
    ///
    /// The product is rounded up in f32, as the reference does, so that plans agree to the token.
    pub fn tokens(self, len: u32) -> Result<u32> {
        let ratio = match self {
            Target::Tokens(tokens) => return Ok(tokens.clamp(1, len)),
            Target::KeepRatio(ratio) if ratio.is_nan() => bail!(InvalidArgument, "target_keep_ratio is NaN"),
            Target::KeepRatio(ratio) => ratio.clamp(0.0, 1.0),
            Target::LossyRatio(ratio) if ratio.is_nan() => bail!(InvalidArgument, "target_lossy_ratio is NaN"),
            Target::LossyRatio(ratio) => 1.0 / ratio.max(1.0),
        };
        Ok(((ratio * len as f32).ceil() as u32).clamp(1, len))
    }
}
