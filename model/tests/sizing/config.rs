//! Required keys of a config, and assumptions for missing ones.

use super::{model, notes_say, parse, plain, refusal, says};
use mnnkv::status::Status;
use mnnkv_model::sizing::{Attention, CacheElement, Kv, LayerShape, MAX_CONFIG_BYTES, MAX_LAYERS, ModelConfig, Span};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// A complete config of four layers with these keys on top; null takes a key away.
fn small(extra: Value) -> Value {
    let mut config = json!({
        "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 64,
    });
    for (key, value) in extra.as_object().unwrap() {
        match value {
            Value::Null => drop(config.as_object_mut().unwrap().remove(key)),
            value => config[key] = value.clone(),
        }
    }
    config
}

fn spans(extra: Value) -> Vec<Option<Span>> {
    let model = parse(small(extra)).unwrap();
    model.layers.iter().map(|layer| layer.attention().map(|attention| attention.span)).collect()
}

fn kv(extra: Value) -> Kv {
    parse(small(extra)).unwrap().layers[0].attention().unwrap().kv
}

const FULL: Option<Span> = Some(Span::Full);

fn sliding(window: u32) -> Option<Span> {
    Some(Span::Sliding(window))
}

#[test]
fn olmo_3_sees_everything_in_every_fourth_layer() {
    let window = sliding(4096);
    assert_eq!(spans(json!({"model_type": "olmo3"})), [window, window, window, FULL]);
}

#[test]
fn whole_numbers_may_be_written_with_a_fraction_of_0() {
    assert_eq!(kv(json!({"head_dim": 64.0})), kv(json!({"head_dim": 64})));
}

#[test]
fn dtype_goes_before_torch_dtype() {
    let model = parse(small(json!({"dtype": "float32", "torch_dtype": "float16"}))).unwrap();
    assert_eq!(model.element, Some(CacheElement::F32));
    notes_say(&model.notes, &["dtype is \"float32\" and torch_dtype \"float16\"", "dtype is taken"]);
    assert_eq!(parse(small(json!({"dtype": "float16", "torch_dtype": "float16"}))).unwrap().notes, [""; 0]);
}

#[test]
fn encoders_and_states_beside_every_cache_are_not_sized_in_silence() {
    let encoder = json!({"model_type": "bert", "num_key_value_heads": null, "use_cache": true, "type_vocab_size": 2});
    for config in [encoder, json!({"model_type": "t5"})] {
        assert_eq!(refusal(small(config.clone())).status(), Status::Unsupported, "{config}");
    }
    notes_say(&parse(small(json!({"model_type": "falcon_h1"}))).unwrap().notes, &["recurrent state", "not counted"]);
}

#[test]
fn a_value_of_another_type_or_range_is_named_with_what_was_found() {
    for (key, value, found) in [
        ("num_hidden_layers", json!("4"), "\"4\""),
        ("num_hidden_layers", json!(0), "0"),
        ("num_hidden_layers", json!(MAX_LAYERS + 1), "4097"),
        ("num_attention_heads", json!(8.5), "8.5"),
        ("num_attention_heads", json!([8, 8, 8, 8]), "a list of 4"),
        ("num_key_value_heads", json!(-1), "-1"),
        ("head_dim", json!(true), "true"),
        ("head_dim", json!(5_000_000_000u64), "5000000000"),
        ("hidden_size", json!({"a": 1}), "an object of 1"),
        ("kv_lora_rank", json!(0), "0"),
        ("sliding_window", json!("4096"), "\"4096\""),
        ("use_sliding_window", json!(1), "1"),
        ("layer_types", json!("full_attention"), "\"full_attention\""),
        ("torch_dtype", json!(16), "16"),
        ("model_type", json!(["llama"]), "a list of 1"),
        ("text_config", json!([]), "a list of 0"),
        ("attn_layer_period", json!(0), "0"),
        ("max_position_embeddings", json!(1e40), "1e40"),
        ("num_kv_shared_layers", json!(-3), "-3"),
    ] {
        let error = refusal(small(json!({ key: value })));
        assert_eq!(error.status(), Status::InvalidArgument, "{key}");
        says(error.message(), &[&format!("{key} is {found}"), "expected"]);
    }
}

