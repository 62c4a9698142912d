//! Reads and checks headers.

use super::dtype::FileDtype;
use crate::file::Source;
use mnnkv::json::{Number, Reader};
use mnnkv::status::{Error, Result, Status};
use mnnkv::sys::memory;
use std::borrow::Cow;
use std::fmt;

/// The largest header in bytes: the limit of the format's own implementation.
pub const MAX_HEADER: u64 = 100_000_000;

/// A tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Name.
    pub name: String,
    /// Element type.
    pub dtype: FileDtype,
    /// Dimensions, outermost first; none for a single number.
    pub shape: Vec<u64>,
    /// Offset of its data in the file.
    pub begin: u64,
    /// Bytes of its data according to type and shape.
    pub bytes: u64,
    /// Whether the file contains all of its data.
    pub complete: bool,
}

impl Tensor {
    /// Number of elements.
    pub fn elements(&self) -> u64 {
        // Checked when the header was read.
        self.shape.iter().product()
    }
}

/// Kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The file is shorter than its header announces.
    Truncated,
    /// The header violates the format.
    Malformed,
    /// Two tensors have one name.
    Duplicate,
    /// The file could not be read.
    Unreadable,
}

/// A fault of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Kind.
    pub fault: Fault,
    /// The tensor at fault; empty for the file.
    pub tensor: String,
    /// The found and the expected content.
    pub text: String,
}

/// The tensors of a file in the order of their data, or the first fault: CORRUPT, or IO if the file cannot be read.
pub fn read<S: Source + ?Sized>(source: &S) -> Result<Vec<Tensor>> {
    let (tensors, problems) = survey(source)?;
    match problems.into_iter().next() {
        None => Ok(tensors),
        Some(problem) => {
            let status = if problem.fault == Fault::Unreadable { Status::Io } else { Status::Corrupt };
            Err(Error::new(status, problem.text))
        }
    }
}

/// Every valid tensor in the order of their data, and every fault of the file. The only error is OUT_OF_MEMORY.
pub fn survey<S: Source + ?Sized>(source: &S) -> Result<(Vec<Tensor>, Vec<Problem>)> {
    let mut problems = Problems(Vec::new());
    let tensors = entries(source, &mut problems)?;
    Ok((tensors, problems.0))
}

struct Problems(Vec<Problem>);

impl Problems {
    fn add(&mut self, fault: Fault, tensor: &str, text: fmt::Arguments<'_>) -> Result<()> {
        let problem = Problem { fault, tensor: memory::text(tensor)?, text: memory::format(text)? };
        memory::push(&mut self.0, problem)
    }

    /// Adds a read failure.
    fn add_error(&mut self, e: Error) -> Result<()> {
        let e = e.unless_out_of_memory()?;
        self.add(Fault::Unreadable, "", format_args!("{}", e.message()))
    }
}

/// An entry of the header.
struct Entry<'a> {
    name: Cow<'a, str>,
    dtype: Cow<'a, str>,
    shape: Vec<u64>,
    offsets: Vec<u64>,
}

/// The readable tensors of a header, and a problem for each other one.
fn entries<S: Source + ?Sized>(source: &S, problems: &mut Problems) -> Result<Vec<Tensor>> {
    let none = |()| Vec::new();
    let file = source.len();
    if file < 8 {
        let text = format_args!("the file has {file} bytes; a header length of 8 expected");
        return problems.add(Fault::Truncated, "", text).map(none);
    }
    let mut length = [0; 8];
    if let Err(e) = source.read_at(0, &mut length) {
        return problems.add_error(e).map(none);
    }
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER {
        let text = format_args!("offset 0: the header has {length} bytes; at most {MAX_HEADER} allowed");
        return problems.add(Fault::Malformed, "", text).map(none);
    }
    if length > file - 8 {
        let left = file - 8;
        let text = format_args!("offset 0: the header has {length} bytes; the file has {left} behind its length");
        return problems.add(Fault::Truncated, "", text).map(none);
    }
    let text = match source.read_vec(8, length) {
        Ok(text) => text,
        Err(e) => return problems.add_error(e).map(none),
    };
    if text.first() != Some(&b'{') {
        let text = format_args!("offset 8: the header does not begin with {{");
        return problems.add(Fault::Malformed, "", text).map(none);
    }
    match parse(&text) {
        Ok(entries) => check(entries, 8 + length, file, problems),
        Err(e) => {
            let e = e.unless_out_of_memory()?;
            problems.add(Fault::Malformed, "", format_args!("header: {}", e.message())).map(none)
        }
    }
}

