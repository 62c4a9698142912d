//! Files of the vendor's quantiser: parameters, codes, restored values, and attention over them.

use super::{codes_of, f32_bytes, parameters_of, ranges_of, values_of};
use crate::common;
use crate::npy::Array;
use mnnkv::dtype::Dtype;
use mnnkv_model::c8::{CacheShape, Order, Scales, Symmetry, errors, ranges};
use safetensors::SafeTensors;

const HEADS: usize = 2;
const DIMS: usize = 4;
const CHANNELS: usize = HEADS * DIMS;
const QUERY_HEADS: usize = 4;

/// Model, weights, and the element type that its parameters are in.
const MODELS: [(&str, &str, Dtype); 2] = [
    ("w8a8_c8_fp16", "quant_model_weights.safetensors", Dtype::F32),
    ("w8a8_c8_legacy_tags", "quant_model_weight_w8a8.safetensors", Dtype::F16),
];

fn array(model: &str, layer: usize, name: &str) -> Vec<f32> {
    let file = common::read(&format!("c8/{model}/expected/kv.layer{layer}.{name}.npy"));
    Array::read(&file).values.iter().map(|x| *x as f32).collect()
}

fn shape(tokens: usize) -> CacheShape {
    CacheShape::new(Dtype::F32, Order::TokenHeadDim, HEADS, DIMS, tokens).unwrap()
}

/// A parameter as the file has it.
fn stored(weights: &[u8], layer: usize, kv: &str, name: &str) -> Vec<f32> {
    let file = SafeTensors::deserialize(weights).unwrap();
    let tensor = file.tensor(&format!("model.layers.{layer}.self_attn.{kv}_proj.kv_cache_{name}")).unwrap();
    match tensor.dtype() {
        safetensors::Dtype::F16 => {
            tensor.data().as_chunks::<2>().0.iter().map(|b| half::f16::from_le_bytes(*b).to_f32()).collect()
        }
        safetensors::Dtype::F32 => tensor.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        other => panic!("{other:?}"),
    }
}

/// Ranges of all batches, one after the other.
fn calibrated(model: &str, layer: usize, kv: &str) -> (Vec<f32>, Vec<f32>) {
    let batches = array(model, layer, &format!("{kv}.calib"));
    let (mut min, mut max) = (vec![0.0; CHANNELS], vec![0.0; CHANNELS]);
    ranges::clear(&mut min, &mut max);
    for batch in batches.chunks(batches.len() / 3) {
        ranges::update(&shape(batch.len() / CHANNELS), &f32_bytes(batch), &mut min, &mut max).unwrap();
    }
    (min, max)
}

#[test]
fn parameters_codes_and_restored_values_are_those_of_the_vendor() {
    for (model, weights, dtype) in MODELS {
        let weights = common::read(&format!("c8/{model}/{weights}"));
        for (layer, kv) in [(0, "k"), (0, "v"), (1, "k"), (1, "v")] {
            let (scale, offset) = parameters_of(&calibrated(model, layer, kv), Symmetry::Symmetric, dtype);
            assert_eq!(scale, stored(&weights, layer, kv, "scale"), "{model} {layer} {kv}");
            assert_eq!(offset, stored(&weights, layer, kv, "offset"), "{model} {layer} {kv}");
            let values = array(model, layer, &format!("{kv}.fp"));
            let shape = shape(values.len() / CHANNELS);
            let codes = codes_of(&shape, &f32_bytes(&values), &scale, &offset);
            let expected: Vec<i8> = array(model, layer, &format!("{kv}.q")).iter().map(|x| *x as i8).collect();
            assert_eq!(codes, expected, "{model} {layer} {kv}");
            let restored = values_of(&shape, &codes, &scale, &offset);
            assert_eq!(restored, f32_bytes(&array(model, layer, &format!("{kv}.deq"))), "{model} {layer} {kv}");
        }
    }
}

/// Causal attention of grouped queries, `[token][head][dim]`.
fn attention(q: &[f32], k: &[f32], v: &[f32]) -> Vec<f64> {
    let tokens = k.len() / CHANNELS;
    let mut out = Vec::new();
    for (token, head) in (0..tokens).flat_map(|t| (0..QUERY_HEADS).map(move |h| (t, h))) {
        let kv = |u: usize| u * CHANNELS + head / (QUERY_HEADS / HEADS) * DIMS;
        let query = &q[(token * QUERY_HEADS + head) * DIMS..];
        let dot = |u: usize| (0..DIMS).map(|d| f64::from(query[d]) * f64::from(k[kv(u) + d])).sum::<f64>();
        let weights: Vec<f64> = (0..=token).map(|u| (dot(u) / (DIMS as f64).sqrt()).exp()).collect();
        let sum: f64 = weights.iter().sum();
        for d in 0..DIMS {
            out.push((0..=token).map(|u| weights[u] * f64::from(v[kv(u) + d])).sum::<f64>() / sum);
        }
    }
    out
}

