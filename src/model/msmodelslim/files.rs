//! The tensors of a directory, whatever file they are in, read in pieces.

use super::folder::OpenFile;
use crate::model::safetensors::{Dtype, Tensor};
use crate::status::{Error, Result, Status, bail};
use crate::sys::memory::reserve;
use half::{bf16, f16};
use std::collections::BTreeMap;

/// A file with weights.
pub struct WeightFile {
    /// Its name within the folder.
    pub name: String,
    /// Its tensors in the order of their data.
    pub tensors: Vec<Tensor>,
    pub(super) source: OpenFile,
}

/// All files with weights, and where each tensor is.
#[derive(Default)]
pub(super) struct Files {
    pub(super) files: Vec<WeightFile>,
    /// Number of the file, and of the tensor in it.
    pub(super) places: BTreeMap<String, (usize, usize)>,
}

impl Files {
    pub(super) fn get(&self, name: &str) -> Option<Located<'_>> {
        let &(file, tensor) = self.places.get(name)?;
        let file = &self.files[file];
        Some(Located { file, tensor: &file.tensors[tensor] })
    }

    /// As [`Files::get`]; NOT_FOUND names what is missing.
    pub(super) fn need(&self, name: &str) -> Result<Located<'_>> {
        self.get(name).ok_or_else(|| Error::new(Status::NotFound, format!("there is no tensor {name}")))
    }
}

/// A tensor and the file it is in.
#[derive(Clone, Copy)]
pub(super) struct Located<'a> {
    pub(super) file: &'a WeightFile,
    pub(super) tensor: &'a Tensor,
}

impl Located<'_> {
    /// The bytes of `count` elements from element `begin` on.
    pub(super) fn bytes(&self, begin: u64, count: u64) -> Result<Vec<u8>> {
        let (dtype, name) = (self.tensor.dtype, &self.tensor.name);
        let end = begin.checked_add(count).filter(|end| *end <= self.tensor.elements());
        let range = dtype.bytes_of(begin).zip(dtype.bytes_of(count)).filter(|_| end.is_some());
        let Some((at, len)) = range else {
            bail!(
                InvalidArgument,
                "tensor {name}: elements {begin} .. {begin} + {count} asked for; it has {}",
                self.tensor.elements()
            );
        };
        if !self.tensor.complete {
            bail!(Corrupt, "{}: the file ends within tensor {name}", self.file.name);
        }
        // `begin + at` fits: the tensor is complete, so its end is within the file.
        self.file
            .source
            .read_vec(self.tensor.begin + at, len)
            .map_err(|e| Error::new(e.status(), format!("{}: tensor {name}: {}", self.file.name, e.message())))
    }

    /// Elements of any float type as f32.
    pub(super) fn floats(&self, begin: u64, count: u64) -> Result<Vec<f32>> {
        let convert: fn(&[u8]) -> f32 = match self.tensor.dtype {
            Dtype::F32 => |b| f32::from_le_bytes(fixed(b)),
            Dtype::F16 => |b| f16::from_le_bytes(fixed(b)).to_f32(),
            Dtype::Bf16 => |b| bf16::from_le_bytes(fixed(b)).to_f32(),
            Dtype::F64 => |b| f64::from_le_bytes(fixed(b)) as f32,
            other => return Err(self.wrong_dtype(other, "F16, BF16, F32 or F64")),
        };
        self.elements(begin, count, convert)
    }

    /// Elements of an I8 tensor.
    pub(super) fn codes(&self, begin: u64, count: u64) -> Result<Vec<i8>> {
        match self.tensor.dtype {
            Dtype::I8 => self.elements(begin, count, |b| b[0] as i8),
            other => Err(self.wrong_dtype(other, "I8")),
        }
    }

    /// Elements of an I32 tensor.
    pub(super) fn i32s(&self, begin: u64, count: u64) -> Result<Vec<i32>> {
        match self.tensor.dtype {
            Dtype::I32 => self.elements(begin, count, |b| i32::from_le_bytes(fixed(b))),
            other => Err(self.wrong_dtype(other, "I32")),
        }
    }

    /// Elements of an I64 tensor.
    pub(super) fn i64s(&self, begin: u64, count: u64) -> Result<Vec<i64>> {
        match self.tensor.dtype {
            Dtype::I64 => self.elements(begin, count, |b| i64::from_le_bytes(fixed(b))),
            other => Err(self.wrong_dtype(other, "I64")),
        }
    }

    fn elements<T>(&self, begin: u64, count: u64, convert: impl Fn(&[u8]) -> T) -> Result<Vec<T>> {
        let bytes = self.bytes(begin, count)?;
        let width = (self.tensor.dtype.bits() / 8) as usize;
        let mut elements = Vec::new();
        reserve(&mut elements, bytes.len() / width)?;
        elements.extend(bytes.chunks_exact(width).map(convert));
        Ok(elements)
    }

    fn wrong_dtype(&self, found: Dtype, expected: &str) -> Error {
        let text = format!("{}: tensor {} is {}; {expected} expected", self.file.name, self.tensor.name, found.name());
        Error::new(Status::Corrupt, text)
    }
}

fn fixed<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("chunks of the element's width")
}
