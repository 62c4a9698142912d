//! Exports of the h2o room.

use super::panic::guard;
use super::pointer::{self, Out, Sized32, SizedOut};
use super::status::mnnkv_status;
use crate::h2o::{self, PlanConfig, Target};
use crate::status::{Error, Result, bail};

/// mnnkv_h2o_config::target_mode: keep the share target_keep_ratio.
pub const MNNKV_TARGET_STATIC: u32 = 1;
/// mnnkv_h2o_config::target_mode: keep one token in target_lossy_ratio.
pub const MNNKV_TARGET_ADAPTIVE: u32 = 2;

/// When and how much to evict. Start from mnnkv_h2o_config_default; a NULL pointer means those defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_h2o_config {
    /// sizeof(mnnkv_h2o_config)
    pub struct_size: u32,
    /// Tokens per block, the unit of scores and of eviction; 0 = 64.
    pub block_tokens: u32,
    /// The first tokens, which always stay with the blocks they touch; default 32, 0 = none.
    pub sink_tokens: u32,
    /// The last tokens, which always stay with the blocks they touch; default 256, 0 = none (but a last block that is
    /// not full stays).
    pub recent_tokens: u32,
    /// MNNKV_TARGET_STATIC or MNNKV_TARGET_ADAPTIVE; 0 = adaptive.
    pub target_mode: u32,
    /// Static mode: share of the cache to keep, clamped to 0 .. 1; default 0.5.
    pub target_keep_ratio: f32,
    /// Adaptive mode: cache length over kept tokens, below 1 counts as 1; 0 = 3.5.
    pub target_lossy_ratio: f32,
    /// Weight of the old score in mnnkv_h2o_update_scores, 0 .. 1; default 0.9. Plans do not read it.
    pub ema_alpha: f32,
    /// Evict from this length on; 0 = 512. For the host's (or session's) trigger; plans do not read it.
    pub trigger_min_tokens: u32,
    /// Steps between evictions; 0 = 16. Plans do not read it.
    pub update_interval: u32,
    /// First layer to evict from; default 2. Plans do not read it.
    pub layer_start: i32,
    /// Last layer to evict from, -1 = the last of the model; default -1. Plans do not read it.
    pub layer_end: i32,
    /// Tokens to keep, whatever the mode and the length; 0 = from the ratio.
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
    /// What a plan reads of it.
    fn check(&self) -> Result<PlanConfig> {
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

/// What a plan does, and why that much. Set struct_size before the call; the fields it covers are written.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_h2o_plan {
    /// sizeof(mnnkv_h2o_plan)
    pub struct_size: u32,
    /// Tokens that stay.
    pub kept_tokens: u32,
    /// Tokens that go.
    pub evicted_tokens: u32,
    /// 1 when the protected tokens alone reach the target: nothing is evicted, since only protected tokens would
    /// be left.
    pub floor_dominates: u32,
    /// Share of the cache in protected blocks.
    pub floor_keep: f32,
    /// Share aimed at: the target, or the floor where that is more.
    pub target_keep_effective: f32,
    /// That share rounded up to whole blocks.
    pub block_quantized_keep: f32,
    /// Cache length over kept tokens; 1 for an empty cache.
    pub lossy_ratio: f32,
}

// SAFETY: repr(C), begins with a u32, integers and floats only.
unsafe impl Sized32 for mnnkv_h2o_plan {
    const MIN: usize = 32;
}
const _: () = assert!(size_of::<mnnkv_h2o_plan>() == 32);

/// Fills in the defaults named at the fields, struct_size included. NULL is ignored. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_h2o_config_default(config: *mut mnnkv_h2o_config) {
    if config.is_null() || !config.is_aligned() {
        return;
    }
    // SAFETY: not NULL and aligned; the caller vouches for the rest.
    unsafe { config.write(mnnkv_h2o_config::default()) };
}

