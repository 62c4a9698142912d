//! MNN's `llm_config.json`, and the `config.json` that a program opens.

use super::super::Notes;
use super::super::config::{Keys, MAX_LAYERS, ModelConfig, parse};
use super::super::shape::{Attention, Kv, LayerShape, Span};
use super::mode::AttentionMode;
use mnnkv::json::{Json, Quoted, Short};
use mnnkv::status::{Result, bail, error};
use mnnkv::sys::memory;

/// Beginnings of model types whose layers differ in what the exporter does not write.
const DIFFERENT_LAYERS: [(&str, &str); 3] = [
    ("qwen3_5", "some layers have linear attention and no KV cache"),
    ("lfm2", "some layers are convolutions and have no KV cache"),
    ("gemma4", "layers differ in head_dim, and some read the cache of an earlier one"),
];

/// Keys with which mnn-kv has a session.
const MNN_KV: [&str; 6] =
    ["kv_memory_mb", "kv_memory_bytes", "kv_quant", "kv_h2o_enable", "kv_lossless_enable", "kv_chat_enable"];

/// The text of a file, and its name in errors.
#[derive(Clone, Copy)]
pub struct MnnFile<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its bytes.
    pub json: &'a [u8],
}

/// Numbers that exporters from 3.4 on leave out of `llm_config.json`.
#[derive(Clone, Copy, Default)]
pub struct MnnNumbers {
    /// Layers, which 3.4 leaves out.
    pub layers: Option<u32>,
    /// KV heads and head_dim.
    pub heads: Option<(u32, u32)>,
}

/// A model as MNN loads it.
#[derive(Clone, Debug, PartialEq)]
pub struct MnnConfig {
    /// Its layers.
    pub model: ModelConfig,
    /// The types of K and V.
    pub mode: AttentionMode,
    /// Whether `precision` is low, as without the key.
    pub low_precision: bool,
}

/// Both files; a key of `llm_config.json` hides that of `config.json`, as in MNN.
struct Files<'a> {
    llm: Keys<'a>,
    host: Option<Keys<'a>>,
}

impl<'a> Files<'a> {
    fn with(&self, key: &str) -> &Keys<'a> {
        match &self.host {
            Some(host) if self.llm.get(key).is_none() => host,
            _ => &self.llm,
        }
    }

    fn name_of(&self, key: &str) -> Result<Option<&'a str>> {
        self.with(key).name(key)
    }

    fn flag(&self, key: &str) -> Result<bool> {
        Ok(self.with(key).flag(key)?.unwrap_or(false))
    }

    /// Whether mnn-kv is on, so that it edits histories in place of MNN: as the adapter for MNN tells.
    fn has_mnn_kv(&self) -> Result<bool> {
        let is_on = |key| match self.with(key).get(key) {
            None | Some(Json::Null | Json::Bool(false)) => false,
            Some(Json::Number(number)) => number.float() != 0.0,
            Some(value) => value.text() != Some("off"),
        };
        let on = MNN_KV.into_iter().any(is_on);
        let fits = match self.name_of("attention_type")? {
            None | Some("full" | "sliding") => true,
            Some("mix") => !is_on("kv_h2o_enable") && is_on("sliding_window"),
            _ => false,
        };
        Ok(on && fits && self.name_of("attention_mask")? == Some("float"))
    }
}

