//! Dense rows of any cache as floating-point values, for tools.
//!
//! TurboQuant: a record of 32 dims is an f16 scale and 32 indices of a codebook, lowest bit first. A value is the scale
//! times a dim of the codebook's values after a Hadamard transform of 32, with the sign of some dims flipped.

use super::dense;
use super::kind::{F32, Kind, RECORD_DIMS};
use super::{CacheRef, Rows, TokenRange, gather_scales};
use crate::dtype::Dtype;
use crate::dtype::convert::{Endian, narrow, widen};
use crate::status::{Error, Result, bail};
use crate::sys::memory;

/// Tokens on their way at once.
const CHUNK: usize = 64;
/// Dims whose sign is flipped, bit by bit.
const FLIPS: u32 = 0x696B_4B4A;
/// The positive values of the codebooks, ascending.
const BOOK3: [f32; 4] = [0.2451, 0.756, 1.3439, 2.1519];
const BOOK4: [f32; 8] = [0.1284, 0.388, 0.6568, 0.9423, 1.2562, 1.618, 2.069, 2.7326];

/// The centre of INT8 K, `[head][dim]`: MNN subtracts it before it quantises, and softmax does not see it.
#[derive(Clone, Copy)]
pub struct KeyCenter<'a> {
    /// Its floating-point type.
    pub dtype: Dtype,
    /// Its bytes.
    pub values: &'a [u8],
}

/// Copies a range of tokens as `dtype`, `[head][token][dim]`. INT8 K is without its centre unless that is given; it is the
/// centre of the newest tokens, and older ones may have had another. `key_out` and `value_out` have at least
/// `heads * count * dims` elements.
/// INVALID_ARGUMENT: if the centre has another length than `heads * dims` elements.
/// UNSUPPORTED: if `dtype` is no floating-point type.
/// OUT_OF_MEMORY: if memory for 64 tokens is refused; nothing was written.
pub fn dequantize(
    cache: &CacheRef<'_>,
    center: Option<KeyCenter<'_>>,
    range: TokenRange,
    dtype: Dtype,
    key_out: &mut [u8],
    value_out: &mut [u8],
) -> Result<()> {
    let rows = cache.layout.rows();
    if !dtype.is_float() {
        bail!(Unsupported, "dtype is {}; F16 (1), BF16 (2) or F32 (3) expected", dtype.name());
    }
    let needed = rows.heads * range.count * rows.dims * dtype.bytes();
    for given in [key_out.len(), value_out.len()] {
        if given < needed {
            return Err(Error::too_small("cap_each (bytes)", given, needed));
        }
    }
    let channels = rows.heads * rows.dims;
    let (mut centers, mut scales) = (Vec::new(), Vec::new());
    if let Some(center) = center.filter(|_| rows.key == Kind::Int8) {
        let expected = channels * center.dtype.bytes();
        if center.values.len() != expected {
            bail!(InvalidArgument, "layout->int8->key_center_bytes is {}; {expected} expected", center.values.len());
        }
        widen(center.dtype, Endian::Native, center.values, memory::at_least(&mut centers, channels)?);
    }
    let mut scale_bytes = memory::filled(0u8, cache.layout.scale_bytes())?;
    gather_scales(cache, &mut scale_bytes)?;
    widen(Dtype::F32, Endian::Native, &scale_bytes, memory::at_least(&mut scales, scale_bytes.len() / F32)?);

    let chunk = CHUNK.min(range.count);
    let (mut keys, mut values, mut row) = (Vec::new(), Vec::new(), Vec::new());
    memory::resize(&mut keys, rows.key_bytes(chunk))?;
    memory::resize(&mut values, rows.value_bytes(chunk))?;
    memory::resize(&mut row, rows.dims)?;
    let out_row = rows.dims * dtype.bytes();
    for first in (0..range.count).step_by(CHUNK) {
        let count = CHUNK.min(range.count - first);
        let part = TokenRange { begin: range.begin + first, count };
        dense::gather(cache, part, &mut keys, &mut values)?;
        for head in 0..rows.heads {
            let center = centers.get(head * rows.dims..).filter(|_| !centers.is_empty());
            let scales = scales.get(head * 2 * rows.dims..).unwrap_or_default();
            for token in 0..count {
                let (from, to) = (head * count + token, head * range.count + first + token);
                let stored = &keys[from * rows.key.key_row(rows.dims)..][..rows.key.key_row(rows.dims)];
                key_row(rows.key, stored, center, &mut row);
                narrow(dtype, Endian::Native, &row, &mut key_out[to * out_row..][..out_row]);
                let stored = &values[from * rows.value.value_row(rows.dims)..][..rows.value.value_row(rows.dims)];
                value_row(rows.value, stored, scales, &mut row);
                narrow(dtype, Endian::Native, &row, &mut value_out[to * out_row..][..out_row]);
            }
        }
    }
    Ok(())
}

