//! Plans of an eviction through the C ABI, against the rules as h2o.h states them.

use super::given::Given;
use mnnkv::ffi::h2o::*;
use mnnkv::ffi::status::MNNKV_OK;

/// Any scores and settings: refused, or a plan that keeps protected blocks and the best of the others.
pub fn h2o_plan(data: &[u8]) {
    let mut given = Given::new(data);
    let config = mnnkv_h2o_config {
        block_tokens: given.any() % 4096,
        sink_tokens: given.any(),
        recent_tokens: given.any(),
        target_mode: given.pick(&[0, 1, 2, 3]),
        target_keep_ratio: given.float(),
        target_lossy_ratio: given.float(),
        target_tokens: given.any(),
        ..Default::default()
    };
    let wide = given.any();
    let kv_len = if given.flag() { wide % 20_000 } else { wide };
    let scores: Vec<f32> = (0..given.below(300)).map(|_| given.float()).collect();
    let block = if config.block_tokens == 0 { 64 } else { config.block_tokens };
    if kv_len / block > 1 << 16 && kv_len <= i32::MAX as u32 {
        // As many blocks as a plan has bytes.
        return;
    }
    let room = (kv_len.div_ceil(block) as usize).div_ceil(2);
    let mut pairs = vec![[-1i32; 2]; room.min(1 << 16)];
    let (mut count, mut plan) = (0, mnnkv_h2o_plan { struct_size: size_of::<mnnkv_h2o_plan>() as u32, ..ZERO });
    let (scores_at, len, out) = (scores.as_ptr(), scores.len(), pairs.as_mut_ptr().cast());
    // SAFETY: all arrays have as many elements as is said.
    let status =
        unsafe { mnnkv_h2o_plan_reserve(scores_at, len, kv_len, &config, out, pairs.len(), &mut count, &mut plan) };
    if status != MNNKV_OK {
        let ratio = if config.target_mode == 1 { config.target_keep_ratio } else { config.target_lossy_ratio };
        let is_wrong = kv_len > i32::MAX as u32 || config.target_mode > 2 || ratio.is_nan();
        return assert!(is_wrong && status == 1, "status {status}");
    }
    let pairs = &pairs[..count];
    assert!(pairs.iter().all(|pair| pair[0] >= 0 && pair[1] > 0));
    assert!(pairs.windows(2).all(|w| w[0][0] + w[0][1] < w[1][0]), "ascending, with gaps");
    assert!(pairs.last().is_none_or(|last| (last[0] + last[1]) as u32 <= kv_len));
    let kept: u32 = pairs.iter().map(|pair| pair[1] as u32).sum();
    assert_eq!((kept, kv_len - kept), (plan.kept_tokens, plan.evicted_tokens));
    let stays = |token: u32| pairs.iter().any(|p| (p[0] as u32..(p[0] + p[1]) as u32).contains(&token));
    for token in
        [0, config.sink_tokens.saturating_sub(1), kv_len.saturating_sub(1), kv_len.saturating_sub(config.recent_tokens)]
    {
        let is_protected = token < config.sink_tokens || token >= kv_len.saturating_sub(config.recent_tokens);
        assert!(token >= kv_len || !is_protected || stays(token), "token {token} is protected");
    }
    // The worst block that stays is no worse than the best that leaves.
    let score =
        |b: u32| scores.get(b as usize).map_or(0.0, |score| if score.is_nan() { f32::NEG_INFINITY } else { *score });
    let is_free = |b: &u32| {
        b * block >= config.sink_tokens
            && u64::from(b + 1) * u64::from(block) <= u64::from(kv_len.saturating_sub(config.recent_tokens))
    };
    let (left, right): (Vec<u32>, Vec<u32>) =
        (0..kv_len.div_ceil(block)).filter(is_free).partition(|b| stays(b * block));
    let worst = left.iter().map(|b| score(*b)).fold(f32::INFINITY, f32::min);
    let best = right.iter().map(|b| score(*b)).fold(f32::NEG_INFINITY, f32::max);
    assert!(worst >= best, "a block of {worst} stays, and one of {best} leaves");
}

const ZERO: mnnkv_h2o_plan = mnnkv_h2o_plan {
    struct_size: 0,
    kept_tokens: 0,
    evicted_tokens: 0,
    floor_dominates: 0,
    floor_keep: 0.0,
    target_keep_effective: 0.0,
    block_quantized_keep: 0.0,
    lossy_ratio: 0.0,
};
