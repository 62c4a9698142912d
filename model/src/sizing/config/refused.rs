//! Cache rules that this version does not implement: refused by name, never guessed.

use super::keys::Keys;
use mnnkv::json::Json;
use mnnkv::status::{Result, bail};

const ENCODER_DECODER: &str = "the decoder of an encoder-decoder model keeps a second cache for the encoder's tokens";

/// Model types with other cache rules, and those rules.
const MODEL_TYPES: [(&str, &str); 23] = [
    ("mamba", "it keeps a state and no KV cache"),
    ("mamba2", "it keeps a state and no KV cache"),
    ("falcon_mamba", "it keeps a state and no KV cache"),
    ("rwkv", "it keeps a state and no KV cache"),
    ("rwkv7", "it keeps a state and no KV cache"),
    ("xlstm", "it keeps a state and no KV cache"),
    ("bert", "it is an encoder, which keeps no KV cache"),
    ("roberta", "it is an encoder, which keeps no KV cache"),
    ("xlm-roberta", "it is an encoder, which keeps no KV cache"),
    ("distilbert", "it is an encoder, which keeps no KV cache"),
    ("modernbert", "it is an encoder, which keeps no KV cache"),
    ("t5", ENCODER_DECODER),
    ("mt5", ENCODER_DECODER),
    ("umt5", ENCODER_DECODER),
    ("bart", ENCODER_DECODER),
    ("mbart", ENCODER_DECODER),
    ("whisper", ENCODER_DECODER),
    ("zamba", "its layers share attention blocks"),
    ("zamba2", "its layers share attention blocks"),
    ("longcat_flash", "its layers have two caches each"),
    ("openelm", "its layers differ in heads"),
    ("deci", "its layers differ in heads"),
    ("nemotron-nas", "its layers differ in heads"),
];

/// Keys that announce other rules.
const KEYS: [(&str, &str); 12] = [
    ("is_encoder_decoder", ENCODER_DECODER),
    ("global_head_dim", "layers differ in head_dim"),
    ("num_global_key_value_heads", "layers differ in KV heads"),
    ("attention_k_eq_v", "layers may keep only K"),
    ("per_layer_config", "layers differ in heads"),
    ("swa_num_key_value_heads", "layers differ in KV heads"),
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

fn says_something(value: &Json) -> bool {
    match value {
        Json::Null | Json::Bool(false) => false,
        Json::List(values) => !values.is_empty(),
        _ => true,
    }
}
