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
        Mapping { start: system::map(bytes), bytes }
    }

    /// Drops the contents, and forbids access.
    fn forbid(&self) {
        system::forbid(self.start, self.bytes);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        system::unmap(self.start, self.bytes);
    }
}

#[cfg(unix)]
mod system {
    pub fn map(bytes: usize) -> *mut u8 {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping touches nothing that exists.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        start.cast()
    }

    /// `start` and `bytes` are of a mapping that nothing borrows from any more.
    pub fn forbid(start: *mut u8, bytes: usize) {
        // SAFETY: the mapping is whole pages of its own.
        unsafe {
            assert_eq!(libc::madvise(start.cast(), bytes, libc::MADV_DONTNEED), 0);
            assert_eq!(libc::mprotect(start.cast(), bytes, libc::PROT_NONE), 0);
        }
    }

    /// As [`forbid`]; the mapping is not used afterwards.
    pub fn unmap(start: *mut u8, bytes: usize) {
        // SAFETY: the mapping is whole pages of its own.
        unsafe { libc::munmap(start.cast(), bytes) };
    }
}

#[cfg(windows)]
mod system {
    use std::ffi::c_void;

    const MEM_COMMIT: u32 = 0x1000;
    const MEM_RESERVE: u32 = 0x2000;
    const MEM_DECOMMIT: u32 = 0x4000;
    const MEM_RELEASE: u32 = 0x8000;
    const PAGE_READWRITE: u32 = 4;

    #[link(name = "kernel32")]
    unsafe extern "system" {
        fn VirtualAlloc(address: *mut c_void, size: usize, kind: u32, access: u32) -> *mut c_void;
        fn VirtualFree(address: *mut c_void, size: usize, kind: u32) -> i32;
    }

    pub fn map(bytes: usize) -> *mut u8 {
        // SAFETY: new pages at an address of the system's choice touch nothing that exists.
        let start = unsafe { VirtualAlloc(std::ptr::null_mut(), bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE) };
        assert!(!start.is_null());
        start.cast()
    }

    /// `start` and `bytes` are of a mapping that nothing borrows from any more.
    pub fn forbid(start: *mut u8, bytes: usize) {
        // SAFETY: whole pages of their own, whose addresses stay reserved.
        assert_ne!(unsafe { VirtualFree(start.cast(), bytes, MEM_DECOMMIT) }, 0);
    }

    /// As [`forbid`]; the mapping is not used afterwards.
    pub fn unmap(start: *mut u8, _bytes: usize) {
        // SAFETY: the start of a reservation, which goes as a whole.
        unsafe { VirtualFree(start.cast(), 0, MEM_RELEASE) };
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
