//! What each layer is: all tokens, a window, a chunk, or no cache at all.

use super::defaults::Defaults;
use super::keys::{self, Keys};
use crate::status::{Result, bail};
use serde_json::Value;

/// A layer before it is known what its tokens are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Full,
    Sliding(u32),
    Chunked(u32),
    Recurrent,
}

/// Keys of models that mix in layers without a cache. Where nothing says which layers, counting all would be wrong.
const RECURRENT_HINTS: [&str; 10] = [
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

/// The kind of each layer. What is assumed becomes a note.
pub(super) fn kinds(
    text: &Keys,
    layers: u32,
    family: &str,
    defaults: Option<&Defaults>,
    notes: &mut Vec<String>,
) -> Result<Vec<Kind>> {
    let reach = Reach { text, family, defaults };
    let mut kinds = listed_or_assumed(text, layers, &reach, notes)?;
    // Gemma 4 makes it so, whatever was said before.
    if defaults.is_some_and(|d| d.global_head_dim.is_some())
        && let Some(last) = kinds.last_mut().filter(|last| **last != Kind::Full)
    {
        *last = Kind::Full;
        notes.push(format!("the last layer is taken to see all tokens, as model type {family} has it"));
    }
    Ok(kinds)
}

fn listed_or_assumed(text: &Keys, layers: u32, reach: &Reach, notes: &mut Vec<String>) -> Result<Vec<Kind>> {
    let family = reach.family;
    if let Some(kinds) = by_name(text, layers, reach)? {
        return Ok(kinds);
    }
    if let Some(kinds) = by_number(text, layers, family, notes)? {
        return Ok(kinds);
    }
    if let Some(hint) = RECURRENT_HINTS.iter().find(|key| text.get(key).is_some()) {
        // Both kinds side by side in every layer.
        if family != "falcon_h1" {
            bail!(
                Unsupported,
                "{} is there, so some layers have no KV cache, and nothing says which; layer_types expected",
                text.path(hint)
            );
        }
        notes.push("every layer also has a recurrent state, which is not counted".into());
    }
    if let Some(kinds) = chunks(text, layers, reach, notes)? {
        return Ok(kinds);
    }
    windows(text, layers, reach, notes)
}

/// Windows and chunks that kinds refer to.
struct Reach<'a> {
    text: &'a Keys<'a>,
    family: &'a str,
    defaults: Option<&'a Defaults>,
}

impl Reach<'_> {
    fn sliding(&self) -> Result<Option<u32>> {
        let given = self.text.number(&["sliding_window", "attention_window_size"], u32::MAX)?;
        // null switches it off.
        let default = || self.defaults.and_then(|d| d.sliding_window).filter(|_| !self.text.has("sliding_window"));
        Ok(given.or_else(default))
    }

    fn chunk(&self) -> Result<Option<u32>> {
        let given = self.text.number(&["attention_chunk_size"], u32::MAX)?;
        let default = || self.defaults.and_then(|d| d.chunk).filter(|_| !self.text.has("attention_chunk_size"));
        Ok(given.or_else(default))
    }

    fn needed(&self, what: Result<Option<u32>>, key: &str, because: &str) -> Result<u32> {
        match what? {
            Some(value) => Ok(value),
            None => bail!(InvalidArgument, "{because} and there is no {}", self.text.path(key)),
        }
    }
}

/// Layers that are listed by the names of their kinds.
fn by_name(text: &Keys, layers: u32, reach: &Reach) -> Result<Option<Vec<Kind>>> {
    for key in ["layer_types", "layers_block_type"] {
        if let Some(names) = text.list_per_layer(key, layers)? {
            let kind = |(at, name)| named(reach, &format!("{}[{at}]", text.path(key)), name);
            return names.iter().enumerate().map(kind).collect::<Result<Vec<_>>>().map(Some);
        }
    }
    // RecurrentGemma repeats a short list.
    let Some(names) = text.list("block_types")? else { return Ok(None) };
    let mut kinds = Vec::with_capacity(layers as usize);
    for number in 0..layers as usize {
        let at = number % names.len();
        let path = format!("{}[{at}]", text.path("block_types"));
        kinds.push(match named(reach, &path, &names[at])? {
            Kind::Full => {
                let because = format!("{path} is attention");
                Kind::Sliding(reach.needed(reach.sliding(), "attention_window_size", &because)?)
            }
            kind => kind,
        });
    }
    Ok(Some(kinds))
}

