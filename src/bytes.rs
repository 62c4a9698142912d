//! Numbers and strings of bytes, as the formats here have them.
//!
//! A number is LEB128: seven bits a byte, low ones first, the high bit set on all bytes but the last.

use crate::status::{Result, bail};
use crate::sys::memory;
use std::fmt::Display;

/// The most bytes of a number.
pub(crate) const NUMBER_BOUND: usize = 10;

/// Writes `number` to the start of `out`, and returns its length.
pub(crate) fn put_number(mut number: u64, out: &mut [u8]) -> usize {
    let mut len = 0;
    while number > 0x7F {
        out[len] = number as u8 | 0x80;
        number >>= 7;
        len += 1;
    }
    out[len] = number as u8;
    len + 1
}

/// Appends `number`.
pub(crate) fn push_number(out: &mut Vec<u8>, number: u64) -> Result<()> {
    let mut bytes = [0; NUMBER_BOUND];
    let len = put_number(number, &mut bytes);
    memory::extend(out, &bytes[..len])
}

/// What is left to read. Each method names `what` was expected where it fails.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Reader { bytes, at: 0 }
    }

    /// The bytes that were not.
    pub(crate) fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    /// Fails unless everything was read.
    pub(crate) fn end(&self, what: &str) -> Result<()> {
        match self.rest().len() {
            0 => Ok(()),
            left => bail!(Corrupt, "{left} bytes after the end of {what}"),
        }
    }

    /// The next `len` bytes.
    pub(crate) fn take(&mut self, len: impl TryInto<usize> + Copy + Display, what: &str) -> Result<&'a [u8]> {
        match len.try_into().ok().and_then(|len| self.rest().get(..len)) {
            Some(taken) => {
                self.at += taken.len();
                Ok(taken)
            }
            None => bail!(Corrupt, "byte {}: {what} has {len} bytes; {} are left", self.at, self.rest().len()),
        }
    }

    pub(crate) fn byte(&mut self, what: &str) -> Result<u8> {
        Ok(self.array::<1>(what)?[0])
    }

    /// The next `N` bytes.
    pub(crate) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        Ok(*self.take(N, what)?.first_chunk().expect("N bytes"))
    }

    pub(crate) fn u32(&mut self, what: &str) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(crate) fn u64(&mut self, what: &str) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// The next number, in its shortest form.
    pub(crate) fn number(&mut self, what: &str) -> Result<u64> {
        let begin = self.at;
        let number = self.number_of_any_form(what)?;
        if self.at > begin + 1 && self.bytes[self.at - 1] == 0 {
            bail!(Corrupt, "byte {begin}: {what} is no number of the shortest form");
        }
        Ok(number)
    }

    /// The next number, of 32 bits and in its shortest form.
    pub(crate) fn small(&mut self, what: &str) -> Result<u32> {
        let (begin, number) = (self.at, self.number(what)?);
        match u32::try_from(number) {
            Ok(number) => Ok(number),
            Err(_) => bail!(Corrupt, "byte {begin}: {what} is {number}; at most {} allowed", u32::MAX),
        }
    }

    fn number_of_any_form(&mut self, what: &str) -> Result<u64> {
        let (begin, mut number) = (self.at, 0u64);
        for shift in (0..64).step_by(7) {
            let byte = self.byte(what)?;
            let bits = u64::from(byte & 0x7F);
            // The tenth byte has one bit left.
            if bits << shift >> shift != bits {
                break;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        bail!(Corrupt, "byte {begin}: {what} does not fit 64 bits")
    }
}
