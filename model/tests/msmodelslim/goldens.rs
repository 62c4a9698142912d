//! Healthy directories.

use crate::npy::Array;
use crate::{bits, folders, golden, numbers};
use mnnkv_model::msmodelslim::{Model, Severity, accumulate, check_path, quantize_input};
use std::path::PathBuf;

/// (directory, name of the linear, path without the last part) of every expected array of one kind.
fn expected(kind: &str) -> Vec<(PathBuf, String, PathBuf)> {
    let mut found = Vec::new();
    for folder in folders(&golden("")) {
        let Ok(entries) = std::fs::read_dir(folder.join("expected")) else { continue };
        for entry in entries {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if let Some(linear) = name.strip_suffix(kind) {
                found.push((folder.clone(), linear.to_owned(), path.with_file_name(linear)));
            }
        }
    }
    found
}

fn array(stem: &std::path::Path, kind: &str) -> Array {
    let mut path = stem.as_os_str().to_owned();
    path.push(kind);
    let path = std::path::PathBuf::from(path);
    Array::read(&std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
}

fn f32s(array: &Array) -> Vec<f32> {
    array.values.iter().map(|x| *x as f32).collect()
}

#[test]
fn healthy_directories_have_no_errors() {
    for folder in folders(&golden("")).into_iter().filter(|folder| folder.join("expected").exists()) {
        let report = check_path(&folder).unwrap();
        assert_eq!(report.count(Severity::Error), 0, "{}: {}", folder.display(), report.json().unwrap());
        Model::open(&folder).unwrap();
    }
}

#[test]
fn weights_are_dequantised_to_the_bit() {
    let expected = expected(".weight.deq.npy");
    assert!(expected.len() > 40);
    for (folder, linear, stem) in expected {
        let model = Model::open(&folder).unwrap();
        let array = array(&stem, ".weight.deq.npy");
        let found = model.linear(&linear).unwrap();
        assert_eq!([found.n, found.k], *array.shape);
        assert_eq!(bits(&numbers(&model, &linear)), bits(&f32s(&array)), "{}: {linear}", folder.display());
    }
}

#[test]
fn int8_linears_compute_the_same_codes_sums_and_outputs() {
    let expected = expected(".acc.npy");
    assert!(expected.len() > 20);
    for (folder, linear, stem) in expected {
        let model = Model::open(&folder).unwrap();
        let index = model.linear(&linear).unwrap();
        let (n, k) = (index.n, index.k);
        let (x, acc) = (f32s(&array(&stem, ".x.npy")), array(&stem, ".acc.npy"));
        let tokens = acc.shape[0];
        let place = format!("{}: {linear}", folder.display());
        let raw = Raw::read(&folder, &linear);
        let codes = quantize_input(&x, raw.input_scale, raw.input_offset).unwrap();
        let expected_codes: Vec<i8> = array(&stem, ".x_q.npy").values.iter().map(|x| *x as i8).collect();
        assert_eq!(codes, expected_codes, "{place}");
        let mut sums = vec![0; tokens * n];
        accumulate(&codes, &raw.weight, k, &raw.quant_bias, &mut sums).unwrap();
        let acc: Vec<i64> = acc.values.iter().map(|x| *x as i64).collect();
        assert_eq!(sums, acc, "{place}");
        let mut y = vec![0.0; tokens * n];
        model.linear_w8a8(index, 0..n, &x, tokens, &mut y).unwrap();
        assert_eq!(bits(&y), bits(&f32s(&array(&stem, ".y.npy"))), "{place}");
    }
}

/// Tensors of a linear, read by another reader of safetensors.
struct Raw {
    input_scale: f32,
    input_offset: f32,
    quant_bias: Vec<i32>,
    weight: Vec<i8>,
}

impl Raw {
    fn read(folder: &std::path::Path, linear: &str) -> Raw {
        let file = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
        let file = file.into_iter().find(|path| path.extension().is_some_and(|e| e == "safetensors")).unwrap();
        let bytes = std::fs::read(file).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let tensor = |part: &str| tensors.tensor(&format!("{linear}.{part}")).unwrap();
        let number = |part: &str| {
            let view = tensor(part);
            let data = view.data();
            match view.dtype() {
                safetensors::Dtype::F32 => f32::from_le_bytes(data.try_into().unwrap()),
                safetensors::Dtype::F16 => half::f16::from_le_bytes(data.try_into().unwrap()).to_f32(),
                safetensors::Dtype::BF16 => half::bf16::from_le_bytes(data.try_into().unwrap()).to_f32(),
                other => panic!("{other:?}"),
            }
        };
        Raw {
            input_scale: number("input_scale"),
            input_offset: number("input_offset"),
            quant_bias: tensor("quant_bias")
                .data()
                .chunks_exact(4)
                .map(|b| i32::from_le_bytes(b.try_into().unwrap()))
                .collect(),
            weight: tensor("weight").data().iter().map(|b| *b as i8).collect(),
        }
    }
}
