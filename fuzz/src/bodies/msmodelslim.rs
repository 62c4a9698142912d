//! Any bytes as the files of a directory of quantised weights: a check ends with a report, a model that opens can be
//! read, and memory is proportional to the files.

use super::counting_allocator::peak;
use mnnkv::dtype::Dtype;
use mnnkv_model::msmodelslim::{MemoryFolder, Model, NormUse, check_folder};

/// Separates the files: the description, the header of the weights, their data, the index and the config.
const SEPARATOR: &[u8] = b"\n--\n";

pub fn msmodelslim(input: &[u8]) {
    let mut parts = Vec::new();
    let mut rest = input;
    while parts.len() < 4
        && let Some(at) = rest.windows(SEPARATOR.len()).position(|window| window == SEPARATOR)
    {
        parts.push(&rest[..at]);
        rest = &rest[at + SEPARATOR.len()..];
    }
    parts.push(rest);
    parts.resize(5, &[]);
    let mut weights = (parts[1].len() as u64).to_le_bytes().to_vec();
    weights.extend_from_slice(parts[1]);
    weights.extend_from_slice(parts[2]);
    let mut folder = MemoryFolder::default();
    folder.0.insert("quant_model_description.json".to_owned(), parts[0].into());
    folder.0.insert("quant_model_weights-00001-of-00001.safetensors".to_owned(), weights.into());
    for (name, bytes) in [("quant_model_weights.safetensors.index.json", parts[3]), ("config.json", parts[4])] {
        if !bytes.is_empty() {
            folder.0.insert(name.to_owned(), bytes.into());
        }
    }
    let held = peak(|| read(&folder));
    assert!(held < (1 << 20) + 400 * input.len(), "{held} bytes for an input of {}", input.len());
}

/// Checks and opens the directory, and reads all its layers.
fn read(folder: &MemoryFolder) {
    let report = check_folder(folder).unwrap();
    assert!(report.json().unwrap().starts_with('{'));
    if let Ok(model) = Model::open_folder(folder) {
        for linear in model.linears() {
            let rows = linear.n.min(4);
            // A tensor without rows may have any number of columns.
            if let Some(bytes) = linear.k.checked_mul(4 * rows).filter(|bytes| *bytes < 1 << 16) {
                let _ = model.dequantize(linear, 0..rows, Dtype::F32, &mut vec![0; bytes]);
                let _ = model.linear_w8a8(linear, 0..rows, &vec![1.0; linear.k], 1, &mut vec![0.0; rows]);
            }
        }
        for norm in model.norms() {
            let _ = model.norm_parameters(norm, NormUse::Quantized);
        }
        for layer in model.kv_layers() {
            let _ = (model.kv_scales(layer, &layer.key), model.kv_scales(layer, &layer.value));
        }
    }
}
