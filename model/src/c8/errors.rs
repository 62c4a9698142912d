//! What values lose on the way to int8 and back.

use super::{CacheShape, Scales, dequantize, quantize};
use crate::element::{self, widen};
use mnnkv::status::Result;
use mnnkv::sys::memory;

/// The difference between values and what codes restore, in the element type. Sums are kept in f64.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Values compared.
    pub elements: u64,
    /// Those beyond the range of codes: `rint(value / scale + offset)` is not in -128 ..= 127.
    pub saturated: u64,
    /// The largest absolute difference; 0 for no values. Infinite where a restored value is.
    pub max_abs_error: f64,
    /// The root of the mean square difference; 0 for no values. Infinite where a restored value is.
    pub rms_error: f64,
    /// The same over the root of the mean square value; 0 where nothing differs, infinite where only zeros should have
    /// been restored and were not.
    pub relative_rms_error: f64,
    /// The cosine of the angle between values and restored values; 1 where nothing differs, 0 where one side is all
    /// zeros or infinite.
    pub cosine_similarity: f64,
}

/// Figures of a tensor, and of its channels.
#[derive(Clone, Debug, PartialEq)]
pub struct Errors {
    /// Of all values.
    pub total: Figures,
    /// Of each channel's values.
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

/// Turns values into codes and back and compares. NaN or an infinity among the values is an error that names token and
/// channel. Takes memory for a few numbers per channel, not for the result.
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
        widen(shape.dtype(), element::Endian::Native, &bytes, &mut restored);
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
