//! Directories of quantised weights against goldens, an independent reader and writer of safetensors, and hostile
//! files.

#[path = "msmodelslim/arithmetic.rs"]
mod arithmetic;
#[path = "msmodelslim/corrupt.rs"]
mod corrupt;
#[path = "msmodelslim/directory.rs"]
mod directory;
#[path = "msmodelslim/findings.rs"]
mod findings;
#[path = "msmodelslim/float_model.rs"]
mod float_model;
#[path = "msmodelslim/goldens.rs"]
mod goldens;
#[path = "../../tests/common/npy.rs"]
mod npy;
#[path = "msmodelslim/reading.rs"]
mod reading;

use mnnkv::dtype::Dtype;
use mnnkv_model::msmodelslim::Model;
use std::path::{Path, PathBuf};

/// The folder of the goldens.
fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/msmodelslim").join(name)
}

/// The folders in a folder.
fn folders(path: &Path) -> Vec<PathBuf> {
    let mut folders: Vec<_> = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.retain(|path| path.is_dir());
    folders.sort();
    assert!(!folders.is_empty());
    folders
}

/// All rows of a linear, by its name.
fn numbers(model: &Model, name: &str) -> Vec<f32> {
    let linear = model.linear(name).unwrap();
    let mut bytes = vec![0; linear.n * linear.k * 4];
    model.dequantize(linear, 0..linear.n, Dtype::F32, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// Bits of numbers, to be compared exactly.
fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}
