//! The JSON config of a session: one flat object, which may have other keys of the host.
//!
#![doc = include_str!("../../docs/config.md")]

mod keys;
mod outlook;
mod warnings;

use crate::attend::Format;
use crate::json::{Brief, Json};
use crate::status::{Result, bail};
use crate::sys::memory;
use keys::{Object, Values, name};
use std::time::Duration;
use warnings::Warnings;

/// `kv_quant_sink_tokens` where the config has none.
pub(super) const SINK_TOKENS: u32 = 16;

/// The rules of a session. `None` is switched off.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    /// Eviction of tokens.
    pub eviction: Option<EvictionRules>,
    /// Compression of cold tokens.
    pub lossless: Option<LosslessRules>,
    /// First layer whose tokens are quantised from the first on, and their format.
    pub quant: Option<(u32, Format)>,
    /// Layers whose blocks have k8v4 where those of others get k4v4.
    pub k8v4_layers: Vec<u32>,
    /// First tokens of a chat, which are never quantised.
    pub sink_tokens: u32,
    /// The budget.
    pub memory: Option<MemoryRules>,
    /// The chat's file.
    pub file: Option<FileRules>,
    /// The file of the prefix that the chat begins with.
    pub base: Option<String>,
}

/// The bytes that the caches of a session may take.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryRules {
    /// All memory of the caches.
    pub bytes: u64,
    /// Longest wait for blocks of the file, for each token of a step.
    pub wait: Duration,
    /// Tokens are quantised from the beginning, to this format.
    pub quantises: Option<Format>,
}

/// The file of a chat.
#[derive(Clone, Debug, PartialEq)]
pub struct FileRules {
    /// Where it is.
    pub path: String,
    /// Most bytes to which blocks that leave memory let it grow.
    pub most: Option<u64>,
}

/// How tokens of a layer are quantised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantRules {
    /// First tokens of a chat, which stay raw.
    pub sink_tokens: u32,
    /// From the first token on that is no longer recent, to this format; else once raw tokens exceed the budget.
    pub always: Option<Format>,
    /// The fewest bits that a block may have.
    pub fewest: Format,
    /// There is a budget.
    pub is_bounded: bool,
}

/// How tokens are evicted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EvictionRules {
    /// First layer that tokens are evicted from.
    pub first_layer: u32,
    /// The layer after the last that tokens are evicted from: `first_layer` to the model's number of layers.
    pub end_layer: u32,
    /// Tokens per block, 1 to 65,536.
    pub block_tokens: u32,
    /// First tokens of a cache, which are never evicted.
    pub sink_tokens: u32,
    /// Last tokens of a cache, which are never evicted.
    pub recent_tokens: u32,
    /// How many tokens stay.
    pub ratio: Ratio,
    /// Most tokens of a cache after a step: sink, recent, three blocks and `update_interval` or more.
    pub max_tokens: Option<u32>,
    /// Least tokens from which a plan evicts.
    pub trigger_min_tokens: u32,
    /// Decode steps of a layer between its plans, at least 1.
    pub update_interval: u32,
    /// Weight of the old score in the moving average of masses.
    pub ema_alpha: f32,
    /// Last query rows of a prompt that are scored; `usize::MAX` is all.
    pub prefill_queries: usize,
    /// Tokens that no scored row has seen may be evicted.
    pub evict_unscored: bool,
    /// The host may print metrics after each eviction.
    pub log_stats: bool,
}

impl EvictionRules {
    /// The longest step after which a cache holds `max_tokens`: beside it the protected tokens and 3 blocks stay.
    pub(super) fn longest_step(&self, max_tokens: u32) -> u32 {
        let protected = self.sink_tokens.saturating_add(self.recent_tokens);
        max_tokens.saturating_sub(protected.saturating_add(3 * self.block_tokens))
    }
}

/// The tokens that a plan keeps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ratio {
    /// This share, 0 to 1.
    Keep(f32),
    /// One token in this many, at least 1.
    Lossy(f32),
}

