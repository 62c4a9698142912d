//! The attention of a model, from its Hugging Face `config.json`.

mod defaults;
mod keys;
mod kinds;
mod kv;
mod own;
mod refused;
mod unread;

use super::Notes;
use super::element::CacheElement;
use super::shape::{Attention, Kv, LayerShape, Span};
use defaults::{Assumed, Defaults};
pub(super) use keys::Keys;
use kinds::LayerKind;
use mnnkv::json::{Json, Quoted, Short};
use mnnkv::status::{Result, bail, error};
use mnnkv::sys::memory;

/// The longest config. Usual ones have a few kilobytes, lists of quantised modules some hundred.
pub const MAX_CONFIG_BYTES: usize = 4 << 20;
/// The largest number of layers.
pub const MAX_LAYERS: u32 = 4096;

/// Keys of the language model's config in multimodal configs. The first present one counts.
const NESTED: [&str; 4] = ["text_config", "llm_config", "language_config", "thinker_config"];

const LAYERS: [&str; 5] = ["num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers"];

/// The KV cache according to a config.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// `model_type` of the language model.
    pub model_type: Option<String>,
    /// Each decoder layer.
    pub layers: Vec<LayerShape>,
    /// The element type of the model, if the config has one that a cache can have.
    pub element: Option<CacheElement>,
    /// The longest context of the model, in tokens.
    pub max_context: Option<u64>,
    /// Assumptions and omissions, as sentences for the user.
    pub notes: Vec<String>,
}

impl ModelConfig {
    /// Reads a `config.json` of at most [`MAX_CONFIG_BYTES`]. Keys without effect on the cache are ignored; the last of
    /// equal keys counts.
    ///
    /// INVALID_ARGUMENT: if the text is no JSON object, or a key is missing or has another type or range; the message
    /// names the key, its value and the allowed ones. UNSUPPORTED: if the cache size of the attention is not defined in
    /// this version.
    pub fn from_config(json: &[u8]) -> Result<ModelConfig> {
        let json = parse(json)?;
        read(&Keys::top(&json), &language_model(&json)?)
    }

    /// Counts all tokens in layers with a window or chunks, as MNN keeps them.
    pub fn keep_all_tokens(&mut self) -> Result<()> {
        let mut changed = 0;
        for layer in &mut self.layers {
            if let LayerShape::Attention(attention) = layer
                && attention.span != Span::Full
            {
                attention.span = Span::Full;
                changed += 1;
            }
        }
        self.notes.retain(|note| note != WINDOW_NOTE && note != CHUNK_NOTE);
        if changed == 0 {
            return Ok(());
        }
        let note =
            format_args!("MNN keeps all tokens also in the {changed} layers with a window or chunks: all are counted");
        memory::push(&mut self.notes, memory::format(note)?)
    }
}

const WINDOW_NOTE: &str =
    "layers with a sliding window hold at most the window; an engine that keeps all tokens holds more";
const CHUNK_NOTE: &str =
    "layers with chunked attention are taken to hold at most one chunk, and a whole one from there on";

/// The object of a config.
pub(super) fn parse(json: &[u8]) -> Result<Json<'_>> {
    if json.len() > MAX_CONFIG_BYTES {
        bail!(InvalidArgument, "the config has {} bytes; {MAX_CONFIG_BYTES} or fewer expected", json.len());
    }
    let json = Json::python(json).or_else(|e| {
        let e = e.unless_out_of_memory()?;
        Err(error!(InvalidArgument, "the config is not JSON: {}", e.message()))
    })?;
    if !matches!(json, Json::Object(_)) {
        bail!(InvalidArgument, "the config is {json}; a JSON object expected");
    }
    Ok(json)
}

/// The object with the language model's keys, at any depth.
fn language_model<'a>(json: &'a Json<'a>) -> Result<Keys<'a>> {
    let mut text = Keys::top(json);
    while let Some(inner) = NESTED.iter().find_map(|key| text.inner(key).transpose()).transpose()? {
        text = inner;
    }
    Ok(text)
}

fn read(top: &Keys, text: &Keys) -> Result<ModelConfig> {
    let mut notes = Notes::default();
    let model_type = text.name("model_type")?;
    let family = model_type.unwrap_or("");
    refused::check(top)?;
    refused::check(text)?;
    let defaults = defaults::of(family);
    refused::check_cache(top, text, defaults.is_some())?;

    // A nested config omits the defaults of its model type; a top-level one is complete.
    let mut assumed = Assumed { defaults: defaults.as_ref(), family, nested: text.is_nested(), notes: &mut notes };
    let layers = assumed.required(text, &LAYERS, MAX_LAYERS, |d| d.layers)?;
    let kvs = kv::of(text, layers, &mut assumed)?;
    let own_numbers = own::of(text, layers)?;
    let kinds = kinds::kinds(text, layers, family, defaults.as_ref(), &mut notes)?;
    let shared = shared_layers(text, layers, defaults.as_ref(), &mut notes)?;
    let own = (layers - shared) as usize;
    let state_elements = kinds::state_elements(text)?;

    let mut all = Vec::new();
    memory::reserve(&mut all, kinds.len())?;
    for (number, kind) in kinds.into_iter().enumerate() {
        let span = match kind {
            LayerKind::Recurrent => {
                memory::push(&mut all, LayerShape::Recurrent { state_elements })?;
                continue;
            }
            LayerKind::Full => Span::Full,
            LayerKind::Sliding(window) => Span::Sliding(window),
            LayerKind::Chunked(chunk) => Span::Chunked(chunk),
        };
        let mut attention = Attention { kv: kvs.at(number, span), span };
        if let Some(numbers) = own_numbers.get(number) {
            numbers.apply(&mut attention);
        }
        memory::push(&mut all, if number < own { LayerShape::Attention(attention) } else { LayerShape::Shared })?;
    }
    describe(&all, kvs.every, state_elements, &mut notes)?;
    left_out(text, &mut notes)?;
    unread::note(text, &mut notes)?;
    Ok(ModelConfig {
        model_type: model_type.map(|name| memory::format(format_args!("{}", Short(name)))).transpose()?,
        layers: all,
        element: element(top, text, &mut notes)?,
        max_context: max_context(text)?,
        notes: notes.0,
    })
}

