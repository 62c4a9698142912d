//! The header of a blob.

use crate::bytes::{self, NUMBER_BOUND, Reader, put_number};
use crate::dtype::Dtype;
use crate::status::{Result, bail};

const START: [u8; 9] = *b"\0\0\0\0MNKV\x03";
const DTYPE: usize = 9;
const KINDS: usize = 10;
const LANES: usize = 11;
const CHECKSUM: usize = 12;
const LEN: usize = 20;
/// The longest header.
pub(super) const HEADER_BOUND: usize = LEN + NUMBER_BOUND;

/// The form of a plane; the number is its two bits of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Raw = 0,
    Constant = 1,
    Coded = 2,
}

/// The fields of the header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) dtype: Dtype,
    /// The kind of each byte of a word; raw for more than a word has.
    pub(super) kinds: [Kind; 4],
    pub(super) lanes: usize,
    /// Bytes.
    pub(super) decoded_len: usize,
    pub(super) checksum: u64,
}

/// Whether `blob` is of this format.
pub(in crate::gear) fn is_lanes(blob: &[u8]) -> bool {
    blob.starts_with(&START)
}

impl Header {
    /// Writes the header to the start of `blob`, and returns its length, which depends on `decoded_len` alone.
    pub(super) fn write(&self, blob: &mut [u8]) -> usize {
        blob[..DTYPE].copy_from_slice(&START);
        blob[DTYPE] = self.dtype.code() as u8;
        blob[KINDS] = self.kinds.iter().rev().fold(0, |bits, kind| bits << 2 | *kind as u8);
        blob[LANES] = (self.lanes / 64) as u8;
        blob[CHECKSUM..LEN].copy_from_slice(&self.checksum.to_le_bytes());
        LEN + put_number(self.decoded_len as u64, &mut blob[LEN..])
    }

    /// Reads and checks the header. Returns the rest of the blob, too.
    pub(super) fn read(blob: &[u8], dtype: Dtype) -> Result<(Self, Reader<'_>)> {
        let Some((header, mut rest)) = blob.split_at_checked(LEN).map(|(header, rest)| (header, Reader::new(rest)))
        else {
            bail!(Corrupt, "lanes blob of {} bytes; more than {LEN} expected", blob.len());
        };
        let Some(found) = Dtype::named(header[DTYPE] as u32) else {
            bail!(Unsupported, "lanes blob with dtype {}; 1 to 4 are known", header[DTYPE]);
        };
        if found != dtype {
            bail!(InvalidArgument, "the blob holds {} words; {} asked for", found.name(), dtype.name());
        }
        let mut kinds = [Kind::Raw; 4];
        for (i, kind) in kinds.iter_mut().enumerate() {
            *kind = match header[KINDS] >> (2 * i) & 3 {
                0 => Kind::Raw,
                1 if i < dtype.bytes() => Kind::Constant,
                2 if i < dtype.bytes() => Kind::Coded,
                k => bail!(Unsupported, "byte {i} of {} words is of kind {k}", dtype.name()),
            };
        }
        let lanes = match header[LANES] {
            lanes @ 1..=2 => 64 * lanes as usize,
            lanes => bail!(Unsupported, "lanes blob with {lanes} times 64 lanes; 1 or 2 expected"),
        };
        let decoded_len = bytes::length(rest.number("decoded_len")?, "decoded_len")?;
        if decoded_len == 0 || !decoded_len.is_multiple_of(dtype.bytes()) {
            bail!(Corrupt, "decoded_len is {decoded_len}; whole {} words expected, at least one", dtype.name());
        }
        let checksum = u64::from_le_bytes(header[CHECKSUM..].try_into().expect("eight bytes"));
        Ok((Header { dtype, kinds, lanes, decoded_len, checksum }, rest))
    }
}
