//! The format's arithmetic against vectors of an independent implementation.

use crate::golden;
use mnnkv::status::Status;
use mnnkv_model::msmodelslim::quantize::{dequantize, params, quantize, quantize_rows, signed};
use mnnkv_model::msmodelslim::{PackedScale, pack};
use proptest::prelude::*;
use serde_json::Value;

fn vectors(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(golden("vectors").join(name)).unwrap()).unwrap()
}

fn floats(list: &Value) -> Vec<f32> {
    list.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

#[test]
fn parameters_of_ranges_have_the_same_bits() {
    let vectors = vectors("qparams.json");
    let (min, max) = (floats(&vectors["min"]), floats(&vectors["max"]));
    for (symmetric, key) in [(true, "sym"), (false, "asym_v0_(max-min)/255")] {
        for i in 0..min.len() {
            let (scale, offset) = params(min[i], max[i], symmetric).unwrap();
            let expected = vectors[key]["scale_bits"][i].as_str().unwrap();
            assert_eq!(format!("{:#010x}", scale.to_bits()), expected, "{key} {i}");
            assert_eq!(offset, vectors[key]["offset"][i].as_f64().unwrap() as f32, "{key} {i}");
        }
    }
    for (min, max) in [(f32::NAN, 1.0), (0.0, f32::INFINITY), (f32::MIN, f32::MAX)] {
        assert_eq!(params(min, max, false).unwrap_err().status(), Status::InvalidArgument);
    }
}

#[test]
fn ties_go_to_even_codes_and_what_is_outside_is_clamped() {
    let vectors = vectors("round_clamp.json");
    let expected = vectors["q_clamp_-128_127"].as_array().unwrap();
    for (x, code) in floats(&vectors["x"]).iter().zip(expected) {
        assert_eq!(i64::from(quantize(*x, 1.0, 0.0)), code.as_i64().unwrap(), "{x}");
    }
}

#[test]
fn unsigned_codes_become_signed_ones_with_the_same_numbers() {
    let vectors = vectors("unsigned_to_signed.json");
    let scale = vectors["scale"].as_f64().unwrap() as f32;
    let offset = vectors["i8_offset"].as_f64().unwrap() as f32;
    let expected = floats(&vectors["deq_from_u8"]);
    for (i, code) in vectors["u8"].as_array().unwrap().iter().enumerate() {
        let code = signed(code.as_u64().unwrap() as u8);
        assert_eq!(i64::from(code), vectors["i8"][i].as_i64().unwrap());
        assert_eq!(dequantize(code, scale, offset), expected[i]);
    }
}

#[test]
fn the_files_offset_is_subtracted() {
    let file = &vectors("npu_sign.json");
    let (offset, scale) =
        (file["file"]["offset"].as_f64().unwrap() as f32, file["file"]["scale"].as_f64().unwrap() as f32);
    let expected = floats(&file["file_formula_(w-offset)*scale"]);
    for (code, expected) in file["file"]["w"].as_array().unwrap().iter().zip(expected) {
        assert!((dequantize(code.as_i64().unwrap() as i8, scale, offset) - expected).abs() < 1e-6);
    }
}

#[test]
fn packed_scales_are_bits_and_both_forms_are_known() {
    let vectors = vectors("deq_scale_pack.json");
    for vector in vectors.as_array().unwrap() {
        let scale = vector["f32"].as_f64().unwrap() as f32;
        let bits = vector["i64"].as_i64().unwrap();
        assert_eq!(pack(scale), bits);
        assert_eq!(PackedScale::unpack(bits), PackedScale::Plain(scale));
        let npu = vector["trans_quant_param_u64"].as_str().unwrap().trim_start_matches("0x");
        let npu = u64::from_str_radix(npu, 16).unwrap() as i64;
        let cut = vector["fp19_truncated_f32"].as_f64().unwrap() as f32;
        assert_eq!(PackedScale::unpack(npu), PackedScale::Npu(cut));
        assert_eq!(PackedScale::unpack(npu | 0x1ff << 37), PackedScale::Npu(cut));
        for strange in [npu | 1, npu | 1 << 50, bits ^ 1 << 33] {
            assert_eq!(PackedScale::unpack(strange), PackedScale::Strange, "{strange:#x}");
        }
    }
}

#[test]
fn the_documented_example_has_the_documented_codes() {
    let weights = [0.10, -0.20, 0.30, 0.05, 1.0, 2.0, -0.5, 0.25];
    let quantized = |symmetric, groups: usize| {
        let (mut codes, mut scales, mut offsets) = (vec![0; 8], vec![0.0; groups], vec![0.0; groups]);
        quantize_rows(&weights, 4, symmetric, &mut codes, &mut scales, &mut offsets).unwrap();
        (codes, scales, offsets)
    };
    let (codes, scales, offsets) = quantized(false, 2);
    assert_eq!(codes, [25, -128, 127, -1, 25, 127, -128, -52]);
    assert_eq!((scales, offsets), (vec![0.0019607844, 0.009803922], vec![-26.0, -77.0]));
    let (codes, scales, offsets) = quantized(true, 2);
    assert_eq!(codes, [42, -85, 127, 21, 64, 127, -32, 16]);
    assert_eq!((scales, offsets), (vec![0.0023622047, 0.015748031], vec![0.0, 0.0]));
    let (codes, scales, offsets) = quantized(false, 4);
    assert_eq!(codes, [127, -128, 127, -86, -1, 127, -128, 127]);
    // The example's scales were made by another version, which divides before it subtracts.
    for (scale, expected) in scales.iter().zip([0.0011764707f32, 0.0011764706, 0.007843138, 0.002941177]) {
        assert!((scale - expected).abs() <= 4.0 * expected * f32::EPSILON);
    }
    assert_eq!(offsets, [42.0, -128.0, -128.0, 42.0]);
}

proptest! {
    /// Half a step and a little rounding: zero and both ends of the range are codes.
    #[test]
    fn weights_come_back_within_half_a_step(
        weights in prop::collection::vec(-1e3f32..1e3, 1..20),
        symmetric in any::<bool>(),
    ) {
        let k = weights.len();
        let (mut codes, mut scale, mut offset) = (vec![0; k], [0.0], [0.0]);
        quantize_rows(&weights, k, symmetric, &mut codes, &mut scale, &mut offset).unwrap();
        for (w, code) in weights.iter().zip(&codes) {
            // The offset is rounded, too, so the ends of an asymmetric range may be cut by half a step.
            let bound = if symmetric { 0.5001 } else { 1.0001 };
            prop_assert!((dequantize(*code, scale[0], offset[0]) - w).abs() <= bound * scale[0]);
            prop_assert!(!symmetric || *code >= -127);
        }
    }
}

#[test]
fn rows_and_groups_must_fit() {
    let mut codes = [0; 8];
    for (k, codes, groups, offsets) in
        [(3, 8, 1, 1), (0, 8, 1, 1), (4, 8, 3, 3), (4, 8, 2, 1), (4, 7, 2, 2), (4, 8, 0, 0)]
    {
        let mut codes = vec![0; codes];
        let (mut scales, mut offsets) = (vec![0.0; groups], vec![0.0; offsets]);
        let error = quantize_rows(&[0.0; 8], k, true, &mut codes, &mut scales, &mut offsets).unwrap_err();
        assert_eq!(error.status(), Status::InvalidArgument);
    }
    let error = quantize_rows(
        &[0.0, 0.0, 0.0, 0.0, 0.0, f32::NAN, 0.0, 0.0],
        4,
        true,
        &mut codes,
        &mut [0.0; 2],
        &mut [0.0; 2],
    );
    assert!(error.unwrap_err().message().contains("row 1, column 1"));
}
