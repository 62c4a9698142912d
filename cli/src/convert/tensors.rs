//! The tensors of a compressor in a PyTorch pickle.

use super::pickle::{Id, Pickle, Value};
use half::{bf16, f16};
use std::collections::BTreeMap;

/// PyTorch's limit of dimensions.
const MAX_RANK: usize = 64;

/// Limit of nested parameter wrappers.
const MAX_WRAPPED: usize = 8;

/// The storage of a tensor.
#[derive(Debug)]
pub struct Storage<'a> {
    /// The name in the file.
    pub key: &'a str,
    /// The type, such as FloatStorage.
    pub kind: &'a str,
    pub elements: usize,
}

impl<'a> Storage<'a> {
    /// Parses a persistent reference. `None` if it is not a storage.
    pub fn read(pickle: &Pickle<'a>, persistent: &Value<'a>) -> Result<Option<Self>, String> {
        let Value::Persistent(id) = persistent else { return Ok(None) };
        let Some(fields) = pickle.tuple(*id) else { return Ok(None) };
        let (Some("storage"), &[_, kind, key, _, elements, ..]) =
            (fields.first().and_then(|id| pickle.name(*id)), fields)
        else {
            return Ok(None);
        };
        let Value::Global(_, kind) = pickle.value(kind) else { return Ok(None) };
        let (Some(key), Some(elements)) = (pickle.name(key), pickle.size(elements)) else {
            return Err("a storage has no name or no number of elements".to_owned());
        };
        Ok(Some(Storage { key, kind, elements }))
    }
}

/// A tensor without its numbers.
pub struct Tensor {
    /// The name of its storage.
    pub storage: String,
    kind: String,
    elements: usize,
    offset: usize,
    pub dims: Vec<usize>,
    strides: Vec<usize>,
}

impl Tensor {
    /// Parses a value of a state dictionary. `None` if it is not a tensor.
    fn read(pickle: &Pickle, mut id: Id) -> Result<Option<Self>, String> {
        let mut arguments = None;
        for _ in 0..MAX_WRAPPED {
            let (callable, given) = match (arguments.take(), pickle.value(id)) {
                (Some(given), _) => (id, given),
                (None, Value::Call(callable, given)) => (*callable, *given),
                _ => return Ok(None),
            };
            let (&Value::Global(module, name), Some(given)) = (pickle.value(callable), pickle.tuple(given)) else {
                return Ok(None);
            };
            match (module, name, given) {
                ("torch._utils", "_rebuild_tensor_v2" | "_rebuild_tensor", given) => {
                    return Self::rebuilt(pickle, given);
                }
                ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state", [data, ..]) => id = *data,
                // A callable, a type, and the callable's arguments.
                ("torch._tensor" | "torch.tensor", "_rebuild_from_type_v2", [callable, _, given, ..]) => {
                    (id, arguments) = (*callable, Some(*given));
                }
                _ => return Ok(None),
            }
        }
        Ok(None)
    }

    fn rebuilt(pickle: &Pickle, given: &[Id]) -> Result<Option<Self>, String> {
        let &[storage, offset, dims, strides, ..] = given else {
            return Err(format!("{} arguments of a tensor; at least 4 expected", given.len()));
        };
        let Some(storage) = Storage::read(pickle, pickle.value(storage))? else { return Ok(None) };
        let sizes = |id: Id| {
            let items = pickle.tuple(id).filter(|items| items.len() <= MAX_RANK)?;
            items.iter().map(|id| pickle.size(*id)).collect::<Option<Vec<_>>>()
        };
        let (Some(offset), Some(dims), Some(strides)) = (pickle.size(offset), sizes(dims), sizes(strides)) else {
            return Err("the offset, shape or strides of a tensor are invalid".to_owned());
        };
        if dims.len() != strides.len() {
            return Err(format!("a tensor of {} dimensions with {} strides", dims.len(), strides.len()));
        }
        let (key, kind) = (storage.key.to_owned(), storage.kind.to_owned());
        Ok(Some(Tensor { storage: key, kind, elements: storage.elements, offset, dims, strides }))
    }

