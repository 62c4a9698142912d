//! The outside of a v2 blob: header, checksums, and the numbers of a body.
//!
//! `docs/format.md` has the fields with their offsets. [`parse`] verifies the checksum of a blob; the decoder verifies
//! that of the decoded words.

mod form;
mod list;

pub(super) use form::RowForm;
pub(super) use list::{push as push_list, read as read_list};

use crate::dtype::Dtype;
use crate::gear::checksum::checksum;
use crate::status::{Result, bail};
use crate::sys::memory;

const START: [u8; 8] = *b"\0\0\0\0MNKV";
const VERSION: u8 = 2;
/// A reader reads blobs of its own revision and earlier ones, and may read later ones.
const REVISION: u8 = 0;
const HEADER_LEN: usize = 32;
pub(super) const TRAILER_LEN: usize = 4;
/// The bytes of a stored blob beside its words.
pub(super) const OVERHEAD: usize = HEADER_LEN + TRAILER_LEN;

/// The content of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Mode {
    /// The words.
    Stored = 0,
    /// Rows and planes.
    Coded = 1,
    /// Byte planes of all words, each in one group.
    Flat = 2,
}

/// The fields of the header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) dtype: Dtype,
    pub(super) mode: Mode,
    /// Elements per row of the body.
    pub(super) row_len: usize,
    /// Bytes.
    pub(super) decoded_len: usize,
    pub(super) checksum: u64,
}

/// Whether `blob` is of this format; everything else is read as v1.
pub(in crate::gear) fn is_v2(blob: &[u8]) -> bool {
    blob.starts_with(&START)
}

/// Replaces `blob` by a header, with room for a stored blob.
pub(super) fn begin(blob: &mut Vec<u8>, header: &Header) -> Result<()> {
    memory::cleared(blob, header.decoded_len + OVERHEAD)?;
    memory::extend(blob, &START)?;
    memory::extend(blob, &[VERSION, REVISION, header.dtype.code() as u8, header.mode as u8])?;
    memory::extend(blob, &(header.row_len as u32).to_le_bytes())?;
    memory::extend(blob, &(header.decoded_len as u64).to_le_bytes())?;
    memory::extend(blob, &header.checksum.to_le_bytes())
}

/// Appends the checksum of the blob.
pub(super) fn end(blob: &mut Vec<u8>) -> Result<()> {
    let checksum = checksum(blob) as u32;
    memory::extend(blob, &checksum.to_le_bytes())
}

/// The header and the body of a blob. Fails unless its checksum matches.
pub(super) fn parse(blob: &[u8]) -> Result<(Header, &[u8])> {
    let (content, trailer) = split(blob)?;
    if (checksum(content) as u32).to_le_bytes() != trailer {
        bail!(Corrupt, "the blob's checksum does not match: {} bytes, damaged or cut", blob.len());
    }
    Ok((header_of(content)?, &content[HEADER_LEN..]))
}

/// The bytes that the checksum covers, of a version that is known, and the checksum.
fn split(blob: &[u8]) -> Result<(&[u8], &[u8])> {
    if blob.len() < OVERHEAD {
        bail!(Corrupt, "v2 blob of {} bytes; at least {OVERHEAD} expected", blob.len());
    }
    let (content, trailer) = blob.split_at(blob.len() - TRAILER_LEN);
    if content[8] != VERSION {
        bail!(Unsupported, "blob of format version {}; this library reads 1 to 3", content[8]);
    }
    Ok((content, trailer))
}

/// The header of a blob, of which nothing else is read.
pub(super) fn header(blob: &[u8]) -> Result<Header> {
    header_of(split(blob)?.0)
}

fn header_of(content: &[u8]) -> Result<Header> {
    let u32_at = |at: usize| u32::from_le_bytes(content[at..at + 4].try_into().expect("four bytes"));
    let u64_at = |at: usize| u64::from_le_bytes(content[at..at + 8].try_into().expect("eight bytes"));
    let Some(dtype) = Dtype::named(content[10] as u32) else {
        bail!(Unsupported, "blob revision {} with dtype {}; 1 to 4 are known", content[9], content[10]);
    };
    let mode = match content[11] {
        0 => Mode::Stored,
        1 => Mode::Coded,
        2 => Mode::Flat,
        m => bail!(Unsupported, "blob revision {} with mode {m}; 0 to 2 are known", content[9]),
    };
    let row_len = u32_at(12) as usize;
    let Ok(decoded_len) = usize::try_from(u64_at(16)) else {
        bail!(Unsupported, "{} decoded bytes do not fit this machine's address space", u64_at(16));
    };
    if row_len == 0 || decoded_len == 0 || decoded_len % dtype.bytes() != 0 {
        bail!(Corrupt, "{decoded_len} bytes in rows of {row_len} {} elements", dtype.name());
    }
    if mode == Mode::Flat && row_len != 1 {
        bail!(Corrupt, "a flat blob with rows of {row_len} elements; 1 expected");
    }
    Ok(Header { dtype, mode, row_len, decoded_len, checksum: u64_at(24) })
}
