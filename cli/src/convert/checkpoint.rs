//! PyTorch checkpoints: a zip archive of a pickle and one file for each storage.

use crate::failure::Failure;
use candle_core::DType;
use candle_core::pickle::{Object, Stack, TensorInfo};
use half::{bf16, f16};
use mnnkv::model::file::ModelFile;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use zip::ZipArchive;

/// A pickle of tensor names and shapes is small; one of 64 MiB is none.
const MAX_PICKLE: u64 = 64 << 20;

/// Named tensors of a checkpoint. Their numbers are read when they are asked for.
pub struct Checkpoint {
    archive: ZipArchive<BufReader<File>>,
    path: String,
    tensors: BTreeMap<String, TensorInfo>,
    others: Vec<String>,
}

impl Checkpoint {
    /// Opens a checkpoint and finds the compressor in it: under `model_state_dict.compressor`, `compressor`, or as the
    /// whole of it.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        // Says what is wrong with a name that is no regular file.
        ModelFile::open(path)?;
        let name = path.display().to_string();
        let file = File::open(path).map_err(|e| Failure(format!("cannot open {name}: {e}")))?;
        let mut archive = ZipArchive::new(BufReader::new(file)).map_err(|e| {
            Failure(format!(
                "{name} is no checkpoint of PyTorch 1.6 or later, which is a zip archive ({e}); one saved by an older \
                 version can be loaded and saved again"
            ))
        })?;
        let (folder, pickle) = read_pickle(&mut archive, &name)?;
        let byte_order = format!("{folder}/byteorder");
        if archive.index_for_name(&byte_order).is_some() {
            let order = read_entry(&mut archive, &name, &byte_order, 16)?;
            if order != b"little" {
                return Err(Failure(format!("{name}: the byte order is {:?}", String::from_utf8_lossy(&order))));
            }
        }
        let data = Path::new(&folder).join("data");
        let (mut tensors, mut others) = (BTreeMap::new(), Vec::new());
        for (key, value) in compressor_of(&pickle, &name)? {
            let info = guarded(|| value.into_tensor_info(Object::Unicode(key.clone()), &data));
            match info.map_err(|e| Failure(format!("{name}: {key}: {e}")))? {
                Some(info) if tensors.contains_key(&info.name) => {
                    return Err(Failure(format!("{name}: {key} is there twice")));
                }
                Some(info) => drop(tensors.insert(key, info)),
                None => others.push(key),
            }
        }
        Ok(Checkpoint { archive, path: name, tensors, others })
    }

    /// Where it was opened.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Names with a value that is no tensor.
    pub fn others(&self) -> &[String] {
        &self.others
    }

    /// The shape of a tensor.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|info| info.layout.dims())
    }

    /// The numbers of a tensor that is there, row by row.
    pub fn values(&mut self, name: &str) -> Result<Vec<f32>, Failure> {
        let Some(info) = self.tensors.get(name).cloned() else {
            return Err(Failure(format!("{}: there is no {name}", self.path)));
        };
        let size = match info.dtype {
            DType::F32 => 4,
            DType::F16 | DType::BF16 => 2,
            other => {
                return Err(Failure(format!(
                    "{}: {name} has numbers of type {other:?}; F32, F16 or BF16 expected",
                    self.path
                )));
            }
        };
        let limit = info.storage_size.saturating_mul(size);
        let bytes = read_entry(&mut self.archive, &self.path, &info.path, limit as u64)?;
        let places = places(&info, size, bytes.len()).ok_or_else(|| {
            Failure(format!(
                "{}: {name} reaches beyond its storage {}, which has {} bytes",
                self.path,
                info.path,
                bytes.len()
            ))
        })?;
        Ok(match info.dtype {
            DType::F32 => numbers(&bytes, &places, f32::from_le_bytes),
            DType::F16 => numbers(&bytes, &places, |b| f16::from_le_bytes(b).to_f32()),
            _ => numbers(&bytes, &places, |b| bf16::from_le_bytes(b).to_f32()),
        })
    }
}

