//! Published configs whose layers differ, or that keep no KV cache, under keys that other models do not have. The bytes
//! are those of 16,384 tokens in 2 bytes an element, by the architecture.

use super::{notes_say, parse, plain, refusal, says};
use mnnkv::status::Status;
use mnnkv_model::sizing::ModelConfig;
use proptest::prelude::*;
use serde_json::{Value, json};

const TOKENS: u64 = 16_384;

fn bytes(config: Value) -> u64 {
    plain(&parse(config).unwrap().layers).bytes(TOKENS).unwrap().raw
}

/// Bytes of layers with so many KV heads.
fn of(layers: u64, kv_heads: u64, head_dim: u64, tokens: u64) -> u64 {
    layers * 2 * kv_heads * head_dim * 2 * tokens
}

fn step(layer_types: Vec<&str>) -> Value {
    json!({
        "model_type": "step3p5", "hidden_size": 4096, "num_hidden_layers": 45, "num_nextn_predict_layers": 3,
        "num_attention_heads": 64, "num_attention_groups": 8, "head_dim": 128, "sliding_window": 512,
        "attention_other_setting": {
            "attention_type": "sliding_attention", "num_attention_heads": 96, "num_attention_groups": 8, "head_dim": 128
        },
        "layer_types": layer_types,
    })
}

/// So many kinds of layers, `full` at every `period`-th from `first` on.
fn kinds(layers: usize, first: usize, period: usize) -> Vec<&'static str> {
    let kind = |layer| if layer % period == first { "full_attention" } else { "sliding_attention" };
    (0..layers).map(kind).collect()
}

#[test]
fn layers_that_differ_under_keys_of_one_model_are_sized() {
    let ring = json!({
        "architectures": ["BailingMoeLinearV2ForCausalLM"], "model_type": "bailing_moe_linear", "hidden_size": 2048,
        "head_dim": 128, "num_attention_heads": 16, "num_key_value_heads": 4, "num_hidden_layers": 20,
        "layer_group_size": 5, "group_norm_size": 4,
    });
    assert_eq!(bytes(ring.clone()), of(4, 4, 128, TOKENS));
    notes_say(&parse(ring).unwrap().notes, &["16 recurrent layers", "not counted"]);
    let odd: Vec<u32> = (0..40).filter(|layer| layer % 2 == 1).collect();
    let baichuan = json!({
        "model_type": "baichuan_m1", "num_hidden_layers": 40, "hidden_size": 5120, "num_attention_heads": 20,
        "num_key_value_heads": 2, "num_swa_attention_heads": 40, "num_swa_key_value_heads": 8, "sliding_window": 8192,
        "sliding_window_layers": odd, "conv_window": 2,
    });
    assert_eq!(bytes(baichuan), of(20, 2, 256, TOKENS) + of(20, 8, 128, 8192));
    let plamo = json!({
        "model_type": "plamo", "hidden_size": 5120, "n_shared_head": 8, "num_attention_heads": 40,
        "num_hidden_layers": 40, "num_key_value_heads": 40,
    });
    assert_eq!(bytes(plamo), of(40, 5, 128, TOKENS));
    assert_eq!(bytes(step(kinds(45, 0, 4))), of(12, 8, 128, TOKENS) + of(33, 8, 128, 512));
    let openelm = json!({
        "model_type": "openelm", "num_transformer_layers": 3, "num_query_heads": [12, 16, 20], "num_kv_heads": [3, 4, 5],
        "head_dim": 64,
    });
    assert_eq!(bytes(openelm), of(1, 3 + 4 + 5, 64, TOKENS));
    let dims = json!({
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64,
        "head_dim": [16, 32],
    });
    assert_eq!(bytes(dims), of(1, 2, 16 + 32, TOKENS));
}

#[test]
fn entries_beyond_the_layers_are_left_out_with_a_note() {
    // The file lists the 3 layers for multi-token prediction, too.
    assert_eq!(bytes(step(kinds(48, 0, 4))), bytes(step(kinds(45, 0, 4))));
    notes_say(&parse(step(kinds(48, 0, 4))).unwrap().notes, &["layer_types has 48 entries", "45 layers", "first 45"]);
}

#[test]
fn layers_may_have_numbers_of_their_own() {
    let gemma = |keys: [&str; 5]| {
        let own = keys.map(|key| (key.to_owned(), json!({"head_dim": 512, "num_key_value_heads": 2})));
        json!({"model_type": "gemma4", "text_config": {
            "model_type": "gemma4_text", "attention_k_eq_v": true, "head_dim": 256, "hidden_size": 2816,
            "num_attention_heads": 16, "num_hidden_layers": 30, "num_key_value_heads": 8, "num_kv_shared_layers": 0,
            "sliding_window": 1024, "layer_types": kinds(30, 5, 6), "per_layer_config": Value::Object(own.into_iter().collect()),
        }})
    };
    let expected = of(25, 8, 256, 1024) + of(5, 2, 512, TOKENS);
    assert_eq!(bytes(gemma(["5", "11", "17", "23", "29"])), expected);
    assert_eq!(bytes(gemma(["05", "11", "17", "23", "29"])), expected);
    let plain = |own: Value| {
        json!({
            "model_type": "step3p5", "hidden_size": 4096, "num_hidden_layers": 45, "num_attention_heads": 64,
            "num_key_value_heads": 8, "head_dim": 128, "per_layer_config": own,
        })
    };
    let all = of(45, 8, 128, TOKENS);
    for nothing in [json!({}), json!({"3": {}}), json!({"3": null}), json!({"3": {"intermediate_size": 7}})] {
        assert_eq!(bytes(plain(nothing)), all);
    }
    let window = json!({"3": {"sliding_window": 100}, "4": {"sliding_window": null}});
    assert_eq!(bytes(plain(window)), all - of(1, 8, 128, TOKENS - 100));
}

