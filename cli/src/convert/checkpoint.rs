//! PyTorch checkpoints: a pickle that names tensors, and storages with their numbers. PyTorch 1.6 and later writes them
//! as entries of a zip archive, earlier versions one after another.

use super::archive::Archive;
use super::pickle::{Pickle, Value};
use super::tensors::{self, Storage, Tensor};
use crate::failure::Failure;
use mnnkv_model::file::ModelFile;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// Limit of a pickle of tensor names and shapes.
const MAX_PICKLE: u64 = 64 << 20;

/// The first integer of a file from before PyTorch 1.6, little-endian.
const MAGIC: [u8; 10] = 0x1950_a86a_20f9_469c_fc6c_u128.to_le_bytes().first_chunk().copied().unwrap();

/// Limit of all numbers, as a multiple of the file. Tensors may share storages: two MLPs may have the same weights.
const MAX_SHARED: u64 = 4;

/// Named tensors of a checkpoint. Numbers are read on demand.
pub struct Checkpoint {
    storages: Storages,
    /// The path that was opened.
    pub path: String,
    tensors: BTreeMap<String, Tensor>,
    /// Names of values that are not tensors.
    pub others: Vec<String>,
    /// Bytes of numbers that may still be read.
    left: u64,
}

/// Where the storages are.
enum Storages {
    /// Entries of this folder of the archive.
    Archive(Archive, String),
    /// Offset and bytes of each in the file.
    Plain(File, BTreeMap<String, (u64, u64)>),
}

impl Checkpoint {
    /// Opens a checkpoint and finds the compressor in it.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        // Returns the error for a path that is not a regular file.
        ModelFile::open(path)?;
        let name = path.display().to_string();
        let opened = File::open(path).and_then(|file| {
            let len = file.metadata()?.len();
            let mut head = Vec::new();
            (&file).take(1).read_to_end(&mut head)?;
            Ok((file, len, head))
        });
        let (file, len, head) = opened.map_err(|e| Failure(format!("cannot open {name}: {e}")))?;
        let read = match &head[..] {
            b"P" => archive(file),
            [0x80] => plain(file, len),
            _ => Err("not a PyTorch checkpoint, which is a zip archive or begins with a pickle".to_owned()),
        };
        let (storages, found) = read.map_err(|problem| Failure(format!("{name}: {problem}")))?;
        let (mut tensors, mut others) = (BTreeMap::new(), Vec::new());
        for (key, tensor) in found {
            match tensor {
                Some(tensor) => drop(tensors.insert(key, tensor)),
                None => others.push(key),
            }
        }
        Ok(Checkpoint { storages, path: name, tensors, others, left: len.saturating_mul(MAX_SHARED) })
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
        let storage = self.storages.read(tensor).map_err(failed)?;
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

impl Storages {
    /// The bytes of a tensor's storage: as many as the pickle announces, or fewer if the file has fewer.
    fn read(&mut self, tensor: &Tensor) -> Result<Vec<u8>, String> {
        let limit = tensor.storage_bytes()? as u64;
        match self {
            Storages::Archive(archive, folder) => archive.read(&format!("{folder}/data/{}", tensor.storage), limit),
            Storages::Plain(file, places) => {
                let key = &tensor.storage;
                let &(start, len) = places.get(key).ok_or_else(|| format!("has no storage {key} in the file"))?;
                let mut bytes = Vec::new();
                let read = file.seek(SeekFrom::Start(start));
                let read = read.and_then(|_| file.take(len.min(limit)).read_to_end(&mut bytes));
                read.map_err(|e| format!("cannot be read: {e}"))?;
                Ok(bytes)
            }
        }
    }
}

type Found = (Storages, BTreeMap<String, Option<Tensor>>);

/// A checkpoint of PyTorch 1.6 or later.
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
    Ok((Storages::Archive(archive, folder), found))
}

fn tensors_of(bytes: &[u8]) -> Result<BTreeMap<String, Option<Tensor>>, String> {
    tensors::compressor(&Pickle::read(bytes)?)
}

/// A checkpoint from before PyTorch 1.6: pickles of a magic number, a version, machine facts, the checkpoint and the
/// names of its storages; then the storages, each a number of elements in eight bytes and the elements.
fn plain(mut file: File, len: u64) -> Result<Found, String> {
    let mut head = Vec::new();
    let read = file.seek(SeekFrom::Start(0)).and_then(|_| (&file).take(MAX_PICKLE).read_to_end(&mut head));
    read.map_err(|e| format!("cannot be read: {e}"))?;
    let mut at = 0;
    let mut next = |what: &str| {
        let pickle = Pickle::read(&head[at..]).map_err(|problem| format!("{what}, from byte {at}: {problem}"))?;
        at += pickle.len;
        Ok::<_, String>(pickle)
    };
    let magic = next("the magic number")?;
    if !matches!(magic.value(magic.root), Value::Long(digits) if *digits == MAGIC) {
        return Err("a pickle, but not a PyTorch checkpoint".to_owned());
    }
    let version = next("the version")?;
    if version.size(version.root) != Some(1001) {
        return Err("the version of the file is not 1001".to_owned());
    }
    let machine = next("the facts about the machine")?;
    let little = machine.entry(machine.root, "little_endian");
    if !matches!(little.map(|id| machine.value(id)), Some(Value::Bool(true))) {
        return Err("the byte order is not little".to_owned());
    }
    let pickle = next("the checkpoint")?;
    let keys = next("the names of the storages")?;
    let Value::List(keys_in_order) = keys.value(keys.root) else {
        return Err("the names of the storages are not a list".to_owned());
    };

    let mut element_bytes = BTreeMap::new();
    for value in &pickle.values {
        if let Some(storage) = Storage::read(&pickle, value)? {
            element_bytes.entry(storage.key).or_insert(storage.element_bytes()?);
        }
    }
    let mut places = BTreeMap::new();
    let mut start = at as u64;
    for key in keys_in_order {
        let key = keys.name(*key).ok_or("the name of a storage is not text")?;
        let size = element_bytes.get(key).ok_or_else(|| format!("no tensor has the storage {key}"))?;
        let mut elements = [0; 8];
        let read = file.seek(SeekFrom::Start(start)).and_then(|_| file.read_exact(&mut elements));
        read.map_err(|e| format!("the storage {key}, from byte {start}: {e}"))?;
        start += 8;
        let bytes = u64::from_le_bytes(elements).checked_mul(*size as u64).filter(|bytes| *bytes <= len - start);
        let bytes = bytes.ok_or_else(|| format!("the storage {key}, from byte {start}, is longer than the file"))?;
        if places.insert(key.to_owned(), (start, bytes)).is_some() {
            return Err(format!("the storage {key} occurs twice"));
        }
        start += bytes;
    }
    let found = tensors::compressor(&pickle)?;
    Ok((Storages::Plain(file, places), found))
}