#[test]
fn missing_keys_are_named() {
    for key in ["num_hidden_layers", "num_attention_heads", "hidden_size"] {
        let error = refusal(small(json!({ key: null })));
        assert_eq!(error.status(), Status::InvalidArgument);
        says(error.message(), &["has no", key]);
    }
    // Only a nested config is written without its type's defaults.
    says(refusal(json!({"model_type": "llama"})).message(), &["num_hidden_layers"]);
    let unknown = refusal(json!({"text_config": {"model_type": "unheard-of", "use_cache": true}}));
    says(unknown.message(), &["text_config.num_hidden_layers", "unheard-of"]);
    says(refusal(small(json!({"kv_lora_rank": 512}))).message(), &["kv_lora_rank", "qk_rope_head_dim"]);
}

#[test]
fn other_texts_are_refused() {
    for (text, word) in
        [("", "not JSON"), ("[1]", "a list of 1"), ("{\"a\":", "not JSON"), ("7", "is 7"), ("{}\u{feff}", "not JSON")]
    {
        let error = ModelConfig::from_config(text.as_bytes()).unwrap_err();
        assert_eq!(error.status(), Status::InvalidArgument, "{text}");
        says(error.message(), &[word]);
    }
    let mut long = small(json!({})).to_string().into_bytes();
    long.resize(MAX_CONFIG_BYTES, b' ');
    ModelConfig::from_config(&long).unwrap();
    long.push(b' ');
    says(ModelConfig::from_config(&long).unwrap_err().message(), &["4194305", "4194304"]);
}

#[test]
fn head_dim_is_its_own_or_divides_the_width() {
    assert_eq!(kv(json!({})), Kv::Heads { kv_heads: 2, head_dim: 8 });
    assert_eq!(kv(json!({"head_dim": 100})), Kv::Heads { kv_heads: 2, head_dim: 100 });
    assert_eq!(kv(json!({"head_dim": 100, "hidden_size": null})), Kv::Heads { kv_heads: 2, head_dim: 100 });
    let error = refusal(small(json!({"hidden_size": 65})));
    says(error.message(), &["hidden_size is 65", "no multiple of the 8 attention heads"]);
    says(refusal(small(json!({"num_key_value_heads": 3}))).message(), &["8 attention heads", "3 KV heads"]);
    let error = refusal(small(json!({"v_head_dim": 4})));
    assert_eq!(error.status(), Status::Unsupported);
    says(error.message(), &["v_head_dim is 4", "head_dim 8"]);
}

