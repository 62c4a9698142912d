//! Reading and checking a header.

use super::dtype::Dtype;
use crate::model::file::Source;
use crate::status::{Error, Result, Status};
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use std::collections::HashSet;
use std::fmt;

/// Bytes a header may have: the limit of the format's own implementation.
pub const MAX_HEADER: u64 = 100_000_000;

/// A tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its dimensions, outermost first; none for a single number.
    pub shape: Vec<u64>,
    /// Where its data begins, in bytes from the beginning of the file.
    pub begin: u64,
    /// Bytes of its data: as many as type and shape ask for.
    pub bytes: u64,
    /// Whether the file has all of its data.
    pub complete: bool,
}

impl Tensor {
    /// Elements in all.
    pub fn elements(&self) -> u64 {
        // Checked when the header was read.
        self.shape.iter().product()
    }
}

/// What kind of fault a header has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The file ends before what its header announces.
    Truncated,
    /// The header is not what the format asks for.
    Malformed,
    /// Two tensors have one name.
    Duplicate,
    /// The file could not be read.
    Unreadable,
}

/// A fault of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Its kind.
    pub fault: Fault,
    /// The tensor at fault; empty where it is the file.
    pub tensor: String,
    /// What was found and what was expected.
    pub text: String,
}

/// The tensors of a file in the order of their data, or the first fault: CORRUPT, or IO where the file cannot be read.
pub fn read<S: Source + ?Sized>(source: &S) -> Result<Vec<Tensor>> {
    let (tensors, problems) = survey(source);
    match problems.into_iter().next() {
        None => Ok(tensors),
        Some(problem) => {
            let status = if problem.fault == Fault::Unreadable { Status::Io } else { Status::Corrupt };
            Err(Error::new(status, problem.text))
        }
    }
}

/// Every tensor whose entry makes sense, in the order of their data, and every fault of the file.
pub fn survey<S: Source + ?Sized>(source: &S) -> (Vec<Tensor>, Vec<Problem>) {
    let mut problems = Problems(Vec::new());
    let tensors = entries(source, &mut problems).unwrap_or_default();
    (tensors, problems.0)
}

struct Problems(Vec<Problem>);

impl Problems {
    fn add(&mut self, fault: Fault, tensor: &str, text: String) {
        self.0.push(Problem { fault, tensor: tensor.to_owned(), text });
    }
}

/// An entry as it is written.
struct Entry {
    name: String,
    dtype: String,
    shape: Vec<u64>,
    offsets: Vec<u64>,
}

fn entries<S: Source + ?Sized>(source: &S, problems: &mut Problems) -> Option<Vec<Tensor>> {
    let file = source.len();
    if file < 8 {
        problems.add(Fault::Truncated, "", format!("the file has {file} bytes; a header length of 8 expected"));
        return None;
    }
    let mut length = [0; 8];
    if let Err(e) = source.read_at(0, &mut length) {
        problems.add(Fault::Unreadable, "", e.message().to_owned());
        return None;
    }
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER {
        let text = format!("offset 0: the header has {length} bytes; at most {MAX_HEADER} allowed");
        problems.add(Fault::Malformed, "", text);
        return None;
    }
    if length > file - 8 {
        let text = format!("offset 0: the header has {length} bytes; the file has {} behind its length", file - 8);
        problems.add(Fault::Truncated, "", text);
        return None;
    }
    let text = match source.read_vec(8, length) {
        Ok(text) => text,
        Err(e) => {
            problems.add(Fault::Unreadable, "", e.message().to_owned());
            return None;
        }
    };
    if text.first() != Some(&b'{') {
        problems.add(Fault::Malformed, "", "offset 8: the header does not begin with {".to_owned());
        return None;
    }
    let mut json = serde_json::Deserializer::from_slice(&text);
    let entries = match Header.deserialize(&mut json).and_then(|entries| json.end().map(|()| entries)) {
        Ok(entries) => entries,
        Err(e) => {
            problems.add(Fault::Malformed, "", format!("header: {e}"));
            return None;
        }
    };
    drop(text);
    Some(check(entries, 8 + length, file, problems))
}

/// `data` is where the data begins, `file` the length of the file.
fn check(entries: Vec<Entry>, data: u64, file: u64, problems: &mut Problems) -> Vec<Tensor> {
    let mut names = HashSet::new();
    let mut tensors = Vec::new();
    let mut ranges = Vec::new();
    let mut sound = true;
    for entry in entries {
        let name = entry.name.as_str();
        if !names.insert(entry.name.clone()) {
            problems.add(Fault::Duplicate, name, format!("tensor {name} comes twice in the header"));
            sound = false;
            continue;
        }
        let range = match *entry.offsets.as_slice() {
            [begin, end] if begin <= end => Ok((begin, end)),
            _ => Err(format!("tensor {name}: data_offsets is {:?}; [begin, end] expected", entry.offsets)),
        };
        let size = extent(&entry);
        let (dtype, bytes, (begin, end)) = match (size, range) {
            (Ok((dtype, bytes)), Ok(range)) => (dtype, bytes, range),
            (Err(text), _) | (_, Err(text)) => {
                problems.add(Fault::Malformed, name, text);
                sound = false;
                continue;
            }
        };
        if end - begin != bytes {
            let text = format!(
                "tensor {name}: data_offsets [{begin}, {end}] span {} bytes; {} {:?} has {bytes}",
                end - begin,
                dtype.name(),
                entry.shape
            );
            problems.add(Fault::Malformed, name, text);
            sound = false;
            continue;
        }
        let complete = data.checked_add(end).is_some_and(|end| end <= file);
        ranges.push((begin, end, tensors.len()));
        let begin = data.saturating_add(begin);
        tensors.push(Tensor { name: entry.name, dtype, shape: entry.shape, begin, bytes, complete });
    }
    ranges.sort_unstable();
    if sound {
        contiguous(&ranges, &tensors, file - data, problems);
    }
    tensors.sort_by_key(|tensor| (tensor.begin, tensor.bytes));
    tensors
}