/// `data` is the offset of the data, `file` the length of the file.
fn check(mut entries: Vec<Entry>, data: u64, file: u64, problems: &mut Problems) -> Result<Vec<Tensor>> {
    let (mut tensors, mut ranges) = (Vec::new(), Vec::new());
    let again = repeated(&entries)?;
    let before = problems.0.len();
    for (number, entry) in entries.iter_mut().enumerate() {
        let name = entry.name.as_ref();
        if again.binary_search(&number).is_ok() {
            problems.add(Fault::Duplicate, name, format_args!("tensor {name} comes twice in the header"))?;
            continue;
        }
        let Some((dtype, bytes, begin, end)) = place(entry, problems)? else { continue };
        let complete = data.checked_add(end).is_some_and(|end| end <= file);
        memory::push(&mut ranges, (begin, end, tensors.len()))?;
        let (name, shape) = (memory::text(name)?, std::mem::take(&mut entry.shape));
        let begin = data.saturating_add(begin);
        memory::push(&mut tensors, Tensor { name, dtype, shape, begin, bytes, complete })?;
    }
    ranges.sort_unstable();
    if problems.0.len() == before {
        contiguous(&ranges, &tensors, file - data, problems)?;
    }
    // Several tensors without elements may share an offset; then names decide.
    tensors.sort_unstable_by(|a, b| (a.begin, a.bytes, &a.name).cmp(&(b.begin, b.bytes, &b.name)));
    Ok(tensors)
}

/// Type, bytes, begin and end of a tensor; `None` with a problem if they contradict each other.
fn place(entry: &Entry, problems: &mut Problems) -> Result<Option<(FileDtype, u64, u64, u64)>> {
    let Entry { name, dtype, shape, offsets } = entry;
    let mut wrong = |text: fmt::Arguments<'_>| {
        problems.add(Fault::Malformed, name, format_args!("tensor {name}: {text}")).map(|()| None)
    };
    let Some(dtype) = FileDtype::from_name(dtype) else {
        return wrong(format_args!("dtype {dtype:?} is none of the format's"));
    };
    let type_name = dtype.name();
    let Some(bytes) = extent(dtype, shape) else {
        return wrong(format_args!("shape {shape:?} of {type_name} is no whole number of bytes below 2^64"));
    };
    match *offsets.as_slice() {
        [begin, end] if begin <= end && end - begin == bytes => Ok(Some((dtype, bytes, begin, end))),
        [begin, end] if begin <= end => {
            let span = end - begin;
            wrong(format_args!("data_offsets [{begin}, {end}] span {span} bytes; {type_name} {shape:?} has {bytes}"))
        }
        _ => wrong(format_args!("data_offsets is {offsets:?}; [begin, end] expected")),
    }
}

/// The entries that repeat an earlier name, ascending.
fn repeated(entries: &[Entry]) -> Result<Vec<usize>> {
    let mut order = memory::collect(0..entries.len())?;
    order.sort_unstable_by_key(|number| (&entries[*number].name, *number));
    let mut again = Vec::new();
    for pair in order.windows(2) {
        if entries[pair[0]].name == entries[pair[1]].name {
            memory::push(&mut again, pair[1])?;
        }
    }
    again.sort_unstable();
    Ok(again)
}

/// Bytes of a tensor; `None` if that is not a whole number of bytes or exceeds 64 bits.
fn extent(dtype: FileDtype, shape: &[u64]) -> Option<u64> {
    // A shape whose other dims overflow is refused, with a zero, too.
    let elements = shape.iter().try_fold(1u64, |product, dim| product.checked_mul((*dim).max(1)));
    dtype.bytes_of(elements.map(|product| if shape.contains(&0) { 0 } else { product })?)
}

