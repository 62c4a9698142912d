//! Ratios over all layers of a run, from the results of its layers.
//!
//! The first layers keep all tokens, encoded. The deep layers keep some tokens, raw or encoded. A ratio over the whole
//! cache is all raw bytes over all kept bytes. The reference system multiplies the ratio of the first layers with that of
//! the deep ones, which is a ratio of no cache; it is reported beside the others.

use crate::codec::{BLOCKS, WHOLE, Zones};
use crate::error::Result;
use crate::results::{LayerResult, LosslessResult, Results, WholeCacheResult};
use mnnkv::h2o::{self, PlanConfig, Target};

/// The config behind the ratios.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// `kv_h2o_layer_start`
    pub first_evicted_layer: u32,
    /// The layer after `kv_h2o_layer_end`. Layers outside of both keep all tokens, encoded.
    pub end_evicted_layer: u32,
    /// `kv_h2o_sink_tokens`
    pub sink_tokens: u32,
    /// `kv_h2o_recent_tokens`
    pub recent_tokens: u32,
    /// Zones of cold tokens.
    pub zones: Zones,
}

/// Bytes of one layer, K and V together.
struct LayerBytes {
    raw: f64,
    /// All tokens, encoded.
    encoded: f64,
    /// Kept tokens.
    kept_raw: f64,
    /// Kept tokens, encoded.
    kept_encoded: f64,
}

/// Computes every run in both cuts, for each ratio and block length. A run is left out for a cut that some layer of it lacks.
pub fn whole_cache(results: &Results, ratios: &[f64], blocks: &[u32], rules: &Rules) -> Result<Vec<WholeCacheResult>> {
    let mut found = Vec::new();
    for layers in results.layers.chunk_by(|a, b| a.run == b.run) {
        for cut in [WHOLE, BLOCKS] {
            for &ratio in ratios {
                for &block in blocks {
                    found.extend(Choice { results, rules, cut, ratio, block }.compute(layers)?);
                }
            }
        }
    }
    Ok(found)
}

struct Choice<'a> {
    results: &'a Results,
    rules: &'a Rules,
    cut: &'static str,
    ratio: f64,
    block: u32,
}

impl Choice<'_> {
    fn compute(&self, layers: &[LayerResult]) -> Result<Option<WholeCacheResult>> {
        let evicted = self.rules.first_evicted_layer..self.rules.end_evicted_layer;
        let is_front = |layer: &&LayerResult| !evicted.contains(&layer.layer);
        let front = layers.iter().filter(is_front).map(|layer| self.bytes(layer, layer.tokens));
        let Some(front) = front.collect::<Option<Vec<_>>>() else { return Ok(None) };
        let mut deep = Vec::new();
        for layer in layers.iter().filter(|layer| !is_front(layer)) {
            match self.bytes(layer, self.planned(layer)?) {
                Some(bytes) => deep.push(bytes),
                None => return Ok(None),
            }
        }
        let sum = |layers: &[LayerBytes], of: fn(&LayerBytes) -> f64| layers.iter().map(of).sum::<f64>();
        let over = |raw: f64, kept: f64| if kept > 0.0 { raw / kept } else { 1.0 };
        let raw = sum(&front, |l| l.raw) + sum(&deep, |l| l.raw);
        let front_encoded = sum(&front, |l| l.encoded);
        let (front_lossless, deep_lossy) =
            (over(sum(&front, |l| l.raw), front_encoded), over(sum(&deep, |l| l.raw), sum(&deep, |l| l.kept_raw)));
        Ok(Some(WholeCacheResult {
            run: layers[0].run.clone(),
            cut: self.cut.into(),
            target_ratio: self.ratio,
            block_tokens: self.block,
            front_layers: front.len(),
            front_lossless,
            deep_lossy,
            deep_lossless: over(sum(&deep, |l| l.kept_raw), sum(&deep, |l| l.kept_encoded)),
            lossless_only: over(raw, front_encoded + sum(&deep, |l| l.encoded)),
            lossy_only: over(raw, sum(&front, |l| l.raw) + sum(&deep, |l| l.kept_raw)),
            joint: over(raw, front_encoded + sum(&deep, |l| l.kept_encoded)),
            reference_product: front_lossless * deep_lossy,
        }))
    }

    /// Tokens that a plan for the whole layer keeps, whatever the scores.
    fn planned(&self, layer: &LayerResult) -> Result<usize> {
        let config = PlanConfig {
            block_tokens: self.block,
            sink_tokens: self.rules.sink_tokens,
            recent_tokens: self.rules.recent_tokens,
            target: Target::LossyRatio(self.ratio as f32),
        };
        let tokens = u32::try_from(layer.tokens).unwrap_or(u32::MAX);
        let failed = |e| crate::error::Error::new(format!("run {} layer {}", layer.run, layer.layer), e);
        Ok(h2o::plan(&[], tokens, &config).map_err(failed)?.kept_tokens as usize)
    }

    /// The bytes of a layer of which `kept` tokens stay. An encoded token has the mean size of the layer's encoded tokens.
    fn bytes(&self, layer: &LayerResult, kept: usize) -> Option<LayerBytes> {
        let of = |tensor: &str| {
            let found = |result: &&LosslessResult| {
                (&result.run, result.layer) == (&layer.run, layer.layer)
                    && (result.tensor.as_str(), result.cut.as_str()) == (tensor, self.cut)
            };
            self.results.lossless.iter().find(found)
        };
        let (key, value) = (of("k")?, of("v")?);
        let raw = (key.raw_bytes + value.raw_bytes) as f64;
        let encoded = (key.kept_bytes + value.kept_bytes) as f64;
        let hot = (key.hot_bytes + value.hot_bytes) as f64;
        let token = raw / layer.tokens as f64;
        let cold = if self.cut == BLOCKS { self.rules.zones.cold_tokens(kept) } else { kept } as f64;
        // Without cold tokens in the layer none was encoded.
        let cold_ratio = if raw > hot { (raw - hot) / (encoded - hot).max(1.0) } else { 1.0 };
        let kept_raw = kept as f64 * token;
        Some(LayerBytes { raw, encoded, kept_raw, kept_encoded: kept_raw - cold * token * (1.0 - 1.0 / cold_ratio) })
    }
}
