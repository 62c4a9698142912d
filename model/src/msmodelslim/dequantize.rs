//! Weights and KV scales as numbers.

use super::layers::{Granularity, KvLayer, KvSide, QuantizedLinear};
use super::model::Model;
use super::packed_scale::PackedScale;
use super::quantize::dequantize;
use crate::safetensors;
use mnnkv::dtype::Dtype;
use mnnkv::dtype::convert::{Endian, narrow};
use mnnkv::status::{Result, bail, error};
use mnnkv::sys::memory;
use std::fmt;
use std::ops::Range;

impl Model {
    /// Writes rows of a linear's weight as `rows.len() * k` elements of `dtype` (F16, BF16 or F32, little-endian),
    /// rounded to nearest even from f32.
    ///
    /// W8A16, W8A8_DYNAMIC and W8A8_MIX: `(code - weight_offset) * weight_scale`. W8A8 and W8A8S: `code * weight_scale`
    /// if the file has that, else `code * (deq_scale / input_scale)`. FLOAT: the numbers themselves. Allocates the
    /// bytes of these rows in the file, and a row. Nothing is written on failure. INVALID_ARGUMENT: if the rows do not
    /// exist or `out` has another size. UNSUPPORTED: if the tag is another one. CORRUPT: if tensors contradict each
    /// other or a scale is not positive. IO: if the file cannot be read.
    pub fn dequantize(&self, linear: &QuantizedLinear, rows: Range<usize>, dtype: Dtype, out: &mut [u8]) -> Result<()> {
        linear.usable()?;
        check_rows(linear, &rows)?;
        if dtype == Dtype::Int8 {
            bail!(InvalidArgument, "dtype is INT8; F16, BF16 or F32 expected");
        }
        let elements = rows.len().checked_mul(linear.k);
        let bytes = elements.and_then(|elements| elements.checked_mul(dtype.bytes()));
        if bytes != Some(out.len()) {
            let (rows, k, dtype, bytes) = (rows.len(), linear.k, dtype.name(), out.len());
            bail!(InvalidArgument, "{rows} rows of {k} {dtype} elements do not fill {bytes} bytes");
        }
        if out.is_empty() {
            return Ok(());
        }
        let (begin, count) = (rows.start as u64 * linear.k as u64, (rows.len() * linear.k) as u64);
        let weight = self.files.need(linear.part("weight"))?;
        let out_rows = out.chunks_exact_mut(linear.k * dtype.bytes());
        let mut numbers = memory::filled(0.0, linear.k)?;
        if linear.granularity == Granularity::None {
            let number = weight.float_of_bytes()?;
            let bytes = weight.bytes(begin, count)?;
            let row_bytes = bytes.len() / rows.len();
            for (out, row) in out_rows.zip(bytes.chunks_exact(row_bytes)) {
                let elements = row.chunks_exact(row_bytes / linear.k);
                numbers.iter_mut().zip(elements).for_each(|(x, bytes)| *x = number(bytes));
                narrow(dtype, Endian::Little, &numbers, out);
            }
            return Ok(());
        }
        let bytes = weight.code_bytes(begin, count)?;
        let (scales, offsets) = self.row_scales(linear, &rows)?;
        let group = bytes.len() / scales.len();
        let mut groups = bytes.chunks_exact(group).zip(scales.iter().zip(&offsets));
        for out in out_rows {
            for (numbers, (bytes, (scale, offset))) in numbers.chunks_exact_mut(group).zip(&mut groups) {
                numbers.iter_mut().zip(bytes).for_each(|(x, code)| *x = dequantize(*code as i8, *scale, *offset));
            }
            narrow(dtype, Endian::Little, &numbers, out);
        }
        Ok(())
    }