fn named(reach: &Reach, path: &str, name: &Value) -> Result<Kind> {
    let because = |name: &str| format!("{path} is \"{name}\"");
    Ok(match name.as_str() {
        // A sparse layer (DeepSeek-V3.2) picks among all tokens, so it keeps them.
        Some("full_attention" | "attention" | "global" | "global_attention" | "deepseek_sparse_attention") => {
            Kind::Full
        }
        Some(name @ ("sliding_attention" | "sliding_window_attention" | "local" | "local_attention")) => {
            Kind::Sliding(reach.needed(reach.sliding(), "sliding_window", &because(name))?)
        }
        Some(name @ "chunked_attention") => {
            Kind::Chunked(reach.needed(reach.chunk(), "attention_chunk_size", &because(name))?)
        }
        Some("linear_attention" | "mamba" | "mamba2" | "recurrent" | "conv") => Kind::Recurrent,
        Some(name) => bail!(
            Unsupported,
            "{path} is {}; full_attention, sliding_attention, chunked_attention, linear_attention, mamba, recurrent or \
             conv expected",
            keys::quoted(name)
        ),
        None => bail!(InvalidArgument, "{path} is {}; the name of a kind of layer expected", keys::describe(name)),
    })
}

/// Layers with attention that are listed or described by number; the others are recurrent.
fn by_number(text: &Keys, layers: u32, family: &str, notes: &mut Vec<String>) -> Result<Option<Vec<Kind>>> {
    let kind = |attends: bool| if attends { Kind::Full } else { Kind::Recurrent };
    for key in ["attn_layer_indices", "full_attn_idxs"] {
        if let Some(named) = text.layer_numbers(key, layers)? {
            return Ok(Some(named.into_iter().map(kind).collect()));
        }
    }
    // MiniMax: 0 is linear, 1 is softmax attention.
    if let Some(list) = text.list_per_layer("attn_type_list", layers)? {
        let mut kinds = Vec::with_capacity(list.len());
        for (at, value) in list.iter().enumerate() {
            match value.as_u64() {
                Some(number @ 0..=1) => kinds.push(kind(number == 1)),
                _ => bail!(
                    InvalidArgument,
                    "{}[{at}] is {}; 0 (linear) or 1 (softmax) expected",
                    text.path("attn_type_list"),
                    keys::describe(value)
                ),
            }
        }
        return Ok(Some(kinds));
    }
    // Jamba.
    if let Some(period) = text.number(&["attn_layer_period"], u32::MAX)? {
        let offset = text.count("attn_layer_offset")?.unwrap_or(0);
        if offset >= period {
            let (key, of) = (text.path("attn_layer_offset"), text.path("attn_layer_period"));
            bail!(InvalidArgument, "{key} is {offset} and {of} {period}; an offset below the period expected");
        }
        return Ok(Some((0..layers).map(|number| kind(number % period == offset)).collect()));
    }
    // Qwen3-Next.
    let interval = match text.number(&["full_attention_interval"], u32::MAX)? {
        None if family == "qwen3_next" => {
            notes.push("neither layer_types nor full_attention_interval is given: an interval of 4 is assumed".into());
            Some(4)
        }
        interval => interval,
    };
    Ok(interval.map(|interval| every(layers, interval, Kind::Full, Kind::Recurrent)))
}

/// Every `period`-th layer is one kind, the others are another.
fn every(layers: u32, period: u32, one: Kind, others: Kind) -> Vec<Kind> {
    (1..=layers).map(|nth| if nth % period == 0 { one } else { others }).collect()
}

/// Llama 4: layers with rotary positions attend within chunks.
fn chunks(text: &Keys, layers: u32, reach: &Reach, notes: &mut Vec<String>) -> Result<Option<Vec<Kind>>> {
    let Some(chunk) = reach.chunk()? else { return Ok(None) };
    let (list, interval) = ("no_rope_layers", "no_rope_layer_interval");
    let Some(rotary) = text.list_per_layer(list, layers)? else {
        let interval = match text.number(&[interval], u32::MAX)? {
            Some(given) => given,
            None => {
                notes.push(format!("{list} and {interval} are not given: one layer in 4 is taken to see all tokens"));
                4
            }
        };
        return Ok(Some(every(layers, interval, Kind::Full, Kind::Chunked(chunk))));
    };
    let mut kinds = Vec::with_capacity(rotary.len());
    for (at, value) in rotary.iter().enumerate() {
        kinds.push(match value.as_u64() {
            Some(0) => Kind::Full,
            Some(1) => Kind::Chunked(chunk),
            _ => bail!(
                InvalidArgument,
                "{}[{at}] is {}; 0 (sees all tokens) or 1 (sees its chunk) expected",
                text.path(list),
                keys::describe(value)
            ),
        });
    }
    Ok(Some(kinds))
}

