//! The float model that a directory stands for.

use crate::bits;
use crate::directory::{Directory, f32s};
use mnnkv::dtype::Dtype;
use mnnkv::status::Status;
use mnnkv_model::msmodelslim::{Model, Severity, check_folder};
use mnnkv_model::safetensors::FileDtype as Element;
use safetensors::Dtype as D;

fn open(directory: &Directory) -> Model {
    Model::open_folder(&directory.folder()).unwrap()
}

fn names(directory: &Directory) -> Vec<String> {
    open(directory).float_tensors(Dtype::F32).unwrap().into_iter().map(|t| t.name).collect()
}

/// All of a tensor, read row by row.
fn read(model: &Model, name: &str, dtype: Dtype) -> Vec<u8> {
    let tensors = model.float_tensors(dtype).unwrap();
    let tensor = tensors.iter().find(|t| t.name == name).unwrap();
    let mut bytes = vec![0; tensor.bytes() as usize];
    for (row, out) in (0..).zip(bytes.chunks_mut(tensor.row_bytes() as usize)) {
        model.read_float(tensor, row..row + 1, out).unwrap();
    }
    bytes
}

#[test]
fn it_has_weights_and_norms_and_nothing_that_only_a_quantised_model_has() {
    assert_eq!(names(&Directory::healthy()), ["m.a.weight", "m.b.weight", "m.norm.weight"]);
}

#[test]
fn weights_are_those_of_dequantize_and_norms_are_rounded_to_the_type() {
    let model = open(&Directory::healthy());
    let index = model.linear("m.b").unwrap();
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        let mut whole = vec![0; 3 * 4 * dtype.bytes()];
        model.dequantize(index, 0..3, dtype, &mut whole).unwrap();
        assert_eq!(read(&model, "m.b.weight", dtype), whole);
    }
    let ones = [1.0, 2.0, 3.0, 4.0].map(half::bf16::from_f32);
    let expected: Vec<u8> = ones.iter().flat_map(|x| x.to_le_bytes()).collect();
    assert_eq!(read(&model, "m.norm.weight", Dtype::Bf16), expected);
}

/// All three are errors of a check.
#[test]
fn errors_in_numbers_that_it_does_not_need_do_not_stop_it() {
    let mut directory = Directory::healthy();
    directory.set("m.b.weight_offset", f32s(&[300.0, 1.0, -3.0]));
    directory.set("m.a.input_offset", f32s(&[f32::NAN]));
    directory.set("m.3.k_proj.kv_cache_scale", f32s(&[0.0, 2.0]));
    assert_eq!(check_folder(&directory.folder()).unwrap().count(Severity::Error), 3);
    // Codes 1, -2, 3 and 4 of a scale of 0.5.
    let first = [-149.5, -151.0, -148.5, -148.0];
    assert_eq!(read(&open(&directory), "m.b.weight", Dtype::F32)[..16], f32s(&first));
}

#[test]
fn biases_stay_and_other_tensors_are_copied_unchanged() {
    let mut directory = Directory::healthy();
    directory.put("m.b.bias", "FLOAT", D::F32, &[3], f32s(&[0.5, 1e-3, -2.0]));
    directory.put("m.rotary.inv_freq", "FLOAT", D::F32, &[2], f32s(&[1.0, 1e-4]));
    directory.put("m.steps", "FLOAT", D::I64, &[], 7i64.to_le_bytes().to_vec());
    directory.put("m.nothing.weight", "FLOAT", D::F32, &[0, 4], vec![]);
    let model = open(&directory);
    let bias = read(&model, "m.b.bias", Dtype::F16);
    assert_eq!(
        bias,
        [0.5, 1e-3, -2.0].map(half::f16::from_f32).iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>()
    );
    assert_eq!(read(&model, "m.rotary.inv_freq", Dtype::F16), f32s(&[1.0, 1e-4]));
    assert_eq!(read(&model, "m.steps", Dtype::F16), 7i64.to_le_bytes());
    let tensors = model.float_tensors(Dtype::F16).unwrap();
    let nothing = tensors.iter().find(|t| t.name == "m.nothing.weight").unwrap();
    assert_eq!((nothing.bytes(), nothing.dtype, &nothing.shape[..]), (0, Element::F16, &[0, 4][..]));
}

#[test]
fn of_a_smoothed_norm_the_pair_for_quantised_linears_stays() {
    let mut directory = Directory::healthy();
    directory.put("m.norm.bias", "FLOAT", D::F32, &[4], f32s(&[9.0; 4]));
    directory.put("m.norm.module.weight", "W8A8", D::F32, &[4], f32s(&[5.0, 6.0, 7.0, 8.0]));
    // Without a bias of its own, the pair has zeros, so the plain one must not stay.
    assert_eq!(names(&directory), ["m.a.weight", "m.b.weight", "m.norm.weight"]);
    let floats = |bytes: Vec<u8>| bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect::<Vec<_>>();
    assert_eq!(bits(&floats(read(&open(&directory), "m.norm.weight", Dtype::F32))), bits(&[5.0, 6.0, 7.0, 8.0]));
    directory.put("m.norm.module.bias", "W8A8", D::F32, &[4], f32s(&[1.0, 0.0, 0.0, -1.0]));
    let model = open(&directory);
    assert_eq!(bits(&floats(read(&model, "m.norm.bias", Dtype::F32))), bits(&[1.0, 0.0, 0.0, -1.0]));
}

#[test]
fn what_would_be_another_model_is_refused_by_name() {
    let cases: [(&str, &str, D, Status); 4] = [
        ("m.c.weight", "W9A9", D::I8, Status::Unsupported),
        ("m.c.weight", "W4A8_DYNAMIC", D::I8, Status::Unsupported),
        ("m.a.div.mul_scale", "FLOAT", D::I8, Status::Unsupported),
        ("m.c.weight", "FLOAT", D::I8, Status::Corrupt),
    ];
    for (name, tag, dtype, status) in cases {
        let mut directory = Directory::healthy();
        directory.put(name, tag, dtype, &[2, 2], vec![1; 4]);
        let error = open(&directory).float_tensors(Dtype::F16).unwrap_err();
        assert_eq!(error.status(), status, "{name} {tag}: {error}");
        assert!(error.message().contains(name.trim_end_matches(".weight")), "{error}");
    }
    let error = open(&Directory::healthy()).float_tensors(Dtype::Int8).unwrap_err();
    assert_eq!(error.status(), Status::InvalidArgument);
}

#[test]
fn rows_and_room_that_do_not_fit_are_refused() {
    let model = open(&Directory::healthy());
    let tensors = model.float_tensors(Dtype::F32).unwrap();
    for (rows, room) in [(0..4, 64), (0..1, 15), (1..1, 16), (3..4, 16), (0..u64::MAX, 16)] {
        let mut out = vec![0xEE; room];
        let error = model.read_float(&tensors[0], rows.clone(), &mut out).unwrap_err();
        assert_eq!(error.status(), Status::InvalidArgument, "{rows:?}");
        assert!(out.iter().all(|b| *b == 0xEE));
    }
}
