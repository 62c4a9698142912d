//! The kind of each layer: full, window, chunk, or without a cache.

use super::Notes;
use super::defaults::Defaults;
use super::keys::Keys;
use super::unread;
use mnnkv::json::{Json, Quoted};
use mnnkv::status::{Result, bail};
use mnnkv::sys::memory;
use std::fmt;

/// A layer before the elements of its tokens are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LayerKind {
    Full,
    Sliding(u32),
    Chunked(u32),
    Recurrent,
}

/// Keys of models with some layers without a cache. A config that does not list those layers is refused.
const RECURRENT_HINTS: [&str; 13] = [
    "state_size",
    "expand_v",
    "chunkwise_kernel",
    "linear_num_key_heads",
    "linear_conv_kernel_dim",
    "mamba_d_state",
    "mamba_expand",
    "mamba_num_heads",
    "ssm_state_size",
    "ssm_cfg",
    "conv_L_cache",
    "lightning_head_dim",
    "lru_width",
];

/// The kind of each layer. Assumptions become notes.
pub(super) fn kinds(
    text: &Keys,
    layers: u32,
    family: &str,
    defaults: Option<&Defaults>,
    notes: &mut Notes,
) -> Result<Vec<LayerKind>> {
    let reach = Reach { text, family, defaults };
    let mut kinds: Vec<LayerKind> = listed_or_assumed(text, layers, &reach, notes)?;
    // Gemma 4 overrides all of the above.
    if defaults.is_some_and(|d| d.global_head_dim.is_some())
        && let Some(last) = kinds.last_mut().filter(|last| **last != LayerKind::Full)
    {
        *last = LayerKind::Full;
        notes.add(format_args!("the last layer is taken to see all tokens, as model type {family} has it"))?;
    }
    Ok(kinds)
}

fn listed_or_assumed(text: &Keys, layers: u32, reach: &Reach, notes: &mut Notes) -> Result<Vec<LayerKind>> {
    let family = reach.family;
    if let Some(kinds) = by_name(text, layers, reach, notes)? {
        return Ok(kinds);
    }
    if let Some(kinds) = by_number(text, layers, family, notes)? {
        return Ok(kinds);
    }
    if family == "falcon_h1" {
        notes.add(format_args!("every layer also has a recurrent state, which is not counted"))?;
    } else if let Some(hint) = RECURRENT_HINTS.iter().find(|key| text.get(key).is_some()) {
        bail!(
            Unsupported,
            "{} is there, so layers keep a state instead of a KV cache, and nothing says which; layer_types expected",
            text.path(hint)
        );
    }
    if let Some(kinds) = chunks(text, layers, reach, notes)? {
        return Ok(kinds);
    }
    windows(text, layers, reach, notes)
}

const WINDOW: [&str; 3] = ["sliding_window", "sliding_window_size", "attention_window_size"];

/// Windows and chunks of the kinds.
struct Reach<'a> {
    text: &'a Keys<'a>,
    family: &'a str,
    defaults: Option<&'a Defaults>,
}

impl Reach<'_> {
    fn sliding(&self) -> Result<Option<u32>> {
        let given = self.text.number(&WINDOW, u32::MAX)?;
        // null disables it.
        let default = || self.defaults.and_then(|d| d.sliding_window).filter(|_| !self.text.has("sliding_window"));
        Ok(given.or_else(default))
    }

    fn chunk(&self) -> Result<Option<u32>> {
        let given = self.text.number(&["attention_chunk_size"], u32::MAX)?;
        let default = || self.defaults.and_then(|d| d.chunk).filter(|_| !self.text.has("attention_chunk_size"));
        Ok(given.or_else(default))
    }

    fn needed(&self, what: Result<Option<u32>>, key: &str, because: impl fmt::Display) -> Result<u32> {
        match what? {
            Some(value) => Ok(value),
            None => bail!(InvalidArgument, "{because} and there is no {}", self.text.path(key)),
        }
    }
}

/// Layers listed by the names of their kinds.
fn by_name(text: &Keys, layers: u32, reach: &Reach, notes: &mut Notes) -> Result<Option<Vec<LayerKind>>> {
    for key in ["layer_types", "layers_block_type"] {
        if let Some(names) = text.list_per_layer(key, layers, notes)? {
            let kind = |(at, name)| named(reach, format_args!("{}[{at}]", text.path(key)), name);
            return memory::try_collect(names.iter().enumerate().map(kind)).map(Some);
        }
    }
    // RecurrentGemma repeats a short list.
    let Some(names) = text.list("block_types")? else { return Ok(None) };
    let kinds = (0..layers as usize).map(|number| {
        let at = number % names.len();
        let key = text.path("block_types");
        Ok(match named(reach, format_args!("{key}[{at}]"), &names[at])? {
            LayerKind::Full => {
                let because = format_args!("{key}[{at}] is attention");
                LayerKind::Sliding(reach.needed(reach.sliding(), "attention_window_size", because)?)
            }
            kind => kind,
        })
    });
    memory::try_collect(kinds).map(Some)
}

