//! Numbers of config.json, the model's own config, about the weights.

use mnnkv::json::Json;
use mnnkv::status::Result;
use mnnkv::sys::memory;

#[derive(Debug, Default)]
pub(super) struct AttentionConfig {
    /// KV heads times elements of a head.
    pub(super) channels: Option<u64>,
    /// `quantize`, which names the files of the older generation.
    pub(super) quantize: Option<String>,
    /// `quantization_config.kv_quant_type`, which enables the KV scales in one reader.
    pub(super) kv_quant_type: Option<String>,
}

impl AttentionConfig {
    pub(super) fn read(json: &Json) -> Result<AttentionConfig> {
        // Multimodal models have the numbers of the text part in an object of their own.
        let text_part = json.get("text_config").filter(|part| part.get("num_attention_heads").is_some());
        let part = text_part.unwrap_or(json);
        let count = |key: &str| part.get(key).and_then(Json::count).filter(|n| *n > 0);
        let heads = count("num_attention_heads");
        let divided = || count("hidden_size")?.checked_div(heads?);
        let head_dim = count("head_dim").or(count("kv_channels")).or_else(divided);
        let quantization = json.get("quantization_config");
        let kv_heads = count("num_key_value_heads").or(count("multi_query_group_num")).or(heads);
        let word = |word: Option<&Json>| word.and_then(Json::text).map(memory::text).transpose();
        Ok(AttentionConfig {
            channels: head_dim.zip(kv_heads).and_then(|(dim, heads)| heads.checked_mul(dim)),
            quantize: word(json.get("quantize"))?,
            kv_quant_type: word(quantization.and_then(|q| q.get("kv_quant_type")))?,
        })
    }
}

/// `quantization_config`, if it is a complete description.
pub(super) fn description<'a, 'text>(json: &'a Json<'text>) -> Option<&'a Json<'text>> {
    json.get("quantization_config").filter(|q| q.get("model_quant_type").is_some())
}