#[test]
fn kv_heads_go_by_many_names() {
    let heads = |extra: Value| {
        let mut all = json!({"num_key_value_heads": null});
        all.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        match kv(all) {
            Kv::Heads { kv_heads, .. } => kv_heads,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(heads(json!({})), 8, "MHA");
    assert_eq!(heads(json!({"num_kv_heads": 4})), 4);
    assert_eq!(heads(json!({"n_head_kv": 4})), 4);
    assert_eq!(heads(json!({"attn_config": {"kv_n_heads": 2}})), 2, "MPT");
    assert_eq!(heads(json!({"multi_query": true})), 1);
    assert_eq!(heads(json!({"multi_query": true, "new_decoder_architecture": true, "num_kv_heads": 4})), 4, "Falcon");
    assert_eq!(heads(json!({"multi_query_group_num": 2, "multi_query_attention": true})), 2, "ChatGLM");
    assert_eq!(heads(json!({"multi_query_group_num": 2, "multi_query_attention": false})), 8, "ChatGLM");
    assert_eq!(heads(json!({"model_type": "gpt_bigcode"})), 1);
    assert_eq!(heads(json!({"model_type": "mistral"})), 8, "which is what its type has");
    assert_eq!(heads(json!({"model_type": "gemma3_text"})), 4, "its type's");
}

#[test]
fn names_that_mean_one_thing_must_agree() {
    assert_eq!(parse(small(json!({"n_layer": 4}))).unwrap().layers.len(), 4);
    let error = refusal(small(json!({"n_layer": 5})));
    says(error.message(), &["num_hidden_layers is 4", "n_layer is 5"]);
}

#[test]
fn the_language_model_of_a_multimodal_config_counts() {
    for key in ["text_config", "llm_config", "language_config"] {
        let config =
            json!({ key: small(json!({})), "num_hidden_layers": 99, "vision_config": {"num_hidden_layers": 7} });
        assert_eq!(parse(config).unwrap().layers.len(), 4, "{key}");
        let error = refusal(json!({ key: small(json!({"head_dim": "x"})) }));
        says(error.message(), &[&format!("{key}.head_dim")]);
    }
    let deep = json!({"thinker_config": {"text_config": small(json!({"head_dim": 0}))}});
    says(refusal(deep).message(), &["thinker_config.text_config.head_dim is 0"]);
}

#[test]
fn listed_layers_are_what_the_list_says() {
    let names = json!(["full_attention", "sliding_attention", "linear_attention", "chunked_attention"]);
    let kinds = spans(json!({"layer_types": names, "sliding_window": 10, "attention_chunk_size": 20}));
    assert_eq!(kinds, [FULL, sliding(10), None, Some(Span::Chunked(20))]);
    assert_eq!(spans(json!({"layers_block_type": ["mamba", "attention", "mamba", "mamba"]})), [None, FULL, None, None]);
    assert_eq!(
        spans(json!({"block_types": ["recurrent", "recurrent", "attention"], "attention_window_size": 64})),
        [None, None, sliding(64), None]
    );
    assert_eq!(spans(json!({"attn_layer_indices": [2]})), [None, None, FULL, None]);
    assert_eq!(spans(json!({"full_attn_idxs": [0, 3]})), [FULL, None, None, FULL]);
    assert_eq!(spans(json!({"attn_type_list": [0, 1, 1, 0]})), [None, FULL, FULL, None]);
    assert_eq!(spans(json!({"no_rope_layers": [0, 1, 1, 0], "attention_chunk_size": 9})), {
        let chunk = Some(Span::Chunked(9));
        [FULL, chunk, chunk, FULL]
    });
}

#[test]
fn lists_that_fit_no_model_are_refused() {
    for (extra, words) in [
        (json!({ "layer_types": vec!["full_attention"; 3] }), ["layer_types", "3 entries", "4 layers"]),
        (json!({"layer_types": ["full_attention", 7, "", ""]}), ["layer_types[1]", "7", "kind of layer"]),
        (
            json!({"layer_types": vec!["sliding_attention"; 4]}),
            ["layer_types[0]", "sliding_attention", "sliding_window"],
        ),
        (json!({"layer_types": vec!["chunked_attention"; 4]}), ["layer_types[0]", "chunked", "attention_chunk_size"]),
        (json!({"attn_layer_indices": [4]}), ["attn_layer_indices[0]", "4", "0 to 3"]),
        (json!({"attn_type_list": [0, 1, 2, 0]}), ["attn_type_list[2]", "2", "softmax"]),
        (json!({"attn_layer_period": 4, "attn_layer_offset": 4}), ["attn_layer_offset", "4", "below the period"]),
        (json!({"no_rope_layers": vec![2; 4], "attention_chunk_size": 9}), ["no_rope_layers[0]", "2", "0 "]),
        (json!({"num_key_value_heads": [2, 2, 2]}), ["num_key_value_heads", "3 entries", "4 layers"]),
        (json!({"num_key_value_heads": [2, 2, 0, 2]}), ["num_key_value_heads[2]", "is 0", "1 on"]),
        (json!({"per_layer_config": {"4": {}}}), ["per_layer_config.4", "no layer", "0 to 3"]),
        (json!({"per_layer_config": {"+1": {}}}), ["per_layer_config.+1", "no layer", "0 to 3"]),
        (json!({"per_layer_config": {"1": 7}}), ["per_layer_config.1", "is 7", "an object"]),
        (json!({"num_kv_shared_layers": 4}), ["num_kv_shared_layers", "4 of 4", "fewer"]),
        (json!({"sliding_window": 9, "sliding_window_pattern": ""}), ["sliding_window_pattern", "empty", "G"]),
        (json!({"block_types": ["attention"]}), ["block_types[0]", "attention", "attention_window_size"]),
    ] {
        let error = refusal(small(extra));
        assert_eq!(error.status(), Status::InvalidArgument, "{words:?}");
        says(error.message(), &words);
    }
}

#[test]
fn attention_of_unknown_kind_is_refused_and_never_guessed() {
    for (extra, words) in [
        (json!({"layer_types": ["full_attention", "warp_attention", "", ""]}), ["layer_types[1]", "warp_attention"]),
        (json!({"sliding_window": 9, "sliding_window_pattern": "LLX"}), ["sliding_window_pattern", "LLX"]),
        (json!({"mamba_d_state": 16}), ["mamba_d_state", "nothing says which"]),
        (json!({"linear_num_key_heads": 16}), ["linear_num_key_heads", "layer_types expected"]),
        (json!({"is_encoder_decoder": true}), ["is_encoder_decoder", "encoder"]),
        (json!({"global_head_dim": 512}), ["global_head_dim is 512", "head_dim"]),
        (json!({"per_layer_config": {"3": {"skip": ["attention"]}}}), ["per_layer_config.3.skip", "a list of 1"]),
        (json!({"per_layer_config": {"3": {"warp_layer": 2}}}), ["per_layer_config.3.warp_layer is 2", "keeps"]),
        (json!({"sliding_window": 9, "warp_layers": [1]}), ["warp_layers is a list of 1", "which layers"]),
        (
            json!({"sliding_window": 9, "global_attn_every_n_layers": 4}),
            ["global_attn_every_n_layers is 4", "which layers"],
        ),
        (json!({"attention_other_setting": {"num_attention_groups": 1}}), ["attention_type", "sliding_attention"]),
        (json!({"attn": {"layers": [1]}}), ["attn is an object", "which layers have attention"]),
        (json!({"use_cla": true}), ["use_cla", "each other"]),
        (json!({"cross_attention_layers": [3, 8]}), ["cross_attention_layers", "images"]),
        (json!({"hybrid_override_pattern": "M-M*"}), ["hybrid_override_pattern", "letters"]),
        (json!({"model_type": "mamba2", "state_size": 128}), ["state_size", "instead of a KV cache"]),
    ] {
        let error = refusal(small(extra));
        assert_eq!(error.status(), Status::Unsupported, "{words:?}");
        says(error.message(), &words);
    }
    // Switched off, they say nothing.
    let off = json!({"is_encoder_decoder": false, "use_cla": false, "cross_attention_layers": []});
    assert_eq!(spans(off), [FULL; 4]);
}

#[test]
fn gemma_4_has_other_heads_in_the_layers_that_see_everything() {
    let kvs = |extra: Value| {
        let mut all = json!({"model_type": "gemma4_text", "head_dim": 8, "num_hidden_layers": 7, "sliding_window": 9});
        all.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let model = parse(small(all)).unwrap();
        let attentions = model.layers.iter().map(|layer| *layer.attention().unwrap());
        (attentions.collect::<Vec<_>>(), model.notes)
    };
    let sliding = Attention { kv: Kv::Heads { kv_heads: 2, head_dim: 8 }, span: Span::Sliding(9) };
    let full = |kv_heads, head_dim| Attention { kv: Kv::Heads { kv_heads, head_dim }, span: Span::Full };
    let (layers, notes) = kvs(json!({}));
    assert_eq!(layers, [&[sliding; 5][..], &[full(2, 512); 2]].concat(), "the last sees everything, too");
    notes_say(&notes, &["global_head_dim", "512 is assumed"]);
    notes_say(&notes, &["last layer", "gemma4_text"]);
    let (layers, _) = kvs(json!({"global_head_dim": 16, "num_global_key_value_heads": 1, "attention_k_eq_v": true}));
    assert_eq!((layers[0], layers[5]), (sliding, full(1, 16)));
    let (layers, _) = kvs(json!({"global_head_dim": 16, "num_global_key_value_heads": 1}));
    assert_eq!(layers[5], full(2, 16), "its own heads only with attention_k_eq_v");
}

#[test]
fn windows_without_a_list_follow_pattern_switch_and_type() {
    let window = |extra: Value| {
        let mut all = json!({"sliding_window": 9});
        all.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        spans(all)
    };
    let slides = sliding(9);
    assert_eq!(window(json!({})), [slides; 4]);
    assert_eq!(window(json!({"sliding_window_pattern": 3})), [slides, slides, FULL, slides]);
    assert_eq!(window(json!({"sliding_window_pattern": 1})), [FULL; 4]);
    assert_eq!(window(json!({"sliding_window_pattern": "LG"})), [slides, FULL, slides, FULL]);
    assert_eq!(window(json!({"use_sliding_window": false})), [FULL; 4]);
    assert_eq!(window(json!({"model_type": "qwen2"})), [FULL; 4], "the window needs its switch");
    let qwen = json!({"model_type": "qwen2", "use_sliding_window": true, "max_window_layers": 3});
    assert_eq!(window(qwen), [FULL, FULL, FULL, slides]);
    assert_eq!(window(json!({"model_type": "cohere2"})), [slides, slides, slides, FULL]);
    assert_eq!(window(json!({"model_type": "gpt_oss"})), [slides, FULL, slides, FULL]);
    assert_eq!(spans(json!({"model_type": "mistral"})), [sliding(4096); 4], "its type's");
}

#[test]
fn an_explicit_null_switches_a_window_off() {
    let mut config = small(json!({"model_type": "mistral"}));
    config["sliding_window"] = Value::Null;
    let model = parse(config).unwrap();
    assert_eq!(model.layers[0].attention().unwrap().span, Span::Full);
}

#[test]
fn an_explicit_null_rank_means_heads() {
    let mut config = small(json!({"model_type": "deepseek_v2"}));
    assert_eq!(
        parse(config.clone()).unwrap().layers[0].attention().unwrap().kv,
        Kv::Latent { kv_lora_rank: 512, qk_rope_head_dim: 64 },
        "its type's"
    );
    config["kv_lora_rank"] = Value::Null;
    assert!(matches!(parse(config).unwrap().layers[0].attention().unwrap().kv, Kv::Heads { .. }));
    assert!(matches!(kv(json!({"kv_lora_rank": 4, "use_mla": false})), Kv::Heads { .. }));
}

#[test]
fn intervals_of_hybrids_are_assumed_with_a_note_or_given() {
    assert_eq!(spans(json!({"full_attention_interval": 2})), [None, FULL, None, FULL]);
    let model = parse(small(json!({"model_type": "qwen3_next", "head_dim": 8}))).unwrap();
    assert!(model.layers[..3].iter().all(|layer| *layer == LayerShape::Recurrent { state_elements: None }));
    notes_say(&model.notes, &["full_attention_interval", "4 is assumed"]);
}

#[test]
fn element_types_go_by_many_names() {
    let element = |name: &str| parse(small(json!({"torch_dtype": name}))).unwrap();
    for (name, expected) in [
        ("float16", CacheElement::F16),
        ("torch.bfloat16", CacheElement::Bf16),
        ("FP32", CacheElement::F32),
        ("float8_e4m3fn", CacheElement::Fp8),
        ("int8", CacheElement::Int8),
        ("int4", CacheElement::Int4),
    ] {
        assert_eq!(element(name).element, Some(expected), "{name}");
    }
    let odd = element("posit16");
    assert_eq!(odd.element, None);
    notes_say(&odd.notes, &["posit16"]);
    assert_eq!(parse(small(json!({"dtype": "float16"}))).unwrap().element, Some(CacheElement::F16));
    assert_eq!(parse(small(json!({}))).unwrap().element, None);
    for code in 0..12 {
        match CacheElement::from_code(code, "element") {
            Ok(element) => assert_eq!((element.code(), CacheElement::from_name(element.name())), (code, Some(element))),
            Err(error) => says(error.message(), &[&format!("element is {code}")]),
        }
    }
}

#[test]
fn caches_that_may_differ_from_the_model_are_told() {
    let notes = |extra| parse(small(extra)).unwrap().notes;
    notes_say(
        &notes(json!({"quantization_config": {"kv_cache_scheme": {"num_bits": 8}}})),
        &["kv_cache_scheme", "smaller"],
    );
    notes_say(&notes(json!({"index_head_dim": 128})), &["index_head_dim 128", "not counted"]);
    notes_say(&notes(json!({"attention_types": [[["global", "local"], 2]]})), &["attention_types", "all tokens"]);
    notes_say(&notes(json!({"model_type": "falcon_h1", "mamba_d_state": 16})), &["every layer", "recurrent state"]);
}

#[test]
fn hostile_texts_are_shortened_in_messages() {
    let long = "x\n".repeat(10_000);
    let message = refusal(small(json!({"head_dim": long, "model_type": long}))).message().to_string();
    assert!(message.len() < 300 && !message.contains('\n'), "{message}");
    assert!(parse(small(json!({"model_type": long}))).unwrap().model_type.unwrap().len() < 300);
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0u64..6).prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop::sample::select(vec!["llama", "qwen2", "gemma3_text", "full_attention", "sliding_attention", "LG", "x"])
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 12, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::hash_map(any_key(), inner, 0..4).prop_map(|map| Value::Object(Map::from_iter(map))),
        ]
    })
}

