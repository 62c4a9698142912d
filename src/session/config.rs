//! The host's JSON config: one flat object, shared with keys of the host's own.
//!
#![doc = include_str!("../../docs/config.md")]

mod keys;
mod warnings;

use crate::gear::{Effort, Format, Predictors};
use crate::h2o::Aggregation;
use crate::json::Json;
use crate::status::{Result, bail};
use keys::{Object, Values, name};
use warnings::Warnings;

/// What the host wants; what is `None` is switched off.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    /// Evict tokens.
    pub h2o: Option<H2o>,
    /// Compress cold tokens.
    pub lossless: Option<Lossless>,
}

/// How to evict.
#[derive(Clone, Debug, PartialEq)]
pub struct H2o {
    /// First layer to evict from.
    pub first_layer: u32,
    /// The layer after the last to evict from, at most the model's layers; never below `first_layer`.
    pub end_layer: u32,
    /// Tokens per block, 1 to 65,536.
    pub block_tokens: u32,
    /// The first tokens, which always stay.
    pub sink_tokens: u32,
    /// The last tokens, which always stay.
    pub recent_tokens: u32,
    /// How much stays.
    pub ratio: Ratio,
    /// What `ratio` is a ratio of.
    pub basis: Basis,
    /// Most tokens a layer's cache may hold after a step. Protected tokens, three blocks and an interval's steps fit.
    pub max_tokens: Option<u32>,
    /// Tokens in the cache from which on eviction is considered.
    pub trigger_min_tokens: u32,
    /// Steps of a layer between its evictions, at least 1.
    pub update_interval: u32,
    /// How the attention of steps adds up to a score.
    pub aggregation: Aggregation,
    /// The last queries of a prompt that are scored; `usize::MAX` is all.
    pub prefill_queries: usize,
    /// Tokens that no scored row has seen go like any other.
    pub evict_unscored: bool,
    /// The host may print metrics after each eviction.
    pub log_stats: bool,
}

/// How much an eviction leaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ratio {
    /// Static: this share of the tokens, 0 to 1.
    Keep(f32),
    /// Adaptive: one token in this many, at least 1.
    Lossy(f32),
}

/// The length that a ratio is applied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// All tokens of the chat, with those that were evicted.
    Logical,
    /// The tokens that the cache holds, as the reference does: a ratio of 3.5 is one of 28 some evictions later.
    Physical,
}

/// How to compress.
#[derive(Clone, Debug, PartialEq)]
pub struct Lossless {
    /// Number of first layers to compress, at most the model's layers; 0 when the scope has none.
    pub front_layers: u32,
    /// The layers that tokens are evicted from are compressed, too.
    pub kept_layers: bool,
    /// What is done with the compressed bytes.
    pub mode: Mode,
    /// Tokens per block, 1 to 65,536.
    pub block_tokens: u32,
    /// The first tokens, which are never compressed.
    pub hot_sink_tokens: u32,
    /// The last tokens, which are never compressed.
    pub hot_recent_tokens: u32,
    /// Layers that are sampled of those that tokens are evicted from; 0 is all.
    pub kept_sample_layers: u32,
    /// Steps between samples of those layers, at least 1.
    pub kept_sample_interval: u32,
    /// Steps between samples of the first layers, at least 1.
    pub front_sample_interval: u32,
    /// [`Mode::Store`] takes the first layers, too.
    pub store_front: bool,
    /// Tokens of the first sample; 0 is none.
    pub bootstrap_tokens: u32,
    /// Cold tokens that are compressed together, at least 1.
    pub grouped_step_tokens: u32,
    /// The format to write.
    pub format: Format,
    /// Predictors of `format` tried on K.
    pub key_predictors: Predictors,
    /// Predictors of `format` tried on V.
    pub value_predictors: Predictors,
    /// How hard to try.
    pub effort: Effort,
    /// Threads that compress in the background, 0 to 64; with 0 everything happens in the step.
    pub workers: u32,
    /// Blocks that may wait to be compressed, at least 1.
    pub max_queue: u32,
    /// Decoded blocks kept for the next step; 0 is none.
    pub decode_cache_blocks: u32,
    /// Bytes that those may take; 0 is automatic.
    pub decode_cache_bytes: u64,
    /// Bytes that raw copies and unclaimed blobs in flight may take; 0 is automatic.
    pub pending_bytes: u64,
    /// Each block is decoded and compared after encoding it.
    pub strict_roundtrip: bool,
}

/// What compression is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Samples are encoded to measure; the cache is only read.
    Probe,
    /// Cold blocks are encoded, decoded and compared in the step.
    Full,
    /// Cold blocks are kept compressed and their raw bytes dropped until they are read again.
    Store,
}