/// Folds a step's attention into the scores: score = alpha * score + (1 - alpha) * block_acc / norm.
///
/// scores: one number per block, 0 for a new block; changed in place. block_acc: the attention that the step's softmax
/// rows gave to each block, summed over query heads and queries. norm: heads * queries. n_blocks 0 is legal.
/// INVALID_ARGUMENT: alpha outside 0 .. 1, norm not a positive finite number, a block_acc that is not finite or
/// overflows when divided by norm (the message says which), the two arrays overlap; no score has changed then. Any
/// thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_h2o_update_scores(
    scores: *mut f32,
    n_blocks: usize,
    block_acc: *const f32,
    alpha: f32,
    norm: f32,
) -> mnnkv_status {
    guard(|| {
        let bytes = n_blocks.saturating_mul(size_of::<f32>());
        pointer::disjoint((scores.cast(), bytes, "scores"), (block_acc.cast(), bytes, "block_acc"))?;
        // SAFETY: the caller vouches for its pointers.
        let (scores, block_acc) = unsafe {
            (pointer::output(scores, n_blocks, "scores")?, pointer::input(block_acc, n_blocks, "block_acc")?)
        };
        h2o::update_scores(scores, block_acc, alpha, norm)
    })
}

/// Decides which tokens of a cache of kv_len tokens stay: heavy-hitter eviction (H2O, Zhang et al. 2023) by whole
/// blocks, with tokens really dropped.
///
/// scores: n_blocks numbers, block i covers tokens from i * block_tokens on. Missing ones count as 0, further ones are
/// ignored; NaN counts as the lowest score, and of equal scores the lower block wins.
/// Blocks that touch the first sink_tokens or the last recent_tokens stay; then whole blocks by descending score until
/// the target, rounded up to blocks, is reached.
/// pairs: room for pairs_cap pairs (offset, length), ascending, never touching; ready for mnnkv_kv_compact with base 0.
/// n_pairs: how many. plan: what the pairs amount to. An empty cache gives no pairs; floor_dominates gives the one pair
/// (0, kv_len).
/// INVALID_ARGUMENT: kv_len over 2^31 - 1, an unknown target_mode, NaN as the ratio that is used. BUFFER_TOO_SMALL:
/// *n_pairs is what is needed; half the number of blocks plus one is always enough. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_h2o_plan_reserve(
    scores: *const f32,
    n_blocks: usize,
    kv_len: u32,
    config: *const mnnkv_h2o_config,
    pairs: *mut i32,
    pairs_cap: usize,
    n_pairs: *mut usize,
    plan: *mut mnnkv_h2o_plan,
) -> mnnkv_status {
    guard(|| {
        // SAFETY: the caller vouches for its pointers; a pair is two neighbouring numbers.
        let (scores, config, pairs, n_pairs, plan) = unsafe {
            (
                pointer::input(scores, n_blocks, "scores")?,
                pointer::options(config, "config")?.unwrap_or_default().check()?,
                pointer::output(pairs.cast::<[i32; 2]>(), pairs_cap, "pairs")?,
                Out::new(n_pairs, "n_pairs")?,
                SizedOut::new(plan, "plan")?,
            )
        };
        let result = h2o::plan(scores, kv_len, &config)?;
        let needed = result.pairs.len();
        let Some(target) = pairs.get_mut(..needed) else {
            n_pairs.set(needed);
            return Err(Error::too_small("pairs_cap (pairs)", pairs_cap, needed));
        };
        target.copy_from_slice(&result.pairs);
        n_pairs.set(needed);
        plan.set(&mnnkv_h2o_plan {
            struct_size: size_of::<mnnkv_h2o_plan>() as u32,
            kept_tokens: result.kept_tokens,
            evicted_tokens: result.evicted_tokens,
            floor_dominates: result.floor_dominates.into(),
            floor_keep: result.floor_keep,
            target_keep_effective: result.target_keep_effective,
            block_quantized_keep: result.block_quantized_keep,
            lossy_ratio: result.lossy_ratio,
        });
        Ok(())
    })
}