fn any_key() -> impl Strategy<Value = String> {
    let keys = vec![
        "model_type",
        "text_config",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "hidden_size",
        "head_dim",
        "sliding_window",
        "sliding_window_pattern",
        "layer_types",
        "layers_block_type",
        "block_types",
        "attention_chunk_size",
        "no_rope_layers",
        "no_rope_layer_interval",
        "kv_lora_rank",
        "qk_rope_head_dim",
        "num_kv_shared_layers",
        "attn_layer_period",
        "attn_layer_offset",
        "attn_layer_indices",
        "attn_type_list",
        "full_attention_interval",
        "max_window_layers",
        "use_sliding_window",
        "linear_num_key_heads",
        "linear_key_head_dim",
        "linear_num_value_heads",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
        "multi_query",
        "attn_config",
        "quantization_config",
        "torch_dtype",
        "max_position_embeddings",
        "layer_group_size",
        "n_shared_head",
        "num_attention_groups",
        "swa_num_key_value_heads",
        "num_swa_attention_heads",
        "sliding_window_layers",
        "per_layer_config",
        "2",
    ];
    prop::sample::select(keys).prop_map(String::from)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Any config is an error, or a model with its number of layers, whose sizes cause no panic.
    #[test]
    fn no_config_is_a_crash(extra in prop::collection::hash_map(any_key(), any_value(), 0..6)) {
        let mut config = small(json!({}));
        config.as_object_mut().unwrap().extend(extra);
        if let Ok(model) = parse(config.clone()) {
            let text = config.get("text_config").filter(|text| text.is_object()).unwrap_or(&config);
            let innermost = text.get("text_config").is_none_or(|inner| !inner.is_object());
            if let Some(layers) = text.get("num_hidden_layers").filter(|layers| innermost && !layers.is_null()) {
                prop_assert_eq!(model.layers.len() as u64, layers.as_u64().unwrap());
            }
            let _ = plain(&model.layers).longest(1 << 40);
        }
    }
}

#[test]
fn cutting_a_config_anywhere_is_an_error() {
    let text = small(json!({"model_type": "llama"})).to_string();
    for end in 0..text.len() {
        assert!(ModelConfig::from_config(&text.as_bytes()[..end]).is_err(), "{end}");
    }
    assert!(!model("gpt2").layers.is_empty());
}
