//! Cache rules that this version does not implement: refused by name, never guessed.

use super::keys::Keys;
use super::kv::KV_HEADS;
use mnnkv::json::{Json, Quoted};
use mnnkv::status::{Result, bail};

const ENCODER_DECODER: &str = "the decoder of an encoder-decoder model keeps a second cache for the encoder's tokens";

/// Model types with other cache rules, and those rules.
const MODEL_TYPES: [(&str, &str); 11] = [
    ("t5", ENCODER_DECODER),
    ("mt5", ENCODER_DECODER),
    ("umt5", ENCODER_DECODER),
    ("bart", ENCODER_DECODER),
    ("mbart", ENCODER_DECODER),
    ("whisper", ENCODER_DECODER),
    ("zamba", "its layers share attention blocks"),
    ("zamba2", "its layers share attention blocks"),
    ("longcat_flash", "its layers have two caches each"),
    ("deci", "its layers differ in heads"),
    ("nemotron-nas", "its layers differ in heads"),
];

/// Keys that announce other rules.
const KEYS: [(&str, &str); 11] = [
    ("is_encoder_decoder", ENCODER_DECODER),
    ("global_head_dim", "layers differ in head_dim"),
    ("num_global_key_value_heads", "layers differ in KV heads"),
    ("attention_k_eq_v", "layers may keep only K"),
    ("attn", "it says which layers have attention"),
    ("block_configs", "layers differ in heads"),
    ("use_cla", "layers read each other's caches"),
    ("cross_attention_layers", "layers keep tokens of images"),
    ("hybrid_override_pattern", "it says in letters which layers have a cache"),
    ("linear_attn_config", "it says which layers have a cache"),
    ("compress_ratios", "layers compress tokens"),
];

/// The known keys of Gemma 4.
const GEMMA_4: [&str; 3] = ["global_head_dim", "num_global_key_value_heads", "attention_k_eq_v"];

pub(super) fn check(config: &Keys) -> Result<()> {
    let model_type = config.name("model_type")?.unwrap_or("");
    let gemma_4 = matches!(model_type, "gemma4" | "gemma4_text");
    if let Some((_, why)) = MODEL_TYPES.iter().find(|(refused, _)| *refused == model_type) {
        bail!(Unsupported, "{} is \"{model_type}\": {why}, which this version cannot size", config.path("model_type"));
    }
    for (key, why) in KEYS.into_iter().filter(|(key, _)| !(gemma_4 && GEMMA_4.contains(key))) {
        if let Some(found) = config.get(key).filter(|value| says_something(value)) {
            bail!(Unsupported, "{} is {found}: {why}, which this version cannot size", config.path(key));
        }
    }
    Ok(())
}

/// Refuses a model that keeps no KV cache, by what its config lacks: layers with attention, or anything of a decoder.
pub(super) fn check_cache(top: &Keys, text: &Keys, is_known: bool) -> Result<()> {
    if text.has("attn") && text.get("attn").is_none() {
        bail!(Unsupported, "{} is null: no layer has attention, so there is no KV cache", text.path("attn"));
    }
    let Some(model_type) = text.name("model_type")?.filter(|_| !is_known) else { return Ok(()) };
    if of_decoder(text)? || text.is_nested() && of_decoder(top)? {
        return Ok(());
    }
    bail!(
        Unsupported,
        "{} is {}, and the config has no key of a decoder: no {}, no use_cache, no is_decoder, no architecture \
         ...ForCausalLM; an encoder has no KV cache",
        text.path("model_type"),
        Quoted(model_type),
        KV_HEADS[0]
    )
}

/// Whether a config has a key of a decoder.
fn of_decoder(keys: &Keys) -> Result<bool> {
    const ARCHITECTURES: [&str; 3] = ["CausalLM", "LMHead", "ConditionalGeneration"];
    const SHARED: [&str; 6] = [
        "kv_lora_rank",
        "n_shared_head",
        "attn_config",
        "multi_query",
        "multi_query_attention",
        "multi_query_group_num",
    ];
    let names = keys.list("architectures")?.unwrap_or(&[]);
    let is_of = |parts: &[&str]| names.iter().filter_map(Json::text).any(|name| parts.iter().any(|p| name.contains(p)));
    if is_of(&ARCHITECTURES) || KV_HEADS.iter().chain(&SHARED).any(|key| keys.has(key)) {
        return Ok(true);
    }
    // BERT has the key, too, and types of segments.
    let is_bert = keys.has("type_vocab_size") || is_of(&["MaskedLM"]);
    let caches = keys.get("use_cache").and_then(Json::flag) == Some(true) && !is_bert;
    Ok(caches || keys.get("is_decoder").and_then(Json::flag) == Some(true))
}

fn says_something(value: &Json) -> bool {
    match value {
        Json::Null | Json::Bool(false) => false,
        Json::List(values) => !values.is_empty(),
        Json::Object(fields) => !fields.is_empty(),
        _ => true,
    }
}