#[test]
fn models_without_a_kv_cache_are_refused_by_what_they_lack() {
    let albert =
        json!({"model_type": "albert", "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12});
    let gla = json!({
        "architectures": ["GLAForCausalLM"], "model_type": "gla", "attn": null, "hidden_size": 2048, "num_heads": 4,
        "num_kv_heads": null, "num_hidden_layers": 24,
    });
    for (config, words) in [
        (albert.clone(), ["albert", "no num_key_value_heads", "no KV cache"]),
        (gla, ["attn is null", "no layer has attention", "no KV cache"]),
    ] {
        let error = refusal(config);
        assert_eq!(error.status(), Status::Unsupported);
        says(error.message(), &words);
    }
    let rwkv =
        json!({"architectures": ["RwkvForCausalLM"], "model_type": "rwkv", "hidden_size": 64, "num_hidden_layers": 2});
    says(refusal(rwkv).message(), &["no num_attention_heads", "without attention has no KV cache"]);
    // An old decoder has each of these.
    for (key, value) in [
        ("use_cache", json!(true)),
        ("is_decoder", json!(true)),
        ("architectures", json!(["AlbertForCausalLM"])),
        ("architectures", json!(["AlbertLMHeadModel"])),
    ] {
        let mut decoder = albert.clone();
        decoder[key] = value;
        assert_eq!(bytes(decoder), of(12, 12, 64, TOKENS), "{key}");
    }
}

#[test]
fn keys_of_an_indexer_are_told_where_they_lie_in_an_object() {
    let frequency: Vec<u32> = (0..60).map(|layer| u32::from(layer >= 3)).collect();
    let config = json!({
        "model_type": "minimax_m3", "hidden_size": 6144, "head_dim": 128, "num_attention_heads": 64,
        "num_key_value_heads": 4, "num_hidden_layers": 60,
        "sparse_attention_config": {"sparse_index_dim": 128, "sparse_attention_freq": frequency},
    });
    assert_eq!(bytes(config.clone()), of(60, 4, 128, TOKENS));
    notes_say(&parse(config).unwrap().notes, &["57 layers", "sparse_index_dim 128", "not counted"]);
}

#[test]
fn a_config_is_read_as_python_and_editors_on_windows_write_it() {
    let python = br#"{"model_type": "nemotron_h", "hidden_size": 64, "num_hidden_layers": 18, "num_attention_heads": 8,
        "num_key_value_heads": 8, "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*", "time_step_limit": [0.0, Infinity]}"#;
    let error = ModelConfig::from_config(python).unwrap_err();
    assert_eq!(error.status(), Status::Unsupported);
    says(error.message(), &["hybrid_override_pattern"]);
    let not_a_number = br#"{"num_hidden_layers": NaN, "num_attention_heads": 8, "hidden_size": 64}"#;
    says(ModelConfig::from_config(not_a_number).unwrap_err().message(), &["num_hidden_layers is NaN", "whole number"]);
    let marked = "\u{feff}{\"num_hidden_layers\": 2, \"num_attention_heads\": 8, \"hidden_size\": 64}";
    assert_eq!(ModelConfig::from_config(marked.as_bytes()).unwrap().layers.len(), 2);
}

fn unheard_of(key: &str, value: Value) -> Value {
    let mut config = json!({
        "model_type": "unheard_of", "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
        "hidden_size": 64,
    });
    config[key] = value;
    config
}

proptest! {
    /// A key about heads, layers, windows or kinds of attention that no rule reads.
    #[test]
    fn a_key_that_may_bear_on_the_cache_and_is_not_read_is_named(
        word in prop::sample::select(vec!["heads", "head", "kv", "layers", "layer", "window", "attention", "attn", "pattern"]),
        before in "x[a-z]{0,6}", after in "x[a-z]{0,6}",
        value in prop::sample::select(vec![json!(3), json!([1, 2]), json!("LLG"), json!({"a": 1})]),
    ) {
        let key = format!("{before}_{word}_{after}");
        notes_say(&parse(unheard_of(&key, value)).unwrap().notes, &[&key, "not understood"]);
    }
}

#[test]
fn keys_that_do_not_bear_on_the_cache_are_not_named() {
    for (key, value) in [
        ("attention_dropout", json!(0.1)),
        ("attention_bias", json!(true)),
        ("layer_norm_eps", json!(1e-5)),
        ("moe_layer_freq", json!([0, 1])),
        ("_attn_implementation", json!("flash_attention_2")),
        ("hidden_size_per_layer_input", json!(256)),
        ("encoder_layers", json!(0)),
        ("head_scale", json!(2)),
        ("qk_nope_head_dim", json!(128)),
        ("max_window_layers", json!(28)),
        ("attn_type", json!("multihead_attention")),
    ] {
        assert_eq!(parse(unheard_of(key, value)).unwrap().notes, [""; 0], "{key}");
    }
    let many: Vec<(String, Value)> = (0..100_000).map(|n| (format!("x{n}_layers"), json!(n + 1))).collect();
    let mut config = unheard_of("x", json!(1));
    config.as_object_mut().unwrap().extend(many);
    let notes = parse(config).unwrap().notes;
    notes_say(&notes, &["99992 more are not understood"]);
    assert!(notes.iter().all(|note| note.len() < 1000));
}
