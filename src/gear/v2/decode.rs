//! Blobs to words, in the caller's buffer.
//!
//! Works in one buffer as long as the words, and in the buffer of the caller: planes go from one to the other, and rows
//! move to their places in the latter. Beside them only the references of rows are kept. So a blob with rows of 16 bytes
//! or more takes at most three times its own length and that of its words.

use super::container::{self, Header, Mode, RowForm};
use super::rows::{self, Angles, References, Spare};
use super::{REPEATS, ROTATED, planes};
use crate::bytes::Reader;
use crate::dtype::Dtype;
use crate::gear::budget::held;
use crate::gear::checksum::checksum;
use crate::gear::codec::Context;
use crate::status::{Error, Result, bail};

/// Working memory of a decoder. It carries no contents from one call to the next.
#[derive(Default)]
pub(in crate::gear) struct DecodeBuffers {
    /// Planes; rows of steps and planes of new rows.
    pub(in crate::gear) planes: Vec<u8>,
    unit_groups: Vec<u8>,
    large: Vec<u8>,
    references: References,
    classes: Vec<u32>,
}

impl DecodeBuffers {
    /// Bytes that are held.
    pub(in crate::gear) fn held(&self) -> usize {
        let bytes: usize = [&self.planes, &self.unit_groups, &self.large].map(held).iter().sum();
        bytes + self.references.held() + held(&self.classes)
    }
}

/// The decoded length in bytes that a blob announces.
pub(in crate::gear) fn decoded_len(blob: &[u8], dtype: Dtype) -> Result<usize> {
    Ok(parse(blob, dtype)?.0.decoded_len)
}

/// The length in bytes that the header announces; the rest of the blob is not read.
pub(in crate::gear) fn announced_len(blob: &[u8], dtype: Dtype) -> Result<usize> {
    let header = container::header(blob)?;
    check(&header, dtype)?;
    Ok(header.decoded_len)
}

fn parse(blob: &[u8], dtype: Dtype) -> Result<(Header, &[u8])> {
    let (header, body) = container::parse(blob)?;
    check(&header, dtype)?;
    Ok((header, body))
}

fn check(header: &Header, dtype: Dtype) -> Result<()> {
    if header.dtype != dtype {
        bail!(InvalidArgument, "the blob holds {} words; {} asked for", header.dtype.name(), dtype.name());
    }
    Ok(())
}

/// Decodes `blob` to the start of `words` and returns the length in bytes. After a failure the contents of that part are
/// undefined, unless the blob's checksum or header was refused, or `words` is too short.
pub(in crate::gear) fn decode(
    blob: &[u8],
    dtype: Dtype,
    words: &mut [u8],
    context: &mut Context<'_>,
    buffers: &mut DecodeBuffers,
) -> Result<usize> {
    let (header, body) = parse(blob, dtype)?;
    let len = header.decoded_len;
    let capacity = words.len();
    let Some(words) = words.get_mut(..len) else {
        return Err(Error::too_small("dst_cap (bytes)", capacity, len));
    };
    context.budget.allow(blob.len(), len);
    match header.mode {
        Mode::Stored if body.len() == len => words.copy_from_slice(body),
        Mode::Stored => bail!(Corrupt, "stored blob of {len} words' bytes holds {}", body.len()),
        Mode::Coded => read_rows(&header, body, context, buffers, words)?,
        Mode::Flat => {
            let form = RowForm { dtype, len: 1 };
            let planes = context.budget.at_least(&mut buffers.planes, len)?;
            planes::decode_flat(Reader::new(body), len / form.bytes(), context, planes)?;
            form.to_rows(planes, words);
        }
    }
    if checksum(words) != header.checksum {
        bail!(Corrupt, "the decoded words' checksum does not match: the blob is damaged");
    }
    Ok(len)
}

/// Decodes the body of a coded blob to `words`.
fn read_rows(
    header: &Header,
    body: &[u8],
    context: &mut Context<'_>,
    buffers: &mut DecodeBuffers,
    words: &mut [u8],
) -> Result<()> {
    let mut body = Reader::new(body);
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
    let DecodeBuffers { planes, unit_groups, large, references, classes } = buffers;
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
        rows::expand(references, form, angles.as_ref(), context, (planes, classes), matrix)?;
    }
    tail.copy_from_slice(body.take(tail.len(), "the last words")?);
    body.end("the body")
}
