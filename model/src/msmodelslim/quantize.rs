//! The format's arithmetic on slices: parameters from ranges, numbers to codes, and codes to numbers.
//!
//! All operations are f32 in the order of the formulas, rounded half to even, and equal on every machine: `code =
//! clamp(round(x / scale + offset), -128, 127)` and `x' = (code - offset) * scale`.

use crate::c8::{Symmetry, of_range};
use mnnkv::status::{Result, bail};

/// Scale and offset of a range, extended to include zero.
///
/// Symmetric: scale = max(-min, max) / 127, offset 0. Otherwise scale = (max - min) / 255 and offset =
/// round(-min / scale) - 128, an integer in -128 .. 127. The least scale is 2^-23.
///
/// INVALID_ARGUMENT: if the range is not finite, or too wide for f32.
pub fn params(min: f32, max: f32, symmetric: bool) -> Result<(f32, f32)> {
    let symmetry = if symmetric { Symmetry::Symmetric } else { Symmetry::Asymmetric };
    let (scale, offset) = of_range(min, max, symmetry);
    if !min.is_finite() || !max.is_finite() || !scale.is_finite() {
        bail!(InvalidArgument, "the range is {min} .. {max}; finite numbers expected");
    }
    Ok((scale, offset))
}

/// The code of a number. NaN gives 0.
pub fn quantize(x: f32, scale: f32, offset: f32) -> i8 {
    (x / scale + offset).round_ties_even().clamp(-128.0, 127.0) as i8
}

/// The number of a code.
pub fn dequantize(code: i8, scale: f32, offset: f32) -> f32 {
    (f32::from(code) - offset) * scale
}

/// Quantises rows of `k` weights. `codes` is as long as `weights`. `scales` and `offsets` have one entry per group of
/// each row: a group is `weights.len() / scales.len()` columns.
///
/// INVALID_ARGUMENT: if lengths do not fit, or a weight is not finite.
pub fn quantize_rows(
    weights: &[f32],
    k: usize,
    symmetric: bool,
    codes: &mut [i8],
    scales: &mut [f32],
    offsets: &mut [f32],
) -> Result<()> {
    let group = group_len(weights.len(), k, scales.len(), offsets.len())?;
    if codes.len() != weights.len() {
        bail!(InvalidArgument, "{} weights and room for {} codes", weights.len(), codes.len());
    }
    if let Some(at) = weights.iter().position(|w| !w.is_finite()) {
        bail!(
            InvalidArgument,
            "weight {at} (row {}, column {}) is {}; a finite number expected",
            at / k,
            at % k,
            weights[at]
        );
    }
    if group == 0 {
        return Ok(());
    }
    for (((weights, codes), scale), offset) in
        weights.chunks_exact(group).zip(codes.chunks_exact_mut(group)).zip(scales).zip(offsets)
    {
        let (min, max) = weights.iter().fold((0.0f32, 0.0f32), |(min, max), w| (min.min(*w), max.max(*w)));
        (*scale, *offset) = params(min, max, symmetric)?;
        for (code, w) in codes.iter_mut().zip(weights) {
            *code = quantize(*w, *scale, *offset);
        }
    }
    Ok(())
}

/// Converts rows of `k` codes to numbers. Lengths as in [`quantize_rows`].
pub fn dequantize_rows(codes: &[i8], k: usize, scales: &[f32], offsets: &[f32], out: &mut [f32]) -> Result<()> {
    let group = group_len(codes.len(), k, scales.len(), offsets.len())?;
    if out.len() != codes.len() {
        bail!(InvalidArgument, "{} codes and room for {} numbers", codes.len(), out.len());
    }
    if group == 0 {
        return Ok(());
    }
    for (((codes, out), scale), offset) in
        codes.chunks_exact(group).zip(out.chunks_exact_mut(group)).zip(scales).zip(offsets)
    {
        for (x, code) in out.iter_mut().zip(codes) {
            *x = dequantize(*code, *scale, *offset);
        }
    }
    Ok(())
}

fn group_len(len: usize, k: usize, scales: usize, offsets: usize) -> Result<usize> {
    if k == 0 || !len.is_multiple_of(k) {
        bail!(InvalidArgument, "{len} elements are no multiple of {k}");
    }
    let rows = len / k;
    if len == 0 && scales == 0 && offsets == 0 {
        return Ok(0);
    }
    if rows == 0 || scales != offsets || !scales.is_multiple_of(rows) || scales == 0 || !k.is_multiple_of(scales / rows)
    {
        bail!(InvalidArgument, "{rows} rows of {k} have {scales} scales and {offsets} offsets; equal groups expected");
    }
    Ok(len / scales)
}

/// Converts codes 0 .. 255 to -128 .. 127. Subtract 128 from their offset; their scale stays.
pub fn signed(unsigned: u8) -> i8 {
    (unsigned ^ 0x80) as i8
}
