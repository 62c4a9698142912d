//! Reading layers in pieces.

use crate::directory::{Directory, f32s};
use crate::{bits, golden, numbers};
use mnnkv::dtype::Dtype;
use mnnkv::status::{Result, Status};
use mnnkv_model::file::Source;
use mnnkv_model::msmodelslim::{DiskFolder, Folder, Granularity, Model, NormUse, OpenFile, check_folder};
use proptest::prelude::*;
use safetensors::Dtype as D;
use std::io::{Seek, SeekFrom, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

proptest! {
    /// Any shape, granularity and rows, against the formula in f64.
    #[test]
    fn rows_are_code_less_offset_times_scale(
        (n, groups, size) in (1usize..6, 1usize..4, 1usize..5),
        granularity in 0u8..4,
        seed in any::<u64>(),
        (a, b) in (0usize..7, 0usize..7),
    ) {
        let k = groups * size;
        let mut state = seed | 1;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            state >> 33
        };
        let codes: Vec<i8> = (0..n * k).map(|_| next() as i8).collect();
        let (shape, count) = match granularity {
            0 => (vec![n], n),
            1 => (vec![n, 1], n),
            2 => (vec![1], 1),
            _ => (vec![n, groups], n * groups),
        };
        let scales: Vec<f32> = (0..count).map(|_| (next() % 1000 + 1) as f32 / 4096.0).collect();
        let offsets: Vec<f32> = (0..count).map(|_| (next() % 256) as f32 - 128.0).collect();
        let mut directory = Directory::healthy();
        directory.description.remove("group_size");
        directory.put("m.b.weight", "W8A16", D::I8, &[n, k], codes.iter().map(|c| *c as u8).collect());
        directory.put("m.b.weight_scale", "W8A16", D::F32, &shape, f32s(&scales));
        directory.put("m.b.weight_offset", "W8A16", D::F32, &shape, f32s(&offsets));
        let model = Model::open_folder(&directory.folder()).unwrap();
        let index = model.linear("m.b").unwrap();
        let all = numbers(&model, "m.b");
        for (i, x) in all.iter().enumerate() {
            let (row, column) = (i / k, i % k);
            let at = match granularity { 0 | 1 => row, 2 => 0, _ => row * groups + column / size };
            let expected = (f64::from(codes[i]) - f64::from(offsets[at])) * f64::from(scales[at]);
            prop_assert!((f64::from(*x) - expected).abs() <= expected.abs() * 2f64.powi(-24));
        }
        let (begin, end) = (a.min(b).min(n), a.max(b).min(n));
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            let mut out = vec![0xEE; (end - begin) * k * dtype.bytes()];
            model.dequantize(index, begin..end, dtype, &mut out).unwrap();
            let found: Vec<f32> = out.chunks_exact(dtype.bytes()).map(|b| match dtype {
                Dtype::F16 => half::f16::from_le_bytes([b[0], b[1]]).to_f32(),
                Dtype::Bf16 => half::bf16::from_le_bytes([b[0], b[1]]).to_f32(),
                _ => f32::from_le_bytes(b.try_into().unwrap()),
            }).collect();
            let expected: Vec<f32> = all[begin * k..end * k].iter().map(|x| match dtype {
                Dtype::F16 => half::f16::from_f32(*x).to_f32(),
                Dtype::Bf16 => half::bf16::from_f32(*x).to_f32(),
                _ => *x,
            }).collect();
            prop_assert_eq!(bits(&found), bits(&expected));
        }
        // A group of one is a channel where the row has one group.
        let found = index.granularity;
        match granularity {
            3 if groups > 1 => prop_assert_eq!(found, Granularity::Group(size)),
            2 if n > 1 => prop_assert_eq!(found, Granularity::Tensor),
            _ => prop_assert!(matches!(found, Granularity::Channel)),
        }
    }
}