fn named(reach: &Reach, path: fmt::Arguments<'_>, name: &Json) -> Result<LayerKind> {
    let because = format_args!("{path} is {name}");
    Ok(match name.text() {
        // A sparse layer (DeepSeek-V3.2) selects among all tokens, so it keeps them.
        Some("full_attention" | "attention" | "global" | "global_attention" | "deepseek_sparse_attention") => {
            LayerKind::Full
        }
        Some("sliding_attention" | "sliding_window_attention" | "local" | "local_attention") => {
            LayerKind::Sliding(reach.needed(reach.sliding(), "sliding_window", because)?)
        }
        Some("chunked_attention") => {
            LayerKind::Chunked(reach.needed(reach.chunk(), "attention_chunk_size", because)?)
        }
        Some("linear_attention" | "mamba" | "mamba2" | "recurrent" | "conv") => LayerKind::Recurrent,
        Some(name) => bail!(
            Unsupported,
            "{path} is {}; full_attention, sliding_attention, chunked_attention, linear_attention, mamba, recurrent or \
             conv expected",
            Quoted(name)
        ),
        None => bail!(InvalidArgument, "{path} is {name}; the name of a kind of layer expected"),
    })
}

/// Layers with attention, listed or described by number; the others are recurrent.
fn by_number(text: &Keys, layers: u32, family: &str, notes: &mut Notes) -> Result<Option<Vec<LayerKind>>> {
    let kind = |attends: bool| if attends { LayerKind::Full } else { LayerKind::Recurrent };
    for key in ["attn_layer_indices", "full_attn_idxs"] {
        if let Some(named) = text.layer_numbers(key, layers)? {
            return memory::collect(named.into_iter().map(kind)).map(Some);
        }
    }
    // MiniMax: 0 is linear, 1 is softmax attention.
    if let Some(list) = text.list_per_layer("attn_type_list", layers, notes)? {
        let kinds = list.iter().enumerate().map(|(at, value)| match value.count() {
            Some(number @ 0..=1) => Ok(kind(number == 1)),
            _ => {
                let key = text.path("attn_type_list");
                bail!(InvalidArgument, "{key}[{at}] is {value}; 0 (linear) or 1 (softmax) expected")
            }
        });
        return memory::try_collect(kinds).map(Some);
    }
    // Jamba.
    if let Some(period) = text.number(&["attn_layer_period"], u32::MAX)? {
        let offset = text.count("attn_layer_offset")?.unwrap_or(0);
        if offset >= period {
            let (key, of) = (text.path("attn_layer_offset"), text.path("attn_layer_period"));
            bail!(InvalidArgument, "{key} is {offset} and {of} {period}; an offset below the period expected");
        }
        return memory::collect((0..layers).map(|number| kind(number % period == offset))).map(Some);
    }
    // Qwen3-Next, and Ring whose groups end with a layer of softmax attention.
    let interval = match text.number(&["full_attention_interval", "layer_group_size"], u32::MAX)? {
        None if family == "qwen3_next" => {
            notes.add(format_args!(
                "neither layer_types nor full_attention_interval is given: an interval of 4 is assumed"
            ))?;
            Some(4)
        }
        interval => interval,
    };
    interval.map(|interval| every(layers, interval, LayerKind::Full, LayerKind::Recurrent)).transpose()
}

/// Every `period`-th layer has one kind, the others another.
fn every(layers: u32, period: u32, one: LayerKind, others: LayerKind) -> Result<Vec<LayerKind>> {
    memory::collect((1..=layers).map(|nth| if nth % period == 0 { one } else { others }))
}

/// Llama 4: layers with rotary positions use chunks.
fn chunks(text: &Keys, layers: u32, reach: &Reach, notes: &mut Notes) -> Result<Option<Vec<LayerKind>>> {
    let Some(chunk) = reach.chunk()? else { return Ok(None) };
    let (list, interval) = ("no_rope_layers", "no_rope_layer_interval");
    let Some(rotary) = text.list_per_layer(list, layers, notes)? else {
        let interval = match text.number(&[interval], u32::MAX)? {
            Some(given) => given,
            None => {
                notes.add(format_args!(
                    "{list} and {interval} are not given: one layer in 4 is taken to see all tokens"
                ))?;
                4
            }
        };
        return every(layers, interval, LayerKind::Full, LayerKind::Chunked(chunk)).map(Some);
    };
    let kinds = rotary.iter().enumerate().map(|(at, value)| match value.count() {
        Some(0) => Ok(LayerKind::Full),
        Some(1) => Ok(LayerKind::Chunked(chunk)),
        _ => {
            let key = text.path(list);
            bail!(InvalidArgument, "{key}[{at}] is {value}; 0 (sees all tokens) or 1 (sees its chunk) expected")
        }
    });
    memory::try_collect(kinds).map(Some)
}

