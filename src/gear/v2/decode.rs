//! Blobs to words.
//!
//! Works in two buffers as long as the words, one of planes and one of rows, and moves rows to their places in the
//! latter; beside them only what is known of each row is kept. So a blob of rows of 16 bytes and more takes at most three
//! times what the words and the blob do.

use super::container::{self, Header, Mode, Reader};
use super::form::RowForm;
use super::repeats::{References, Spare};
use super::rotation::{self, Angles};
use super::word::{Bf16, F16, F32, Int8};
use super::{REPEATS, ROTATED, planes, rows};
use crate::dtype::Dtype;
use crate::gear::budget::held;
use crate::gear::codec::Context;
use crate::status::{Error, Result, bail};
use xxhash_rust::xxh3::xxh3_64;

/// Working memory of a decoder. Nothing is kept in it from one call to the next.
#[derive(Default)]
pub(in crate::gear) struct DecodeBuffers {
    /// As long as the words.
    pub(in crate::gear) words: Vec<u8>,
    /// Planes; rows of steps and planes of new rows.
    planes: Vec<u8>,
    unit_groups: Vec<u8>,
    large: Vec<u8>,
    references: References,
    classes: Vec<u32>,
}

impl DecodeBuffers {
    /// The bytes that are held.
    pub(in crate::gear) fn held(&self) -> usize {
        let bytes: usize = [&self.words, &self.planes, &self.unit_groups, &self.large].map(held).iter().sum();
        bytes + self.references.held() + held(&self.classes)
    }
}

/// The decoded size in bytes that a blob announces.
pub(in crate::gear) fn decoded_len(blob: &[u8], dtype: Dtype) -> Result<usize> {
    Ok(parse(blob, dtype)?.0.decoded_len)
}

fn parse(blob: &[u8], dtype: Dtype) -> Result<(Header, &[u8])> {
    let (header, body) = container::parse(blob)?;
    if header.dtype != dtype {
        bail!(InvalidArgument, "the blob holds {} words; {} asked for", header.dtype.name(), dtype.name());
    }
    Ok((header, body))
}

/// Decodes `blob` to the start of `words` and returns the length in bytes.
pub(in crate::gear) fn decode(
    blob: &[u8],
    dtype: Dtype,
    words: &mut [u8],
    context: &mut Context<'_>,
    buffers: &mut DecodeBuffers,
) -> Result<usize> {
    let (header, body) = parse(blob, dtype)?;
    let len = header.decoded_len;
    if words.len() < len {
        return Err(Error::too_small("dst_cap (bytes)", words.len(), len));
    }
    context.budget.allow(blob.len(), len);
    let decoded = match header.mode {
        Mode::Stored if body.len() == len => body,
        Mode::Stored => bail!(Corrupt, "stored blob of {len} words' bytes holds {}", body.len()),
        Mode::Coded => {
            read_rows(&header, body, context, buffers)?;
            &buffers.words[..len]
        }
        Mode::Flat => {
            let form = RowForm { dtype, len: 1 };
            let planes = context.budget.at_least(&mut buffers.planes, len)?;
            planes::decode_flat(Reader(body), len / form.bytes(), context, planes)?;
            let words = context.budget.at_least(&mut buffers.words, len)?;
            form.to_rows(planes, words);
            words
        }
    };
    if xxh3_64(decoded) != header.checksum {
        bail!(Corrupt, "the decoded words' checksum does not match: the blob is damaged");
    }
    words[..len].copy_from_slice(decoded);
    Ok(len)
}

/// Decodes the body of a coded blob to `buffers.words`.
fn read_rows(header: &Header, body: &[u8], context: &mut Context<'_>, buffers: &mut DecodeBuffers) -> Result<()> {
    let mut body = Reader(body);
    let flags = body.byte("flags")?;
    if !matches!(flags, 0 | REPEATS) && flags != REPEATS | ROTATED {
        bail!(Unsupported, "blob with flags {flags:#x}; 0, 1 and 3 are known");
    }
    let is_rotated = flags & ROTATED != 0;
    let form = RowForm { dtype: header.dtype, len: header.row_len };
    if header.row_len > header.decoded_len / header.dtype.bytes() {
        bail!(Corrupt, "{} bytes hold no row of {} elements", header.decoded_len, header.row_len);
    }
    let count = header.decoded_len / form.bytes();
    let DecodeBuffers { words, planes, unit_groups, large, references, classes } = buffers;
    let words = context.budget.at_least(words, header.decoded_len)?;
    let (matrix, tail) = words.split_at_mut(count * form.bytes());
    let rows = context.budget.at_least(planes, matrix.len())?;
    if flags & REPEATS == 0 {
        planes::decode(&mut body, &form.shape(count), context, unit_groups, rows, matrix)?;
        form.to_rows(rows, matrix);
        form.restore_exponents(matrix);
    } else {
        let mut spare = Spare { matrix, unit_groups, large };
        let steps_len = references.read(&mut body, form, (count, is_rotated), context, &mut spare, rows)?;
        let Spare { matrix, unit_groups, .. } = spare;
        let angles = match is_rotated {
            true => Some(Angles::read(&mut body, form.len, count, context, matrix)?),
            false => None,
        };
        let new = references.new_rows();
        let (steps, rest) = rows.split_at_mut(steps_len);
        let new_planes = &mut rest[..new * form.bytes()];
        planes::decode(&mut body, &form.shape(new), context, unit_groups, new_planes, matrix)?;
        let new_rows = &mut matrix[..new_planes.len()];
        form.to_rows(new_planes, new_rows);
        form.restore_exponents(new_rows);
        references.spread(steps, form.bytes(), matrix);
        match angles {
            Some(angles) => expand_rotated(references, form, &angles, context, (planes, classes), matrix)?,
            None => expand_alike(references, form, matrix),
        }
    }
    tail.copy_from_slice(body.take(tail.len(), "the last words")?);
    body.end()
}

fn expand_rotated(
    references: &mut References,
    form: RowForm,
    angles: &Angles<'_>,
    context: &mut Context<'_>,
    spare: (&mut Vec<u8>, &mut Vec<u32>),
    matrix: &mut [u8],
) -> Result<()> {
    match form.dtype {
        Dtype::F16 => rotation::expand::<F16>(references, form.len, angles, context, spare, matrix),
        Dtype::Bf16 => rotation::expand::<Bf16>(references, form.len, angles, context, spare, matrix),
        Dtype::F32 => rotation::expand::<F32>(references, form.len, angles, context, spare, matrix),
        Dtype::Int8 => bail!(Corrupt, "rotated rows of INT8 words"),
    }
}

fn expand_alike(references: &References, form: RowForm, matrix: &mut [u8]) {
    match form.dtype {
        Dtype::F16 => rows::expand::<F16>(references, form.len, matrix),
        Dtype::Bf16 => rows::expand::<Bf16>(references, form.len, matrix),
        Dtype::F32 => rows::expand::<F32>(references, form.len, matrix),
        Dtype::Int8 => rows::expand::<Int8>(references, form.len, matrix),
    }
}
