//! MNN's caches: sizes against MNN's formulas, written down here once more, and what its files say.

use super::layers;
use mnnkv::status::{Error, Result, Status};
use mnnkv_model::sizing::{
    AttentionMode, CacheElement, Kv, MnnCache, MnnConfig, MnnCpu, MnnFile, MnnNumbers, Savings, Setup, Sizer, Span,
};
use proptest::prelude::*;
use serde_json::{Value, json};

fn mode(number: u64) -> AttentionMode {
    AttentionMode::new(number, "mode").unwrap()
}

fn cpu(name: &str) -> MnnCpu {
    MnnCpu::named(name).unwrap()
}

fn bytes(number: u64, cpu: MnnCpu, element: CacheElement, heads: u32, dim: u32, tokens: u64) -> u64 {
    let mnn = Some(MnnCache::new(mode(number), cpu, element).unwrap());
    let setup = Setup { mnn, ..Setup::new(element) };
    let sizer = Sizer::new(&layers(1, heads, dim, Span::Full), setup, &Savings::default()).unwrap();
    sizer.bytes(tokens).unwrap().raw
}

/// The numbers of docs/format.md and of MNN's kernels: name, element, lP, hP, lP8, hP8.
const PACKS: [(&str, u64, u64, u64, u64, u64); 10] = [
    ("sse", 4, 1, 4, 16, 4),
    ("avx2", 4, 1, 4, 4, 8),
    ("avx512", 4, 1, 8, 4, 64),
    ("arm-neon", 4, 1, 8, 16, 4),
    ("arm-sdot", 4, 1, 8, 4, 8),
    ("arm-sdot", 2, 1, 16, 4, 8),
    ("arm-i8mm", 4, 1, 8, 8, 8),
    ("arm-i8mm", 2, 1, 16, 8, 8),
    ("arm-sme2", 4, 1, 64, 4, 32),
    ("arm-sme2", 2, 2, 64, 4, 32),
];

/// Bytes of a head by the formulas of docs/format.md, and of a centre in MNN's 4 bytes per dim.
fn by_formula(number: u64, packs: usize, dim: u64, tokens: u64) -> u64 {
    let round = |n: u64, to: u64| n.div_ceil(to) * to;
    let (_, e, l, h, l8, h8) = PACKS[packs];
    let max = tokens + 64;
    let flash = if number >= 8 { 64 } else { max };
    let key = match number {
        1 | 2 | 9 | 10 => round(max, h8) * (round(dim, l8) + 8) + 4 * round(max, h8) + 4 * dim,
        3 | 11 | 12 => max * (dim / 32) * 14,
        5 | 13 | 14 => max * (dim / 32) * 18,
        _ => round(max, h) * round(dim, l) * e,
    };
    let value = match number {
        10 => max.div_ceil(64) * (dim.div_ceil(h8) * 72 * h8 + 4 * round(dim, h8)),
        12 => max * (dim / 32) * 14,
        14 => max * (dim / 32) * 18,
        _ => max.div_ceil(flash) * round(dim, h) * round(flash, l) * e,
    };
    key + value
}

proptest! {
    #[test]
    fn sizes_are_those_of_mnns_formulas(
        number in prop::sample::select(vec![0u64, 1, 2, 3, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15]),
        packs in 0..PACKS.len(), heads in 1u32..9, dim in 1u32..300, tokens in 1u64..5000,
    ) {
        let dim = if matches!(number, 3 | 5 | 11..=14) { dim.next_multiple_of(32) } else { dim };
        let (name, element, ..) = PACKS[packs];
        let element = if element == 2 { CacheElement::F16 } else { CacheElement::F32 };
        prop_assert_eq!(
            bytes(number, cpu(name), element, heads, dim, tokens),
            u64::from(heads) * by_formula(number, packs, dim.into(), tokens)
        );
    }
}

#[test]
fn sizes_by_hand() {
    let avx2 = |number| bytes(number, cpu("avx2"), CacheElement::F32, 2, 128, 960);
    // Room for 1,024 tokens in 2 heads; 136 + 4 bytes of K and 144 + 8 of V per token, a centre of 512 per head.
    assert_eq!(avx2(8), 2 * 1024 * (512 + 512));
    assert_eq!(avx2(9), 2 * (1024 * (140 + 512) + 512));
    assert_eq!(avx2(10), 2 * (1024 * (140 + 152) + 512));
    assert_eq!(avx2(12), 2 * 1024 * (56 + 56));
    assert_eq!(avx2(14), 2 * 1024 * (72 + 72));
    // 961 tokens need room for 1,025: a block of V and a group of K more.
    assert_eq!(bytes(10, cpu("avx2"), CacheElement::F32, 2, 128, 961), 2 * (1032 * 140 + 1088 * 152 + 512));
    assert_eq!(bytes(8, cpu("avx2"), CacheElement::F32, 2, 128, 0), 0);
}

