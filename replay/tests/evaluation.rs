//! The evaluation of layers whose answers are known otherwise: by arithmetic, or by a session over the same words.

use mnnkv::dtype::Dtype;
use mnnkv::layout::{self, Cache, Int8Unit, Layout, Spec};
use mnnkv::session::Session;
use mnnkv_replay::codec::{self, Zones};
use mnnkv_replay::dumps::{Layer, LayerInfo};
use mnnkv_replay::results::{LayerResult, LosslessResult, Results};
use mnnkv_replay::watch::Watch;
use mnnkv_replay::whole_cache::{Rules, whole_cache};
use std::sync::atomic::AtomicBool;

const HEADS: usize = 2;
const DIMS: usize = 16;

fn unwatched<T>(work: impl FnOnce(Watch<'_>) -> T) -> T {
    work(Watch { stop: &AtomicBool::new(false), done: &|_| () })
}

/// Numbers between -1 and 1.
fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed | 1;
    let next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(count).collect()
}

fn words(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| half::f16::from_f32(*value).to_le_bytes()).collect()
}

/// A layer of f16 noise.
fn layer(tokens: usize, seed: u64) -> Layer {
    let size = HEADS * tokens * DIMS;
    let info =
        LayerInfo { run: "run".into(), layer: 3, begin: 0, tokens, kv_heads: HEADS, head_dim: DIMS, dtype: Dtype::F16 };
    let (key, value) = (words(&noise(seed, size)), words(&noise(seed + 1, size)));
    Layer { info, key, value }
}

#[test]
fn blocks_have_the_bytes_that_a_session_stores() {
    let tokens = 700;
    let layer = layer(tokens, 7);
    let zones = Zones { block_tokens: 64, hot_sink_tokens: 16, hot_recent_tokens: 100 };
    let results = unwatched(|watch| codec::evaluate(&layer, &zones, watch)).unwrap();
    let names: Vec<_> = results.iter().map(|r| (r.tensor.as_str(), r.cut.as_str())).collect();
    assert_eq!(names, [("k", "whole"), ("k", "blocks"), ("v", "whole"), ("v", "blocks")]);
    let done: u64 = results.iter().map(|r| r.raw_bytes).sum();
    assert_eq!(done, codec::work(&layer.info), "the announced work is the work that is done");
    let blocks = results.iter().filter(|r| r.cut == "blocks");
    let encoded: u64 = blocks.map(|r| r.kept_bytes - r.hot_bytes).sum();
    let spec = Spec {
        key: Dtype::F16.into(),
        value: Dtype::F16.into(),
        kv_heads: HEADS as u32,
        head_dim: DIMS as u32,
        l_pack: 1,
        h_pack: 8,
        int8: Int8Unit::default(),
        // All tokens share the pages of V, so that blocks are not aligned to pages.
        flash_block: tokens as u32,
        max_tokens: tokens as u32,
        key_head_stride: 0,
        value_head_stride: 0,
        key_token_stride: 0,
        value_token_stride: 0,
    };
    let layout = Layout::new(&spec).unwrap();
    let (mut key, mut value) = (vec![0; layout.key_bytes()], vec![0; layout.value_bytes()]);
    let config = serde_json::json!({
        "kv_lossless_enable": true, "kv_lossless_runtime_enable": true, "kv_lossless_runtime_mode": "store",
        "kv_lossless_front_n": 1, "kv_lossless_async_threads": 0, "kv_lossless_store_bootstrap_tokens": 0,
        "kv_lossless_store_grouped_step_tokens": tokens,
        "kv_lossless_block_tokens": 64, "kv_lossless_hot_recent_tokens": 100,
    });
    let session = Session::new(config.to_string().as_bytes(), b"", 1, 1).unwrap();
    let cache = Cache::new(&layout, &mut key, &mut value).unwrap();
    assert_eq!(session.begin(0, Some(cache), 0).unwrap().kv_len, 0);
    let all = layout.range(0, tokens as u32).unwrap();
    let mut cache = Cache::new(&layout, &mut key, &mut value).unwrap();
    layout::scatter(&mut cache, all, &layer.key, &layer.value).unwrap();
    session.end(0, 0, tokens as u32, cache, tokens as u32).unwrap();
    let metrics = session.metrics(Some(0)).unwrap();
    assert_eq!(metrics.h2o_lossless_compressed_bytes, encoded as f64);
    let cold = (zones.cold_tokens(tokens) * HEADS * DIMS * 2 * 2) as f64;
    assert_eq!(metrics.h2o_lossless_raw_bytes, cold);
}

fn lossless(layer: u32, tensor: &str, raw: u64, kept: u64) -> LosslessResult {
    LosslessResult {
        run: "r".into(),
        layer,
        tensor: tensor.into(),
        cut: "whole".into(),
        raw_bytes: raw,
        kept_bytes: kept,
        hot_bytes: 0,
        ratio: 0.0,
        encode_bytes_per_second: None,
        decode_bytes_per_second: None,
    }
}

/// The reference's figures for a model of 6 layers, 2 of them in front: 1.3854 lossless there, 3.114 lossy behind.
#[test]
fn the_whole_cache_has_the_harmonic_mean_of_its_layers_not_their_product() {
    let tokens = 31140;
    let raw = tokens as u64 * 100;
    let kept = |ratio: f64| (raw as f64 / ratio).round() as u64;
    let mut results: Results = serde_json::from_value(serde_json::json!({
        "format": "mnnkv-evaluate", "version": 2, "program": "", "dumps": "", "complete": true, "settings": {},
        "layers": [], "findings": [], "lossless": [], "whole_cache": [],
    }))
    .unwrap();
    for number in 0..6 {
        let (front, deep) = (1.3854, 1.181);
        results.layers.push(LayerResult {
            run: "r".into(),
            layer: number,
            tokens,
            kv_heads: 1,
            head_dim: 25,
            dtype: "F16".into(),
            raw_bytes: 2 * raw,
        });
        let ratio = if number < 2 { front } else { deep };
        results.lossless.extend(["k", "v"].map(|tensor| lossless(number, tensor, raw, kept(ratio))));
    }
    let zones = Zones { block_tokens: 64, hot_sink_tokens: 0, hot_recent_tokens: 0 };
    let rules =
        Rules { first_evicted_layer: 2, end_evicted_layer: u32::MAX, sink_tokens: 32, recent_tokens: 256, zones };
    let [found] = &whole_cache(&results, &[3.114], &[1], &rules).unwrap()[..] else { panic!("one cut, one ratio") };
    let near = |value: f64, expected: f64| assert!((value - expected).abs() < 0.005, "{value} {expected}");
    near(found.joint, 2.37);
    near(found.reference_product, 4.314);
    near(found.lossless_only, 1.0 / (1.0 / 3.0 / 1.3854 + 2.0 / 3.0 / 1.181));
    near(found.lossy_only, 1.0 / (1.0 / 3.0 + 2.0 / 3.0 / 3.114));
    assert_eq!(found.front_layers, 2);
}
