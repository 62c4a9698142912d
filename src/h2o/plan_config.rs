//! The config of a plan.

use crate::status::{Result, bail};

/// How many tokens a plan keeps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// This share of the cache, 0 to 1.
    KeepRatio(f32),
    /// Tokens of the cache over kept tokens; below 1 counts as 1.
    LossyRatio(f32),
    /// This number of tokens.
    Tokens(u32),
}

/// The tokens that a plan protects, and how many it keeps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlanConfig {
    /// Tokens per block; blocks are kept or evicted whole.
    pub block_tokens: u32,
    /// Number of first tokens that stay, with the blocks that they touch.
    pub sink_tokens: u32,
    /// Number of last tokens that stay, with the blocks that they touch.
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
    /// Returns the tokens to keep of `len` (at least 1), 1 to `len`, before protected tokens and blocks are considered.
    /// The product is rounded up in f32, as in the reference, so that plans agree to the token.
    /// INVALID_ARGUMENT: if the ratio is NaN.
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