/// The error of attention over K and V in int8: values that saturate, the largest difference, and the relative
/// root mean square difference; and the attention itself.
fn attention_loss(model: &str, layer: usize, symmetry: Symmetry, dtype: Dtype) -> (u64, f64, f64, Vec<f64>) {
    let q = array(model, layer, "attn.q_in");
    let mut saturated = 0;
    let [(k, k8), (v, v8)] = ["k", "v"].map(|kv| {
        let (scale, offset) = parameters_of(&calibrated(model, layer, kv), symmetry, dtype);
        let values = array(model, layer, &format!("attn.{kv}_in"));
        let shape = shape(values.len() / CHANNELS);
        let bytes = f32_bytes(&values);
        let figures = errors(&shape, &bytes, &Scales::new(&scale, &offset).unwrap()).unwrap().total;
        saturated += figures.saturated;
        let restored = values_of(&shape, &codes_of(&shape, &bytes, &scale, &offset), &scale, &offset);
        (values, restored.as_chunks::<4>().0.iter().map(|b| f32::from_ne_bytes(*b)).collect::<Vec<f32>>())
    });
    let (exact, lossy) = (attention(&q, &k, &v), attention(&q, &k8, &v8));
    let square = |x: f64| x * x;
    let differences = || exact.iter().zip(&lossy).map(|(x, y)| x - y);
    let relative = (differences().map(square).sum::<f64>() / exact.iter().copied().map(square).sum::<f64>()).sqrt();
    (saturated, differences().fold(0.0, |max: f64, d| max.max(d.abs())), relative, lossy)
}

#[test]
fn attention_over_restored_values_is_that_of_the_vendor_and_loses_as_much() {
    let manifest: serde_json::Value = serde_json::from_slice(&common::read("c8/manifest.json")).unwrap();
    // The last has no files here: its calibration and inputs are those of the first, and its figures are known.
    let cases = [
        ("w8a8_c8_fp16", "w8a8_c8_fp16", Symmetry::Symmetric, Dtype::F32),
        ("w8a8_c8_legacy_tags", "w8a8_c8_legacy_tags", Symmetry::Symmetric, Dtype::F16),
        ("w8a8_c8_bf16_asym", "w8a8_c8_fp16", Symmetry::Asymmetric, Dtype::Bf16),
    ];
    for (name, files, symmetry, dtype) in cases {
        for layer in 0..2 {
            let (saturated, max, relative, lossy) = attention_loss(files, layer, symmetry, dtype);
            let expected = &manifest[name][layer];
            assert_eq!(saturated, expected["attn_saturated_of_160"].as_u64().unwrap(), "{name} {layer}");
            let close = |ours: f64, key: &str| (ours - expected[key].as_f64().unwrap()).abs() < 2e-6;
            assert!(close(max, "attn_max_abs_err"), "{name} {layer}: {max} against {expected}");
            assert!(close(relative, "attn_rel_l2"), "{name} {layer}: {relative} against {expected}");
            if name == files {
                let theirs = array(files, layer, "attn.out_c8");
                assert_eq!(theirs.len(), lossy.len());
                assert!(theirs.iter().zip(&lossy).all(|(x, y)| (f64::from(*x) - y).abs() < 1e-5), "{name} {layer}");
            }
        }
    }
}

fn numbers(value: &serde_json::Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

#[test]
fn parameters_of_ranges_are_those_of_the_vectors_to_the_bit() {
    let vectors: serde_json::Value = serde_json::from_slice(&common::read("c8/vectors/qparams.json")).unwrap();
    let ranges = (numbers(&vectors["min"]), numbers(&vectors["max"]));
    for (symmetry, key) in [(Symmetry::Symmetric, "sym"), (Symmetry::Asymmetric, "asym_v0_(max-min)/255")] {
        let (scale, offset) = parameters_of(&ranges, symmetry, Dtype::F32);
        let bits: Vec<String> = scale.iter().map(|x| format!("{:#010x}", x.to_bits())).collect();
        assert_eq!(serde_json::json!(bits), vectors[key]["scale_bits"], "{key}");
        assert_eq!(offset, numbers(&vectors[key]["offset"]), "{key}");
    }
}

#[test]
fn halves_are_rounded_to_even_before_codes_are_clamped() {
    let vectors: serde_json::Value = serde_json::from_slice(&common::read("c8/vectors/round_clamp.json")).unwrap();
    let values = numbers(&vectors["x"]);
    let shape = CacheShape::new(Dtype::F32, Order::TokenHeadDim, 1, 1, values.len()).unwrap();
    let expected: Vec<i8> = numbers(&vectors["q_clamp_-128_127"]).iter().map(|x| *x as i8).collect();
    assert_eq!(codes_of(&shape, &f32_bytes(&values), &[1.0], &[0.0]), expected);
}

#[test]
fn ranges_do_not_depend_on_the_order_of_elements_or_on_batches() {
    // Order and heads: the same tokens as [head][token][dim] have the same ranges.
    for (model, _, _) in MODELS {
        let batches = array(model, 1, "k.calib");
        let tokens = batches.len() / CHANNELS;
        let turned: Vec<f32> = (0..HEADS * tokens)
            .flat_map(|row| {
                let (head, token) = (row / tokens, row % tokens);
                batches[(token * HEADS + head) * DIMS..][..DIMS].to_vec()
            })
            .collect();
        let other = CacheShape::new(Dtype::F32, Order::HeadTokenDim, HEADS, DIMS, tokens).unwrap();
        assert_eq!(ranges_of(&other, &f32_bytes(&turned)), calibrated(model, 1, "k"));
    }
}
