//! H2O: settings and scores
//!
//! Heavy-hitter eviction (H2O, Zhang et al. 2023) by whole blocks of tokens, which are really removed. No handle: the
//! host keeps one score per block.

use crate::ffi::panic::body;
use crate::ffi::pointer::{self, Sized32};
use crate::ffi::status::mnnkv_status;
use crate::h2o::{self, PlanConfig, Target};
use crate::status::{Result, bail};

/// mnnkv_h2o_config::target_mode: keep target_keep_ratio of the tokens, or one token in target_lossy_ratio.
pub const MNNKV_TARGET_STATIC: u32 = 1;
pub const MNNKV_TARGET_ADAPTIVE: u32 = 2;

/// Settings of eviction. Start from mnnkv_h2o_config_default; NULL = its values. Plans read the fields up to
/// target_lossy_ratio and target_tokens; the others are for hosts that schedule plans.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_h2o_config {
    /// sizeof(mnnkv_h2o_config)
    pub struct_size: u32,
    /// Tokens per block, the unit of scores and of eviction; 0 = 64.
    pub block_tokens: u32,
    /// The first tokens, which stay with every block that they touch; default 32, 0 = none.
    pub sink_tokens: u32,
    /// The last tokens, likewise; default 256, 0 = none. An incomplete last block always stays.
    pub recent_tokens: u32,
    /// MNNKV_TARGET_*; 0 = adaptive.
    pub target_mode: u32,
    /// Static: share of the cache to keep, clamped to 0 .. 1; default 0.5. At least one token stays, with 0, too.
    pub target_keep_ratio: f32,
    /// Adaptive: cache length over kept tokens; below 1 counts as 1, 0 = 3.5. The target in tokens is ceil(f32(1 / ratio) *
    /// f32(kv_len)), as in the reference: rounding may add a token to kv_len / ratio, and with it a block.
    pub target_lossy_ratio: f32,
    /// For mnnkv_h2o_update_scores: weight of the old score, 0 .. 1; default 0.9.
    pub ema_alpha: f32,
    /// Length from which on to evict; 0 = 512.
    pub trigger_min_tokens: u32,
    /// Steps between plans; 0 = 16.
    pub update_interval: u32,
    /// First layer to evict from; default 2.
    pub layer_start: i32,
    /// Last layer to evict from; default -1, the last one of the model.
    pub layer_end: i32,
    /// Tokens to keep in either mode, whose ratio is not read then; 0 = by the ratio.
    pub target_tokens: u32,
    /// Must be 0.
    pub reserved: [u32; 3],
}

// SAFETY: repr(C), begins with a u32, integers and floats only.
unsafe impl Sized32 for mnnkv_h2o_config {
    const MIN: usize = 64;
}
const _: () = assert!(size_of::<mnnkv_h2o_config>() == 64);

impl Default for mnnkv_h2o_config {
    fn default() -> Self {
        mnnkv_h2o_config {
            struct_size: size_of::<Self>() as u32,
            block_tokens: 64,
            sink_tokens: 32,
            recent_tokens: 256,
            target_mode: MNNKV_TARGET_ADAPTIVE,
            target_keep_ratio: 0.5,
            target_lossy_ratio: 3.5,
            ema_alpha: 0.9,
            trigger_min_tokens: 512,
            update_interval: 16,
            layer_start: 2,
            layer_end: -1,
            target_tokens: 0,
            reserved: [0; 3],
        }
    }
}

impl mnnkv_h2o_config {
    /// The fields that plans read.
    pub(super) fn check(&self) -> Result<PlanConfig> {
        pointer::reserved(&self.reserved, "config")?;
        let default = Self::default();
        let or = |value: u32, default: u32| if value == 0 { default } else { value };
        let target = match or(self.target_mode, MNNKV_TARGET_ADAPTIVE) {
            MNNKV_TARGET_STATIC | MNNKV_TARGET_ADAPTIVE if self.target_tokens > 0 => Target::Tokens(self.target_tokens),
            MNNKV_TARGET_STATIC => Target::KeepRatio(self.target_keep_ratio),
            MNNKV_TARGET_ADAPTIVE if self.target_lossy_ratio == 0.0 => Target::LossyRatio(default.target_lossy_ratio),
            MNNKV_TARGET_ADAPTIVE => Target::LossyRatio(self.target_lossy_ratio),
            mode => bail!(InvalidArgument, "config->target_mode is {mode}; static (1) or adaptive (2) expected"),
        };
        Ok(PlanConfig {
            block_tokens: or(self.block_tokens, default.block_tokens),
            sink_tokens: self.sink_tokens,
            recent_tokens: self.recent_tokens,
            target,
        })
    }
}

/// Writes all defaults, struct_size included. NULL is ignored.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_h2o_config_default(config: *mut mnnkv_h2o_config) {
    if config.is_null() || !config.is_aligned() {
        return;
    }
    // SAFETY: not NULL, aligned, and writable for a caller that keeps the header's contract.
    unsafe { config.write(mnnkv_h2o_config::default()) };
}

/// Adds a step to the scores in place: score = alpha * score + (1 - alpha) * block_acc / norm.
/// scores: [n_blocks], 0 for new blocks.
/// block_acc: [n_blocks], the softmax values of each block, summed over query heads and rows.
/// norm: heads * rows.
/// INVALID_ARGUMENT: if alpha is outside of 0 .. 1, norm is not positive and finite, block_acc or block_acc / norm is
/// not finite, or the arrays overlap; no score has changed
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_h2o_update_scores(
    scores: *mut f32,
    n_blocks: usize,
    block_acc: *const f32,
    alpha: f32,
    norm: f32,
) -> mnnkv_status {
    let bytes = n_blocks.saturating_mul(size_of::<f32>());
    body!({
        pointer::disjoint((scores.cast(), bytes, "scores"), (block_acc.cast(), bytes, "block_acc"))?;
        let block_acc = pointer::input(block_acc, n_blocks, "block_acc")?;
        h2o::update_scores(pointer::output(scores, n_blocks, "scores")?, block_acc, alpha, norm)
    })
}
