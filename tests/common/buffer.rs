//! Cache memory of a host that moves its buffers between calls. The old places are forbidden: an access there ends the
//! process.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

/// Old mappings of a buffer that stay forbidden.
const TRAPS: usize = 8;

/// Bytes in pages of their own.
#[derive(Default)]
pub struct Buffer {
    memory: Option<Mapping>,
    len: usize,
    traps: VecDeque<Mapping>,
    moves: u32,
}

/// A buffer moves once in this number of calls.
const MOVE_EVERY: u32 = 3;

struct Mapping {
    start: *mut u8,
    bytes: usize,
}

impl Mapping {
    fn new(bytes: usize) -> Self {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping touches nothing that exists.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        Mapping { start: start.cast(), bytes }
    }

    /// Drops the contents, and forbids access.
    fn forbid(&self) {
        // SAFETY: the mapping is whole pages of its own, and nothing borrows from it any more.
        unsafe {
            assert_eq!(libc::madvise(self.start.cast(), self.bytes, libc::MADV_DONTNEED), 0);
            assert_eq!(libc::mprotect(self.start.cast(), self.bytes, libc::PROT_NONE), 0);
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length, and nothing borrows from a value that is dropped.
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}

impl Buffer {
    pub fn new(contents: &[u8]) -> Self {
        let mut buffer = Buffer { len: contents.len(), ..Buffer::default() };
        buffer.memory = (!contents.is_empty()).then(|| Mapping::new(contents.len()));
        buffer.copy_from_slice(contents);
        buffer
    }

    /// Moves the buffer every few calls, as a host's allocator may.
    pub fn maybe_move(&mut self) {
        self.moves += 1;
        if !self.moves.is_multiple_of(MOVE_EVERY) || self.memory.is_none() {
            return;
        }
        let moved = Buffer::new(self);
        let before = std::mem::replace(&mut self.memory, { moved }.memory.take()).expect("there is memory");
        before.forbid();
        self.traps.push_back(before);
        if self.traps.len() > TRAPS {
            self.traps.pop_front();
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let start = self.memory.as_ref().map_or(std::ptr::NonNull::dangling().as_ptr(), |memory| memory.start);
        // SAFETY: `len` mapped bytes, or none, which live as long as self.
        unsafe { std::slice::from_raw_parts(start, self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let start = self.memory.as_ref().map_or(std::ptr::NonNull::dangling().as_ptr(), |memory| memory.start);
        // SAFETY: as above, borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(start, self.len) }
    }
}
