//! The float model that a directory stands for: what runtimes without kernels for its types can load.

use super::layers::QUANTISED_PARTS;
use super::model::Model;
use super::tags::Tag;
use crate::dtype::Dtype;
use crate::model::element::{Endian, narrow};
use crate::model::safetensors;
use crate::status::{Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Ends of names of tensors that a runtime computes with while the model runs: without them it is another model.
const RUN_TIME: &[&str] = &[".div.mul_scale", ".heads_rotation", ".kronecker_rotation_m", ".kronecker_rotation_n"];

/// A tensor of the float model, `[rows][row_len]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FloatTensor {
    /// The name that a model which was never quantised has.
    pub name: String,
    /// Element type.
    pub dtype: safetensors::Dtype,
    /// As in the directory.
    pub shape: Vec<u64>,
    /// The first dimension; 1 for a scalar, and for elements of less than a byte.
    pub rows: u64,
    /// Elements of a row.
    pub row_len: u64,
    from: From,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum From {
    /// The weight of the linear of this number.
    Linear(usize),
    /// The floats of a tensor.
    Floats(String),
    /// The bytes of a tensor.
    Bytes(String),
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
    /// Quantised weights become floats; their scales, offsets and folded biases go, as do KV scales. Of a smoothed norm
    /// the pair for quantised linears stays, under the plain name. Tensors that are no weights or biases, or no floats,
    /// stay as they are. UNSUPPORTED: a weight of a type that is not read, or a tensor that has to be applied while the
    /// model runs. Errors of a linear that cannot be used name it.
    pub fn float_tensors(&self, dtype: Dtype) -> Result<Vec<FloatTensor>> {
        let float = match dtype {
            Dtype::F16 => safetensors::Dtype::F16,
            Dtype::Bf16 => safetensors::Dtype::Bf16,
            Dtype::F32 => safetensors::Dtype::F32,
            Dtype::Int8 => bail!(InvalidArgument, "dtype is INT8; F16, BF16 or F32 expected"),
        };
        let mut weights = BTreeMap::new();
        let mut gone = BTreeSet::new();
        for (number, linear) in self.linears().iter().enumerate() {
            linear.usable()?;
            weights.insert(linear.part("weight"), number);
            if linear.tag != Tag::Float {
                gone.extend(QUANTISED_PARTS.iter().map(|part| linear.part(part)));
            }
        }
        for side in self.kv_layers().iter().flat_map(|layer| [&layer.key, &layer.value]) {
            gone.insert(side.scale.clone());
            gone.extend(side.offset.clone());
        }
        let mut smoothed = BTreeMap::new();
        for norm in self.norms().iter().filter(|norm| norm.smoothed) {
            for part in ["weight", "bias"] {
                gone.insert(format!("{}.{part}", norm.name));
                smoothed.insert(format!("{}.module.{part}", norm.name), format!("{}.{part}", norm.name));
            }
        }
        let mut tensors = Vec::new();
        for name in self.files.places.keys().filter(|name| !gone.contains(*name)) {
            if RUN_TIME.iter().any(|end| name.ends_with(end)) {
                bail!(
                    Unsupported,
                    "tensor {name} is applied while the model runs; a float model without it is another"
                );
            }
            let located = self.files.need(name)?;
            let tensor = located.tensor;
            let is_weight = [".weight", ".bias"].iter().any(|end| name.ends_with(end));
            let (dtype, from) = match weights.get(name) {
                Some(number) => (float, From::Linear(*number)),
                None if is_weight && tensor.dtype.is_float() => (float, From::Floats(name.clone())),
                None if name.ends_with(".weight") => bail!(
                    Unsupported,
                    "tensor {name} is {}, and no linear of a type that is read here",
                    tensor.dtype.name()
                ),
                None => (tensor.dtype, From::Bytes(name.clone())),
            };
            // Elements of less than a byte need not end a row with a whole one.
            let rows = if dtype.bits() < 8 { 1 } else { tensor.shape.first().copied().unwrap_or(1) };
            tensors.push(FloatTensor {
                name: smoothed.get(name).unwrap_or(name).clone(),
                dtype,
                shape: tensor.shape.clone(),
                rows,
                row_len: tensor.elements().checked_div(rows).unwrap_or(0),
                from,
            });
        }
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(tensors)
    }

    /// Writes rows of a tensor of [`Model::float_tensors`], little endian, rounded to nearest even. `out` is
    /// `rows.len() * row_bytes()` long. Errors are those of [`Model::dequantize`].
    pub fn read_float(&self, tensor: &FloatTensor, rows: Range<u64>, out: &mut [u8]) -> Result<()> {
        let count = rows.end.saturating_sub(rows.start);
        if rows.end > tensor.rows || count.saturating_mul(tensor.row_bytes()) != out.len() as u64 {
            bail!(
                InvalidArgument,
                "{}: rows {} .. {} of {} asked for, of {} bytes each; there is room for {}",
                tensor.name,
                rows.start,
                rows.end,
                tensor.rows,
                tensor.row_bytes(),
                out.len()
            );
        }
        let (begin, count) = (rows.start * tensor.row_len, count * tensor.row_len);
        let dtype = match tensor.dtype {
            safetensors::Dtype::F16 => Dtype::F16,
            safetensors::Dtype::Bf16 => Dtype::Bf16,
            _ => Dtype::F32,
        };
        match &tensor.from {
            // Rows of a linear fit a usize: it was checked to have so many.
            From::Linear(number) => self.dequantize(*number, rows.start as usize..rows.end as usize, dtype, out)?,
            From::Floats(name) => narrow(dtype, Endian::Little, &self.files.need(name)?.floats(begin, count)?, out),
            From::Bytes(name) => out.copy_from_slice(&self.files.need(name)?.bytes(begin, count)?),
        }
        Ok(())
    }
}