/// Sliding windows that are not listed by layer.
fn windows(text: &Keys, layers: u32, reach: &Reach, notes: &mut Notes) -> Result<Vec<LayerKind>> {
    let full = || memory::filled(LayerKind::Full, layers as usize);
    let switch = text.flag("use_sliding_window")?;
    let Some(window) = reach.sliding()? else { return full() };
    // Qwen has windows only with `use_sliding_window`.
    let qwen = reach.family.starts_with("qwen");
    if switch == Some(false) || switch.is_none() && qwen {
        let why = if switch.is_some() { "is false" } else { "is not given, which means false for this model type" };
        notes.add(format_args!("sliding_window {window} is ignored: use_sliding_window {why}"))?;
        return full();
    }
    if !WINDOW.iter().any(|key| text.has(key)) {
        notes.add(format_args!("sliding_window is not given: {window} is assumed, as the model type has it"))?;
    }
    if let Some(pattern) = pattern(text, layers, window)? {
        return Ok(pattern);
    }
    for key in ["sliding_window_layers", "local_layer_ids"] {
        if let Some(named) = text.layer_numbers(key, layers)? {
            let kind = |slides| if slides { LayerKind::Sliding(window) } else { LayerKind::Full };
            return memory::collect(named.into_iter().map(kind));
        }
    }
    if let Some(first) = text.count("max_window_layers")?.filter(|_| qwen || switch == Some(true)) {
        notes.add(format_args!(
            "layers from max_window_layers ({first}) on have the sliding window of {window} tokens"
        ))?;
        return memory::collect(
            (0..layers).map(|n| if n < first { LayerKind::Full } else { LayerKind::Sliding(window) }),
        );
    }
    if let Some(period) = reach.defaults.and_then(|d| d.sliding_window_pattern) {
        notes.add(format_args!(
            "layer_types and sliding_window_pattern are not given: one layer in {period} is taken to see all tokens, \
             as model type {} has it",
            reach.family
        ))?;
        // GPT-OSS begins with a sliding layer, too.
        return every(layers, period, LayerKind::Full, LayerKind::Sliding(window));
    }
    if let Some((key, value)) = unread::kinds_of_layers(text) {
        bail!(
            Unsupported,
            "{} is {value}, which is not understood and may say which layers have the sliding window of {window} \
             tokens; layer_types expected",
            text.path(key)
        );
    }
    notes.add(format_args!("the sliding window of {window} tokens is taken to be that of every layer"))?;
    memory::filled(LayerKind::Sliding(window), layers as usize)
}

/// A pattern of windows: a number, or a repeated letter per layer (L slides, G is full).
fn pattern(text: &Keys, layers: u32, window: u32) -> Result<Option<Vec<LayerKind>>> {
    for key in ["sliding_window_pattern", "_sliding_window_pattern"] {
        match text.get(key) {
            None => continue,
            Some(Json::Text(letters)) => {
                let letter = |letter| match letter {
                    b'L' => Ok(LayerKind::Sliding(window)),
                    b'G' => Ok(LayerKind::Full),
                    _ => bail!(
                        Unsupported,
                        "{} is {}; a whole number, or letters L and G expected",
                        text.path(key),
                        Quoted(letters)
                    ),
                };
                let once = memory::try_collect(letters.bytes().map(letter))?;
                if once.is_empty() {
                    bail!(InvalidArgument, "{} is empty; a whole number, or letters L and G expected", text.path(key));
                }
                return memory::collect(once.iter().copied().cycle().take(layers as usize)).map(Some);
            }
            Some(_) => {
                let period = text.number(&[key], u32::MAX)?;
                return period
                    .map(|period| every(layers, period, LayerKind::Full, LayerKind::Sliding(window)))
                    .transpose();
            }
        }
    }
    Ok(None)
}

/// Elements of the state of a gated-delta layer (Qwen3-Next): a matrix per value head, and the window of its
/// convolution. `None` if the config does not state them.
pub(super) fn state_elements(text: &Keys) -> Result<Option<u64>> {
    let mut numbers = [0u64; 5];
    let keys = [
        "linear_num_key_heads",
        "linear_key_head_dim",
        "linear_num_value_heads",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
    ];
    for (number, key) in numbers.iter_mut().zip(keys) {
        // Sums and products of these numbers fit 64 bits.
        match text.number(&[key], 1 << 16)? {
            Some(value) => *number = value.into(),
            None => return Ok(None),
        }
    }
    let [key_heads, key_dim, value_heads, value_dim, kernel] = numbers;
    let channels = 2 * key_heads * key_dim + value_heads * value_dim;
    Ok(Some(value_heads * key_dim * value_dim + channels * (kernel - 1)))
}
