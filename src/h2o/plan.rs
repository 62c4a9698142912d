//! Plans: scores of blocks to the tokens that stay.

use super::plan_config::PlanConfig;
use crate::status::{Result, bail};
use crate::sys::memory;
use std::ops::Range;

/// The tokens that a cache keeps, and the amounts behind.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// (offset, length) of each run of kept tokens; ascending, with gaps between.
    pub pairs: Vec<[i32; 2]>,
    /// Tokens in the pairs.
    pub kept_tokens: u32,
    /// Tokens outside them.
    pub evicted_tokens: u32,
    /// The protected tokens alone reach the target. Nothing is evicted then, since only protected tokens would be left.
    pub floor_dominates: bool,
    /// Share of the cache in protected blocks.
    pub floor_keep: f32,
    /// The larger of target and floor, as a share of the cache.
    pub target_keep_effective: f32,
    /// That share, rounded up to whole blocks.
    pub block_quantized_keep: f32,
    /// Tokens of the cache over kept tokens.
    pub lossy_ratio: f32,
}

/// Plans a cache of `kv_len` tokens.
///
/// Block `i` begins at token `i * block_tokens` and has the score `scores[i]`. Missing scores are 0, further ones are
/// ignored. Protected blocks stay; then whole blocks by descending score until the target, rounded up to blocks, is
/// reached. The lower of blocks with equal scores wins. NaN is the lowest score.
/// INVALID_ARGUMENT: if `kv_len` is over 2^31 - 1, `block_tokens` is 0, or the ratio of the target is NaN.
pub fn plan(scores: &[f32], kv_len: u32, config: &PlanConfig) -> Result<Plan> {
    plan_pinned(scores, kv_len, config, &[])
}

/// As [`plan`]; blocks with a token of `pinned` (ranges of tokens, ascending) are protected, too.
pub fn plan_pinned(scores: &[f32], kv_len: u32, config: &PlanConfig, pinned: &[[i32; 2]]) -> Result<Plan> {
    if kv_len > i32::MAX as u32 {
        bail!(InvalidArgument, "kv_len is {kv_len}; {} or less expected", i32::MAX);
    }
    if config.block_tokens == 0 {
        bail!(InvalidArgument, "block_tokens is 0; at least 1 expected");
    }
    if kv_len == 0 {
        return Ok(Plan {
            pairs: Vec::new(),
            kept_tokens: 0,
            evicted_tokens: 0,
            floor_dominates: true,
            floor_keep: 1.0,
            target_keep_effective: 1.0,
            block_quantized_keep: 1.0,
            lossy_ratio: 1.0,
        });
    }
    let blocks = Blocks { kv_len, size: config.block_tokens };
    let amounts = config.amounts(kv_len, pinned)?;
    let Amounts { sink_end, recent_start, floor, pinned: pinned_tokens, quantized, .. } = amounts;
    let pairs = if amounts.floor_dominates() {
        memory::filled([0, kv_len as i32], 1)?
    } else {
        let wanted = quantized - floor + pinned_tokens;
        let chosen = best_blocks(scores, &blocks, sink_end..recent_start, pinned, wanted)?;
        merge(&blocks, sink_end, recent_start, &chosen)?
    };
    let kept_tokens = pairs.iter().map(|p| p[1] as u32).sum();
    let share = |tokens: u32| tokens as f32 / kv_len as f32;
    Ok(Plan {
        pairs,
        kept_tokens,
        evicted_tokens: kv_len - kept_tokens,
        floor_dominates: amounts.floor_dominates(),
        floor_keep: share(floor),
        target_keep_effective: share(amounts.target.max(floor)),
        block_quantized_keep: share(quantized),
        lossy_ratio: kv_len as f32 / kept_tokens as f32,
    })
}

/// How many tokens of a cache stay, for any scores.
#[derive(Clone, Copy, Debug)]
pub struct Amounts {
    /// Blocks below it are protected.
    sink_end: u32,
    /// Blocks from it on are protected.
    recent_start: u32,
    /// Tokens in protected blocks.
    floor: u32,
    /// Those of them that only a pin protects.
    pinned: u32,
    /// Tokens that the config aims at.
    target: u32,
    /// The larger of target and floor, rounded up to whole blocks.
    quantized: u32,
}

impl Amounts {
    /// The protected tokens alone reach the target.
    pub fn floor_dominates(&self) -> bool {
        self.floor >= self.target
    }

    /// The least number of tokens that a plan can keep when pins leave less room than a limit; 0 without pins.
    pub fn least_with_pins(&self) -> u32 {
        if self.pinned > 0 { self.floor + 1 } else { 0 }
    }

    /// Whether a plan for a cache of `kv_len` tokens evicts any.
    pub fn evicts(&self, kv_len: u32) -> bool {
        !self.floor_dominates() && self.quantized < kv_len
    }
}