/// Element type and bytes that an entry asks for.
fn extent(entry: &Entry) -> std::result::Result<(Dtype, u64), String> {
    let name = &entry.name;
    let Some(dtype) = Dtype::from_name(&entry.dtype) else {
        return Err(format!("tensor {name}: dtype {:?} is none of the format's", entry.dtype));
    };
    // Zeros last: a shape with one has no elements, whatever the product of the others.
    let elements = entry.shape.iter().try_fold(1u64, |product, dim| product.checked_mul((*dim).max(1)));
    let elements = elements.map(|product| if entry.shape.contains(&0) { 0 } else { product });
    match elements.and_then(|elements| dtype.bytes_of(elements)) {
        Some(bytes) => Ok((dtype, bytes)),
        None => Err(format!(
            "tensor {name}: shape {:?} of {} is no whole number of bytes below 2^64",
            entry.shape,
            dtype.name()
        )),
    }
}

/// `ranges` are (begin, end, tensor), sorted; `len` is how many bytes of data the file has.
fn contiguous(ranges: &[(u64, u64, usize)], tensors: &[Tensor], len: u64, problems: &mut Problems) {
    let mut at = 0;
    for &(begin, end, tensor) in ranges {
        let name = &tensors[tensor].name;
        if begin != at {
            let what = if begin < at { "overlaps the tensor before it" } else { "leaves a gap before it" };
            let text = format!("tensor {name}: data_offsets [{begin}, {end}] {what}; {at} expected as its begin");
            problems.add(Fault::Malformed, name, text);
        }
        at = at.max(end);
    }
    if at > len {
        let first = ranges.iter().find(|(_, end, _)| *end > len).map_or("", |(_, _, t)| tensors[*t].name.as_str());
        let text = format!("the file ends within tensor {first}: {at} bytes of data announced, {len} are there");
        problems.add(Fault::Truncated, first, text);
    } else if at < len {
        let text = format!("{} bytes follow the data of the last tensor; none expected", len - at);
        problems.add(Fault::Malformed, "", text);
    }
}

struct Header;

impl<'de> DeserializeSeed<'de> for Header {
    type Value = Vec<Entry>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> std::result::Result<Self::Value, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Header {
    type Value = Vec<Entry>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                map.next_value_seed(Metadata)?;
            } else {
                entries.push(map.next_value_seed(TensorEntry(name))?);
            }
        }
        Ok(entries)
    }
}

/// Strings by name, which nothing here reads.
struct Metadata;

impl<'de> DeserializeSeed<'de> for Metadata {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> std::result::Result<(), D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Metadata {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("__metadata__ as an object of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<(), A::Error> {
        while map.next_entry::<IgnoredAny, String>()?.is_some() {}
        Ok(())
    }
}

struct TensorEntry(String);

impl<'de> DeserializeSeed<'de> for TensorEntry {
    type Value = Entry;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> std::result::Result<Entry, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for TensorEntry {
    type Value = Entry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tensor {} as an object of dtype, shape and data_offsets", self.0)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Entry, A::Error> {
        let name = self.0;
        let (mut dtype, mut shape, mut offsets) = (None::<String>, None::<Vec<u64>>, None::<Vec<u64>>);
        while let Some(key) = map.next_key::<String>()? {
            let wrong = |e: A::Error| A::Error::custom(format_args!("tensor {name}: {key}: {e}"));
            let again = match key.as_str() {
                "dtype" => dtype.replace(map.next_value().map_err(wrong)?).is_some(),
                "shape" => shape.replace(map.next_value().map_err(wrong)?).is_some(),
                "data_offsets" => offsets.replace(map.next_value().map_err(wrong)?).is_some(),
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    false
                }
            };
            if again {
                return Err(A::Error::custom(format_args!("tensor {name}: {key} comes twice")));
            }
        }
        match (dtype, shape, offsets) {
            (Some(dtype), Some(shape), Some(offsets)) => Ok(Entry { name, dtype, shape, offsets }),
            _ => Err(A::Error::custom(format_args!("tensor {name} lacks one of dtype, shape and data_offsets"))),
        }
    }
}

#[cfg(test)]
mod tests;