#[test]
fn numbers_are_rounded_to_the_nearest_even() {
    // 2049 is between two f16, 257 between two bf16.
    let mut directory = Directory::healthy();
    directory.set("m.b.weight", [1u8; 12].to_vec());
    directory.set("m.b.weight_offset", f32s(&[0.0, 0.0, 0.0]));
    directory.set("m.b.weight_scale", f32s(&[2049.0, 2051.0, 257.0]));
    let model = Model::open_folder(&directory.folder()).unwrap();
    let index = model.linear("m.b").unwrap();
    let mut out = vec![0; 24];
    model.dequantize(index, 0..3, Dtype::F16, &mut out).unwrap();
    let f16 = |at: usize| half::f16::from_le_bytes([out[at], out[at + 1]]).to_f32();
    assert_eq!([f16(0), f16(8)], [2048.0, 2052.0]);
    model.dequantize(index, 2..3, Dtype::Bf16, &mut out[..8]).unwrap();
    assert_eq!(half::bf16::from_le_bytes([out[0], out[1]]).to_f32(), 256.0);
}

#[test]
fn float_weights_pass_through_and_are_converted() {
    let mut directory = Directory::healthy();
    let weights = [1.5f32, -0.0, 65504.0, 3.0e-7, 7.0, 8.0];
    directory.put(
        "m.e.weight",
        "FLOAT",
        D::BF16,
        &[2, 3],
        weights.iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect(),
    );
    let model = Model::open_folder(&directory.folder()).unwrap();
    let expected: Vec<f32> = weights.iter().map(|x| half::bf16::from_f32(*x).to_f32()).collect();
    assert_eq!(bits(&numbers(&model, "m.e")), bits(&expected));
}

#[test]
fn w8a8_weights_prefer_their_own_scale() {
    let mut directory = Directory::healthy();
    let scales = [0.5f32, 1.0, 0.26];
    let model = Model::open_folder(&directory.folder()).unwrap();
    assert_eq!(numbers(&model, "m.a")[8], 127.0 * (0.125 / 0.5));
    directory.put("m.a.weight_scale", "W8A8", D::F32, &[3, 1], f32s(&scales));
    // Older files have an offset with it, which is not part of the formula.
    directory.put("m.a.weight_offset", "W8A8", D::F32, &[3, 1], f32s(&[0.0; 3]));
    let model = Model::open_folder(&directory.folder()).unwrap();
    assert_eq!(numbers(&model, "m.a")[8], 127.0 * 0.26);
}

#[test]
fn a_linear_that_cannot_be_used_says_why_and_writes_nothing() {
    type Change = fn(&mut Directory);
    let cases: [(Change, Status, &str); 5] = [
        (|d| d.remove("m.b.weight_scale"), Status::Corrupt, "m.b.weight_scale"),
        (|d| d.set("m.b.weight_scale", f32s(&[1.0, 0.0, 1.0])), Status::Corrupt, "element 1 is 0"),
        (|d| d.set("m.b.weight_offset", f32s(&[0.0, 0.0, f32::NAN])), Status::Corrupt, "element 2 is NaN"),
        (|d| d.put("m.b.weight", "W8A16", D::U8, &[3, 4], vec![0; 12]), Status::Corrupt, "U8"),
        (|d| d.put("m.b.weight_scale", "W8A16", D::F32, &[4], f32s(&[1.0; 4])), Status::Corrupt, "[4]"),
    ];
    for (change, status, word) in cases {
        let mut directory = Directory::healthy();
        change(&mut directory);
        let model = Model::open_folder(&directory.folder()).unwrap();
        let mut out = [0xEE; 48];
        let error = model.dequantize(model.linear("m.b").unwrap(), 0..3, Dtype::F32, &mut out).unwrap_err();
        assert_eq!(error.status(), status, "{error}");
        assert!(error.message().contains(word), "{error}");
        assert_eq!(out, [0xEE; 48]);
    }
    let model = Model::open_folder(&Directory::healthy().folder()).unwrap();
    let (a, b) = (model.linear("m.a").unwrap(), model.linear("m.b").unwrap());
    for (rows, len) in [(0..4, 64), (3..4, 16), (0..3, 47), (0..3, 52)] {
        let error = model.dequantize(b, rows, Dtype::F32, &mut vec![0; len]).unwrap_err();
        assert_eq!(error.status(), Status::InvalidArgument, "{error}");
    }
    assert_eq!(model.linear("m").unwrap_err().status(), Status::NotFound);
    assert_eq!(model.dequantize(b, 0..3, Dtype::Int8, &mut [0; 12]).unwrap_err().status(), Status::InvalidArgument);
    assert_eq!(model.linear_w8a8(b, 0..3, &[0.0; 4], 1, &mut [0.0; 3]).unwrap_err().status(), Status::Unsupported);
    for (x, tokens, y) in [(&[0.0; 4][..], 2, 6), (&[0.0; 8], 2, 5), (&[0.0, f32::NAN, 0.0, 0.0], 1, 3)] {
        let error = model.linear_w8a8(a, 0..3, x, tokens, &mut vec![0.0; y]).unwrap_err();
        assert_eq!(error.status(), Status::InvalidArgument, "{error}");
    }
}

