//! The outside of a v2 blob: header, checksums, and the numbers inside the body.
//!
//! ```text
//! 0   u32  0: the word count that format v1 forbids
//! 4   [u8; 4] "MNKV"
//! 8   u8   version = 2
//! 9   u8   revision
//! 10  u8   dtype
//! 11  u8   mode: 0 stored, 1 coded, 2 flat
//! 12  u32  row length in elements, 1 or more
//! 16  u64  decoded length in bytes
//! 24  u64  XXH3-64 of the decoded bytes
//! 32  body
//! end u32  low half of the XXH3-64 of everything before it
//! ```

use crate::dtype::Dtype;
use crate::status::{Result, bail};
use crate::sys::memory;
use xxhash_rust::xxh3::xxh3_64;

const START: [u8; 8] = *b"\0\0\0\0MNKV";
const VERSION: u8 = 2;
/// A reader certainly reads blobs of its own revision and earlier ones, and may read later ones.
const REVISION: u8 = 0;
const HEADER_LEN: usize = 32;
pub(super) const TRAILER_LEN: usize = 4;
/// What a stored blob is longer than its words.
pub(super) const OVERHEAD: usize = HEADER_LEN + TRAILER_LEN;

/// What the body is.
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
    /// Elements per row as the body has them.
    pub(super) row_len: usize,
    /// Bytes.
    pub(super) decoded_len: usize,
    pub(super) checksum: u64,
}

/// Whether `blob` is of this format at all; everything else is taken for v1.
pub(in crate::gear) fn is_v2(blob: &[u8]) -> bool {
    blob.starts_with(&START)
}

/// Replaces `blob` by a header, with room for a stored blob.
pub(super) fn begin(blob: &mut Vec<u8>, header: &Header) -> Result<()> {
    memory::cleared(blob, header.decoded_len + OVERHEAD)?;
    memory::extend(blob, &START)?;
    memory::extend(blob, &[VERSION, REVISION, header.dtype as u32 as u8, header.mode as u8])?;
    memory::extend(blob, &(header.row_len as u32).to_le_bytes())?;
    memory::extend(blob, &(header.decoded_len as u64).to_le_bytes())?;
    memory::extend(blob, &header.checksum.to_le_bytes())
}

/// Appends the checksum of the blob.
pub(super) fn end(blob: &mut Vec<u8>) -> Result<()> {
    let checksum = xxh3_64(blob) as u32;
    memory::extend(blob, &checksum.to_le_bytes())
}

/// The header and the body of a blob that is whole and undamaged.
pub(super) fn parse(blob: &[u8]) -> Result<(Header, &[u8])> {
    if blob.len() < OVERHEAD {
        bail!(Corrupt, "v2 blob of {} bytes; at least {OVERHEAD} expected", blob.len());
    }
    let (content, trailer) = blob.split_at(blob.len() - TRAILER_LEN);
    if content[8] != VERSION {
        bail!(Unsupported, "blob of format version {}; this library reads 1 and 2", content[8]);
    }
    if (xxh3_64(content) as u32).to_le_bytes() != trailer {
        bail!(Corrupt, "the blob's checksum does not match: {} bytes, damaged or cut", blob.len());
    }
    let u32_at = |at: usize| u32::from_le_bytes(content[at..at + 4].try_into().expect("four bytes"));
    let u64_at = |at: usize| u64::from_le_bytes(content[at..at + 8].try_into().expect("eight bytes"));
    let Some(dtype) = Dtype::ALL.into_iter().find(|d| *d as u32 == content[10] as u32) else {
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
    Ok((Header { dtype, mode, row_len, decoded_len, checksum: u64_at(24) }, &content[HEADER_LEN..]))
}

/// Appends `value` in LEB128: seven bits a byte, low ones first, the high bit set on all bytes but the last.
pub(super) fn push_number(out: &mut Vec<u8>, value: usize) -> Result<()> {
    memory::reserve(out, 10)?;
    let mut rest = value as u64;
    while rest >= 0x80 {
        memory::push(out, rest as u8 | 0x80)?;
        rest >>= 7;
    }
    memory::push(out, rest as u8)
}

/// Appends `payload` after its length.
pub(super) fn push_bytes(out: &mut Vec<u8>, payload: &[u8]) -> Result<()> {
    memory::reserve(out, payload.len() + 10)?;
    push_number(out, payload.len())?;
    memory::extend(out, payload)
}

/// Reads a body from its start.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    /// The next `len` bytes.
    pub(super) fn take(&mut self, len: usize, what: &str) -> Result<&'a [u8]> {
        let Some((head, rest)) = self.0.split_at_checked(len) else {
            bail!(Corrupt, "{what}: {len} bytes announced, {} left", self.0.len());
        };
        self.0 = rest;
        Ok(head)
    }

    pub(super) fn byte(&mut self, what: &str) -> Result<u8> {
        Ok(self.take(1, what)?[0])
    }

    /// A number of [`push_number`], at most `limit`.
    pub(super) fn number(&mut self, limit: usize, what: &str) -> Result<usize> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte(what)?;
            let bits = (byte & 0x7F) as u64;
            if bits << shift >> shift != bits {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return match usize::try_from(value) {
                    Ok(v) if v <= limit => Ok(v),
                    _ => bail!(Corrupt, "{what} is {value}; at most {limit} expected"),
                };
            }
        }
        bail!(Corrupt, "{what} does not fit 64 bits");
    }

    /// Bytes of [`push_bytes`].
    pub(super) fn bytes(&mut self, what: &str) -> Result<&'a [u8]> {
        let len = self.number(self.0.len(), what)?;
        self.take(len, what)
    }

    /// Nothing is left.
    pub(super) fn end(&self) -> Result<()> {
        if !self.0.is_empty() {
            bail!(Corrupt, "{} bytes after the end of the body", self.0.len());
        }
        Ok(())
    }
}