/// Sliding windows that are not listed by layer.
fn windows(text: &Keys, layers: u32, reach: &Reach, notes: &mut Vec<String>) -> Result<Vec<Kind>> {
    let full = vec![Kind::Full; layers as usize];
    let switch = text.flag("use_sliding_window")?;
    let Some(window) = reach.sliding()? else { return Ok(full) };
    // Qwen has windows only when it says so.
    let qwen = reach.family.starts_with("qwen");
    if switch == Some(false) || switch.is_none() && qwen {
        let why = if switch.is_some() { "is false" } else { "is not given, which means false for this model type" };
        notes.push(format!("sliding_window {window} is ignored: use_sliding_window {why}"));
        return Ok(full);
    }
    if !text.has("sliding_window") && !text.has("attention_window_size") {
        notes.push(format!("sliding_window is not given: {window} is assumed, as the model type has it"));
    }
    if let Some(pattern) = pattern(text, layers, window)? {
        return Ok(pattern);
    }
    if let Some(first) = text.count("max_window_layers")?.filter(|_| qwen || switch == Some(true)) {
        notes.push(format!("layers from max_window_layers ({first}) on have the sliding window of {window} tokens"));
        return Ok((0..layers).map(|n| if n < first { Kind::Full } else { Kind::Sliding(window) }).collect());
    }
    if let Some(period) = reach.defaults.and_then(|d| d.sliding_window_pattern) {
        notes.push(format!(
            "layer_types and sliding_window_pattern are not given: one layer in {period} is taken to see all tokens, \
             as model type {} has it",
            reach.family
        ));
        // GPT-OSS, too, begins with a layer that slides.
        return Ok(every(layers, period, Kind::Full, Kind::Sliding(window)));
    }
    notes.push(format!("the sliding window of {window} tokens is taken to be that of every layer"));
    Ok(vec![Kind::Sliding(window); layers as usize])
}

/// A pattern of windows: a number, or a letter per layer that repeats (L slides, G does not).
fn pattern(text: &Keys, layers: u32, window: u32) -> Result<Option<Vec<Kind>>> {
    for key in ["sliding_window_pattern", "_sliding_window_pattern"] {
        match text.get(key) {
            None => continue,
            Some(Value::String(letters)) => {
                let letter = |letter| match letter {
                    b'L' => Ok(Kind::Sliding(window)),
                    b'G' => Ok(Kind::Full),
                    _ => bail!(
                        Unsupported,
                        "{} is {}; a whole number, or letters L and G expected",
                        text.path(key),
                        keys::quoted(letters)
                    ),
                };
                let once = letters.bytes().map(letter).collect::<Result<Vec<_>>>()?;
                if once.is_empty() {
                    bail!(InvalidArgument, "{} is empty; a whole number, or letters L and G expected", text.path(key));
                }
                return Ok(Some(once.into_iter().cycle().take(layers as usize).collect()));
            }
            Some(_) => {
                let period = text.number(&[key], u32::MAX)?;
                return Ok(period.map(|period| every(layers, period, Kind::Full, Kind::Sliding(window))));
            }
        }
    }
    Ok(None)
}

/// Elements of the state of a gated-delta layer (Qwen3-Next): a matrix per value head, and what its convolution looks
/// back at. `None` where the config does not tell.
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
        // Sums and products of numbers this small fit 64 bits.
        match text.number(&[key], 1 << 16)? {
            Some(value) => *number = value.into(),
            None => return Ok(None),
        }
    }
    let [key_heads, key_dim, value_heads, value_dim, kernel] = numbers;
    let channels = 2 * key_heads * key_dim + value_heads * value_dim;
    Ok(Some(value_heads * key_dim * value_dim + channels * (kernel - 1)))
}