/// How cold tokens are compressed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LosslessRules {
    /// Number of first layers that are compressed, at most the model's; 0 when the scope has none.
    pub front_layers: u32,
    /// Layers that tokens are evicted from are compressed, too.
    pub kept_layers: bool,
    /// The use of the blobs.
    pub mode: RuntimeMode,
    /// Tokens per block, 1 to 65,536.
    pub block_tokens: u32,
    /// First tokens of a cache, which stay raw.
    pub hot_sink_tokens: u32,
    /// Last tokens of a cache, which stay raw.
    pub hot_recent_tokens: u32,
    /// Tokens of a layer's first block; 0 is a block like any other.
    pub bootstrap_tokens: u32,
    /// Most cold tokens that a layer submits in a step, at least 1.
    pub grouped_step_tokens: u32,
    /// Workers; 0 = encode and decode inside the calls, `None` = as many as the host leaves cores free.
    pub workers: Option<u32>,
    /// Most blocks that may wait to be encoded, at least 1.
    pub max_queue: u32,
    /// Decoded blocks that are kept for the next step; 0 is none.
    pub decode_cache_blocks: u32,
    /// Most bytes of these; 0 is a share of all raw bytes.
    pub decode_cache_bytes: u64,
    /// Every block is decoded once after encoding, and compared.
    pub strict_roundtrip: bool,
}

/// The use of the blobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuntimeMode {
    /// Samples are encoded and measured; the cache is only read.
    Probe,
    /// Cold blocks are encoded, decoded and compared; the cache is only read.
    Full,
    /// Cold blocks are kept compressed, and their raw bytes are released until the next begin.
    Store,
}

impl Config {
    /// The rules of eviction for a layer; `None` where no token is evicted.
    pub(super) fn eviction_of(&self, layer: u32) -> Option<EvictionRules> {
        self.eviction.filter(|rules| (rules.first_layer..rules.end_layer).contains(&layer))
    }

    /// How the tokens of a layer are quantised; `None` where they stay raw.
    pub(super) fn quant_of(&self, layer: u32) -> Option<QuantRules> {
        let is_bounded = self.memory.is_some();
        let fewest = if self.k8v4_layers.contains(&layer) { Format::K8V4 } else { Format::K4V4 };
        let always = self.quant.filter(|(first, _)| layer >= *first).map(|(_, format)| format.min(fewest));
        let rules = QuantRules { sink_tokens: self.sink_tokens, always, fewest, is_bounded };
        (always.is_some() || is_bounded).then_some(rules)
    }

    /// Parses the config of a model of `layers` layers. Keys of `defaults` hold where `config` has none. Empty text is
    /// `{}`. The strings are warnings, at most 33: unknown keys, and keys of `config` without effect.
    /// INVALID_ARGUMENT: if a text is not a JSON object, or a value has a wrong type or range; the message has the key,
    /// the value and the range, after "defaults_json: " if `defaults` alone is wrong.
    pub fn parse(config: &[u8], defaults: &[u8], layers: u32) -> Result<(Config, Vec<String>)> {
        let given = object(config, "config_json")?;
        let mut recommended = object(defaults, "defaults_json")?;
        if !defaults.is_empty() {
            let alone = Values::read(&recommended, &NOTHING).and_then(|values| check(&values));
            alone.map_err(|error| error.within("defaults_json"))?;
        }
        // Two names of one number: that of the config replaces either.
        let budget = [name::kv_memory_mb, name::kv_memory_bytes];
        if let Json::Object(fields) = &mut recommended
            && budget.iter().any(|key| given.contains_key(key))
        {
            fields.retain(|(key, _)| !budget.contains(&&**key));
        }
        let values = Values::read(&given, &recommended)?;
        check(&values)?;
        // Unknown keys come last: of too many warnings, theirs are left out.
        let mut warnings = Warnings::default();
        let eviction = if values.kv_h2o_enable { Some(eviction(&values, layers, &mut warnings)?) } else { None };
        // Sorted.
        let (given, recommended) = (given.keys()?, recommended.keys()?);
        if let Some(rules) = &eviction {
            warnings.first_eviction(rules, given.binary_search(&name::kv_h2o_trigger_min_tokens).is_ok())?;
        }
        let lossless = lossless(&values, layers, eviction.is_some(), &mut warnings)?;
        let has = |key: &str| [&given, &recommended].iter().any(|keys| keys.binary_search(&key).is_ok());
        if lossless.as_ref().is_some_and(|l| l.mode == RuntimeMode::Probe) && !has(name::kv_lossless_runtime_mode) {
            let key = name::kv_lossless_runtime_mode;
            warnings.push(format_args!(
                "{key} is not given, and \"probe\" only measures and keeps nothing: it must be \"store\" to save memory"
            ))?;
        }
        warnings.idle_keys(&values, &given, &has)?;
        warnings.retired_keys(&values, &given)?;
        warnings.unknown_keys(&given, "")?;
        let others = memory::collect(recommended.into_iter().filter(|key| given.binary_search(key).is_err()))?;
        warnings.unknown_keys(&others, "defaults_json: ")?;
        let quant = quant(&values, layers, &mut warnings)?;
        let (memory, sink_tokens) = (memory_rules(&values), values.kv_quant_sink_tokens);
        let path = |given: &str| if given.is_empty() { Ok(None) } else { memory::text(given).map(Some) };
        let most = bytes_of(values.kv_memory_file_mb);
        let file = path(&values.kv_memory_file)?.map(|path| FileRules { path, most });
        let base = path(&values.kv_memory_base)?;
        let k8v4_layers = values.kv_quant_k8v4_layers;
        Ok((Config { eviction, lossless, quant, k8v4_layers, sink_tokens, memory, file, base }, warnings.into_texts()?))
    }
}