/// Where in its storage each element of a tensor begins, in bytes; `None` when one lies outside.
fn places(info: &TensorInfo, size: usize, bytes: usize) -> Option<Vec<usize>> {
    let (dims, strides) = (info.layout.dims(), info.layout.stride());
    let elements = dims.iter().try_fold(1_usize, |n, d| n.checked_mul(*d))?;
    if elements == 0 {
        return Some(Vec::new());
    }
    if dims.len() != strides.len() {
        return None;
    }
    // The library gives the start in bytes, and strides in elements.
    let start = info.layout.start_offset();
    let reach = dims.iter().zip(strides).try_fold(0_usize, |sum, (d, s)| sum.checked_add((d - 1).checked_mul(*s)?))?;
    if reach.checked_mul(size)?.checked_add(start)?.checked_add(size)? > bytes || elements > bytes / size {
        return None;
    }
    let mut places = vec![start];
    for (dim, stride) in dims.iter().zip(strides) {
        places = places.iter().flat_map(|at| (0..*dim).map(move |i| at + i * stride * size)).collect();
    }
    Some(places)
}

fn numbers<const N: usize>(bytes: &[u8], places: &[usize], number: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    places.iter().filter_map(|at| bytes[*at..].first_chunk().copied()).map(number).collect()
}

/// The object in `<folder>/data.pkl`, and the name of the folder.
fn read_pickle(archive: &mut ZipArchive<BufReader<File>>, path: &str) -> Result<(String, Object), Failure> {
    let pickles: Vec<String> =
        archive.file_names().filter(|name| name.ends_with("/data.pkl")).map(str::to_owned).collect();
    let [pickle] = &pickles[..] else {
        return Err(Failure(format!(
            "{path} has {} entries named data.pkl; a checkpoint of PyTorch has one",
            pickles.len()
        )));
    };
    let bytes = read_entry(archive, path, pickle, MAX_PICKLE)?;
    let read = guarded(|| {
        let mut stack = Stack::empty();
        stack.read_loop(&mut &bytes[..])?;
        stack.finalize()
    });
    match read {
        Ok(object) => Ok((pickle.trim_end_matches("/data.pkl").to_owned(), object)),
        Err(e) => Err(Failure(format!("{path}: {pickle} is no pickle of a checkpoint: {e}"))),
    }
}

/// What the library for pickles answers. It computes with what it finds, and a damaged pickle may make it panic.
fn guarded<T>(read: impl FnOnce() -> candle_core::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(Ok(found)) => Ok(found),
        // Behind the first line its errors may have a backtrace.
        Ok(Err(e)) => Err(e.to_string().lines().next().unwrap_or_default().to_owned()),
        Err(_) => Err("a number in it is out of range".to_owned()),
    }
}

/// An entry of at most `limit` bytes.
fn read_entry(
    archive: &mut ZipArchive<BufReader<File>>,
    path: &str,
    entry: &str,
    limit: u64,
) -> Result<Vec<u8>, Failure> {
    let failed = |e: &dyn std::fmt::Display| Failure(format!("{path}: cannot read {entry}: {e}"));
    let reader = archive.by_name(entry).map_err(|e| failed(&e))?;
    let mut bytes = Vec::new();
    reader.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(|e| failed(&e))?;
    if bytes.len() as u64 > limit {
        return Err(failed(&format!("it has more than the {limit} bytes expected")));
    }
    Ok(bytes)
}

/// The entries of the dictionary that has the compressor's tensors.
fn compressor_of(object: &Object, path: &str) -> Result<Vec<(String, Object)>, Failure> {
    let state = entry(object, "model_state_dict").and_then(|state| entry(state, "compressor"));
    let compressor = state.or_else(|| entry(object, "compressor")).unwrap_or(object);
    let entries = entries(compressor).and_then(|entries| {
        let named = |(key, value): &(Object, Object)| Some((key.clone().unicode().ok()?, value.clone()));
        entries.iter().map(named).collect::<Option<Vec<_>>>()
    });
    entries.ok_or_else(|| {
        let what = if std::ptr::eq(compressor, object) { "the checkpoint" } else { "the compressor in it" };
        Failure(format!("{path}: {what} is no dictionary of tensors by name"))
    })
}

/// What a dictionary has under a key.
fn entry<'a>(object: &'a Object, key: &str) -> Option<&'a Object> {
    let (_, value) = entries(object)?.iter().find(|(name, _)| matches!(name, Object::Unicode(name) if name == key))?;
    Some(value)
}

/// What a dictionary has.
fn entries(object: &Object) -> Option<&[(Object, Object)]> {
    match object {
        Object::Dict(entries) => Some(entries),
        // With attributes, as the state of a module has them.
        Object::Build { callable, .. } => entries(callable),
        _ => None,
    }
}
