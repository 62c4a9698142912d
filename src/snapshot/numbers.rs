//! Numbers of a commit record: LEB128, and eight bytes for checksums.

use crate::status::{Result, bail};
use crate::sys::memory;

/// Appends a number: seven bits a byte, low ones first, the high bit set on all bytes but the last.
pub(crate) fn put(out: &mut Vec<u8>, mut number: u64) -> Result<()> {
    while number >= 0x80 {
        memory::push(out, number as u8 | 0x80)?;
        number >>= 7;
    }
    memory::push(out, number as u8)
}

/// Reads what [`put`] wrote; each method names `what` was expected.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Reader { bytes, at: 0 }
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// Bytes before the next one.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn take(&mut self, len: u64, what: &str) -> Result<&'a [u8]> {
        let rest = &self.bytes[self.at..];
        match usize::try_from(len).ok().and_then(|len| rest.get(..len)) {
            Some(taken) => {
                self.at += taken.len();
                Ok(taken)
            }
            None => bail!(Corrupt, "byte {}: {what} has {len} bytes; {} are left", self.at, rest.len()),
        }
    }

    pub(crate) fn byte(&mut self, what: &str) -> Result<u8> {
        Ok(self.take(1, what)?[0])
    }

    pub(crate) fn sum(&mut self, what: &str) -> Result<u64> {
        Ok(u64::from_le_bytes(*self.take(8, what)?.first_chunk().expect("eight bytes")))
    }

    pub(crate) fn number(&mut self, what: &str) -> Result<u64> {
        let (begin, mut number) = (self.at, 0u64);
        for shift in (0..64).step_by(7) {
            let byte = self.byte(what)?;
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has one bit left; a last byte of zero would be another form of a shorter number.
            if bits << shift >> shift != bits || (byte == 0 && shift > 0) {
                break;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        bail!(Corrupt, "byte {begin}: {what} is no number of the shortest form")
    }

    /// A number of 32 bits.
    pub(crate) fn small(&mut self, what: &str) -> Result<u32> {
        let (begin, number) = (self.at, self.number(what)?);
        match u32::try_from(number) {
            Ok(number) => Ok(number),
            Err(_) => bail!(Corrupt, "byte {begin}: {what} is {number}; at most {} allowed", u32::MAX),
        }
    }
}