/// No keys.
const NOTHING: Object<'static> = Json::Object(Vec::new());

/// The object in `json`; `name` is its name in messages.
fn object<'a>(json: &'a [u8], name: &str) -> Result<Object<'a>> {
    if json.is_empty() {
        return Ok(NOTHING);
    }
    let text = match std::str::from_utf8(json) {
        Ok(text) => text,
        Err(error) => {
            bail!(InvalidArgument, "{name} is not UTF-8: byte {} begins no character", error.valid_up_to())
        }
    };
    match Json::parse(text.as_bytes()) {
        Ok(object @ Json::Object(_)) => Ok(object),
        Ok(other) => bail!(InvalidArgument, "{name} is {}; a JSON object expected", other),
        Err(error) => {
            let error = error.unless_out_of_memory()?;
            bail!(InvalidArgument, "{name} is not JSON: {}", error.message())
        }
    }
}

/// Cross-key constraints. Checked even while eviction is off, like single values.
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
    let compresses = values.kv_lossless_enable && values.kv_lossless_runtime_enable;
    let memory = budget_bytes(values).is_some();
    if (values.kv_quant.is_some() || memory) && (values.kv_h2o_enable || compresses) {
        let other = if values.kv_h2o_enable { name::kv_h2o_enable } else { name::kv_lossless_enable };
        let own = match values.kv_memory_bytes {
            _ if !memory => name::kv_quant,
            0 => name::kv_memory_mb,
            _ => name::kv_memory_bytes,
        };
        bail!(
            InvalidArgument,
            "{own} is given and {other} true; one of them expected: tokens of a budget or in fewer bits are not evicted \
             by other rules, nor compressed again"
        );
    }
    if values.kv_memory_mb > 0.0 && values.kv_memory_bytes > 0 {
        bail!(
            InvalidArgument,
            "{} is {} and {} {}; one of them expected",
            name::kv_memory_mb,
            Brief(values.kv_memory_mb),
            name::kv_memory_bytes,
            values.kv_memory_bytes
        );
    }
    // A lower limit would evict protected tokens, or evict in every step.
    let kept = values.kv_h2o_sink_tokens.saturating_add(values.kv_h2o_recent_tokens);
    let least = kept.saturating_add(3 * values.kv_h2o_block_tokens).saturating_add(values.kv_h2o_update_interval);
    if (1..least).contains(&values.kv_h2o_max_tokens) {
        bail!(
            InvalidArgument,
            "{} is {}; 0 for no limit or at least {least} (sink, recent, 3 blocks and an update interval) \
             expected",
            name::kv_h2o_max_tokens,
            values.kv_h2o_max_tokens
        );
    }
    Ok(())
}