#[test]
fn floats_are_f32_on_x86_and_f16_on_arm_with_low_precision() {
    for x86 in ["sse", "avx2", "avx512"] {
        assert_eq!(cpu(x86).element(true), CacheElement::F32);
        let wrong = MnnCache::new(mode(9), cpu(x86), CacheElement::F16).unwrap_err();
        assert!(wrong.message().contains("f16") && wrong.message().contains(x86), "{}", wrong.message());
    }
    assert_eq!(cpu("arm-i8mm").element(true), CacheElement::F16);
    assert_eq!(cpu("arm-i8mm").element(false), CacheElement::F32);
}

#[test]
fn caches_that_mnn_has_not_are_refused() {
    let refused = |number, kv_layers: &[_], savings, ranks| {
        let mnn = Some(MnnCache::new(mode(number), cpu("avx2"), CacheElement::F32).unwrap());
        let setup = Setup { mnn, ranks, ..Setup::new(CacheElement::F32) };
        Sizer::new(kv_layers, setup, &savings).err().map(|e| (e.status(), e.message().to_owned())).unwrap()
    };
    let plain = Savings::default;
    let mut latent = layers(1, 1, 1, Span::Full);
    if let mnnkv_model::sizing::LayerShape::Attention(attention) = &mut latent[0] {
        attention.kv = Kv::Latent { kv_lora_rank: 512, qk_rope_head_dim: 64 };
    }
    for ((status, message), word) in [
        (refused(14, &layers(1, 2, 80, Span::Full), plain(), 1), "head_dim 80"),
        (refused(10, &latent, plain(), 1), "MLA"),
        (refused(10, &layers(1, 2, 64, Span::Full), plain(), 2), "ranks"),
    ] {
        assert!(status == Status::Unsupported && message.contains(word), "{message}");
    }
    let (status, message) = refused(10, &layers(1, 0, 64, Span::Full), plain(), 1);
    assert!(status == Status::InvalidArgument && message.contains("kv_heads is 0"), "{message}");
}

/// The files of an export by MNN 3.3, with these keys on top; null takes a key away.
fn read(llm: &Value, host: &Value) -> Result<MnnConfig> {
    read_with(llm, host, MnnNumbers::default())
}

fn read_with(llm: &Value, host: &Value, given: MnnNumbers) -> Result<MnnConfig> {
    let mut exported = json!({
        "hidden_size": 1536, "layer_nums": 28, "attention_mask": "float", "key_value_shape": [2, 1, 0, 2, 128],
        "attention_type": "full", "is_visual": false,
    });
    exported.as_object_mut().unwrap().extend(llm.as_object().unwrap().clone());
    let (llm, host) = (exported.to_string(), host.to_string());
    let llm = MnnFile { name: "llm_config.json", json: llm.as_bytes() };
    MnnConfig::read(llm, Some(MnnFile { name: "config.json", json: host.as_bytes() }), given, None)
}

fn refusal(llm: Value, host: Value) -> Error {
    read(&llm, &host).unwrap_err()
}

#[test]
fn exports_of_all_versions_have_layers_and_heads() {
    let kv = |config: MnnConfig| (config.model.layers.len(), config.model.layers[0].attention().unwrap().kv);
    let heads = |kv_heads, head_dim| (28, Kv::Heads { kv_heads, head_dim });
    for (shape, expected) in [
        (json!([2, 1, 0, 2, 128]), heads(2, 128)),
        (json!([2, 0, 1, 2, 128]), heads(2, 128)),
        (json!([2, 1, 32, 0, 128]), heads(32, 128)),
        (json!([2, 1, 0, 1, 256]), heads(1, 256)),
    ] {
        assert_eq!(kv(read(&json!({"key_value_shape": shape}), &json!({})).unwrap()), expected);
    }
    // 3.5 and later, then 3.4.
    let given = MnnNumbers { layers: None, heads: Some((8, 64)) };
    let later = json!({"key_value_shape": null, "model_type": "qwen3"});
    assert_eq!(kv(read_with(&later, &json!({}), given).unwrap()), heads(8, 64));
    let given = MnnNumbers { layers: Some(28), heads: Some((8, 64)) };
    let later = json!({"key_value_shape": null, "layer_nums": null});
    assert_eq!(kv(read_with(&later, &json!({}), given).unwrap()), heads(8, 64));
}

#[test]
fn the_mode_is_the_one_that_mnn_runs() {
    let chat = json!({"attention_mode": 10, "reuse_kv": true});
    let with = |key: &str, value| {
        let mut with = chat.clone();
        with[key] = value;
        with
    };
    let with_mnn_kv = with("kv_h2o_enable", json!(true));
    for (llm, host, expected) in [
        (json!({}), json!({}), 8),
        (json!({}), json!({"quant_qkv": 9}), 9),
        (json!({}), json!({"quant_qkv": 9, "attention_mode": 14}), 14),
        (json!({"attention_mode": 12}), json!({"attention_mode": 14}), 12),
        (json!({}), chat.clone(), 9),
        (json!({}), with_mnn_kv.clone(), 10),
        (json!({}), with("kv_memory_mb", json!(64)), 10),
        (json!({}), with("kv_memory_bytes", json!(0)), 9),
        (json!({}), with("kv_quant", json!("k8v4")), 10),
        (json!({}), with("kv_quant", json!("off")), 9),
        (json!({"attention_type": "mix", "sliding_window": 512}), with("kv_memory_mb", json!(64)), 10),
        // mnn-kv makes no session for these.
        (json!({"attention_type": "mix"}), with("kv_memory_mb", json!(64)), 9),
        (json!({"attention_type": "mix"}), with_mnn_kv.clone(), 9),
        (json!({"attention_mask": "int"}), with_mnn_kv, 9),
    ] {
        let found = read(&llm, &host).unwrap();
        assert_eq!(found.mode.number(), expected, "{llm} {host}");
        let changed = found.model.notes.iter().any(|note| note.contains("reuse_kv"));
        assert_eq!(changed, host.get("reuse_kv").is_some() && expected == 9, "{:?}", found.model.notes);
    }
    assert!(read(&json!({}), &json!({})).unwrap().low_precision);
    assert!(!read(&json!({}), &json!({"precision": "normal"})).unwrap().low_precision);
}