    /// Scales and offsets of rows, one per group of each row.
    fn row_scales(&self, linear: &QuantizedLinear, rows: &Range<usize>) -> Result<(Vec<f32>, Vec<f32>)> {
        let groups = match linear.granularity {
            Granularity::Group(size) => linear.k / size,
            _ => 1,
        };
        let (begin, count) = match linear.granularity {
            Granularity::Tensor => (0, 1),
            _ => ((rows.start * groups) as u64, (rows.len() * groups) as u64),
        };
        let mut scales = if linear.by_weight_scale {
            let name = linear.part("weight_scale");
            positive(name, begin, self.files.need(name)?.floats(begin, count)?)?
        } else {
            let input = self.input_scale(linear)?;
            let mut scales = self.deq_scales(linear, begin, count)?;
            scales.iter_mut().for_each(|deq| *deq /= input);
            scales
        };
        let mut offsets = match self.files.get(linear.part("weight_offset")) {
            Some(offset) if linear.tag.needs_weight_scale() => {
                finite(&offset.tensor.name, begin, offset.floats(begin, count)?)?
            }
            _ => memory::filled(0.0, scales.len())?,
        };
        if linear.granularity == Granularity::Tensor {
            for one in [&mut scales, &mut offsets] {
                *one = memory::filled(one[0], rows.len())?;
            }
        }
        Ok((scales, offsets))
    }

    /// The scale of a linear's inputs.
    pub(super) fn input_scale(&self, linear: &QuantizedLinear) -> Result<f32> {
        let name = linear.part("input_scale");
        Ok(positive(name, 0, self.files.need(name)?.floats(0, 1)?)?[0])
    }

    /// The offset of a linear's inputs.
    pub(super) fn input_offset(&self, linear: &QuantizedLinear) -> Result<f32> {
        let name = linear.part("input_offset");
        Ok(finite(name, 0, self.files.need(name)?.floats(0, 1)?)?[0])
    }

    /// Elements of deq_scale, unpacked.
    pub(super) fn deq_scales(&self, linear: &QuantizedLinear, begin: u64, count: u64) -> Result<Vec<f32>> {
        let name = linear.part("deq_scale");
        let deq = self.files.need(name)?;
        if deq.tensor.dtype != safetensors::FileDtype::I64 {
            return positive(name, begin, deq.floats(begin, count)?);
        }
        let packed = deq.i64s(begin, count)?;
        let scales = packed.iter().enumerate().map(|(i, bits)| {
            PackedScale::unpack(*bits).number().ok_or_else(|| {
                error!(Corrupt, "tensor {name}: element {} is {bits:#x}, which encodes no f32", begin + i as u64)
            })
        });
        positive(name, begin, memory::try_collect(scales)?)
    }

    /// Scales and offsets of one side of a layer's KV cache, one per channel or one for all. Missing offsets are zeros.
    pub fn kv_scales(&self, layer: &KvLayer, side: &KvSide) -> Result<(Vec<f32>, Vec<f32>)> {
        if let Some(error) = &layer.error {
            return Err(error.clone());
        }
        let channels = side.channels as u64;
        let scale = positive(&side.scale, 0, self.files.need(&side.scale)?.floats(0, channels)?)?;
        let offset = match &side.offset {
            Some(offset) => finite(offset, 0, self.files.need(offset)?.floats(0, channels)?)?,
            None => memory::filled(0.0, scale.len())?,
        };
        Ok((scale, offset))
    }
}

pub(super) fn check_rows(linear: &QuantizedLinear, rows: &Range<usize>) -> Result<()> {
    if rows.start > rows.end || rows.end > linear.n {
        let (Range { start, end }, QuantizedLinear { name, n, .. }) = (rows, linear);
        bail!(InvalidArgument, "rows {start} .. {end} of {name} are out of range; it has {n}");
    }
    Ok(())
}

/// `begin` is the number of the first, for the message.
fn positive(name: impl fmt::Display, begin: u64, scales: Vec<f32>) -> Result<Vec<f32>> {
    expect(name, begin, scales, "a positive number", |scale| scale.is_finite() && scale > 0.0)
}

fn finite(name: impl fmt::Display, begin: u64, offsets: Vec<f32>) -> Result<Vec<f32>> {
    expect(name, begin, offsets, "a finite number", f32::is_finite)
}

fn expect(
    name: impl fmt::Display,
    begin: u64,
    all: Vec<f32>,
    what: &str,
    good: impl Fn(f32) -> bool,
) -> Result<Vec<f32>> {
    match all.iter().position(|x| !good(*x)) {
        None => Ok(all),
        Some(i) => bail!(Corrupt, "tensor {name}: element {} is {}; {what} expected", begin + i as u64, all[i]),
    }
}