impl Config {
    /// Reads the host's config for a model of `layers` layers; no text at all is `{}`. The strings are warnings for the
    /// host's log, at most 33: what is unknown or has no effect. A value of wrong type or range is an error that names
    /// the key, what was given and what is allowed.
    pub fn parse(json: &[u8], layers: u32) -> Result<(Config, Vec<String>)> {
        let given = object(json)?;
        let values = Values::read(&given)?;
        check(&values)?;
        // Unknown keys come last: of too many warnings these are the ones to leave out.
        let mut warnings = Warnings::default();
        let h2o = if values.kv_h2o_enable { Some(h2o(&values, layers, &mut warnings)?) } else { None };
        let lossless = lossless(&values, layers, h2o.is_some(), &mut warnings)?;
        let given = given.keys()?;
        let has = |key: &str| given.contains(&key);
        if lossless.as_ref().is_some_and(|l| l.mode == Mode::Probe) && !has(name::kv_lossless_runtime_mode) {
            let key = name::kv_lossless_runtime_mode;
            warnings.push(format_args!(
                "{key} is not given, and \"probe\" only measures and keeps nothing: it must be \"store\" to save memory"
            ))?;
        }
        warnings.idle_keys(&values, &has)?;
        warnings.unknown_keys(&given)?;
        Ok((Config { h2o, lossless }, warnings.into_texts()?))
    }
}

fn object(json: &[u8]) -> Result<Object<'_>> {
    if json.is_empty() {
        return Ok(Json::Object(Vec::new()));
    }
    let text = match std::str::from_utf8(json) {
        Ok(text) => text,
        Err(error) => {
            bail!(InvalidArgument, "the config is not UTF-8: byte {} begins no character", error.valid_up_to())
        }
    };
    // Some editors write a mark before the text. Nobody sees it, so nobody would find what is wrong.
    match Json::parse(text.strip_prefix('\u{feff}').unwrap_or(text).as_bytes()) {
        Ok(object @ Json::Object(_)) => Ok(object),
        Ok(other) => bail!(InvalidArgument, "the config is {}; a JSON object expected", keys::describe(&other)),
        Err(error) => {
            let error = error.unless_out_of_memory()?;
            bail!(InvalidArgument, "the config is not JSON: {}", error.message())
        }
    }
}

/// What no key can be blamed for alone. As single values, this is checked even while h2o is off.
fn check(values: &Values) -> Result<()> {
    let (start, end) = (values.kv_h2o_layer_start, values.kv_h2o_layer_end);
    if u32::try_from(end).is_ok_and(|end| start > end) {
        bail!(
            InvalidArgument,
            "{} is {start} and {} is {end}; an end that is not below the start expected, or -1 for the last layer",
            name::kv_h2o_layer_start,
            name::kv_h2o_layer_end
        );
    }
    // Less would mean to evict what is protected, or at every step.
    let least = (values.kv_h2o_sink_tokens)
        .saturating_add(values.kv_h2o_recent_tokens)
        .saturating_add(3 * values.kv_h2o_block_tokens)
        .saturating_add(values.kv_h2o_update_interval);
    if (1..least).contains(&values.kv_h2o_max_tokens) {
        bail!(
            InvalidArgument,
            "{} is {}; 0 for no limit or at least {least} (sink, recent, 3 blocks and an update interval) expected",
            name::kv_h2o_max_tokens,
            values.kv_h2o_max_tokens
        );
    }
    Ok(())
}

fn h2o(values: &Values, layers: u32, warnings: &mut Warnings) -> Result<H2o> {
    let start = values.kv_h2o_layer_start;
    if start >= layers {
        let key = name::kv_h2o_layer_start;
        warnings.push(format_args!("{key} is {start} and the model has {layers} layers: none is evicted from"))?;
    }
    let end = u32::try_from(values.kv_h2o_layer_end).ok();
    if let Some(end) = end.filter(|end| *end >= layers) {
        let key = name::kv_h2o_layer_end;
        warnings
            .push(format_args!("{key} is {end} and the model has {layers} layers: it is taken as the last of them"))?;
    }
    let h2o = H2o {
        first_layer: start.min(layers),
        end_layer: end.map_or(layers, |end| (end + 1).min(layers)),
        block_tokens: values.kv_h2o_block_tokens,
        sink_tokens: values.kv_h2o_sink_tokens,
        recent_tokens: values.kv_h2o_recent_tokens,
        ratio: (values.kv_h2o_target_mode)(values.kv_h2o_target_keep_ratio, values.kv_h2o_target_lossy_ratio),
        basis: values.kv_h2o_target_basis,
        max_tokens: Some(values.kv_h2o_max_tokens).filter(|tokens| *tokens > 0),
        trigger_min_tokens: values.kv_h2o_trigger_min_tokens,
        update_interval: values.kv_h2o_update_interval,
        aggregation: (values.kv_h2o_aggregation)(values.kv_h2o_ema_alpha),
        prefill_queries: usize::try_from(values.kv_h2o_prefill_queries).unwrap_or(usize::MAX),
        evict_unscored: values.kv_h2o_evict_unscored,
        log_stats: values.kv_h2o_log_stats,
    };
    warnings.outlook(&h2o)?;
    Ok(h2o)
}

