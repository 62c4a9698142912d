//! Codes of caches: what the vendor's own files say, the formula in f64, and bad input.

#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../../tests/common/npy.rs"]
mod npy;

use half::{bf16, f16};
use mnnkv::dtype::Dtype;
use mnnkv::status::{Result, Status};
use mnnkv_model::c8::{CacheShape, LEAST_SCALE, Order, dequantize};
use npy::Array;
use proptest::prelude::*;
use safetensors::SafeTensors;

fn array(model: &str, layer: usize, name: &str) -> Vec<f64> {
    Array::read(&common::read(&format!("c8/{model}/expected/kv.layer{layer}.{name}.npy"))).values
}

/// Scales or offsets as a file has them.
fn stored(weights: &[u8], layer: usize, kv: &str, name: &str) -> Vec<f32> {
    let file = SafeTensors::deserialize(weights).unwrap();
    let tensor = file.tensor(&format!("model.layers.{layer}.self_attn.{kv}_proj.kv_cache_{name}")).unwrap();
    match tensor.dtype() {
        safetensors::Dtype::F16 => {
            tensor.data().as_chunks::<2>().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect()
        }
        safetensors::Dtype::F32 => tensor.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn restored_values_are_those_of_the_vendor() {
    for (model, weights) in [
        ("w8a8_c8_fp16", "quant_model_weights.safetensors"),
        ("w8a8_c8_legacy_tags", "quant_model_weight_w8a8.safetensors"),
    ] {
        let weights = common::read(&format!("c8/{model}/{weights}"));
        for (layer, kv) in [(0, "k"), (0, "v"), (1, "k"), (1, "v")] {
            let [scale, offset] = ["scale", "offset"].map(|name| stored(&weights, layer, kv, name));
            let codes: Vec<i8> = array(model, layer, &format!("{kv}.q")).iter().map(|x| *x as i8).collect();
            let shape = CacheShape::new(Dtype::F32, Order::TokenHeadDim, 2, 4, codes.len() / 8).unwrap();
            let mut values = vec![0xEE; shape.bytes()];
            dequantize(&shape, &codes, &scale, &offset, &mut values).unwrap();
            let expected = array(model, layer, &format!("{kv}.deq"));
            let expected: Vec<u8> = expected.iter().flat_map(|x| (*x as f32).to_ne_bytes()).collect();
            assert_eq!(values, expected, "{model} {layer} {kv}");
        }
    }
}

/// A number of the formula as a cache of that type has it. The difference is exact, and so the product is rounded to
/// f32 once, and then to the type.
fn expected(dtype: Dtype, code: i8, scale: f32, offset: f32) -> Vec<u8> {
    let value = ((f64::from(code) - f64::from(offset)) * f64::from(scale)) as f32;
    match dtype {
        Dtype::F16 => f16::from_f32(value).to_ne_bytes().to_vec(),
        Dtype::Bf16 => bf16::from_f32(value).to_ne_bytes().to_vec(),
        _ => value.to_ne_bytes().to_vec(),
    }
}

proptest! {
    #[test]
    fn values_of_both_orders_and_every_type_are_those_of_the_formula(
        dtype in prop::sample::select(vec![Dtype::F16, Dtype::Bf16, Dtype::F32]),
        by_head: bool,
        (heads, dims, tokens) in (1usize..4, 1usize..70, 0usize..6),
        seed: u64,
    ) {
        let mut state = seed | 1;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            state >> 33
        };
        let order = if by_head { Order::HeadTokenDim } else { Order::TokenHeadDim };
        let shape = CacheShape::new(dtype, order, heads, dims, tokens).unwrap();
        let codes: Vec<i8> = (0..shape.elements()).map(|_| next() as i8).collect();
        let scale: Vec<f32> = (0..shape.channels())
            .map(|_| match next() % 8 {
                0 => LEAST_SCALE,
                1 => f32::MAX,
                _ => (next() % 4096 + 1) as f32 / 997.0,
            })
            .collect();
        let offset: Vec<f32> = (0..shape.channels()).map(|_| f32::from(next() as i8)).collect();
        // Neither codes nor values are aligned, and nothing beside the values is written.
        let skew = (seed % 4) as usize;
        let mut values = vec![0xEE; skew + shape.bytes() + 1];
        dequantize(&shape, &codes, &scale, &offset, &mut values[skew..skew + shape.bytes()]).unwrap();
        let mut wanted = vec![0xEE; skew];
        for (at, code) in codes.iter().enumerate() {
            let channel = match order {
                Order::TokenHeadDim => at % (heads * dims),
                Order::HeadTokenDim => at / (tokens * dims) * dims + at % dims,
            };
            wanted.extend(expected(dtype, *code, scale[channel], offset[channel]));
        }
        wanted.push(0xEE);
        prop_assert_eq!(values, wanted);
    }
}

/// INVALID_ARGUMENT with this in its text.
fn refused<T: std::fmt::Debug>(result: Result<T>, words: &str) {
    let error = result.unwrap_err();
    assert_eq!(error.status(), Status::InvalidArgument, "{error}");
    assert!(error.message().contains(words), "{words:?} is not in: {error}");
}

#[test]
fn what_does_not_fit_is_refused_by_name_and_nothing_is_written() {
    let shape = CacheShape::new(Dtype::F16, Order::TokenHeadDim, 1, 3, 2).unwrap();
    let run = |codes: usize, scale: &[f32], offset: &[f32], bytes: usize| {
        let mut values = vec![0xEE; bytes];
        let result = dequantize(&shape, &vec![1; codes], scale, offset, &mut values);
        assert!(values.iter().all(|byte| *byte == 0xEE));
        result
    };
    refused(run(5, &[1.0; 3], &[0.0; 3], 12), "5 codes given; 6 expected");
    refused(run(6, &[1.0; 3], &[0.0; 3], 11), "11 bytes of values given; 12 expected");
    refused(run(6, &[1.0; 1], &[0.0; 3], 12), "1 scales given; 3 expected");
    refused(run(6, &[1.0; 3], &[0.0; 4], 12), "4 offsets given; 3 expected");
    for scale in [0.0, -1.0, f32::NAN, f32::INFINITY, LEAST_SCALE / 2.0] {
        refused(run(6, &[1.0, 1.0, scale], &[0.0; 3], 12), "the scale of channel 2");
    }
    for offset in [0.5, 128.0, -129.0, f32::NAN] {
        refused(run(6, &[1.0; 3], &[0.0, offset, 0.0], 12), "the offset of channel 1");
    }
    let new = |dtype, heads, dims, tokens| CacheShape::new(dtype, Order::TokenHeadDim, heads, dims, tokens);
    refused(new(Dtype::Int8, 1, 1, 1), "INT8");
    refused(new(Dtype::F16, 0, 1, 1), "kv_heads is 0");
    refused(new(Dtype::F16, 1, 0, 1), "head_dim is 0");
    refused(new(Dtype::F16, usize::MAX, 2, 1), "overflow");
    refused(new(Dtype::F32, 1 << 30, 1 << 30, 1 << 3), "overflow");
}