impl MnnConfig {
    /// Reads `llm_config.json` and, if there is one, `config.json`. `given` has numbers for missing keys, and `mode`
    /// goes before that of the files.
    ///
    /// INVALID_ARGUMENT: if a text is no JSON object, a key is missing or has another type or range, or a given number
    /// is not that of the file; the message names file, key and value. UNSUPPORTED: if the file does not say which
    /// layers have which cache.
    pub fn read(
        llm_config: MnnFile,
        config: Option<MnnFile>,
        given: MnnNumbers,
        mode: Option<AttentionMode>,
    ) -> Result<MnnConfig> {
        let llm = object(llm_config)?;
        let host = config.map(object).transpose()?;
        let host = host.as_ref().zip(config).map(|(json, file)| Keys::of_file(json, file.name)).transpose()?;
        let files = Files { llm: Keys::of_file(&llm, llm_config.name)?, host };
        let mut notes = Notes::default();
        let mode = match mode {
            Some(mode) => mode,
            None => attention_mode(&files, &mut notes)?,
        };
        let model_type = files.llm.name("model_type")?;
        check_model_type(&files.llm, model_type, mode)?;
        let layers = layer_count(&files.llm, given.layers)?;
        let (kv_heads, head_dim) = heads(&files.llm, given.heads)?;
        about(&files, &mut notes)?;
        let low_precision = low_precision(&files)?;
        let attention = Attention { kv: Kv::Heads { kv_heads, head_dim }, span: Span::Full };
        let max_context = files.llm.number(&["max_position_embeddings"], u32::MAX)?.map(u64::from);
        let model = ModelConfig {
            model_type: model_type.map(|name| memory::format(format_args!("{}", Short(name)))).transpose()?,
            layers: memory::filled(LayerShape::Attention(attention), layers as usize)?,
            element: None,
            max_context,
            notes: notes.0,
        };
        Ok(MnnConfig { model, mode, low_precision })
    }
}

fn object(file: MnnFile) -> Result<Json> {
    parse(file.json).or_else(|e| {
        let e = e.unless_out_of_memory()?;
        Err(error!(InvalidArgument, "{}: {}", file.name, e.message()))
    })
}

/// The mode of the files, as MNN runs it.
fn attention_mode(files: &Files, notes: &mut Notes) -> Result<AttentionMode> {
    let Some(key) = ["attention_mode", "quant_qkv"].into_iter().find(|key| files.with(key).get(key).is_some()) else {
        return Ok(AttentionMode::DEFAULT);
    };
    let keys = files.with(key);
    let path = memory::format(format_args!("{}", keys.path(key)))?;
    let mode = match keys.get(key).map(|value| (value, value.count())) {
        Some((_, Some(number))) => AttentionMode::new(number, &path)?,
        Some((value, None)) => bail!(InvalidArgument, "{path} is {value}; {} expected", AttentionMode::KNOWN),
        None => AttentionMode::DEFAULT,
    };
    if mode != AttentionMode::INT8 || !files.flag("reuse_kv")? || files.has_mnn_kv()? {
        return Ok(mode);
    }
    notes.add(format_args!(
        "{path} is 10 and reuse_kv true: MNN takes 9, whose V is float; with mnn-kv on, by kv_memory_mb for \
         example, and attention_mask \"float\" it stays 10"
    ))?;
    Ok(AttentionMode::INT8_KEY)
}

fn check_model_type(llm: &Keys, model_type: Option<&str>, mode: AttentionMode) -> Result<()> {
    let Some(name) = model_type else { return Ok(()) };
    let path = llm.path("model_type");
    if let Some((_, why)) = DIFFERENT_LAYERS.iter().find(|(prefix, _)| name.starts_with(prefix)) {
        bail!(
            Unsupported,
            "{path} is {}: {why}, and the file does not say which; the Hugging Face config.json of the model and an \
             attention_mode expected",
            Quoted(name)
        );
    }
    if name.starts_with("openelm") {
        bail!(Unsupported, "{path} is {}: its layers differ in heads, which this version cannot size", Quoted(name));
    }
    mode.check_model_type(model_type, path)
}

fn layer_count(llm: &Keys, given: Option<u32>) -> Result<u32> {
    let path = llm.path("layer_nums");
    match (llm.number(&["layer_nums"], MAX_LAYERS)?, given) {
        (Some(layers), Some(other)) if layers != other => {
            bail!(InvalidArgument, "{path} is {layers} and {other} layers are given; the same number expected")
        }
        (Some(layers), _) | (None, Some(layers)) => Ok(layers),
        (None, None) => bail!(
            InvalidArgument,
            "{path} is missing, which MNN's exporter 3.4 leaves out; the number of layers expected (--layers)"
        ),
    }
}

