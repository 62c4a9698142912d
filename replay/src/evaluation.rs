//! The evaluation of a dump: layer by layer, so that one layer is in memory at a time.

use crate::codec;
use crate::dumps::{Dump, Layer};
use crate::error::{Finding, Result};
use crate::results::{FORMAT, LayerResult, Results, VERSION};
use crate::watch::Watch;
use crate::whole_cache::{Rules, whole_cache};

/// What [`evaluate`] computes.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The config behind blocks, and behind ratios of the whole cache.
    pub rules: Rules,
    /// Ratios and block lengths for the whole cache.
    pub ratios: Vec<f64>,
    /// `kv_h2o_block_tokens`
    pub block_tokens: Vec<u32>,
}

/// The bytes of all layers of a dump that the watch is told.
pub fn work(dump: &Dump) -> u64 {
    dump.layers.iter().map(codec::work).sum()
}

/// Evaluates all layers of a dump. After a stop the results are those that were finished, and say so. A layer that cannot
/// be read is a finding.
///
/// `name` is the dump's path as given, `settings` what the results must say of the options.
pub fn evaluate(
    dump: &Dump,
    name: &str,
    settings: serde_json::Map<String, serde_json::Value>,
    request: &Request,
    watch: Watch<'_>,
) -> Result<Results> {
    let mut results = Results {
        format: FORMAT.into(),
        version: VERSION,
        program: env!("CARGO_PKG_VERSION").into(),
        dumps: name.into(),
        complete: true,
        settings,
        layers: Vec::new(),
        findings: dump.findings.clone(),
        lossless: Vec::new(),
        whole_cache: Vec::new(),
    };
    for (index, info) in dump.layers.iter().enumerate() {
        if watch.is_stopped() {
            break;
        }
        match dump.load(index) {
            Ok(layer) => one_layer(&layer, request, watch, &mut results)?,
            Err(error) => {
                let place = format!("run {} layer {}", info.run, info.layer);
                results.findings.push(Finding::new("unreadable", place, error));
            }
        }
    }
    results.complete = !watch.is_stopped();
    if let (true, true, Some(finding)) = (results.complete, results.layers.is_empty(), results.findings.last()) {
        return Err(finding.error());
    }
    results.whole_cache = whole_cache(&results, &request.ratios, &request.block_tokens, &request.rules)?;
    results.findings.extend(idle(&results));
    Ok(results)
}

/// Ratios that evict nothing: a plan never keeps fewer tokens than the protected ones.
fn idle(results: &Results) -> Vec<Finding> {
    let mut found: Vec<Finding> = Vec::new();
    for whole in results.whole_cache.iter().filter(|whole| whole.target_ratio > 1.0 && whole.deep_lossy <= 1.0) {
        let layers = results.layers.iter().filter(|layer| layer.run == whole.run).count();
        let place = format!("ratio {}", whole.target_ratio);
        if whole.front_layers < layers && found.iter().all(|finding| finding.place != place) {
            let text = format!(
                "nothing is evicted from run {} with blocks of {}: sink and recent tokens with the rest of their blocks are \
                 as many as the ratio keeps",
                whole.run, whole.block_tokens
            );
            found.push(Finding::new("floor", place, text));
        }
    }
    found
}

fn one_layer(layer: &Layer, request: &Request, watch: Watch<'_>, results: &mut Results) -> Result<()> {
    let info = &layer.info;
    results.layers.push(LayerResult {
        run: info.run.clone(),
        layer: info.layer,
        tokens: info.tokens,
        kv_heads: info.kv_heads,
        head_dim: info.head_dim,
        dtype: info.dtype.name().into(),
        raw_bytes: (layer.key.len() + layer.value.len()) as u64,
    });
    results.lossless.extend(codec::evaluate(layer, &request.rules.zones, watch)?);
    Ok(())
}
