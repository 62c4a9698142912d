//! Numbers and byte strings of a body.

use crate::status::{Result, bail};
use crate::sys::memory;

/// Appends `value` in LEB128: seven bits a byte, low ones first, the high bit set on all bytes but the last.
pub(in crate::gear::v2) fn push_number(out: &mut Vec<u8>, value: usize) -> Result<()> {
    memory::reserve(out, 10)?;
    let mut rest = value as u64;
    while rest >= 0x80 {
        memory::push(out, rest as u8 | 0x80)?;
        rest >>= 7;
    }
    memory::push(out, rest as u8)
}

/// Appends `payload` after its length.
pub(in crate::gear::v2) fn push_bytes(out: &mut Vec<u8>, payload: &[u8]) -> Result<()> {
    memory::reserve(out, payload.len() + 10)?;
    push_number(out, payload.len())?;
    memory::extend(out, payload)
}

/// The rest of a body.
pub(in crate::gear::v2) struct Reader<'a>(pub(in crate::gear::v2) &'a [u8]);

impl<'a> Reader<'a> {
    /// The next `len` bytes.
    pub(in crate::gear::v2) fn take(&mut self, len: usize, what: &str) -> Result<&'a [u8]> {
        let Some((head, rest)) = self.0.split_at_checked(len) else {
            bail!(Corrupt, "{what}: {len} bytes announced, {} left", self.0.len());
        };
        self.0 = rest;
        Ok(head)
    }

    pub(in crate::gear::v2) fn byte(&mut self, what: &str) -> Result<u8> {
        Ok(self.take(1, what)?[0])
    }

    /// The next number of [`push_number`], at most `limit`.
    pub(in crate::gear::v2) fn number(&mut self, limit: usize, what: &str) -> Result<usize> {
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

    /// The next bytes of [`push_bytes`].
    pub(in crate::gear::v2) fn bytes(&mut self, what: &str) -> Result<&'a [u8]> {
        let len = self.number(self.0.len(), what)?;
        self.take(len, what)
    }

    /// Fails unless the body is at its end.
    pub(in crate::gear::v2) fn end(&self) -> Result<()> {
        if !self.0.is_empty() {
            bail!(Corrupt, "{} bytes after the end of the body", self.0.len());
        }
        Ok(())
    }
}
