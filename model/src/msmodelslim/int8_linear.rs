//! W8A8 linears, computed as the hardware does: products of codes as integers, then one multiplication.

use super::dequantize::check_rows;
use super::layers::QuantizedLinear;
use super::model::Model;
use super::quantize::quantize;
use mnnkv::status::{Result, bail};
use mnnkv::sys::memory;
use std::ops::Range;

impl Model {
    /// Computes outputs of a linear of tag W8A8, W8A8S or W8A8_MIX for `x`, `tokens` rows of k inputs.
    ///
    /// `y` is `tokens` rows of `rows.len()` outputs: `accumulator * deq_scale`, where the accumulator is the sum of
    /// input code times weight code, plus quant_bias; see [`accumulate`]. quant_bias includes a float bias. Inputs are
    /// divided by the scale, as the format states; hardware that multiplies by the reciprocal may round a tie
    /// differently. Nothing is written on failure. UNSUPPORTED: if the tag is another one. INVALID_ARGUMENT: if sizes
    /// do not fit, or `x` has NaN. CORRUPT, IO: as [`Model::dequantize`].
    pub fn linear_w8a8(
        &self,
        linear: &QuantizedLinear,
        rows: Range<usize>,
        x: &[f32],
        tokens: usize,
        y: &mut [f32],
    ) -> Result<()> {
        linear.usable()?;
        if !linear.tag.has_static_input() {
            bail!(Unsupported, "{} has the type {}; W8A8, W8A8S or W8A8_MIX expected", linear.name, linear.tag.word());
        }
        check_rows(linear, &rows)?;
        if tokens.checked_mul(linear.k) != Some(x.len()) {
            bail!(InvalidArgument, "x has {} elements; {tokens} tokens of {} expected", x.len(), linear.k);
        }
        if tokens.checked_mul(rows.len()) != Some(y.len()) {
            bail!(InvalidArgument, "y has {} elements; {tokens} tokens of {} expected", y.len(), rows.len());
        }
        if y.is_empty() {
            return Ok(());
        }
        let codes = quantize_input(x, self.input_scale(linear)?, self.input_offset(linear)?)?;
        let (begin, count) = (rows.start as u64, rows.len() as u64);
        let weights =
            self.files.need(linear.part("weight"))?.codes(begin * linear.k as u64, count * linear.k as u64)?;
        let bias = self.files.need(linear.part("quant_bias"))?.i32s(begin, count)?;
        let of_tensor = self.files.need(linear.part("deq_scale"))?.tensor.elements() == 1;
        let deq = if of_tensor { self.deq_scales(linear, 0, 1)? } else { self.deq_scales(linear, begin, count)? };
        let deq = if of_tensor { memory::filled(deq[0], rows.len())? } else { deq };
        let mut sums = memory::filled(0, y.len())?;
        accumulate(&codes, &weights, linear.k, &bias, &mut sums)?;
        for (y, sums) in y.chunks_exact_mut(rows.len()).zip(sums.chunks_exact(rows.len())) {
            for ((y, sum), deq) in y.iter_mut().zip(sums).zip(&deq) {
                *y = *sum as f32 * deq;
            }
        }
        Ok(())
    }
}

/// Converts inputs to codes: `clamp(round(x / scale + offset), -128, 127)`. INVALID_ARGUMENT: if one is NaN.
pub fn quantize_input(x: &[f32], scale: f32, offset: f32) -> Result<Vec<i8>> {
    if let Some(at) = x.iter().position(|x| x.is_nan()) {
        bail!(InvalidArgument, "x[{at}] is NaN; a number expected");
    }
    memory::collect(x.iter().map(|x| quantize(*x, scale, offset)))
}

/// `out[token][row] = sum over k of x[token][k] * weights[row][k], plus bias[row]`, exactly.
///
/// Sums have 64 bits and cannot overflow. If all fit 32 bits (always with up to 131,071 inputs), they equal those of
/// hardware with 32 bits. INVALID_ARGUMENT: if lengths do not fit.
pub fn accumulate(x: &[i8], weights: &[i8], k: usize, bias: &[i32], out: &mut [i64]) -> Result<()> {
    let rows = bias.len();
    if k == 0
        || !x.len().is_multiple_of(k)
        || rows.checked_mul(k) != Some(weights.len())
        || (x.len() / k).checked_mul(rows) != Some(out.len())
    {
        bail!(
            InvalidArgument,
            "{} inputs, {} weights, {rows} biases and {} sums do not fit rows of {k}",
            x.len(),
            weights.len(),
            out.len()
        );
    }
    if rows == 0 {
        return Ok(());
    }
    for (x, out) in x.chunks_exact(k).zip(out.chunks_exact_mut(rows)) {
        for ((out, weights), bias) in out.iter_mut().zip(weights.chunks_exact(k)).zip(bias) {
            *out = i64::from(*bias) + dot(x, weights);
        }
    }
    Ok(())
}

fn dot(a: &[i8], b: &[i8]) -> i64 {
    /// Products whose sum fits an i32: 128 * 128 each.
    const RUN: usize = 1 << 16;
    let runs = a.chunks(RUN).zip(b.chunks(RUN));
    runs.map(|(a, b)| i64::from(a.iter().zip(b).map(|(a, b)| i32::from(*a) * i32::from(*b)).sum::<i32>())).sum()
}