impl PlanConfig {
    /// Returns how many tokens of a cache of `kv_len` (at least 1) stay, with pins as of [`plan_pinned`].
    pub fn amounts(&self, kv_len: u32, pinned: &[[i32; 2]]) -> Result<Amounts> {
        let blocks = Blocks { kv_len, size: self.block_tokens };
        let target = self.target.tokens(kv_len)?;
        let sink_end = self.sink_tokens.min(kv_len).div_ceil(blocks.size);
        let recent_start = (kv_len.saturating_sub(self.recent_tokens) / blocks.size).max(sink_end);
        // Between sink and recent tokens all blocks are whole.
        let pinned = blocks.of(pinned, sink_end..recent_start).map(|run| run.len() as u32 * blocks.size).sum();
        let floor = blocks.start(sink_end) + (kv_len - blocks.start(recent_start)) + pinned;
        let more = target.saturating_sub(floor).div_ceil(blocks.size).saturating_mul(blocks.size);
        let quantized = more.saturating_add(floor).min(kv_len);
        Ok(Amounts { sink_end, recent_start, floor, pinned, target, quantized })
    }
}

struct Blocks {
    kv_len: u32,
    size: u32,
}

impl Blocks {
    /// The first token of a block; the length of the cache for the block after the last.
    fn start(&self, block: u32) -> u32 {
        (block as u64 * self.size as u64).min(self.kv_len as u64) as u32
    }

    /// The blocks of `within` that have a token of these ranges, which ascend. Each block is in one run.
    fn of(&self, tokens: &[[i32; 2]], within: Range<u32>) -> impl Iterator<Item = Range<u32>> {
        let size = self.size;
        tokens.iter().filter(|[_, len]| *len > 0).scan(within.start, move |next, [at, len]| {
            let first = (*at as u32 / size).max(*next).min(within.end);
            *next = ((at + len) as u32).div_ceil(size).min(within.end).max(first);
            Some(first..*next)
        })
    }
}

/// A sort key for (score, block): lower is better. The bits of a float, with the sign folded in, order as the float
/// does. NaN comes last.
fn rank(score: f32, block: u32) -> u64 {
    let ascending = if score.is_nan() {
        0
    } else {
        // -0 and 0 are equal scores.
        let bits = (score + 0.0).to_bits();
        let order = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
        order.max(1)
    };
    (!ascending as u64) << 32 | block as u64
}

/// Returns the best candidates that together have at least `wanted` tokens, in ascending order. Pinned ones are best.
fn best_blocks(
    scores: &[f32],
    blocks: &Blocks,
    candidates: Range<u32>,
    pinned: &[[i32; 2]],
    wanted: u32,
) -> Result<Vec<u32>> {
    let score = |block: u32| scores.get(block as usize).copied().unwrap_or(0.0);
    let mut ranked = memory::collect(candidates.clone().map(|block| rank(score(block), block)))?;
    for block in blocks.of(pinned, candidates.clone()).flatten() {
        ranked[(block - candidates.start) as usize] = u64::from(block);
    }

    // All candidates are whole blocks: a partial block has the last token, and `recent_start` is never beyond it. So
    // their number is known before any is chosen.
    let count = (wanted.div_ceil(blocks.size) as usize).min(ranked.len());
    if count < ranked.len() {
        ranked.select_nth_unstable(count);
        ranked.truncate(count);
    }
    let mut chosen = memory::collect(ranked.into_iter().map(|key| key as u32))?;
    chosen.sort_unstable();
    Ok(chosen)
}

/// Returns protected and chosen blocks as runs of tokens.
fn merge(blocks: &Blocks, sink_end: u32, recent_start: u32, chosen: &[u32]) -> Result<Vec<[i32; 2]>> {
    let mut pairs: Vec<[i32; 2]> = Vec::new();
    let sink = std::iter::once((0, blocks.start(sink_end)));
    let middle = chosen.iter().map(|b| (blocks.start(*b), blocks.start(b + 1)));
    let recent = std::iter::once((blocks.start(recent_start), blocks.kv_len));
    for (start, end) in sink.chain(middle).chain(recent).filter(|(start, end)| start < end) {
        match pairs.last_mut() {
            Some([offset, len]) if *offset + *len == start as i32 => *len += (end - start) as i32,
            _ => memory::push(&mut pairs, [start as i32, (end - start) as i32])?,
        }
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_order_scores_from_infinity_down_to_nan() {
        let down = [f32::INFINITY, 3.0, 1e-40, 0.0, -1e-40, -3.0, f32::NEG_INFINITY, f32::NAN];
        for pair in down.windows(2) {
            assert!(rank(pair[0], 9) < rank(pair[1], 1), "{pair:?}");
        }
        assert!(rank(0.0, 1) < rank(-0.0, 2) && rank(-0.0, 1) < rank(0.0, 2), "zeros are equal");
        assert!(rank(-f32::NAN, 0) > rank(f32::NEG_INFINITY, 1), "NaN of either sign");
    }
}