#[test]
fn what_is_not_counted_is_said() {
    for (llm, host, word) in [
        (json!({"attention_type": "mix"}), json!({}), "sliding window"),
        (json!({"has_talker": true}), json!({}), "talker"),
        (json!({}), json!({"backend_type": "opencl"}), "opencl"),
        (json!({}), json!({"speculative_type": "eagle"}), "draft model"),
    ] {
        let notes = read(&llm, &host).unwrap().model.notes;
        assert!(notes.len() == 1 && notes[0].contains(word), "{notes:?}");
    }
}

#[test]
fn a_wrong_file_is_named_with_key_and_value() {
    let none = || json!({});
    for (llm, host, words) in [
        (json!({"layer_nums": "28"}), none(), ["llm_config.json: layer_nums", "\"28\""]),
        (json!({"layer_nums": 0}), none(), ["llm_config.json: layer_nums", "is 0"]),
        (json!({"layer_nums": 4097}), none(), ["llm_config.json: layer_nums", "4097"]),
        (json!({"layer_nums": null}), none(), ["llm_config.json: layer_nums", "missing"]),
        (json!({"key_value_shape": null}), none(), ["llm_config.json: key_value_shape", "--kv-heads"]),
        (json!({"key_value_shape": "2,128"}), none(), ["llm_config.json: key_value_shape", "2,128"]),
        (json!({"key_value_shape": []}), none(), ["llm_config.json: key_value_shape", "no KV cache"]),
        (json!({"key_value_shape": [2, 1, 0, 2]}), none(), ["llm_config.json: key_value_shape", "head_dim"]),
        (json!({"key_value_shape": [1, 1, 0, 2, 128]}), none(), ["llm_config.json: key_value_shape", "head_dim"]),
        (json!({"key_value_shape": [2, 1, 0, -2, 128]}), none(), ["llm_config.json: key_value_shape", "head_dim"]),
        (json!({"key_value_shape": [2, 1, 0, 0, 128]}), none(), ["llm_config.json: key_value_shape", "head_dim"]),
        (json!({"key_value_shape": [2, 3, 0, 2, 128]}), none(), ["llm_config.json: key_value_shape", "head_dim"]),
        (json!({"key_value_shape": [2, 1, 0, 2, 0]}), none(), ["llm_config.json: key_value_shape", "head_dim"]),
        (json!({"attention_type": "linear"}), none(), ["llm_config.json: attention_type", "\"linear\""]),
        (json!({"model_type": "lfm2"}), none(), ["llm_config.json: model_type", "convolutions"]),
        (json!({"model_type": "openelm"}), none(), ["llm_config.json: model_type", "heads, which this version cannot"]),
        (json!({"model_type": "gpt_oss"}), json!({"attention_mode": 9}), ["llm_config.json: model_type", "sinks"]),
        (none(), json!({"attention_mode": "10"}), ["config.json: attention_mode", "\"10\""]),
        (none(), json!({"attention_mode": 10.5}), ["config.json: attention_mode", "10.5"]),
        (none(), json!({"attention_mode": 16}), ["config.json: attention_mode is 16", "14 (K and V TQ4)"]),
        (none(), json!({"quant_qkv": 6}), ["config.json: quant_qkv is 6", "14 expected"]),
        (none(), json!({"precision": "fp16"}), ["config.json: precision", "\"fp16\""]),
        (none(), json!({"precision": 1}), ["config.json: precision", "is 1"]),
        (none(), json!({"attention_mode": 10, "reuse_kv": "yes"}), ["config.json: reuse_kv", "\"yes\""]),
        (none(), json!([1]), ["config.json: ", "a JSON object expected"]),
    ] {
        let message = refusal(llm, host).message().to_owned();
        assert!(words.iter().all(|word| message.contains(word)), "{words:?}: {message}");
    }
    for given in [MnnNumbers { layers: Some(27), heads: None }, MnnNumbers { layers: None, heads: Some((4, 128)) }] {
        let e = read_with(&json!({}), &json!({}), given).unwrap_err();
        assert!(e.status() == Status::InvalidArgument && e.message().contains("same number"), "{}", e.message());
    }
}
