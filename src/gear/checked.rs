//! The checked container: a header with a checksum of the words, and a v1 frame of them. `docs/format.md` has the fields
//! with their offsets.

use super::v1::{self, Width};
use crate::bytes::Reader;
use crate::dtype::Dtype;
use crate::status::{Result, bail};
use xxhash_rust::xxh3::xxh3_64;

/// A v1 frame begins with its number of words, which is never 0.
const MAGIC: [u8; 8] = *b"\0\0\0\0MNKV";
const VERSION: u8 = 4;
/// Bytes in front of the frame.
pub(super) const HEADER_LEN: usize = 26;

/// The fields of the header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    /// Bytes of the words.
    pub(super) len: usize,
    /// XXH3-64 of the words.
    checksum: u64,
}

/// Whether `blob` is of this format; everything else is read as a v1 frame.
pub(super) fn is_checked(blob: &[u8]) -> bool {
    blob.starts_with(&MAGIC)
}

/// The header of `words`. Fails, before a word is read, if a frame cannot hold them: such a length may reach beyond memory.
pub(super) fn header(words: &[u8], dtype: Dtype) -> Result<[u8; HEADER_LEN]> {
    let count = v1::word_count(words.len(), Width::of(dtype))?;
    let mut header = [0; HEADER_LEN];
    header[..8].copy_from_slice(&MAGIC);
    (header[8], header[9]) = (VERSION, dtype.code() as u8);
    header[10..18].copy_from_slice(&u64::from(count).to_le_bytes());
    header[18..].copy_from_slice(&xxh3_64(words).to_le_bytes());
    Ok(header)
}

/// The header and the frame of a blob of `dtype`. UNSUPPORTED: if it is of another version.
/// INVALID_ARGUMENT: if it has words of another type.
pub(super) fn parse(blob: &[u8], dtype: Dtype) -> Result<(Header, &[u8])> {
    let mut reader = Reader::new(blob);
    let _: [u8; MAGIC.len()] = reader.array("the magic")?;
    let [version, code] = reader.array("the version")?;
    if version != VERSION {
        bail!(Unsupported, "blob of format version {version}; this library reads {VERSION}");
    }
    let count = u64::from_le_bytes(reader.array("the number of words")?);
    let checksum = u64::from_le_bytes(reader.array("the checksum")?);
    match Dtype::named(code.into()) {
        Some(its) if its == dtype => {}
        Some(its) => bail!(InvalidArgument, "the blob has {} words; dtype is {}", its.name(), dtype.name()),
        None => bail!(Corrupt, "the blob has words of type {code}; 1 to 4 are known"),
    }
    let Some(len) = usize::try_from(count).ok().and_then(|count| count.checked_mul(dtype.bytes())) else {
        bail!(Corrupt, "the blob has {count} words, more than this machine's address space");
    };
    Ok((Header { len, checksum }, &blob[HEADER_LEN..]))
}

/// [`parse`], of a frame that has as many words as its header says. CORRUPT: if it has another number.
pub(super) fn open(blob: &[u8], dtype: Dtype) -> Result<(Header, &[u8])> {
    let (header, frame) = parse(blob, dtype)?;
    let len = v1::decoded_len(frame, Width::of(dtype))?;
    if len != header.len {
        bail!(Corrupt, "the frame has {len} bytes of words; its header has {}", header.len);
    }
    Ok((header, frame))
}

impl Header {
    /// CORRUPT: if the words are not those that were encoded.
    pub(super) fn check(&self, words: &[u8]) -> Result<()> {
        if xxh3_64(words) != self.checksum {
            bail!(Corrupt, "the checksum of the words does not match: the blob is damaged");
        }
        Ok(())
    }
}

/// The largest blob for `len` bytes.
pub(super) fn bound(len: usize, dtype: Dtype) -> Option<usize> {
    v1::bound(len, Width::of(dtype))?.checked_add(HEADER_LEN)
}