#[test]
fn some_outputs_of_an_int8_linear_are_those_of_all() {
    let model = Model::open(&golden("w8a8_fp16")).unwrap();
    let index = model.linear("model.layers.0.self_attn.q_proj").unwrap();
    let x: Vec<f32> = (0..48).map(|i| (i as f32 * 0.37).sin() * 3.0).collect();
    let mut all = vec![0.0; 3 * 16];
    model.linear_w8a8(index, 0..16, &x, 3, &mut all).unwrap();
    let mut some = vec![0.0; 3 * 5];
    model.linear_w8a8(index, 7..12, &x, 3, &mut some).unwrap();
    for token in 0..3 {
        assert_eq!(bits(&some[token * 5..][..5]), bits(&all[token * 16 + 7..][..5]));
    }
}

#[test]
fn sums_of_more_inputs_than_32_bits_hold_are_exact() {
    let k = 200_000;
    let (x, weights) = (vec![-128i8; k], vec![-128i8; k]);
    let mut sums = [0];
    mnnkv_model::msmodelslim::accumulate(&x, &weights, k, &[i32::MAX], &mut sums).unwrap();
    assert_eq!(sums[0], 16384 * k as i64 + i64::from(i32::MAX));
    assert!(sums[0] > i64::from(u32::MAX) / 2);
}

