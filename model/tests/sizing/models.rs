//! Public models, with the arithmetic by hand.

use super::{model, notes_say, plain};
use mnnkv_model::sizing::{CacheElement, Kv, LayerShape, ModelConfig, Savings, Setup, Sizer, Span};

fn on_ranks(model: &ModelConfig, ranks: u32) -> u64 {
    let setup = Setup { ranks, ..Setup::new(CacheElement::F16) };
    Sizer::new(&model.layers, setup, &Savings::default()).unwrap().bytes_per_token().unwrap()
}

fn spans(model: &ModelConfig) -> Vec<Span> {
    model.layers.iter().map(|layer| layer.attention().unwrap().span).collect()
}

#[test]
fn bytes_per_token_of_models_that_keep_every_token() {
    // Two bytes per element in all of them.
    let cases: [(&str, u64, u64); 13] = [
        ("llama-2-7b", 2 * 32 * 32 * 128 * 2, 4096),
        ("llama-3-8b", 2 * 32 * 8 * 128 * 2, 8192),
        ("qwen2.5-1.5b-instruct", 2 * 28 * 2 * (1536 / 12) * 2, 32768),
        ("qwen2.5-7b-instruct", 2 * 28 * 4 * (3584 / 28) * 2, 32768),
        ("qwen3-8b", 2 * 36 * 8 * 128 * 2, 40960),
        ("deepseek-v2-lite", 27 * (512 + 64) * 2, 163840),
        ("deepseek-v2", 60 * (512 + 64) * 2, 163840),
        ("deepseek-v3", 61 * (512 + 64) * 2, 163840),
        ("minicpm-v-2.6", 2 * 28 * 4 * 128 * 2, 32768),
        ("llava-1.5-7b", 2 * 32 * 32 * 128 * 2, 4096),
        ("gpt2", 2 * 12 * 12 * 64 * 2, 1024),
        ("falcon-40b", 2 * 60 * 8 * 64 * 2, 0),
        ("chatglm3-6b", 2 * 28 * 2 * 128 * 2, 8192),
    ];
    for (name, per_token, max_context) in cases {
        let model = model(name);
        let sizer = plain(&model.layers);
        assert_eq!(sizer.bytes_per_token().unwrap(), per_token, "{name}");
        assert_eq!(sizer.bytes_per_late_token().unwrap(), per_token, "{name}");
        for tokens in [0, 1, 1000, 131_072] {
            assert_eq!(sizer.bytes(tokens).unwrap().raw, tokens * per_token, "{name} at {tokens}");
        }
        assert_eq!(model.max_context.unwrap_or(0), max_context, "{name}");
    }
}

#[test]
fn falcon_7b_has_one_kv_head_for_any_num_kv_heads() {
    assert_eq!(plain(&model("falcon-7b").layers).bytes_per_token().unwrap(), 2 * 32 * (4544 / 71) * 2);
}

#[test]
fn a_window_in_every_layer_bounds_the_whole_cache() {
    // Mistral: 8 KV heads of 128; Phi-3: 32 heads of 96.
    for (name, token, window) in
        [("mistral-7b-v0.1", 2 * 32 * 8 * 128 * 2, 4096), ("phi-3-mini-4k", 2 * 32 * 32 * 96 * 2, 2047)]
    {
        let model = model(name);
        let sizer = plain(&model.layers);
        assert_eq!(sizer.bytes(window - 1).unwrap().raw, (window - 1) * token, "{name}");
        assert_eq!(sizer.bytes(window).unwrap().raw, window * token, "{name}");
        assert_eq!(sizer.bytes(100_000).unwrap().raw, window * token, "{name}");
        assert_eq!(sizer.bytes_per_token().unwrap(), token, "{name}");
        assert_eq!(sizer.bytes_per_late_token().unwrap(), 0, "{name}");
        notes_say(&model.notes, &["sliding window", "every layer"]);
    }
}

#[test]
fn gemma_2_slides_in_every_other_layer_beginning_with_the_first() {
    let model = model("gemma-2-9b");
    assert_eq!(spans(&model)[..4], [Span::Sliding(4096), Span::Full, Span::Sliding(4096), Span::Full]);
    // A layer's token has 8 KV heads of 256, which is not 3584 / 16.
    let token = 2 * 8 * 256 * 2;
    let sizer = plain(&model.layers);
    assert_eq!(sizer.bytes(8192).unwrap().raw, 21 * 8192 * token + 21 * 4096 * token);
    assert_eq!(sizer.bytes_per_late_token().unwrap(), 21 * token);
    notes_say(&model.notes, &["sliding_window_pattern", "one layer in 2", "gemma2"]);
    assert_eq!(model.element, Some(CacheElement::F32));
}

#[test]
fn gemma_3_sees_everything_in_every_sixth_layer() {
    // 4B has 4 KV heads of 256 by default of its type, 27B 16 of 128.
    for (name, layers, full, token) in
        [("gemma-3-4b-it", 34, 5, 2 * 4 * 256 * 2), ("gemma-3-27b-it", 62, 10, 2 * 16 * 128 * 2)]
    {
        let model = model(name);
        assert_eq!(spans(&model)[4..7], [Span::Sliding(1024), Span::Full, Span::Sliding(1024)], "{name}");
        let sizer = plain(&model.layers);
        assert_eq!(sizer.bytes(1000).unwrap().raw, layers * 1000 * token, "{name}");
        assert_eq!(sizer.bytes(131_072).unwrap().raw, (full * 131_072 + (layers - full) * 1024) * token, "{name}");
        assert_eq!(model.model_type.as_deref(), Some("gemma3_text"), "{name}");
        assert_eq!(model.element, Some(CacheElement::Bf16), "{name}");
    }
    let thin = model("gemma-3-4b-it");
    notes_say(&thin.notes, &["text_config.num_attention_heads", "8 is assumed", "gemma3_text"]);
    notes_say(&thin.notes, &["text_config.num_key_value_heads", "4 is assumed"]);
    notes_say(&thin.notes, &["text_config.head_dim", "256 is assumed"]);
}

