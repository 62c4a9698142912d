//! Errors of values that became int8 codes and values again.

use super::{CacheShape, Scales, dequantize, quantize};
use mnnkv::dtype::convert::{self, widen};
use mnnkv::status::Result;
use mnnkv::sys::memory;

/// Differences between values and restored values, in the element type. Sums are f64.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Values compared.
    pub elements: u64,
    /// Values whose `rint(value / scale + offset)` is outside -128 ..= 127.
    pub saturated: u64,
    /// Largest absolute difference; 0 without values, infinite where a restored value is.
    pub max_abs_error: f64,
    /// Root mean square difference; 0 without values, infinite where a restored value is.
    pub rms_error: f64,
    /// `rms_error` over the root mean square value; 0 if nothing differs, infinite if all values are 0 and a restored
    /// one is not.
    pub relative_rms_error: f64,
    /// Cosine between values and restored values; 1 if nothing differs, 0 if one side is all zeros or infinite.
    pub cosine_similarity: f64,
}

/// Figures of a tensor and of its channels.
#[derive(Clone, Debug, PartialEq)]
pub struct Errors {
    /// Figures of all values.
    pub total: Figures,
    /// Figures of each channel.
    pub channels: Vec<Figures>,
}

impl Errors {
    /// The channel with the largest root mean square difference; the first of equals.
    pub fn worst_channel(&self) -> usize {
        let worst = |worst: usize, channel: usize| {
            if self.channels[channel].rms_error > self.channels[worst].rms_error { channel } else { worst }
        };
        (0..self.channels.len()).fold(0, worst)
    }
}

#[derive(Clone, Copy, Default)]
struct Sums {
    elements: u64,
    saturated: u64,
    max: f64,
    difference: f64,
    value: f64,
    restored: f64,
    product: f64,
}

impl Sums {
    fn add(&mut self, value: f32, restored: f32, saturated: bool) {
        let (x, y) = (f64::from(value), f64::from(restored));
        self.elements += 1;
        self.saturated += u64::from(saturated);
        self.max = self.max.max((x - y).abs());
        self.difference += (x - y) * (x - y);
        self.value += x * x;
        self.restored += y * y;
        self.product += x * y;
    }

    fn merge(&mut self, other: &Sums) {
        self.elements += other.elements;
        self.saturated += other.saturated;
        self.max = self.max.max(other.max);
        self.difference += other.difference;
        self.value += other.value;
        self.restored += other.restored;
        self.product += other.product;
    }

    fn figures(&self) -> Figures {
        let equal = self.difference == 0.0;
        let norms = self.value.sqrt() * self.restored.sqrt();
        Figures {
            elements: self.elements,
            saturated: self.saturated,
            max_abs_error: self.max,
            rms_error: if equal { 0.0 } else { (self.difference / self.elements as f64).sqrt() },
            relative_rms_error: if equal { 0.0 } else { (self.difference / self.value).sqrt() },
            cosine_similarity: match self.product / norms {
                _ if equal => 1.0,
                cosine if cosine.is_finite() => cosine,
                _ => 0.0,
            },
        }
    }
}

/// Converts values to codes and back and compares. NaN or an infinity among the values is an error that names token and
/// channel. Allocates a few numbers per channel.
pub fn errors(shape: &CacheShape, values: &[u8], scales: &Scales) -> Result<Errors> {
    shape.check_values(values)?;
    shape.check_channels("scales", scales.scale.len())?;
    let mut sums = memory::filled(Sums::default(), shape.channels())?;
    let (mut codes, mut bytes, mut restored) = (Vec::new(), Vec::new(), Vec::new());
    shape.rows(values, |token, first, row, numbers| {
        shape.check_finite(token, first, numbers)?;
        let columns = numbers.len();
        memory::resize(&mut codes, columns)?;
        memory::resize(&mut bytes, row.len())?;
        memory::resize(&mut restored, columns)?;
        let scales = scales.of(first..first + columns);
        let row_shape = shape.of_row(columns);
        quantize(&row_shape, row, &scales, &mut codes)?;
        dequantize(&row_shape, &codes, &scales, &mut bytes)?;
        widen(shape.dtype(), convert::Endian::Native, &bytes, &mut restored);
        let parameters = scales.scale.iter().zip(scales.offset);
        for (((sums, x), y), (scale, offset)) in sums[first..].iter_mut().zip(numbers).zip(&restored).zip(parameters) {
            let code = (x / scale + offset).round_ties_even();
            sums.add(*x, *y, !(-128.0..=127.0).contains(&code));
        }
        Ok(())
    })?;
    let mut total = Sums::default();
    sums.iter().for_each(|channel| total.merge(channel));
    Ok(Errors { total: total.figures(), channels: memory::collect(sums.iter().map(Sums::figures))? })
}