#[test]
fn smoothed_norms_have_a_pair_for_each_kind_of_linear() {
    let mut directory = Directory::healthy();
    directory.put("m.norm.module.weight", "W8A8", D::F16, &[4], [half::f16::from_f32(0.5).to_le_bytes(); 4].concat());
    let open = |directory: &Directory| Model::open_folder(&directory.folder()).unwrap();
    let parameters = |model: &Model, usage| model.norm_parameters(&model.norms()[0], usage);
    let model = open(&directory);
    let quantized = parameters(&model, NormUse::Quantized).unwrap();
    // A bias that is missing is zeros.
    assert_eq!((quantized.weight, quantized.bias, quantized.has_bias), (vec![0.5; 4], vec![0.0; 4], false));
    assert_eq!(parameters(&model, NormUse::Float).unwrap().weight, [1.0, 2.0, 3.0, 4.0]);
    directory.put("m.norm.module.bias", "W8A8", D::F32, &[4], f32s(&[1.0, 0.0, 0.0, -1.0]));
    directory.put("m.norm.bias", "FLOAT", D::F32, &[4], f32s(&[9.0; 4]));
    let model = open(&directory);
    assert_eq!(parameters(&model, NormUse::Quantized).unwrap().bias, [1.0, 0.0, 0.0, -1.0]);
    assert_eq!(parameters(&model, NormUse::Float).unwrap().bias, [9.0; 4]);
    // The newer generation has the plain pair for both.
    directory.remove("m.norm.module.weight");
    directory.remove("m.norm.module.bias");
    let newer = parameters(&open(&directory), NormUse::Quantized).unwrap();
    assert_eq!((newer.weight, newer.bias, newer.has_bias), (vec![1.0, 2.0, 3.0, 4.0], vec![9.0; 4], true));
    // Without the plain pair there is nothing for float linears.
    let mut directory = Directory::healthy();
    directory.rename("m.norm.weight", "m.norm.module.weight");
    let model = open(&directory);
    assert_eq!(parameters(&model, NormUse::Float).unwrap_err().status(), Status::NotFound);
    assert_eq!(parameters(&model, NormUse::Quantized).unwrap().weight, [1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn kv_scales_come_in_every_shape_that_is_in_use() {
    for (shape, count) in [(&[2][..], 2), (&[2, 1], 2), (&[1, 2], 2), (&[1], 1)] {
        let mut directory = Directory::healthy();
        for (side, first) in [("k_proj", 0.5f32), ("v_proj", 4.0)] {
            let half = |x: f32| half::f16::from_f32(x).to_le_bytes();
            let scales: Vec<u8> = (0..count).flat_map(|i| half(first + i as f32)).collect();
            directory.put(&format!("m.3.{side}.kv_cache_scale"), "W8A8", D::F16, shape, scales);
            let offsets: Vec<u8> = (0..count).flat_map(|i| half(-(i as f32))).collect();
            directory.put(&format!("m.3.{side}.kv_cache_offset"), "W8A8", D::F16, shape, offsets);
        }
        let model = Model::open_folder(&directory.folder()).unwrap();
        assert_eq!(model.kv_layers()[0].layer, Some(3));
        let layer = &model.kv_layers()[0];
        for (side, scales) in [(&layer.key, [0.5, 1.5]), (&layer.value, [4.0, 5.0])] {
            let (scale, offset) = model.kv_scales(layer, side).unwrap();
            assert_eq!((&scale[..], &offset[..]), (&scales[..count], &[0.0, -1.0][..count]));
        }
    }
    let mut directory = Directory::healthy();
    directory.rename("m.3.k_proj.kv_cache_offset", "m.3.k_proj.kv_scale_offset");
    directory.set("m.3.k_proj.kv_scale_offset", f32s(&[3.0, 4.0]));
    directory.remove("m.3.v_proj.kv_cache_offset");
    let model = Model::open_folder(&directory.folder()).unwrap();
    let layer = model.kv_layer("m.3").unwrap();
    assert_eq!(model.kv_scales(layer, &layer.key).unwrap().1, [3.0, 4.0]);
    assert_eq!(model.kv_scales(layer, &layer.value).unwrap().1, [0.0, 0.0]);
}

/// A folder whose files count the bytes that are read.
struct Counting(DiskFolder, Arc<AtomicU64>);

struct CountingFile(OpenFile, Arc<AtomicU64>);

impl Folder for Counting {
    fn names(&self) -> Result<Vec<String>> {
        self.0.names()
    }

    fn open(&self, name: &str) -> Result<OpenFile> {
        Ok(Box::new(CountingFile(self.0.open(name)?, self.1.clone())))
    }
}

impl Source for CountingFile {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn read_at(&self, offset: u64, to: &mut [u8]) -> Result<()> {
        self.1.fetch_add(to.len() as u64, Ordering::Relaxed);
        self.0.read_at(offset, to)
    }
}

/// A folder for a test, removed at its end.
struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("mnnkv-msmodelslim-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_row_behind_four_gigabytes_costs_a_row() {
    let scratch = Scratch::new("sparse");
    let (n, k) = (1_300_000u64, 4096u64);
    let weight = n * k;
    let header = format!(
        r#"{{"a.weight":{{"dtype":"I8","shape":[{n},{k}],"data_offsets":[0,{weight}]}},
        "a.weight_scale":{{"dtype":"F32","shape":[{n},1],"data_offsets":[{weight},{}]}}}}"#,
        weight + 4 * n
    );
    let begin = 8 + header.len() as u64;
    let mut file = std::fs::File::create(scratch.0.join("w.safetensors")).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    if file.set_len(begin + weight + 4 * n).is_err() {
        eprintln!("this file system has no sparse files of 5 GB");
        return;
    }
    file.seek(SeekFrom::Start(begin + weight - 2)).unwrap();
    file.write_all(&[0xFF, 100]).unwrap();
    file.seek(SeekFrom::Start(begin + weight + 4 * n - 4)).unwrap();
    file.write_all(&0.5f32.to_le_bytes()).unwrap();
    let description = r#"{"model_quant_type": "W8A16", "a.weight": "W8A16", "a.weight_scale": "W8A16"}"#;
    std::fs::write(scratch.0.join("quant_model_description.json"), description).unwrap();
    let read = Arc::new(AtomicU64::new(0));
    let model = Model::open_folder(&Counting(DiskFolder::new(&scratch.0).unwrap(), read.clone())).unwrap();
    let mut out = vec![0; k as usize * 4];
    model.dequantize(&model.linears()[0], n as usize - 1..n as usize, Dtype::F32, &mut out).unwrap();
    assert_eq!(out[out.len() - 8..], [(-0.5f32).to_le_bytes(), 50.0f32.to_le_bytes()].concat());
    let read = read.load(Ordering::Relaxed);
    assert!(read < 8192, "{read} bytes read");
}

#[test]
fn a_file_that_shrinks_is_an_error_and_nothing_is_written() {
    let scratch = Scratch::new("shrinks");
    for (name, bytes) in Directory::healthy().folder().0 {
        std::fs::write(scratch.0.join(name), bytes).unwrap();
    }
    let model = Model::open(&scratch.0).unwrap();
    let path = scratch.0.join("quant_model_weights.safetensors");
    let len = std::fs::metadata(&path).unwrap().len();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(len - 30).unwrap();
    let mut out = [0xEE; 48];
    let error = model.dequantize(model.linear("m.b").unwrap(), 0..3, Dtype::F32, &mut out).unwrap_err();
    assert_eq!(error.status(), Status::Io, "{error}");
    assert!(error.message().contains("quant_model_weights.safetensors"), "{error}");
    assert_eq!(out, [0xEE; 48]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// For any bytes of the files a check returns a report, and every listed layer of a model that opens can be read.
    #[test]
    fn damaged_directories_are_reported_or_read(
        edits in prop::collection::vec((0usize..3, any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::of((0usize..3, any::<prop::sample::Index>())),
    ) {
        let mut folder = Directory::healthy().folder();
        let names: Vec<String> = folder.0.keys().cloned().collect();
        for (file, at, byte) in edits {
            let mut bytes = folder.0[&names[file]].to_vec();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            folder.0.insert(names[file].clone(), bytes.into());
        }
        if let Some((file, at)) = cut {
            let bytes = folder.0[&names[file]].to_vec();
            folder.0.insert(names[file].clone(), bytes[..at.index(bytes.len())].into());
        }
        let report = check_folder(&folder).unwrap();
        let text: serde_json::Value = serde_json::from_str(&report.json().unwrap()).unwrap();
        prop_assert_eq!(text["findings"].as_array().unwrap().len(), report.findings.len());
        if let Ok(model) = Model::open_folder(&folder) {
            for linear in model.linears() {
                let mut out = vec![0; linear.n.min(8) * linear.k.min(64) * 4];
                let _ = model.dequantize(linear, 0..linear.n.min(8), Dtype::F32, &mut out);
                let _ = model.linear_w8a8(linear, 0..1, &[1.0; 4], 1, &mut [0.0]);
            }
            for norm in model.norms() {
                let _ = model.norm_parameters(norm, NormUse::Quantized);
            }
            for layer in model.kv_layers() {
                let _ = (model.kv_scales(layer, &layer.key), model.kv_scales(layer, &layer.value));
            }
        }
    }
}