fn lossless(values: &Values, layers: u32, h2o: bool, warnings: &mut Warnings) -> Result<Option<Lossless>> {
    let format = values.kv_lossless_codec_runtime;
    let mut predictors = |key, list| predictors(key, list, format, warnings);
    let key_predictors = predictors(name::kv_lossless_predictors_k, &values.kv_lossless_predictors_k)?;
    let value_predictors = predictors(name::kv_lossless_predictors_v, &values.kv_lossless_predictors_v)?;
    let effort = Effort::new(values.kv_lossless_effort, name::kv_lossless_effort)?;

    let scope = values.kv_lossless_scope;
    if !values.kv_lossless_enable || !values.kv_lossless_codec || !(scope.front || scope.kept) {
        return Ok(None);
    }
    if !values.kv_lossless_runtime_enable {
        let (on, off) = (name::kv_lossless_enable, name::kv_lossless_runtime_enable);
        warnings.push(format_args!("{on} is true and {off} is not: nothing will be compressed"))?;
        return Ok(None);
    }
    if scope.front && values.kv_lossless_front_n == 0 {
        let (scope, front) = (name::kv_lossless_scope, name::kv_lossless_front_n);
        warnings.push(format_args!("{scope} has the first layers and {front} is 0: none of them is compressed"))?;
    }
    if scope.front
        && !scope.kept
        && values.kv_lossless_store_disable_front
        && values.kv_lossless_runtime_mode == Mode::Store
    {
        let (scope, disable) = (name::kv_lossless_scope, name::kv_lossless_store_disable_front);
        warnings.push(format_args!(
            "{scope} has the first layers alone and {disable} is true: none of them is compressed"
        ))?;
    }
    if scope.kept && !h2o {
        let (scope, enable) = (name::kv_lossless_scope, name::kv_h2o_enable);
        warnings
            .push(format_args!("{scope} has the layers of h2o and {enable} is not true: none of them is compressed"))?;
    }
    Ok(Some(Lossless {
        front_layers: if scope.front { values.kv_lossless_front_n.min(layers) } else { 0 },
        kept_layers: scope.kept && h2o,
        mode: values.kv_lossless_runtime_mode,
        block_tokens: values.kv_lossless_block_tokens,
        hot_sink_tokens: values.kv_lossless_hot_sink_tokens,
        hot_recent_tokens: values.kv_lossless_hot_recent_tokens,
        kept_sample_layers: values.kv_lossless_kept_sample_layers.max(0) as u32,
        kept_sample_interval: values.kv_lossless_kept_sample_token_interval.max(1) as u32,
        front_sample_interval: values.kv_lossless_front_sample_token_interval.max(1) as u32,
        store_front: !values.kv_lossless_store_disable_front,
        bootstrap_tokens: values.kv_lossless_store_bootstrap_tokens,
        grouped_step_tokens: values.kv_lossless_store_grouped_step_tokens,
        format,
        key_predictors,
        value_predictors,
        effort,
        workers: values.kv_lossless_async_threads,
        max_queue: values.kv_lossless_max_queue,
        decode_cache_blocks: values.kv_lossless_decode_cache_blocks,
        decode_cache_bytes: values.kv_lossless_decode_cache_bytes,
        pending_bytes: values.kv_lossless_pending_bytes,
        strict_roundtrip: values.kv_lossless_strict_roundtrip_check,
    }))
}

/// The predictors of a list. Its names are v1's: v2 tries all it has, whatever the list says.
fn predictors(key: &str, list: &str, format: Format, warnings: &mut Warnings) -> Result<Predictors> {
    /// What hosts name for an offline codec of the reference system.
    const ELSEWHERE: &str = "pair_delta";
    // The parser reads what it does not know as raw.
    let known = |name: &&str| *name == "raw" || Predictors::parse(name) != Predictors::raw();
    let names = || list.split(',').map(str::trim).filter(|name| !name.is_empty());
    for unknown in names().filter(|name| !known(name) && *name != ELSEWHERE) {
        warnings
            .push(format_args!("{key} has \"{}\", which is no predictor of this version", keys::shorten(unknown)))?;
    }
    if format == Format::V2 {
        return Ok(Predictors::all(Format::V2));
    }
    if !names().any(|name| known(&name)) {
        warnings.push(format_args!("{key} has no predictor of this version: raw alone is tried"))?;
    }
    Ok(Predictors::parse(list))
}

#[cfg(test)]
mod tests;
