//! Float models of quantised goldens, read by an independent reader.

mod common;

use common::Folder;
use safetensors::{Dtype, SafeTensors};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/testdata/msmodelslim").join(name)
}

impl Folder {
    fn dequantize(&self, input: &Path, flags: &[&str]) -> (PathBuf, Output) {
        let output = self.0.join("out");
        let words = ["dequantize".as_ref(), input.as_os_str(), "--output".as_ref(), output.as_os_str()];
        let run = Command::new(env!("CARGO_BIN_EXE_mnnkv")).args(words).args(flags).output().unwrap();
        (output, run)
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(&self.0).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// The f32 of a .npy file whose header ends at the first newline.
fn npy(path: &Path) -> Vec<f32> {
    let bytes = fs::read(path).unwrap();
    let data = bytes.iter().position(|b| *b == b'\n').unwrap() + 1;
    assert!(bytes[..data].windows(3).any(|w| w == b"<f4"), "{}", path.display());
    floats(&bytes[data..])
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// The expected weights of a golden, by tensor.
fn expected(name: &str) -> Vec<(String, Vec<f32>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(golden(name).join("expected")).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_str().unwrap();
        if let Some(tensor) = file.strip_suffix(".deq.npy").filter(|tensor| tensor.ends_with(".weight")) {
            all.push((tensor.to_owned(), npy(&path)));
        }
    }
    assert!(!all.is_empty(), "{name}");
    all
}

#[test]
fn weights_of_every_golden_are_bit_exact() {
    for name in ["w8a16_per_channel", "w8a16_per_channel_flat_legacy", "w8a8_fp16", "w8a8s_fp16", "w8a8_c8_fp16"] {
        let folder = Folder::new(name);
        let (output, run) = folder.dequantize(&golden(name), &["--dtype", "f32"]);
        assert!(run.status.success(), "{name}: {}", String::from_utf8_lossy(&run.stderr));
        let file = fs::read(output.join("model.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&file).unwrap();
        for (tensor, weights) in expected(name) {
            let ours = tensors.tensor(&tensor).unwrap();
            assert_eq!(ours.dtype(), Dtype::F32);
            assert!(floats(ours.data()) == weights, "{name}: {tensor}");
        }
        // No tensor of a quantised model is left.
        for word in ["scale", "offset", "quant_bias", "kv_cache"] {
            assert!(tensors.names().iter().all(|n| !n.contains(word)), "{name}: {word}");
        }
        assert_eq!(folder.names(), ["out"]);
    }
}

#[test]
fn a_smoothed_norm_keeps_the_pair_for_quantised_linears() {
    let folder = Folder::new("norms");
    let input = golden("w8a8_fp16_seed_smooth");
    let (output, run) = folder.dequantize(&input, &["--dtype", "f16"]);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let (before, after) =
        (fs::read(weights_file(&input)).unwrap(), fs::read(output.join("model.safetensors")).unwrap());
    let (before, after) = (SafeTensors::deserialize(&before).unwrap(), SafeTensors::deserialize(&after).unwrap());
    let module: Vec<&str> = before.names().into_iter().filter(|name| name.contains(".module.")).collect();
    assert!(!module.is_empty());
    for name in module {
        let plain = after.tensor(&name.replace(".module", "")).unwrap();
        assert_eq!(plain.data(), before.tensor(name).unwrap().data(), "{name}");
        assert!(after.tensor(name).is_err(), "{name}");
    }
}

fn weights_file(directory: &Path) -> PathBuf {
    let mut files = fs::read_dir(directory).unwrap().map(|e| e.unwrap().path());
    files.find(|path| path.extension().is_some_and(|e| e == "safetensors")).unwrap()
}

#[test]
fn a_failure_leaves_no_files() {
    for case in
        ["corrupt/zero_scale", "corrupt/truncated_safetensors", "corrupt/unknown_quant_type", "no-such-directory"]
    {
        let folder = Folder::new("fails");
        let (_, run) = folder.dequantize(&golden(case), &[]);
        assert_eq!(run.status.code(), Some(3), "{case}");
        let error = String::from_utf8_lossy(&run.stderr);
        assert!(error.contains(golden(case).to_str().unwrap()) && run.stdout.is_empty(), "{case}: {error}");
        assert_eq!(folder.names(), [""; 0], "{case}");
    }
    let folder = Folder::new("exists");
    fs::create_dir(folder.0.join("out")).unwrap();
    let (_, run) = folder.dequantize(&golden("w8a8_fp16"), &[]);
    assert_eq!(run.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&run.stderr).contains("exists"));
}
