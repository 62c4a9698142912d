//! H2O: plans

use super::config::mnnkv_h2o_config;
use crate::ffi::panic::body;
use crate::ffi::pointer::{self, PairsOut, Sized32, SizedOut};
use crate::ffi::status::mnnkv_status;
use crate::h2o;

/// The effect of a plan.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_h2o_plan {
    /// sizeof(mnnkv_h2o_plan)
    pub struct_size: u32,
    /// Tokens kept.
    pub kept_tokens: u32,
    /// Tokens removed.
    pub evicted_tokens: u32,
    /// 1 = protected blocks alone reach the target; the plan removes nothing.
    pub floor_dominates: u32,
    /// Share of the cache in protected blocks.
    pub floor_keep: f32,
    /// Share to keep: the target in whole tokens over kv_len, or floor_keep if that is more.
    pub target_keep_effective: f32,
    /// target_keep_effective rounded up to whole blocks.
    pub block_quantized_keep: f32,
    /// Cache length over kept tokens; 1 for an empty cache.
    pub lossy_ratio: f32,
}

// SAFETY: repr(C), begins with a u32, integers and floats only.
unsafe impl Sized32 for mnnkv_h2o_plan {
    const MIN: usize = 32;
}
const _: () = assert!(size_of::<mnnkv_h2o_plan>() == 32);

/// Plans which tokens of a cache of kv_len tokens to keep: the blocks of sink and recent tokens, then blocks by
/// descending score until the target, rounded up to blocks, is reached. The target is in whole tokens, at least 1.
/// scores: [n_blocks]; block i starts at token i * block_tokens. Missing scores count as 0, NaN as the lowest, surplus
/// ones are ignored; of equal scores the lower block stays.
/// pairs: room for pairs_cap pairs (offset, length), ascending, with gaps between them, as mnnkv_kv_compact takes them
/// with base 0; (blocks + 1) / 2 pairs always suffice.
/// n_pairs: pairs written. An empty cache has none; with floor_dominates there is one, (0, kv_len).
/// INVALID_ARGUMENT: if kv_len exceeds 2^31 - 1, target_mode is unknown, or target_tokens is 0 and the ratio of the
/// mode is NaN
/// BUFFER_TOO_SMALL: if pairs_cap is too small; *n_pairs is the number needed
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
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
    body!({
        let scores = pointer::input(scores, n_blocks, "scores")?;
        let config = pointer::options(config, "config")?.unwrap_or_default().check()?;
        let pairs = PairsOut::new(pairs, pairs_cap, n_pairs)?;
        let plan = SizedOut::new(plan, "plan")?;
        let result = h2o::plan(scores, kv_len, &config)?;
        pairs.set(&result.pairs)?;
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
