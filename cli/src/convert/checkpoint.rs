//! PyTorch checkpoints, 1.6 and later: entries of a zip archive, a pickle that names tensors, and storages with their numbers.

use super::archive::Archive;
use super::pickle::Pickle;
use super::tensors::{self, Tensor};
use crate::failure::Failure;
use mnnkv_model::file::ModelFile;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

/// Limit of a pickle of tensor names and shapes.
const MAX_PICKLE: u64 = 64 << 20;

/// Limit of all numbers, as a multiple of the file. Tensors may share storages: two MLPs may have the same weights.
const MAX_SHARED: u64 = 4;

/// Named tensors of a checkpoint. Numbers are read on demand.
pub struct Checkpoint {
    archive: Archive,
    /// Of all entries.
    folder: String,
    /// The path that was opened.
    pub path: String,
    tensors: BTreeMap<String, Tensor>,
    /// Names of values that are not tensors.
    pub others: Vec<String>,
    /// Bytes of numbers that may still be read.
    left: u64,
}

impl Checkpoint {
    /// Opens a checkpoint and finds the compressor in it.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        // Returns the error for a path that is not a regular file.
        ModelFile::open(path)?;
        let name = path.display().to_string();
        let file = File::open(path).map_err(|e| Failure(format!("cannot open {name}: {e}")))?;
        let len = file.metadata().map_err(|e| Failure(format!("cannot open {name}: {e}")))?.len();
        let read = archive(file).map_err(|problem| Failure(format!("{name}: {problem}")))?;
        let (archive, folder, found) = read;
        let (mut tensors, mut others) = (BTreeMap::new(), Vec::new());
        for (key, tensor) in found {
            match tensor {
                Some(tensor) => drop(tensors.insert(key, tensor)),
                None => others.push(key),
            }
        }
        Ok(Checkpoint { archive, folder, path: name, tensors, others, left: len.saturating_mul(MAX_SHARED) })
    }

    /// The names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The shape of a tensor.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|tensor| &tensor.dims[..])
    }

    /// The numbers of a tensor, row by row.
    pub fn values(&mut self, name: &str) -> Result<Vec<f32>, Failure> {
        let failed = |problem: String| Failure(format!("{}: {name} {problem}", self.path));
        let tensor = self.tensors.get(name).ok_or_else(|| failed("is missing".to_owned()))?;
        let limit = tensor.storage_bytes().map_err(failed)? as u64;
        let entry = format!("{}/data/{}", self.folder, tensor.storage);
        let storage = self.archive.read(&entry, limit).map_err(failed)?;
        let values = tensor.numbers(&storage).map_err(failed)?;
        let Some(left) = self.left.checked_sub(tensor.bytes().map_err(failed)?) else {
            return Err(failed(format!(
                "and the tensors before it have more than {MAX_SHARED} times the file's bytes"
            )));
        };
        self.left = left;
        Ok(values)
    }
}

type Found = (Archive, String, BTreeMap<String, Option<Tensor>>);

/// The archive, the folder of its entries, and the tensors that its pickle names.
fn archive(file: File) -> Result<Found, String> {
    let archive = Archive::open(file)?;
    let pickles: Vec<&str> = archive.names().filter(|name| name.ends_with("/data.pkl")).collect();
    let &[pickle] = &pickles[..] else {
        return Err(format!("{} entries are named data.pkl; 1 expected", pickles.len()));
    };
    let (pickle, folder) = (pickle.to_owned(), pickle.trim_end_matches("/data.pkl").to_owned());
    let bytes = archive.read(&pickle, MAX_PICKLE)?;
    let found = tensors_of(&bytes).map_err(|problem| format!("{pickle}: {problem}"))?;
    let byte_order = format!("{folder}/byteorder");
    if archive.has(&byte_order) {
        let order = archive.read(&byte_order, 16)?;
        if order != b"little" {
            return Err(format!("the byte order is {:?}; \"little\" expected", String::from_utf8_lossy(&order)));
        }
    }
    Ok((archive, folder, found))
}

fn tensors_of(bytes: &[u8]) -> Result<BTreeMap<String, Option<Tensor>>, String> {
    tensors::compressor(&Pickle::read(bytes)?)
}
