//! The float model of a directory, for runtimes without kernels for its types.

use super::files::Place;
use super::layers::QUANTISED_PARTS;
use super::model::Model;
use super::tags::Tag;
use crate::names::Name;
use crate::safetensors;
use mnnkv::dtype::Dtype;
use mnnkv::dtype::convert::{Endian, narrow};
use mnnkv::status::{Result, bail};
use mnnkv::sys::memory;
use std::ops::Range;

/// Name endings of tensors that a runtime applies during inference: the model differs without them.
const RUN_TIME: &[&str] = &[".div.mul_scale", ".heads_rotation", ".kronecker_rotation_m", ".kronecker_rotation_n"];

/// A tensor of the float model, `[rows][row_len]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FloatTensor {
    /// The name in the model before quantisation.
    pub name: String,
    /// Element type.
    pub dtype: safetensors::FileDtype,
    /// As in the directory.
    pub shape: Vec<u64>,
    /// The first dimension; 1 for a scalar and for elements below a byte.
    pub rows: u64,
    /// Elements of a row.
    pub row_len: u64,
    from: From,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum From {
    /// The weight of the linear with this number.
    Linear(usize),
    /// The floats of a tensor.
    Floats(Place),
    /// The bytes of a tensor.
    Bytes(Place),
}

impl FloatTensor {
    /// Bytes of a row.
    pub fn row_bytes(&self) -> u64 {
        self.dtype.bytes_of(self.row_len).unwrap_or(0)
    }

    /// Bytes of all rows.
    pub fn bytes(&self) -> u64 {
        self.rows.saturating_mul(self.row_bytes())
    }
}

impl Model {
    /// The tensors of the float model with weights, biases and norms in `dtype` (F16, BF16 or F32), by name.
    ///
    /// Quantised weights become floats. Their scales, offsets and folded biases are dropped, and so are KV scales. A
    /// smoothed norm keeps the pair for quantised linears, under the plain name. Tensors other than float weights and
    /// biases stay unchanged. UNSUPPORTED: if a weight has an unsupported type, or a tensor applies during inference.
    /// Errors of an unusable linear name it.
    pub fn float_tensors(&self, dtype: Dtype) -> Result<Vec<FloatTensor>> {
        if dtype == Dtype::Int8 {
            bail!(InvalidArgument, "dtype is INT8; F16, BF16 or F32 expected");
        }
        let float = safetensors::FileDtype::of(dtype);
        self.linears().iter().try_for_each(|linear| linear.usable())?;
        let mut kv_names = Vec::new();
        for side in self.kv_layers().iter().flat_map(|layer| [&layer.key, &layer.value]) {
            memory::push(&mut kv_names, side.scale.as_str())?;
            memory::push(&mut kv_names, side.offset.as_deref().unwrap_or(""))?;
        }
        kv_names.sort_unstable();
        let mut tensors = Vec::new();
        for located in self.files.all() {
            let (tensor, name) = (located.tensor, located.tensor.name.as_str());
            let Some(new_name) = self.float_name(name, &kv_names) else { continue };
            if RUN_TIME.iter().any(|end| name.ends_with(end)) {
                bail!(
                    Unsupported,
                    "tensor {name} is applied while the model runs; a float model without it is another"
                );
            }
            let Some(place) = self.files.place(name) else { continue };
            let is_weight = [".weight", ".bias"].iter().any(|end| name.ends_with(end));
            let linear = name.strip_suffix(".weight").and_then(|name| self.linear_number(name));
            let (dtype, from) = match linear {
                Some(number) => (float, From::Linear(number)),
                None if is_weight && tensor.dtype.is_float() => (float, From::Floats(place)),
                None if name.ends_with(".weight") => bail!(
                    Unsupported,
                    "tensor {name} is {}, and no linear of a type that is read here",
                    tensor.dtype.name()
                ),
                None => (tensor.dtype, From::Bytes(place)),
            };
            // A row of elements below a byte may end inside a byte.
            let rows = if dtype.bits() < 8 { 1 } else { tensor.shape.first().copied().unwrap_or(1) };
            let row_len = tensor.elements().checked_div(rows).unwrap_or(0);
            let (name, shape) = (memory::format(format_args!("{new_name}"))?, memory::copied(&tensor.shape)?);
            memory::push(&mut tensors, FloatTensor { name, dtype, shape, rows, row_len, from })?;
        }
        tensors.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(tensors)
    }

    /// The name of a tensor in the float model; `None` if the model drops it. `kv_names` is sorted.
    fn float_name<'a>(&self, name: &'a str, kv_names: &[&str]) -> Option<Name<'a>> {
        let Some((layer, part)) = name.rsplit_once('.') else { return Some(name.into()) };
        if kv_names.binary_search(&name).is_ok() {
            return None;
        }
        if QUANTISED_PARTS.contains(&part)
            && let Some(number) = self.linear_number(layer)
            && self.linears()[number].tag != Tag::Float
        {
            return None;
        }
        let is_smoothed = |layer| {
            let found = Name::from(layer).find(self.norms(), |norm| &norm.name);
            found.is_some_and(|number| self.norms()[number].smoothed)
        };
        match layer.strip_suffix(".module") {
            _ if !["weight", "bias"].contains(&part) => Some(name.into()),
            // The pair for quantised linears replaces the plain one.
            Some(norm) if is_smoothed(norm) => Some(Name::of(norm, part)),
            _ if is_smoothed(layer) => None,
            _ => Some(name.into()),
        }
    }

    fn linear_number(&self, name: &str) -> Option<usize> {
        Name::from(name).find(self.linears(), |linear| &linear.name)
    }

    /// Writes rows of a tensor of [`Model::float_tensors`], little-endian, rounded to nearest even. `out` has
    /// `rows.len() * row_bytes()` bytes. Errors are those of [`Model::dequantize`].
    pub fn read_float(&self, tensor: &FloatTensor, rows: Range<u64>, out: &mut [u8]) -> Result<()> {
        let count = rows.end.saturating_sub(rows.start);
        if rows.end > tensor.rows || count.saturating_mul(tensor.row_bytes()) != out.len() as u64 {
            bail!(
                InvalidArgument,
                "{}: rows {} .. {} of {}, of {} bytes each, exceed out, which holds {}",
                tensor.name,
                rows.start,
                rows.end,
                tensor.rows,
                tensor.row_bytes(),
                out.len()
            );
        }
        let (begin, count) = (rows.start * tensor.row_len, count * tensor.row_len);
        let dtype = tensor.dtype.native().unwrap_or(Dtype::F32);
        match &tensor.from {
            // The row count of a linear is checked: it fits a usize.
            From::Linear(number) => {
                self.dequantize(&self.linears()[*number], rows.start as usize..rows.end as usize, dtype, out)?
            }
            From::Floats(place) => narrow(dtype, Endian::Little, &self.files.at(*place).floats(begin, count)?, out),
            From::Bytes(place) => out.copy_from_slice(&self.files.at(*place).bytes(begin, count)?),
        }
        Ok(())
    }
}