/// `ranges` are sorted triples (begin, end, tensor); `len` is the data length of the file.
fn contiguous(ranges: &[(u64, u64, usize)], tensors: &[Tensor], len: u64, problems: &mut Problems) -> Result<()> {
    let mut at = 0;
    for &(begin, end, tensor) in ranges {
        let name = &tensors[tensor].name;
        if begin != at {
            let what = if begin < at { "overlaps the tensor before it" } else { "leaves a gap before it" };
            let text = format_args!("tensor {name}: data_offsets [{begin}, {end}] {what}; {at} expected as its begin");
            problems.add(Fault::Malformed, name, text)?;
        }
        at = at.max(end);
    }
    if at > len {
        let first = ranges.iter().find(|(_, end, _)| *end > len).map_or("", |(_, _, t)| tensors[*t].name.as_str());
        let text = format_args!("the file ends within tensor {first}: {at} bytes of data announced, {len} are there");
        problems.add(Fault::Truncated, first, text)?;
    } else if at < len {
        let rest = len - at;
        let text = format_args!("{rest} bytes follow the data of the last tensor; none expected");
        problems.add(Fault::Malformed, "", text)?;
    }
    Ok(())
}

/// Reads the entries, whose names and types borrow from the header. `__metadata__` is only checked.
fn parse(text: &[u8]) -> Result<Vec<Entry<'_>>> {
    let mut reader = Reader::new(text);
    let mut entries = Vec::new();
    reader.object(|reader, name| {
        if name == "__metadata__" {
            return metadata(reader);
        }
        memory::push(&mut entries, entry(reader, name)?)
    })?;
    reader.end()?;
    Ok(entries)
}

/// Strings by name; checked, not kept.
fn metadata(reader: &mut Reader) -> Result<()> {
    let expected = "__metadata__ as an object of strings is expected";
    if reader.peek()? != b'{' {
        return Err(reader.fault(expected));
    }
    reader.object(|reader, _| match reader.peek()? {
        b'"' => reader.skip(),
        _ => Err(reader.fault(expected)),
    })
}

fn entry<'a>(reader: &mut Reader<'a>, name: Cow<'a, str>) -> Result<Entry<'a>> {
    if reader.peek()? != b'{' {
        let expected = "an object of dtype, shape and data_offsets is expected";
        return Err(reader.fault(format_args!("tensor {name} as {expected}")));
    }
    let (mut dtype, mut shape, mut offsets) = (None, None, None);
    reader.object(|reader, key| {
        let again = match key.as_ref() {
            "dtype" if reader.peek()? == b'"' => dtype.replace(reader.text()?).is_some(),
            "shape" if reader.peek()? == b'[' => shape.replace(counts(reader, &name, &key)?).is_some(),
            "data_offsets" if reader.peek()? == b'[' => offsets.replace(counts(reader, &name, &key)?).is_some(),
            "dtype" => return Err(reader.fault(format_args!("tensor {name}: dtype: a string is expected"))),
            "shape" | "data_offsets" => {
                return Err(reader.fault(format_args!("tensor {name}: {key}: a list is expected")));
            }
            _ => {
                reader.skip()?;
                false
            }
        };
        match again {
            true => Err(reader.fault(format_args!("tensor {name}: {key} comes twice"))),
            false => Ok(()),
        }
    })?;
    match (dtype, shape, offsets) {
        (Some(dtype), Some(shape), Some(offsets)) => Ok(Entry { name, dtype, shape, offsets }),
        _ => Err(reader.fault(format_args!("tensor {name} lacks one of dtype, shape and data_offsets"))),
    }
}

/// A list of integers.
fn counts(reader: &mut Reader, name: &str, key: &str) -> Result<Vec<u64>> {
    let mut counts = Vec::new();
    reader.list(|reader| {
        let number = match reader.peek()? {
            b'-' | b'0'..=b'9' => Some(reader.number()?),
            _ => None,
        };
        match number {
            Some(Number::Unsigned(count)) => memory::push(&mut counts, count),
            _ => Err(reader.fault(format_args!("tensor {name}: {key}: whole numbers from 0 on are expected"))),
        }
    })?;
    Ok(counts)
}

#[cfg(test)]
mod tests;
