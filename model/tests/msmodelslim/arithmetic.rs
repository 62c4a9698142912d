//! The format's arithmetic against vectors of an independent implementation.

use crate::golden;
use mnnkv_model::msmodelslim::quantize::{dequantize, quantize};
use mnnkv_model::msmodelslim::{PackedScale, pack};
use serde_json::Value;

fn vectors(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(golden("vectors").join(name)).unwrap()).unwrap()
}

fn floats(list: &Value) -> Vec<f32> {
    list.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
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