fn eviction(values: &Values, layers: u32, warnings: &mut Warnings) -> Result<EvictionRules> {
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
    Ok(EvictionRules {
        first_layer: start.min(layers),
        end_layer: end.map_or(layers, |end| (end + 1).min(layers)),
        block_tokens: values.kv_h2o_block_tokens,
        sink_tokens: values.kv_h2o_sink_tokens,
        recent_tokens: values.kv_h2o_recent_tokens,
        ratio: (values.kv_h2o_target_mode)(values.kv_h2o_target_keep_ratio, values.kv_h2o_target_lossy_ratio),
        max_tokens: Some(values.kv_h2o_max_tokens).filter(|tokens| *tokens > 0),
        trigger_min_tokens: values.kv_h2o_trigger_min_tokens,
        update_interval: values.kv_h2o_update_interval,
        ema_alpha: values.kv_h2o_ema_alpha,
        prefill_queries: usize::try_from(values.kv_h2o_prefill_queries).unwrap_or(usize::MAX),
        evict_unscored: values.kv_h2o_evict_unscored,
        log_stats: values.kv_h2o_log_stats,
    })
}

fn quant(values: &Values, layers: u32, warnings: &mut Warnings) -> Result<Option<(u32, Format)>> {
    if let Some(layer) = values.kv_quant_k8v4_layers.iter().find(|layer| **layer >= layers) {
        let key = name::kv_quant_k8v4_layers;
        warnings.push(format_args!("{key} has {layer} and the model has {layers} layers, from 0 on"))?;
    }
    let Some(format) = values.kv_quant else { return Ok(None) };
    let (first_layer, key) = (values.kv_quant_layer_start, name::kv_quant_layer_start);
    if first_layer >= layers {
        warnings.push(format_args!("{key} is {first_layer} and the model has {layers} layers: none is quantised"))?;
    }
    Ok(Some((first_layer.min(layers), format)))
}

/// Bytes of a number of MB, at least one; 0 = none.
fn bytes_of(mb: f64) -> Option<u64> {
    (mb > 0.0).then(|| (mb * 1e6).max(1.0) as u64)
}

/// The budget in bytes; `None` where there is none.
fn budget_bytes(values: &Values) -> Option<u64> {
    bytes_of(values.kv_memory_mb).or(Some(values.kv_memory_bytes).filter(|bytes| *bytes > 0))
}

fn memory_rules(values: &Values) -> Option<MemoryRules> {
    let wait = Duration::from_micros(values.kv_memory_wait_us.into());
    Some(MemoryRules { bytes: budget_bytes(values)?, wait, quantises: values.kv_quant })
}

fn lossless(values: &Values, layers: u32, evicts: bool, warnings: &mut Warnings) -> Result<Option<LosslessRules>> {
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
    if scope.kept && !evicts {
        let (scope, enable) = (name::kv_lossless_scope, name::kv_h2o_enable);
        warnings
            .push(format_args!("{scope} has the layers of h2o and {enable} is not true: none of them is compressed"))?;
    }
    Ok(Some(LosslessRules {
        front_layers: if scope.front { values.kv_lossless_front_n.min(layers) } else { 0 },
        kept_layers: scope.kept && evicts,
        mode: values.kv_lossless_runtime_mode,
        block_tokens: values.kv_lossless_block_tokens,
        hot_sink_tokens: values.kv_lossless_hot_sink_tokens,
        hot_recent_tokens: values.kv_lossless_hot_recent_tokens,
        bootstrap_tokens: values.kv_lossless_store_bootstrap_tokens,
        grouped_step_tokens: values.kv_lossless_store_grouped_step_tokens,
        workers: u32::try_from(values.kv_lossless_async_threads).ok(),
        max_queue: values.kv_lossless_max_queue,
        decode_cache_blocks: values.kv_lossless_decode_cache_blocks,
        decode_cache_bytes: values.kv_lossless_decode_cache_bytes,
        strict_roundtrip: values.kv_lossless_strict_roundtrip_check,
    }))
}

#[cfg(test)]
mod tests;