/// Copies the keys of a range of tokens as f32 `[head][token][dim]`, those of INT8 without their centre: logits of all tokens
/// are the same but for a constant. `raw` is working memory. On an error nothing is written.
pub fn keys(cache: &CacheRef<'_>, range: TokenRange, raw: &mut Vec<u8>, out: &mut [f32]) -> Result<()> {
    let rows = cache.layout.rows();
    let needed = rows.heads * range.count * rows.dims;
    if out.len() < needed {
        return Err(Error::too_small("out (elements)", out.len(), needed));
    }
    if range.is_empty() {
        return Ok(());
    }
    let raw = memory::at_least(raw, cache.layout.dense_key_bytes(range.count))?;
    dense::gather_keys(cache, range, raw);
    keys_of_rows(&rows, raw, out);
    Ok(())
}

/// The keys of dense rows, `[head][token]`, as f32; as [`keys`].
pub fn keys_of_rows(rows: &Rows, dense: &[u8], out: &mut [f32]) {
    let dense = dense.chunks_exact(rows.key.key_row(rows.dims));
    for (stored, row) in dense.zip(out.chunks_exact_mut(rows.dims)) {
        key_row(rows.key, stored, None, row);
    }
}

fn key_row(kind: Kind, stored: &[u8], center: Option<&[f32]>, row: &mut [f32]) {
    if kind != Kind::Int8 {
        return value_row(kind, stored, &[], row);
    }
    let (codes, tail) = stored.split_at(row.len());
    let mut scale_and_bias = [0.0; 2];
    widen(Dtype::F32, Endian::Native, &tail[..2 * F32], &mut scale_and_bias);
    let [scale, bias] = scale_and_bias;
    for (value, code) in row.iter_mut().zip(codes) {
        *value = f32::from(*code as i8) * scale + bias;
    }
    if let Some(center) = center {
        row.iter_mut().zip(center).for_each(|(value, center)| *value += center);
    }
}

/// `scales`: of INT8, scales before biases.
fn value_row(kind: Kind, stored: &[u8], scales: &[f32], row: &mut [f32]) {
    match kind {
        Kind::Float(dtype) => widen(dtype, Endian::Native, stored, row),
        Kind::Int8 => {
            let (scales, biases) = scales.split_at(row.len());
            let stored = stored.iter().zip(scales.iter().zip(biases));
            for (value, (code, (scale, bias))) in row.iter_mut().zip(stored) {
                *value = f32::from(*code as i8) * scale + bias;
            }
        }
        Kind::Tq3 => records::<3>(stored, &BOOK3, row),
        Kind::Tq4 => records::<4>(stored, &BOOK4, row),
    }
}

/// Records of `BITS` bits per dim. Half of the indices are of negative values.
fn records<const BITS: usize>(stored: &[u8], book: &[f32], row: &mut [f32]) {
    let record = F32 / 2 + RECORD_DIMS * BITS / 8;
    for (stored, values) in stored.chunks_exact(record).zip(row.as_chunks_mut::<RECORD_DIMS>().0) {
        let (scale, indices) = stored.split_at(F32 / 2);
        let mut scale_value = [0.0];
        widen(Dtype::F16, Endian::Little, scale, &mut scale_value);
        for (dim, value) in values.iter_mut().enumerate() {
            let index = (0..BITS).fold(0, |index, bit| {
                let at = dim * BITS + bit;
                index | usize::from(indices[at / 8] >> (at % 8) & 1) << bit
            });
            *value = if index < book.len() { -book[book.len() - 1 - index] } else { book[index - book.len()] };
        }
        hadamard(values);
        let factor = scale_value[0] / (RECORD_DIMS as f32).sqrt();
        for (dim, value) in values.iter_mut().enumerate() {
            *value *= if FLIPS >> dim & 1 == 1 { -factor } else { factor };
        }
    }
}

/// The Hadamard transform in natural order, without a factor.
fn hadamard(values: &mut [f32; RECORD_DIMS]) {
    let mut half = 1;
    while half < RECORD_DIMS {
        for pair in values.chunks_exact_mut(2 * half) {
            let (low, high) = pair.split_at_mut(half);
            low.iter_mut().zip(high).for_each(|(a, b)| (*a, *b) = (*a + *b, *a - *b));
        }
        half *= 2;
    }
}
