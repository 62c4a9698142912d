//! The blobs of one block: K of each part, then V of each part, in one memory region.
//!
//! A part is what decodes apart: a head of floating-point rows, all heads of quantised ones.

use crate::status::Result;
use crate::sys::memory;
use crate::sys::pages::Region;

/// The blobs of a block. Dropping them returns their memory to the system.
#[derive(Debug)]
pub(super) struct Blob {
    memory: Region,
    parts: Vec<Part>,
}

/// One blob.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// The byte after its last.
    pub(super) end: usize,
    /// XXH3-64 of its raw bytes; `None` where the blob has a checksum, which its decoder verifies.
    pub(super) digest: Option<u64>,
}

impl Blob {
    /// Copies the bytes of all parts.
    pub(super) fn new(bytes: &[u8], parts: &[Part]) -> Result<Self> {
        let parts = memory::copied(parts)?;
        let mut memory = Region::new(bytes.len())?;
        memory[..bytes.len()].copy_from_slice(bytes);
        Ok(Blob { memory, parts })
    }

    /// Bytes of all parts.
    pub(super) fn len(&self) -> usize {
        self.parts.last().map_or(0, |part| part.end)
    }

    /// The bytes of part `at`, and the digest of what they decode to; see [`Part`].
    pub(super) fn part(&self, at: usize) -> (&[u8], Option<u64>) {
        let start = at.checked_sub(1).map_or(0, |before| self.parts[before].end);
        (&self.memory[start..self.parts[at].end], self.parts[at].digest)
    }

    #[cfg(test)]
    pub(super) fn bytes_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let ends = self.parts.iter().map(|part| part.end);
        let mut rest = &mut self.memory[..];
        let mut start = 0;
        ends.map(move |end| {
            let (part, after) = std::mem::take(&mut rest).split_at_mut(end - start);
            (rest, start) = (after, end);
            part
        })
    }
}
