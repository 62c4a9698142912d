//! The tensors of a directory across its files, read in pieces.

use super::folder::OpenFile;
use crate::names::Name;
use crate::safetensors::{FileDtype, Tensor};
use half::{bf16, f16};
use mnnkv::status::{Error, Result, bail, error};
use mnnkv::sys::memory;

/// A weight file.
pub struct WeightFile {
    /// Its name within the folder.
    pub name: String,
    /// Its tensors in the order of their data.
    pub tensors: Vec<Tensor>,
    pub(super) source: OpenFile,
}

/// All weight files, and the place of each tensor.
#[derive(Default)]
pub(super) struct Files {
    pub(super) files: Vec<WeightFile>,
    /// Every tensor, sorted by name.
    places: Vec<Place>,
}

/// Number of the file, and of the tensor in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    file: usize,
    tensor: usize,
}

impl Files {
    /// Builds the place of every tensor after the last file. The first file with a name counts; `again` receives each
    /// other place together with the first one.
    pub(super) fn find_places(&mut self, mut again: impl FnMut(Located<'_>, Located<'_>) -> Result<()>) -> Result<()> {
        let mut places = Vec::new();
        memory::reserve(&mut places, self.files.iter().map(|file| file.tensors.len()).sum())?;
        for (number, file) in self.files.iter().enumerate() {
            for tensor in 0..file.tensors.len() {
                memory::push(&mut places, Place { file: number, tensor })?;
            }
        }
        places.sort_unstable_by_key(|place| (&self.at(*place).tensor.name, place.file));
        let mut first: Option<Place> = None;
        for place in &places {
            match first.filter(|first| self.at(*first).tensor.name == self.at(*place).tensor.name) {
                Some(first) => again(self.at(*place), self.at(first))?,
                None => first = Some(*place),
            }
        }
        places.dedup_by(|place, first| self.at(*place).tensor.name == self.at(*first).tensor.name);
        self.places = places;
        Ok(())
    }

    pub(super) fn at(&self, place: Place) -> Located<'_> {
        let file = &self.files[place.file];
        Located { file, tensor: &file.tensors[place.tensor] }
    }

    /// The place of the tensor with this name.
    pub(super) fn place<'a>(&self, name: impl Into<Name<'a>>) -> Option<Place> {
        let found = name.into().find(&self.places, |place| &self.at(*place).tensor.name)?;
        Some(self.places[found])
    }

    pub(super) fn get<'a>(&self, name: impl Into<Name<'a>>) -> Option<Located<'_>> {
        self.place(name).map(|place| self.at(place))
    }

    /// As [`Files::get`]. NOT_FOUND: if no tensor has this name.
    pub(super) fn need<'a>(&self, name: impl Into<Name<'a>>) -> Result<Located<'_>> {
        let name = name.into();
        self.get(name).ok_or_else(|| error!(NotFound, "tensor {name} does not exist"))
    }

    /// Every tensor, sorted by name.
    pub(super) fn all(&self) -> impl ExactSizeIterator<Item = Located<'_>> {
        self.places.iter().map(|place| self.at(*place))
    }
}

/// A tensor and its file.
#[derive(Clone, Copy)]
pub(super) struct Located<'a> {
    pub(super) file: &'a WeightFile,
    pub(super) tensor: &'a Tensor,
}

impl Located<'_> {
    /// The bytes of `count` elements from `begin` on.
    pub(super) fn bytes(&self, begin: u64, count: u64) -> Result<Vec<u8>> {
        let (dtype, name) = (self.tensor.dtype, &self.tensor.name);
        let end = begin.checked_add(count).filter(|end| *end <= self.tensor.elements());
        let range = dtype.bytes_of(begin).zip(dtype.bytes_of(count)).filter(|_| end.is_some());
        let Some((at, len)) = range else {
            bail!(
                InvalidArgument,
                "tensor {name}: elements {begin} .. {begin} + {count} are out of range; it has {}",
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
            .map_err(|e| e.within(format_args!("{}: tensor {name}", self.file.name)))
    }

    /// Elements of any float type as f32.
    pub(super) fn floats(&self, begin: u64, count: u64) -> Result<Vec<f32>> {
        let convert = self.float_of_bytes()?;
        self.elements(begin, count, convert)
    }

    /// Converts the bytes of one element of any float type.
    pub(super) fn float_of_bytes(&self) -> Result<fn(&[u8]) -> f32> {
        Ok(match self.tensor.dtype {
            FileDtype::F32 => |b| f32::from_le_bytes(fixed(b)),
            FileDtype::F16 => |b| f16::from_le_bytes(fixed(b)).to_f32(),
            FileDtype::Bf16 => |b| bf16::from_le_bytes(fixed(b)).to_f32(),
            FileDtype::F64 => |b| f64::from_le_bytes(fixed(b)) as f32,
            other => return Err(self.wrong_dtype(other, "F16, BF16, F32 or F64")),
        })
    }

    /// Elements of an I8 tensor.
    pub(super) fn codes(&self, begin: u64, count: u64) -> Result<Vec<i8>> {
        memory::collect(self.code_bytes(begin, count)?.iter().map(|b| *b as i8))
    }

    /// As [`Located::codes`], as bytes.
    pub(super) fn code_bytes(&self, begin: u64, count: u64) -> Result<Vec<u8>> {
        match self.tensor.dtype {
            FileDtype::I8 => self.bytes(begin, count),
            other => Err(self.wrong_dtype(other, "I8")),
        }
    }

    /// Elements of an I32 tensor.
    pub(super) fn i32s(&self, begin: u64, count: u64) -> Result<Vec<i32>> {
        match self.tensor.dtype {
            FileDtype::I32 => self.elements(begin, count, |b| i32::from_le_bytes(fixed(b))),
            other => Err(self.wrong_dtype(other, "I32")),
        }
    }

    /// Elements of an I64 tensor.
    pub(super) fn i64s(&self, begin: u64, count: u64) -> Result<Vec<i64>> {
        match self.tensor.dtype {
            FileDtype::I64 => self.elements(begin, count, |b| i64::from_le_bytes(fixed(b))),
            other => Err(self.wrong_dtype(other, "I64")),
        }
    }

    fn elements<T>(&self, begin: u64, count: u64, convert: impl Fn(&[u8]) -> T) -> Result<Vec<T>> {
        let bytes = self.bytes(begin, count)?;
        let width = (self.tensor.dtype.bits() / 8) as usize;
        memory::collect(bytes.chunks_exact(width).map(convert))
    }

    fn wrong_dtype(&self, found: FileDtype, expected: &str) -> Error {
        let (file, tensor) = (&self.file.name, &self.tensor.name);
        error!(Corrupt, "{file}: tensor {tensor} is {}; {expected} expected", found.name())
    }
}

fn fixed<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("chunks of the element's width")
}
