//! The JSON of `mnnkv evaluate`.
//!
//! Ratios are raw over kept, so more is better. A field that was not measured is absent.

use crate::error::Finding;
use serde::{Deserialize, Serialize};

/// The `format` of every result.
pub const FORMAT: &str = "mnnkv-evaluate";
/// The `version` that this crate writes and reads. It grows when a field changes its meaning or goes.
pub const VERSION: u32 = 2;

/// One evaluation of one dump.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// The version of mnn-kv.
    pub program: String,
    /// The path of the dump, as given.
    pub dumps: String,
    /// False after Ctrl-C: lists have the finished entries only.
    pub complete: bool,
    /// What the lists depend on: flags, and keys of the config.
    pub settings: serde_json::Map<String, serde_json::Value>,
    /// The evaluated layers.
    pub layers: Vec<LayerResult>,
    /// Facts that a reader must know: skipped entries, gaps, overlaps.
    pub findings: Vec<Finding>,
    /// The codec on each tensor.
    pub lossless: Vec<LosslessResult>,
    /// Ratios over all layers of a run.
    pub whole_cache: Vec<WholeCacheResult>,
}

/// A layer of the dump.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerResult {
    /// The chat.
    pub run: String,
    /// The layer in its model.
    pub layer: u32,
    /// Tokens of the dump.
    pub tokens: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Dims of a head.
    pub head_dim: usize,
    /// Element type: `F16`, `BF16`, `F32`, `INT8`.
    pub dtype: String,
    /// K and V.
    pub raw_bytes: u64,
}

/// K or V of a layer, encoded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LosslessResult {
    /// The chat.
    pub run: String,
    /// The layer in its model.
    pub layer: u32,
    /// `k` or `v`.
    pub tensor: String,
    /// `whole`: one blob. `blocks`: as a session cuts, the hot zones raw.
    pub cut: String,
    /// Words of the tensor.
    pub raw_bytes: u64,
    /// Blobs, and for `blocks` the raw words of hot zones and of blocks that do not shrink.
    pub kept_bytes: u64,
    /// For `blocks`: the raw words among these.
    pub hot_bytes: u64,
    /// `raw_bytes / kept_bytes`
    pub ratio: f64,
    /// Raw bytes per second; absent where nothing was encoded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encode_bytes_per_second: Option<f64>,
    /// Raw bytes per second; absent where nothing was encoded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode_bytes_per_second: Option<f64>,
}

/// All layers of a run under one choice of cut and ratio.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WholeCacheResult {
    /// The chat.
    pub run: String,
    /// `whole` or `blocks`, as in [`LosslessResult::cut`].
    pub cut: String,
    /// `kv_h2o_target_lossy_ratio`
    pub target_ratio: f64,
    /// `kv_h2o_block_tokens`
    pub block_tokens: u32,
    /// First layers that are encoded and keep all tokens.
    pub front_layers: usize,
    /// Bytes of the front layers over their encoded bytes.
    pub front_lossless: f64,
    /// Tokens over kept tokens of the deep layers.
    pub deep_lossy: f64,
    /// The kept tokens of deep layers, raw over encoded; 1 where they stay raw.
    pub deep_lossless: f64,
    /// Lossless alone, over all layers.
    pub lossless_only: f64,
    /// Eviction alone, over all layers.
    pub lossy_only: f64,
    /// Both, over all layers: raw bytes over kept bytes.
    pub joint: f64,
    /// `front_lossless * deep_lossy`, which the reference system reports. It multiplies ratios of different layers.
    pub reference_product: f64,
}
