//! The evaluation of a dump: layer by layer, so that one layer is in memory at a time.

use crate::codec;
use crate::dumps::{Dump, Layer};
use crate::error::{Finding, Result};
use crate::eviction::{self, RowSource};
use crate::results::{EvictionResult, FORMAT, LayerResult, Results, VERSION};
use crate::watch::Watch;
use crate::whole_cache::{Rules, whole_cache};

/// What [`evaluate`] computes. An absent part is left out.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The codec on each tensor.
    pub codec: Option<codec::Request>,
    /// Replayed eviction.
    pub eviction: Option<eviction::Request>,
    /// The config behind ratios of the whole cache, which need the codec.
    pub rules: Rules,
    /// Ratios and block lengths for the whole cache.
    pub ratios: Vec<f64>,
    /// `kv_h2o_block_tokens`
    pub block_tokens: Vec<u32>,
}

impl Request {
    /// The work of all layers of a dump, in the units that the watch is told.
    pub fn work(&self, dump: &Dump) -> u64 {
        let encoded = |info| self.codec.as_ref().map_or(0, |request| codec::work(info, request));
        let replayed = |tokens: usize| if self.eviction.is_some() { tokens as u64 * TOKEN_WORK } else { 0 };
        dump.layers.iter().map(|info| encoded(info) + replayed(info.tokens)).sum()
    }
}

/// Encoded bytes that take about as long as the replay of a token.
const TOKEN_WORK: u64 = 4096;

/// Evaluates all layers of a dump. After a stop the results are those that were finished, and say so. A layer that cannot
/// be read, or not be replayed, is a finding.
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
        eviction: Vec::new(),
        whole_cache: Vec::new(),
    };
    for index in 0..dump.layers.len() {
        if watch.is_stopped() {
            break;
        }
        match dump.load(index) {
            Ok(layer) => one_layer(&layer, request, watch, &mut results)?,
            Err(error) => results.findings.push(Finding::new("unreadable", layer_name(dump, index), error)),
        }
    }
    results.findings.extend(idle_ratios(&results));
    results.whole_cache = whole_cache(&results, &request.ratios, &request.block_tokens, &request.rules)?;
    results.complete = !watch.is_stopped();
    Ok(results)
}

/// Ratios that evict nothing: a plan never keeps fewer tokens than the protected ones.
fn idle_ratios(results: &Results) -> Option<Finding> {
    let idle = |r: &&EvictionResult| r.evictions == 0 && r.target_ratio > 1.0;
    let mut ratios: Vec<f64> = results.eviction.iter().filter(idle).map(|r| r.target_ratio).collect();
    ratios.sort_by(f64::total_cmp);
    ratios.dedup();
    let ratios: Vec<String> = ratios.iter().map(f64::to_string).collect();
    let text = "nothing was evicted in some replays with these ratios: the protected tokens, sink and recent with the rest of \
                their blocks, are as many as the ratio keeps";
    (!ratios.is_empty()).then(|| Finding::new("floor", format!("--ratios {}", ratios.join(",")), text))
}

fn layer_name(dump: &Dump, index: usize) -> String {
    let info = &dump.layers[index];
    format!("run {} layer {}", info.run, info.layer)
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
        scores_from: RowSource::of(layer).map(|source| source.name().into()),
    });
    if let Some(request) = &request.codec {
        results.lossless.extend(codec::evaluate(layer, request, watch)?);
    }
    if let Some(request) = &request.eviction {
        let told = |tokens: u64| (watch.done)(tokens * TOKEN_WORK);
        match eviction::replay(layer, request, Watch { done: &told, ..watch }) {
            Ok(replayed) => results.eviction.extend(replayed),
            Err(error) => results.findings.push(Finding::new("not_replayed", format!("layer {}", info.layer), error)),
        }
    }
    Ok(())
}
