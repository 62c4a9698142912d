//! The blobs of one block: K of each part, then V of each part, in one memory region.
//!
//! A part is what decodes apart: a head of floating-point rows, all heads of quantised ones.

use crate::status::Result;
use crate::sys::memory;
use crate::sys::pages::Region;
use crate::sys::storage::Bytes;
use std::fmt;
use std::ops::Deref;

/// The blobs of a block. Dropping them returns their memory to the system.
#[derive(Debug)]
pub(super) struct Blob {
    memory: Memory,
    parts: Vec<Part>,
}

/// The bytes of a blob: its own, or those of a file.
#[derive(Debug)]
enum Memory {
    Own(Region),
    File(Bytes, Place),
}

/// A piece in a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Where it begins.
    pub(super) offset: u64,
    /// The checksum of its stored bytes.
    pub(super) sum: u64,
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Memory::Own(region) => region,
            Memory::File(bytes, _) => bytes,
        }
    }
}

/// Where it is from, for errors: nothing, or its place in a file.
impl fmt::Display for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place().map_or(Ok(()), |place| write!(f, " (at offset {} of its file)", place.offset))
    }
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
        Ok(Blob { memory: Memory::Own(memory), parts })
    }

    /// Joins blobs of one part each. Each is freed as soon as it is copied, so that no more than one is in memory twice.
    pub(super) fn joined(blobs: Vec<Blob>) -> Result<Self> {
        let len = blobs.iter().map(Blob::len).sum();
        let mut parts = Vec::new();
        memory::reserve(&mut parts, blobs.len())?;
        let mut memory = Region::new(len)?;
        let mut begin = 0;
        for blob in blobs {
            let end = begin + blob.len();
            memory[begin..end].copy_from_slice(blob.part(0).0);
            memory::push(&mut parts, Part { end, digest: None })?;
            begin = end;
        }
        Ok(Blob { memory: Memory::Own(memory), parts })
    }

    /// Parts that a file has, whose decoder verifies them.
    pub(super) fn of_file(bytes: Bytes, place: Place, ends: &[usize]) -> Result<Self> {
        let parts = memory::collect(ends.iter().map(|end| Part { end: *end, digest: None }))?;
        Ok(Blob { memory: Memory::File(bytes, place), parts })
    }

    /// Where it is in a file.
    pub(super) fn place(&self) -> Option<Place> {
        if let Memory::File(_, place) = &self.memory { Some(*place) } else { None }
    }

    /// Lets go of the pages of a file, which was read.
    pub(super) fn drop_pages(&self) {
        if let Memory::File(bytes, _) = &self.memory {
            bytes.drop_pages();
        }
    }

    /// Bytes of parts that are in memory of their own.
    pub(super) fn own_len(&self) -> usize {
        if matches!(self.memory, Memory::Own(_)) { self.len() } else { 0 }
    }

    /// Bytes of all parts.
    pub(super) fn len(&self) -> usize {
        self.parts.last().map_or(0, |part| part.end)
    }

    /// The bytes of every part.
    pub(super) fn parts(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.parts.len()).map(|at| self.part(at).0)
    }

    /// The bytes of part `at`, and the digest of what they decode to; see [`Part`].
    pub(super) fn part(&self, at: usize) -> (&[u8], Option<u64>) {
        let start = at.checked_sub(1).map_or(0, |before| self.parts[before].end);
        (&self.memory[start..self.parts[at].end], self.parts[at].digest)
    }

    #[cfg(test)]
    pub(super) fn bytes_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let ends = self.parts.iter().map(|part| part.end);
        let Memory::Own(memory) = &mut self.memory else { panic!("the bytes of a file are not edited") };
        let mut rest = &mut memory[..];
        let mut start = 0;
        ends.map(move |end| {
            let (part, after) = std::mem::take(&mut rest).split_at_mut(end - start);
            (rest, start) = (after, end);
            part
        })
    }
}