#[test]
fn the_last_layers_of_gemma_3n_have_no_cache_of_their_own() {
    let model = model("gemma-3n-e4b");
    assert_eq!(model.layers.len(), 35);
    assert!(model.layers[20..].iter().all(|layer| *layer == LayerShape::Shared));
    // Every fifth of the first 20 layers has full attention.
    let token = 2 * 2 * 256 * 2;
    assert_eq!(plain(&model.layers).bytes(10_000).unwrap().raw, (4 * 10_000 + 16 * 512) * token);
    notes_say(&model.notes, &["last 15 layers", "none of their own"]);
}

#[test]
fn llama_4_keeps_a_chunk_in_three_of_four_layers() {
    let model = model("llama-4-scout");
    assert_eq!(spans(&model)[2..5], [Span::Chunked(8192), Span::Full, Span::Chunked(8192)]);
    let token = 2 * 8 * 128 * 2;
    let sizer = plain(&model.layers);
    assert_eq!(sizer.bytes(8192).unwrap().raw, 48 * 8192 * token);
    assert_eq!(sizer.bytes(8193).unwrap().raw, 48 * 8192 * token + 12 * token);
    notes_say(&model.notes, &["chunked attention", "one chunk"]);
    notes_say(&model.notes, &["no_rope_layers", "one layer in 4"]);
}

#[test]
fn linear_layers_have_no_cache_and_their_state_is_told() {
    let model = model("qwen3-next-80b");
    let token = 2 * 2 * 256 * 2;
    assert_eq!(plain(&model.layers).bytes(1000).unwrap().raw, 12 * 1000 * token);
    let attending: Vec<usize> = (0..48).filter(|number| model.layers[*number].attention().is_some()).collect();
    assert_eq!(attending, [3, 7, 11, 15, 19, 23, 27, 31, 35, 39, 43, 47]);
    // A matrix of 128 x 128 for each of 32 value heads; the convolution looks back at 3 steps of q, k and v.
    let state = 32 * 128 * 128 + (16 * 128 + 16 * 128 + 32 * 128) * 3;
    assert_eq!(model.layers[0], LayerShape::Recurrent { state_elements: Some(state) });
    notes_say(&model.notes, &["36 recurrent layers", &state.to_string(), "in no sum"]);
}

#[test]
fn jamba_attends_in_one_layer_of_eight() {
    let model = model("jamba-v0.1");
    let attending: Vec<usize> = (0..32).filter(|number| model.layers[*number].attention().is_some()).collect();
    assert_eq!(attending, [4, 12, 20, 28]);
    assert_eq!(plain(&model.layers).bytes_per_token().unwrap(), 2 * 4 * 8 * 128 * 2);
    notes_say(&model.notes, &["28 recurrent layers", "not counted"]);
}

#[test]
fn missing_keys_of_a_nested_config_take_noted_defaults() {
    let model = model("llava-1.5-7b");
    assert_eq!(model.model_type.as_deref(), Some("llama"));
    notes_say(&model.notes, &["text_config.num_hidden_layers", "32 is assumed", "llama"]);
    notes_say(&model.notes, &["text_config.num_attention_heads", "32 is assumed"]);
    notes_say(&model.notes, &["text_config.hidden_size", "4096 is assumed"]);
    notes_say(&model.notes, &["num_key_value_heads", "MHA"]);
}

#[test]
fn a_window_that_is_switched_off_is_ignored_and_said_so() {
    for (name, window) in [("qwen2.5-1.5b-instruct", "32768"), ("minicpm-v-2.6", "131072")] {
        let model = model(name);
        assert!(spans(&model).iter().all(|span| *span == Span::Full), "{name}");
        notes_say(&model.notes, &["sliding_window", window, "ignored", "use_sliding_window is false"]);
    }
}

#[test]
fn complete_configs_need_no_assumptions() {
    for name in ["llama-2-7b", "llama-3-8b", "qwen3-8b"] {
        assert_eq!(model(name).notes, [""; 0], "{name}");
    }
}

#[test]
fn what_deepseek_leaves_out_is_told() {
    let model = model("deepseek-v3");
    assert_eq!(model.layers[0].attention().unwrap().kv, Kv::Latent { kv_lora_rank: 512, qk_rope_head_dim: 64 });
    notes_say(&model.notes, &["MLA"]);
    notes_say(&model.notes, &["num_nextn_predict_layers is 1", "not counted"]);
}

#[test]
fn heads_are_dealt_out_to_ranks_and_latents_are_not() {
    let llama = model("llama-3-8b");
    for (ranks, heads) in [(1, 8), (2, 4), (4, 2), (8, 1), (16, 1), (64, 1)] {
        assert_eq!(on_ranks(&llama, ranks), 2 * 32 * heads * 128 * 2, "{ranks} ranks");
    }
    // 2 KV heads on 3 ranks: each has a copy of one.
    assert_eq!(on_ranks(&model("qwen2.5-1.5b-instruct"), 3), 2 * 28 * 128 * 2);
    for ranks in [1, 2, 3, 16] {
        assert_eq!(on_ranks(&model("deepseek-v3"), ranks), 70_272, "{ranks} ranks");
    }
}
