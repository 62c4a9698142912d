//! The evaluation of a dump: layer by layer, so that one layer is in memory at a time.

use crate::codec;
use crate::dumps::{Dump, Layer};
use crate::error::{Finding, Result};
use crate::eviction::{self, RowSource};
use crate::results::{FORMAT, LayerResult, Results, VERSION};
use crate::watch::Watch;
use crate::whole_cache::{Rules, whole_cache};

/// The parts that [`evaluate`] computes. An absent part is left out.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The codec on each tensor.
    pub codec: bool,
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
        let encoded = |info| if self.codec { codec::work(info) } else { 0 };
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
        if let Some(request) = &request.eviction {
            results.findings.extend(other_prompt(dump, index, request));
        }
        match dump.load(index) {
            Ok(layer) => one_layer(&layer, request, watch, &mut results)?,
            Err(error) => results.findings.push(Finding::new("unreadable", layer_name(dump, index), error)),
        }
    }
    results.complete = !watch.is_stopped();
    if let (true, true, Some(finding)) = (results.complete, results.layers.is_empty(), results.findings.last()) {
        return Err(finding.error());
    }
    if request.eviction.is_some() && results.complete {
        results.findings.extend(unscored_runs(&results));
        results.findings.extend(idle_ratios(&results));
    }
    if let (Some(request), true) = (&request.eviction, results.complete) {
        results.findings.extend(left_out_policies(dump, request));
    }
    results.whole_cache = whole_cache(&results, &request.ratios, &request.block_tokens, &request.rules)?;
    Ok(results)
}

/// Ratios that evict nothing: a plan never keeps fewer tokens than the protected ones.
fn idle_ratios(results: &Results) -> Vec<Finding> {
    let mut ratios: Vec<f64> = results.eviction.iter().map(|r| r.target_ratio).filter(|ratio| *ratio > 1.0).collect();
    ratios.sort_by(f64::total_cmp);
    ratios.dedup();
    let finding = |ratio: f64| {
        let all: Vec<_> = results.eviction.iter().filter(|r| r.target_ratio == ratio).collect();
        let idle: Vec<_> = all.iter().filter(|r| r.evictions == 0).collect();
        let first = idle.first()?;
        let text = format!(
            "{} of {} replays evict nothing, the first is {:?} with blocks of {} in layer {}: sink and recent tokens with the \
             rest of their blocks are as many as the ratio keeps",
            idle.len(),
            all.len(),
            first.policy,
            first.block_tokens,
            first.layer
        );
        Some(Finding::new("floor", format!("ratio {ratio}"), text))
    };
    ratios.into_iter().filter_map(finding).collect()
}

/// Policies that layers with attention cannot be replayed with.
fn left_out_policies(dump: &Dump, request: &eviction::Request) -> Vec<Finding> {
    let mut found: Vec<(&str, &str, String, Vec<String>)> = Vec::new();
    for (index, info) in dump.layers.iter().enumerate() {
        let (query, attention) = dump.score_rows(index);
        let first_row = info.tokens - query.max(attention);
        let prompt = eviction::prompt(info, first_row, request.prompt_tokens);
        if prompt >= info.tokens {
            continue;
        }
        for (policy, rows) in request.left_out(prompt, first_row) {
            let layer = info.layer.to_string();
            match found.iter_mut().find(|(run, name, ..)| (*run, *name) == (info.run.as_str(), policy.name.as_str())) {
                Some((.., layers)) => layers.push(layer),
                None => {
                    let reason = format!(
                        "the policy scores the last {rows} rows of the prompt (kv_h2o_prefill_queries), and layer {layer} \
                         has {}",
                        prompt - first_row
                    );
                    found.push((&info.run, &policy.name, reason, vec![layer]));
                }
            }
        }
    }
    let finding = |(run, policy, reason, layers): (&str, &str, String, Vec<String>)| {
        let text = format!("is left out in layers {}: {reason}", layers.join(", "));
        Finding::new("policy", format!("run {run} policy {policy:?}"), text)
    };
    found.into_iter().map(finding).collect()
}

/// Runs that have layers without attention: nothing is known of the error of eviction there.
fn unscored_runs(results: &Results) -> Vec<Finding> {
    let runs = results.layers.chunk_by(|a, b| a.run == b.run);
    let finding = |layers: &[LayerResult]| {
        let without: Vec<String> =
            layers.iter().filter(|l| l.scores_from.is_none()).map(|l| l.layer.to_string()).collect();
        let text = format!(
            "layers {} have neither Q nor attention rows: the tokens that they keep follow from the config, and the error is \
             unknown",
            without.join(", ")
        );
        (!without.is_empty()).then(|| Finding::new("no_attention", format!("run {}", layers[0].run), text))
    };
    runs.filter_map(finding).collect()
}

/// A prompt that neither the dump nor the request tells, or that the rows of the layer make longer.
fn other_prompt(dump: &Dump, index: usize, request: &eviction::Request) -> Option<Finding> {
    let info = &dump.layers[index];
    let (query, attention) = dump.score_rows(index);
    let rows = query.max(attention);
    let wanted = request.prompt_tokens.or((info.prompt_tokens > 0).then_some(info.prompt_tokens));
    let prompt = eviction::prompt(info, info.tokens - rows, request.prompt_tokens);
    if rows == 0 || wanted == Some(prompt) {
        return None;
    }
    let text = match wanted {
        None => format!("the dump does not tell its prompt; the first {prompt} tokens are taken as one (--prompt)"),
        Some(wanted) => {
            format!("the prompt is {prompt} tokens, not {wanted}: earlier tokens have no rows of attention")
        }
    };
    Some(Finding::new("prompt", layer_name(dump, index), text))
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
    if request.codec {
        results.lossless.extend(codec::evaluate(layer, &request.rules.zones, watch)?);
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