    /// The numbers, row by row, from the bytes of the storage.
    pub fn numbers(&self, storage: &[u8]) -> Result<Vec<f32>, String> {
        let size = self.size()?;
        let starts = self
            .starts(size, storage.len())
            .ok_or_else(|| format!("reaches beyond its storage {}, which has {} bytes", self.storage, storage.len()))?;
        Ok(match self.kind.as_str() {
            "HalfStorage" => convert(storage, &starts, |b| f16::from_le_bytes(b).to_f32()),
            "BFloat16Storage" => convert(storage, &starts, |b| bf16::from_le_bytes(b).to_f32()),
            _ => convert(storage, &starts, f32::from_le_bytes),
        })
    }

    /// The bytes of the storage.
    pub fn storage_bytes(&self) -> Result<usize, String> {
        Ok(self.elements.saturating_mul(self.size()?))
    }

    /// The bytes of the numbers, if each is in the storage once.
    pub fn bytes(&self) -> Result<u64, String> {
        let size = self.size()? as u64;
        Ok(self.dims.iter().fold(size, |n, d| n.saturating_mul(*d as u64)))
    }

    /// The bytes of a number.
    fn size(&self) -> Result<usize, String> {
        match self.kind.as_str() {
            "FloatStorage" => Ok(4),
            "HalfStorage" | "BFloat16Storage" => Ok(2),
            other => {
                Err(format!("has the storage type {other}; FloatStorage, HalfStorage or BFloat16Storage expected"))
            }
        }
    }

    /// The byte offset of each element in the storage; `None` if one lies outside.
    fn starts(&self, size: usize, bytes: usize) -> Option<Vec<usize>> {
        let elements = self.dims.iter().try_fold(1_usize, |n, d| n.checked_mul(*d))?;
        if elements == 0 {
            return Some(Vec::new());
        }
        let places = self.dims.iter().zip(&self.strides);
        let last = places.clone().try_fold(self.offset, |sum, (d, s)| sum.checked_add((d - 1).checked_mul(*s)?))?;
        if last.checked_add(1)?.checked_mul(size)? > bytes || elements > bytes / size {
            return None;
        }
        let mut starts = vec![self.offset * size];
        for (dim, stride) in places {
            starts = starts.iter().flat_map(|at| (0..*dim).map(move |i| at + i * stride * size)).collect();
        }
        Some(starts)
    }
}

fn convert<const N: usize>(bytes: &[u8], starts: &[usize], number: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    starts.iter().filter_map(|at| bytes[*at..].first_chunk().copied()).map(number).collect()
}

/// The compressor's dictionary: `model_state_dict.compressor`, `compressor`, or the root. `None` marks a value that is
/// not a tensor.
pub fn compressor(pickle: &Pickle) -> Result<BTreeMap<String, Option<Tensor>>, String> {
    let entry = |dict, key| pickle.entry(dict, key);
    let root = pickle.root;
    let state = entry(root, "model_state_dict").and_then(|state| entry(state, "compressor"));
    let found = state.or_else(|| entry(root, "compressor"));
    let unnamed = || {
        let what = if found.is_some() { "the compressor in it" } else { "the checkpoint" };
        format!("{what} is not a dictionary of tensors by name")
    };
    let mut tensors = BTreeMap::new();
    for (key, value) in pickle.dict(found.unwrap_or(root)).ok_or_else(unnamed)? {
        let key = pickle.name(*key).ok_or_else(unnamed)?;
        let tensor = Tensor::read(pickle, *value).map_err(|problem| format!("{key}: {problem}"))?;
        if tensors.insert(key.to_owned(), tensor).is_some() {
            return Err(format!("{key} occurs twice"));
        }
    }
    Ok(tensors)
}