fn heads(llm: &Keys, given: Option<(u32, u32)>) -> Result<(u32, u32)> {
    const KEY: &str = "key_value_shape";
    let path = llm.path(KEY);
    let Some(shape) = llm.get(KEY) else {
        return given.ok_or_else(|| {
            error!(
                InvalidArgument,
                "{path} is missing, which MNN's exporter writes up to 3.3; KV heads and head_dim expected (--kv-heads and \
                 --head-dim), or the Hugging Face config.json of the model and an attention_mode"
            )
        });
    };
    let Json::List(entries) = shape else {
        bail!(InvalidArgument, "{path} is {shape}; a list of 5 numbers expected");
    };
    if entries.is_empty() {
        bail!(Unsupported, "{path} is empty: the model has no KV cache");
    }
    let found = kv_of(entries).ok_or_else(|| {
        error!(
            InvalidArgument,
            "{path} is not 2 (K and V), then 1, 0 (tokens) and KV heads in any order, then head_dim"
        )
    })?;
    match given.filter(|given| *given != found) {
        Some((heads, dim)) => bail!(
            InvalidArgument,
            "{path} has {} KV heads of {} and {heads} of {dim} are given; the same numbers expected",
            found.0,
            found.1
        ),
        None => Ok(found),
    }
}

/// KV heads and head_dim of a shape. The places of batch and tokens depend on the version.
fn kv_of(entries: &[Json]) -> Option<(u32, u32)> {
    let number = |at: usize| entries.get(at)?.count().and_then(|number| u32::try_from(number).ok());
    let middle = [number(1)?, number(2)?, number(3)?];
    let (first, head_dim) = (number(0)?, number(4)?);
    let tokens = middle.iter().filter(|n| **n == 0).count();
    let kv_heads = middle.into_iter().max()?;
    let is_shape = entries.len() == 5 && first == 2 && tokens == 1 && middle.contains(&1) && head_dim > 0;
    is_shape.then_some((kv_heads, head_dim))
}

fn low_precision(files: &Files) -> Result<bool> {
    match files.name_of("precision")? {
        None | Some("low") => Ok(true),
        Some("normal" | "high") => Ok(false),
        Some(other) => bail!(
            InvalidArgument,
            "{} is {}; \"low\", \"normal\" or \"high\" expected",
            files.with("precision").path("precision"),
            Quoted(other)
        ),
    }
}

/// Notes about what the numbers mean.
fn about(files: &Files, notes: &mut Notes) -> Result<()> {
    const KEY: &str = "attention_type";
    match files.name_of(KEY)? {
        None | Some("full") => {}
        Some(kind @ ("sliding" | "mix")) => notes.add(format_args!(
            "attention_type is \"{kind}\": MNN keeps all tokens also in layers with a sliding window, and all are counted"
        ))?,
        Some(other) => bail!(
            InvalidArgument,
            "{} is {}; \"full\", \"sliding\" or \"mix\" expected",
            files.with(KEY).path(KEY),
            Quoted(other)
        ),
    }
    if let Some(other) = files.name_of("backend_type")?.filter(|name| *name != "cpu") {
        let other = Quoted(other);
        notes.add(format_args!("backend_type is {other}: the sizes are those of MNN's CPU backend"))?;
    }
    if let Some(kind) = files.name_of("speculative_type")?.filter(|name| !matches!(*name, "" | "lookahead")) {
        let kind = Quoted(kind);
        notes.add(format_args!("speculative_type is {kind}: the cache of the draft model is not counted"))?;
    }
    if files.flag("has_talker")? {
        notes.add(format_args!("has_talker is true: the cache of the talker is not counted"))?;
    }
    Ok(())
}
