//! Zones: which layers are compressed, and which of their tokens are cold.

use crate::session::config::{Config, LosslessRules, RuntimeMode};
use crate::status::Result;
use crate::store::Store;
use crate::sys::memory;
use std::ops::Range;

/// The least tokens of a hole between blocks that is filled; smaller holes stay raw.
const LEAST_HOLE: u32 = 32;
/// Tokens that may share a page of which some are stored. Fewer are hardly more than the tokens that are never stored.
const MOST_SHARING: u32 = 256;
/// Number of layers whose first blocks end at different tokens.
const STAGGER: u32 = 8;

/// Whether a layer is compressed: with `Probe` the first of each scope, with `Full` all front layers and one of the others, with
/// `Store` all.
pub(super) fn takes_part(config: &Config, layer: u32) -> bool {
    let Some(lossless) = &config.lossless else { return false };
    if layer < lossless.front_layers {
        return layer == 0 || lossless.mode != RuntimeMode::Probe;
    }
    let Some(eviction) = config.eviction.as_ref().filter(|_| lossless.kept_layers) else { return false };
    let first = eviction.first_layer.max(lossless.front_layers);
    let most = if lossless.mode == RuntimeMode::Store { u32::MAX } else { 1 };
    (first..eviction.end_layer.min(first.saturating_add(most))).contains(&layer)
}

/// The next stored layer, to be decoded while the host computes this one. After the last layer there is none: rows of the
/// first layer would lie beside the caches between steps, when a host measures its memory.
pub(super) fn next(config: &Config, layer: u32) -> Option<u32> {
    let lossless = config.lossless.as_ref().filter(|rules| rules.mode == RuntimeMode::Store)?;
    let end = config.eviction.as_ref().map_or(0, |rules| rules.end_layer).max(lossless.front_layers);
    (layer + 1..end).find(|next| takes_part(config, *next))
}

/// Whether pages that `unit` tokens share are too large for blobs beside their raw tokens: where V is `[dim][token]`.
pub(super) fn leaves_parts_raw(rules: &LosslessRules, unit: u32) -> bool {
    unit > rules.block_tokens.max(MOST_SHARING)
}

/// The ranges of cold tokens to submit now, as (begin, count), of a cache of `len` tokens. `first`: none of the layer was
/// submitted since its reset.
///
/// Cold tokens lie between the first `hot_sink_tokens` and the last `hot_recent_tokens` of the cache. They are cut into
/// blocks from the front; the end stays raw until a block is full, and holes of evicted tokens are filled. `unit` tokens
/// share their pages, so blocks begin and end at multiples of it where possible: pages of a part would stay in memory
/// beside its blob. Where [`leaves_parts_raw`], only tokens of pages that are cold as a whole are submitted.
pub(super) fn cold_blocks(
    rules: &LosslessRules,
    layer: u32,
    len: u32,
    first: bool,
    store: &Store,
    unit: u32,
) -> Result<Vec<(u32, u32)>> {
    // Blocks shorter than two units share pages anyway, and aligned they would leave too many tokens raw.
    let (pages, unit) = match unit {
        unit if leaves_parts_raw(rules, unit) => (unit, 1),
        unit if unit > rules.block_tokens / 2 => (1, 1),
        unit => (1, unit),
    };
    let begin = len.min(rules.hot_sink_tokens.next_multiple_of(pages.max(unit)));
    let end = (len.saturating_sub(rules.hot_recent_tokens) / pages * pages).max(begin);
    let (mut size, mut left) = (rules.block_tokens, rules.grouped_step_tokens.max(rules.block_tokens));
    if first && rules.bootstrap_tokens > 0 {
        // The first block is small, so that the end of a prompt is quick. Its length differs from layer to layer, so that
        // layers do not fill their next blocks in the same step.
        let turn = (layer % STAGGER) * size / STAGGER;
        size = (rules.bootstrap_tokens.min(size) + turn - 1) % size + 1;
        left = size;
    }
    let mut ranges = Vec::new();
    for Range { start: mut at, end: gap_end } in store.uncovered(layer, begin..end)? {
        while at < gap_end && left > 0 {
            let past = (at + size) % unit;
            let full = if past < size { size - past } else { size };
            let hole = gap_end < end && gap_end - at >= LEAST_HOLE;
            if gap_end - at < full && !hole {
                break;
            }
            let count = full.min(gap_end - at);
            memory::push(&mut ranges, (at, count))?;
            at += count;
            left = left.saturating_sub(count);
        }
    }
    Ok(ranges)
}
