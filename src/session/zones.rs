//! Which tokens of which layers are compressed, and when.

use super::config::{Config, Lossless, Mode};
use super::layer::Layer;
use crate::status::Result;
use crate::store::{Purpose, Store};
use crate::sys::memory;

/// A hole between blocks is filled from this many tokens on; smaller ones stay raw.
const LEAST_HOLE: u32 = 32;
/// Layers whose blocks end at different tokens.
const STAGGER: u32 = 8;
/// What the automatic bounds leave for memory beside the caches: this share of all raw bytes, each. With the codecs' own
/// memory it must stay below 2 % while little is compressed yet.
const PENDING_SHARE: usize = 256;
const DECODE_CACHE_SHARE: usize = 512;
/// And no less than this: small caches would wait long for little, and one block waits while one is being encoded.
const LEAST_PENDING: usize = 1 << 20;
const LEAST_PENDING_BLOCKS: usize = 2;

/// Why a layer is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Zone {
    /// It is one of the first.
    Front,
    /// Tokens are evicted from it, and those that stay are compressed.
    Kept,
}

impl Zone {
    /// Steps between submissions.
    pub(super) fn interval(self, lossless: &Lossless) -> u32 {
        match self {
            Zone::Front => lossless.front_sample_interval,
            Zone::Kept => lossless.kept_sample_interval,
        }
    }
}

/// Whether and why a layer takes part. Where both scopes apply it is a front layer. Probing samples one layer per scope;
/// encoding in full all front layers and as many of the others as the config says; storing all.
pub(super) fn zone(config: &Config, layer: u32) -> Option<Zone> {
    let lossless = config.lossless.as_ref()?;
    if layer < lossless.front_layers {
        let taken = match lossless.mode {
            Mode::Probe => layer == 0,
            Mode::Full => true,
            Mode::Store => lossless.store_front,
        };
        return taken.then_some(Zone::Front);
    }
    let h2o = config.h2o.as_ref().filter(|_| lossless.kept_layers)?;
    let first = h2o.first_layer.max(lossless.front_layers);
    let sampled = match (lossless.mode, lossless.kept_sample_layers) {
        (Mode::Probe, _) => 1,
        (Mode::Full, 0) | (Mode::Store, _) => u32::MAX,
        (Mode::Full, count) => count,
    };
    (first..h2o.end_layer.min(first.saturating_add(sampled))).contains(&layer).then_some(Zone::Kept)
}

/// The next layer that is stored, to be decoded while the host computes this one. The first layer of the next step is
/// not: its rows would lie beside the caches between steps, when a host measures its memory.
pub(super) fn next(config: &Config, layer: u32) -> Option<u32> {
    let lossless = config.lossless.as_ref().filter(|l| l.mode == Mode::Store)?;
    let end = config.h2o.as_ref().map_or(0, |h| h.end_layer).max(lossless.front_layers);
    (layer + 1..end).find(|next| zone(config, *next).is_some())
}

pub(super) fn purpose(mode: Mode) -> Purpose {
    match mode {
        Mode::Probe => Purpose::Sample { compare: false },
        Mode::Full => Purpose::Sample { compare: true },
        Mode::Store => Purpose::KeepSoon,
    }
}

/// Whether a layer's cold tokens are handed in when its step begins. Then the workers encode them while the host
/// computes the layer, and the same step's end can release them. Handed in at the end, blobs would lie beside their raw
/// tokens until the end of the next step, and with a bound on their bytes compressing a prompt would take that many
/// more steps. Encoded within the call, or only measured, they wait for nobody.
pub(super) fn at_begin(lossless: &Lossless) -> bool {
    lossless.mode == Mode::Store && lossless.workers > 0
}

/// Ranges of cold tokens to hand in now, each as (begin, count).
///
/// Cold is what lies between the first `hot_sink_tokens` and the last `hot_recent_tokens` of the cache. It is cut into
/// blocks from the front; the end waits until there are enough for a block, and holes that eviction tore are filled.
/// `unit` tokens share their pages, so blocks begin and end at multiples of it where they can: the pages of a part
/// would stay in memory beside its blob.
pub(super) fn cold_blocks(lossless: &Lossless, layer: &Layer, store: &Store, unit: u32) -> Result<Vec<(u32, u32)>> {
    let len = layer.lengths.physical;
    // Short blocks are cut through anyhow, and would have too much left out at either end.
    let unit = if unit <= lossless.block_tokens / 2 { unit } else { 1 };
    let begin = len.min(lossless.hot_sink_tokens.next_multiple_of(unit));
    let end = len.saturating_sub(lossless.hot_recent_tokens).max(begin);
    let (mut size, mut left) = (lossless.block_tokens, lossless.grouped_step_tokens.max(lossless.block_tokens));
    if !layer.submitted && lossless.bootstrap_tokens > 0 {
        // The first sample is small, so that a prompt's end does not wait for a large one. It is of another length in
        // each layer, or all of them would have their next block full in the same step.
        let turn = (layer.number % STAGGER) * size / STAGGER;
        size = (lossless.bootstrap_tokens.min(size) + turn - 1) % size + 1;
        left = size;
    }
    let mut ranges = Vec::new();
    for (mut at, count) in store.uncovered(layer.number, begin..end).unwrap_or_default() {
        let gap_end = at + count;
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

/// Fits the store's memory beside the caches to their size, unless the config says how much it may be.
pub(super) fn set_bounds(lossless: &Lossless, store: &mut Store, raw_bytes: usize, token_bytes: usize) {
    let given = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let block = token_bytes * lossless.block_tokens as usize;
    let pending = match lossless.pending_bytes {
        0 => (raw_bytes / PENDING_SHARE).max(LEAST_PENDING).max(LEAST_PENDING_BLOCKS * block),
        bytes => given(bytes),
    };
    let decoded = match lossless.decode_cache_bytes {
        0 => raw_bytes / DECODE_CACHE_SHARE,
        bytes => given(bytes),
    };
    store.set_bounds(pending, decoded.min(block.saturating_mul(lossless.decode_cache_blocks as usize)));
}