/// The number of last layers that read earlier caches.
fn shared_layers(text: &Keys, layers: u32, defaults: Option<&Defaults>, notes: &mut Notes) -> Result<u32> {
    const KEY: &str = "num_kv_shared_layers";
    let shared = match text.count(KEY)? {
        Some(shared) => shared,
        None => match defaults.and_then(|d| d.kv_shared_layers) {
            Some(shared) => {
                let key = text.path(KEY);
                notes.add(format_args!("{key} is not given: {shared} is assumed, as the model type has it"))?;
                shared
            }
            None => 0,
        },
    };
    if shared >= layers {
        bail!(InvalidArgument, "{} is {shared} of {layers} layers; fewer than the layers expected", text.path(KEY));
    }
    Ok(shared)
}

/// Notes about the meaning of the numbers.
fn describe(layers: &[LayerShape], kv: Kv, state_elements: Option<u64>, notes: &mut Notes) -> Result<()> {
    let count = |what: fn(&LayerShape) -> bool| layers.iter().filter(|layer| what(layer)).count();
    let is_span = |span: fn(&Span) -> bool| layers.iter().filter_map(LayerShape::attention).any(|a| span(&a.span));
    let recurrent = count(|layer| matches!(layer, LayerShape::Recurrent { .. }));
    if recurrent > 0 {
        match state_elements {
            Some(elements) => notes.add(format_args!(
                "{recurrent} recurrent layers have no KV cache; their states, {elements} elements per layer and sequence, are \
                 in no sum"
            )),
            None => notes
                .add(format_args!("{recurrent} recurrent layers have no KV cache; their states are not counted")),
        }?;
    }
    let shared = count(|layer| matches!(layer, LayerShape::Shared));
    if shared > 0 {
        notes
            .add(format_args!("the last {shared} layers read the caches of earlier ones and have none of their own"))?;
    }
    if is_span(|span| matches!(span, Span::Sliding(_))) {
        notes.add(format_args!("{WINDOW_NOTE}"))?;
    }
    if is_span(|span| matches!(span, Span::Chunked(_))) {
        notes.add(format_args!("{CHUNK_NOTE}"))?;
    }
    if matches!(kv, Kv::Latent { .. }) {
        notes.add(format_args!(
            "latents (MLA) are counted; an engine that keeps the K and V of all heads holds many times that"
        ))?;
    }
    Ok(())
}

/// Notes about caches that no number includes.
fn left_out(text: &Keys, notes: &mut Notes) -> Result<()> {
    if let Some(dim) = text.number(&["index_head_dim"], u32::MAX)? {
        notes.add(format_args!("the keys of the sparse-attention indexer (index_head_dim {dim}) are not counted"))?;
    }
    for (key, value) in text.fields() {
        if let Some((dim_key, dim, layers)) = unread::index_dim(value) {
            let key = text.path(key);
            match layers {
                Some(layers) => notes.add(format_args!(
                    "the keys of the sparse-attention indexer in {layers} layers ({key}.{dim_key} {dim}) are not counted"
                )),
                None => notes.add(format_args!(
                    "the keys of the sparse-attention indexer ({key}.{dim_key} {dim}) are not counted"
                )),
            }?;
        }
    }
    if let Some(layers) = text.count("num_nextn_predict_layers")?.filter(|layers| *layers > 0) {
        notes.add(format_args!(
            "num_nextn_predict_layers is {layers}: layers for multi-token prediction are not counted"
        ))?;
    }
    if text.has("attention_types") {
        notes.add(format_args!("attention_types is not read: every layer is taken to keep all tokens"))?;
    }
    Ok(())
}

fn element(top: &Keys, text: &Keys, notes: &mut Notes) -> Result<Option<CacheElement>> {
    for keys in [text, top] {
        for quantised in ["kv_cache_scheme", "kv_cache_quant_algo"] {
            if keys.inner("quantization_config")?.is_some_and(|inner| inner.has(quantised)) {
                notes.add(format_args!(
                    "quantization_config has {quantised}: the cache may have smaller elements than the model runs in"
                ))?;
                break;
            }
        }
        let (new, old) = (keys.name("dtype")?, keys.name("torch_dtype")?);
        if let (Some(new), Some(old)) = (new, old)
            && CacheElement::from_name(new) != CacheElement::from_name(old)
        {
            let (new, old) = (Quoted(new), Quoted(old));
            notes.add(format_args!("dtype is {new} and torch_dtype {old}: dtype is taken, as Transformers does"))?;
        }
        if let Some(name) = new.or(old) {
            let element = CacheElement::from_name(name);
            if element.is_none() {
                notes.add(format_args!("{} is no element type that is known here", Quoted(name)))?;
            }
            return Ok(element);
        }
        if !text.is_nested() {
            break;
        }
    }
    Ok(None)
}

fn max_context(text: &Keys) -> Result<Option<u64>> {
    for key in ["max_position_embeddings", "n_positions", "n_ctx", "seq_length", "max_seq_len", "max_sequence_length"] {
        if let Some(tokens) = text.number(&[key], u32::MAX)? {
            return Ok(Some(tokens.into()));
        }
    }
    Ok(None)
}
