//! Bytes of a cache of any length, from measured ratios and the shapes of layers.

use crate::figures::{Coding, Figures};
use mnnkv::h2o::{self, PlanConfig, Target};
use mnnkv_replay::codec::Zones;
use mnnkv_replay::results::LayerResult;

/// Most tokens that are computed.
const MOST_TOKENS: usize = 1 << 20;
/// The last length is so many times that of the dump.
const BEYOND: usize = 8;
/// Lengths from 0 to the last.
const LENGTHS: usize = 32;

/// Ways to keep a cache.
pub const KINDS: [&str; 4] = ["raw", "lossless only", "eviction only", "both"];

/// Bytes of a cache by [`KINDS`].
pub type Bytes = [f64; KINDS.len()];

/// The model: a token has the mean size of its layer's tokens, a cold token that of its layer's encoded ones, and a plan
/// keeps what it keeps whatever the scores.
pub struct Memory<'a> {
    layers: Vec<&'a LayerResult>,
    coding: &'a Coding,
    front: u32,
    zones: Zones,
    plan: PlanConfig,
    /// Tokens of the longest chat.
    pub tokens: usize,
}

impl<'a> Memory<'a> {
    /// The model of the longest chat of a dump. Nothing for a dump without layers or too long.
    pub fn new(figures: &'a Figures, coding: &'a Coding, ratio: f64) -> Option<Self> {
        let longest = figures.results.layers.iter().max_by_key(|layer| layer.tokens)?;
        let layers = figures.results.layers.iter().filter(|layer| layer.run == longest.run).collect();
        let key = |key, default: u32| figures.key(key, default.into()).clamp(0, 1 << 30) as u32;
        let default = PlanConfig::default();
        Some(Memory {
            layers,
            coding,
            front: figures.front,
            zones: Zones {
                block_tokens: key("kv_lossless_block_tokens", 256).max(1) as usize,
                hot_sink_tokens: key("kv_lossless_hot_sink_tokens", 16) as usize,
                hot_recent_tokens: key("kv_lossless_hot_recent_tokens", 256) as usize,
            },
            plan: PlanConfig {
                block_tokens: figures.block_tokens.max(1),
                sink_tokens: key("kv_h2o_sink_tokens", default.sink_tokens),
                recent_tokens: key("kv_h2o_recent_tokens", default.recent_tokens),
                target: Target::LossyRatio(ratio as f32),
            },
            tokens: longest.tokens,
        })
        .filter(|memory| memory.tokens <= MOST_TOKENS)
    }

    /// Lengths from 0 to several times the dump's, which is one of them.
    pub fn lengths(&self) -> Vec<usize> {
        let last = (self.tokens * BEYOND).min(MOST_TOKENS);
        let mut lengths: Vec<usize> = (0..=LENGTHS).map(|i| last * i / LENGTHS).chain([self.tokens]).collect();
        lengths.sort_unstable();
        lengths.dedup();
        lengths
    }

    /// Bytes of a cache of `tokens` tokens.
    pub fn at(&self, tokens: usize) -> Bytes {
        let planned = h2o::plan(&[], tokens as u32, &self.plan).map_or(tokens, |plan| plan.kept_tokens as usize);
        self.layers.iter().fold(Bytes::default(), |sum, layer| {
            let kept = if layer.layer < self.front { tokens } else { planned };
            let token = layer.raw_bytes as f64 / layer.tokens as f64;
            let encoded = |tokens| self.encoded(layer, tokens, token);
            let own = [tokens as f64 * token, encoded(tokens), kept as f64 * token, encoded(kept)];
            std::array::from_fn(|kind| sum[kind] + own[kind])
        })
    }

    /// Bytes of `kept` tokens of a layer, the cold ones encoded.
    fn encoded(&self, layer: &LayerResult, kept: usize, token: f64) -> f64 {
        let cold = if self.coding.cut == "blocks" { self.zones.cold_tokens(kept) } else { kept };
        let tensors = self.coding.layers.get(&layer.layer).copied().unwrap_or_default();
        let ratio = |tensor: usize| tensors[tensor].map_or(1.0, |sum| sum.cold_ratio());
        let share = (1.0 / ratio(0) + 1.0 / ratio(1)) / 2.0;
        (kept - cold) as f64 * token + cold as f64 * token * share
    }
}
