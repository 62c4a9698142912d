//! Pages of memory: released while their address stays valid, taken in bulk, or mapped for regions of their own.
//!
//! | system | call | afterwards |
//! |---|---|---|
//! | Linux, Android | `madvise(MADV_DONTNEED)` | reads as zero, resident size falls at once |
//! | macOS, iOS | zero, then `madvise(MADV_FREE_REUSABLE)` | reads as zero, footprint falls at once |
//! | Windows | zero, then `VirtualUnlock` | reads as zero, working set falls; the commit charge stays |
//! | others | zero | nothing goes back |
//!
//! On Linux only private anonymous memory goes back. Everything else (shared memory, files, huge pages of hugetlbfs,
//! locked pages) is zeroed and stays: dropping a shared page leaves its contents, a page of a file reads as the file
//! has it, and older kernels round the length of a dropped huge page up.

use crate::status::{Result, error};
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;

/// Leaves zeros in `run` and releases the whole pages inside it, as far as the system takes them. Returns the number of
/// bytes that left memory.
pub fn give_back(run: &mut [u8]) -> u64 {
    let page = page_size();
    let before = run.as_ptr().addr().next_multiple_of(page) - run.as_ptr().addr();
    let Some((head, rest)) = run.split_at_mut_checked(before) else {
        run.fill(0);
        return 0;
    };
    let (pages, tail) = rest.split_at_mut(rest.len() - rest.len() % page);
    head.fill(0);
    tail.fill(0);
    if pages.is_empty() { 0 } else { system::discard(pages, page) }
}

/// Takes memory for the whole pages of `run`, as far as the system can. No byte changes. Without it a write to released
/// pages costs a fault for each, which is most of the time of a restore.
pub fn populate(run: &mut [u8]) {
    let page = page_size();
    let before = run.as_ptr().addr().next_multiple_of(page) - run.as_ptr().addr();
    let Some((_, rest)) = run.split_at_mut_checked(before) else { return };
    let (pages, _) = rest.split_at_mut(rest.len() - rest.len() % page);
    if !pages.is_empty() {
        system::populate(pages);
    }
}

/// Bytes in pages of their own, which go back to the system when it is dropped, on whatever thread. Memory of a general
/// allocator would stay with the process where it lies between live objects.
#[derive(Debug)]
pub struct Region(system::Mapping);

impl Region {
    /// `len` zeros.
    pub fn new(len: usize) -> Result<Self> {
        #[cfg(test)]
        crate::sys::memory::shortage::check(len)?;
        match system::map(len) {
            Some(mapping) => Ok(Region(mapping)),
            None => Err(error!(OutOfMemory, "no memory for a region of {len} bytes")),
        }
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.0.bytes_mut()
    }
}

/// Returns free memory of the heap to the system, with the C libraries of GNU and Android; others do so on their own.
pub fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
    // SAFETY: the C library's own locks make it safe on any thread.
    unsafe {
        libc::malloc_trim(0);
    }
    #[cfg(target_os = "android")]
    // SAFETY: as above. The function is looked up, since systems before 8.0 lack it; its signature is that of malloc.h.
    unsafe {
        const M_PURGE: libc::c_int = -101;
        let mallopt = libc::dlsym(libc::RTLD_DEFAULT, c"mallopt".as_ptr());
        if !mallopt.is_null() {
            let mallopt: extern "C" fn(libc::c_int, libc::c_int) -> libc::c_int = std::mem::transmute(mallopt);
            mallopt(M_PURGE, 0);
        }
    }
}

/// Bytes that the system gives and takes together.
pub fn page_size() -> usize {
    static SIZE: OnceLock<usize> = OnceLock::new();
    *SIZE.get_or_init(system::page_size)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod system {
    pub(super) use super::anonymous::{Mapping, map};
    pub(super) use super::unix_page_size as page_size;

    /// Pages of one query.
    const BATCH: usize = 1024;

    pub(super) fn discard(pages: &mut [u8], page: usize) -> u64 {
        let before = resident(pages, page);
        if !is_private_anonymous(pages, page) || !advise(pages, libc::MADV_DONTNEED) {
            pages.fill(0);
            return 0;
        }
        let mut after = 0;
        for batch in pages.chunks_mut(BATCH * page) {
            let mut in_memory = [0u8; BATCH];
            if !residency(batch, &mut in_memory) {
                continue;
            }
            // Memory of another kind between the ends, or memory that a host uses against the contract, stays.
            for (page, _) in batch.chunks_mut(page).zip(&in_memory).filter(|(_, state)| *state & 1 == 1) {
                page.fill(0);
                after += 1;
            }
        }
        (before.saturating_sub(after) * page) as u64
    }

    /// Whether the first and the last page are private anonymous memory that is not locked. MADV_FREE (Linux 4.5) is
    /// refused for any other kind; it is the cheapest query of the kernel.
    fn is_private_anonymous(pages: &mut [u8], page: usize) -> bool {
        let last = pages.len() - page;
        advise(&mut pages[..page], libc::MADV_FREE) && (last == 0 || advise(&mut pages[last..], libc::MADV_FREE))
    }

    /// Whether the kernel took the advice, which may change contents to zero.
    fn advise(pages: &mut [u8], advice: libc::c_int) -> bool {
        // SAFETY: the range is whole pages inside an exclusive borrow whose contents the caller gives up.
        unsafe { libc::madvise(pages.as_mut_ptr().cast(), pages.len(), advice) == 0 }
    }

    pub(super) fn populate(pages: &mut [u8]) {
        // Since Linux 5.14; before that the call fails and changes nothing.
        const MADV_POPULATE_WRITE: libc::c_int = 23;
        // SAFETY: the advice faults pages of an exclusive borrow in as a write would, and writes nothing.
        unsafe { libc::madvise(pages.as_mut_ptr().cast(), pages.len(), MADV_POPULATE_WRITE) };
    }

    /// Pages that are in memory; only these can go back.
    fn resident(pages: &[u8], page: usize) -> usize {
        let mut in_memory = [0u8; BATCH];
        let batches = pages.chunks(BATCH * page);
        batches
            .map(|batch| {
                let states = batch.len() / page;
                match residency(batch, &mut in_memory) {
                    true => in_memory[..states].iter().filter(|state| *state & 1 == 1).count(),
                    false => states,
                }
            })
            .sum()
    }

    /// Sets bit 0 for each page of a batch that is in memory. Returns false if the system does not report it.
    fn residency(batch: &[u8], in_memory: &mut [u8; BATCH]) -> bool {
        let (start, vector) = (batch.as_ptr().cast_mut().cast(), in_memory.as_mut_ptr().cast());
        // SAFETY: the range is whole pages of a live slice; one byte per page is written, at most BATCH.
        unsafe { libc::mincore(start, batch.len(), vector) == 0 }
    }
}

#[cfg(target_vendor = "apple")]
mod system {
    pub(super) use super::anonymous::{Mapping, map};
    pub(super) use super::unix_page_size as page_size;

    pub(super) fn populate(_pages: &mut [u8]) {}

    pub(super) fn discard(pages: &mut [u8], _page: usize) -> u64 {
        pages.fill(0);
        // SAFETY: the range is whole pages inside an exclusive borrow. The kernel may replace them by zero pages, which
        // is what they hold.
        let result = unsafe { libc::madvise(pages.as_mut_ptr().cast(), pages.len(), libc::MADV_FREE_REUSABLE) };
        if result == 0 { pages.len() as u64 } else { 0 }
    }
}

#[cfg(windows)]
mod system {
    pub(super) use super::allocated::{Mapping, map};

    #[link(name = "kernel32")]
    unsafe extern "system" {
        fn VirtualUnlock(address: *mut core::ffi::c_void, size: usize) -> i32;
    }

    pub(super) fn page_size() -> usize {
        4096
    }

    pub(super) fn populate(_pages: &mut [u8]) {}

    pub(super) fn discard(pages: &mut [u8], _page: usize) -> u64 {
        pages.fill(0);
        // Unlocking pages that are not locked takes them out of the working set and reports a failure all the same.
        // SAFETY: the range is whole pages inside an exclusive borrow; contents do not change.
        unsafe { VirtualUnlock(pages.as_mut_ptr().cast(), pages.len()) };
        pages.len() as u64
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple", windows)))]
mod system {
    pub(super) use super::allocated::{Mapping, map};

    pub(super) fn page_size() -> usize {
        4096
    }

    pub(super) fn populate(_pages: &mut [u8]) {}

    pub(super) fn discard(pages: &mut [u8], _page: usize) -> u64 {
        pages.fill(0);
        0
    }
}

/// Anonymous mappings, which leave the process when they are unmapped.
#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
mod anonymous {
    use std::ptr::NonNull;

    #[derive(Debug)]
    pub(crate) struct Mapping {
        start: NonNull<u8>,
        len: usize,
    }

    // SAFETY: a mapping is plain memory that its value alone owns; sharing follows the borrows of bytes and bytes_mut.
    unsafe impl Send for Mapping {}
    // SAFETY: as above.
    unsafe impl Sync for Mapping {}

    pub(super) fn map(len: usize) -> Option<Mapping> {
        if len == 0 {
            return Some(Mapping { start: NonNull::dangling(), len });
        }
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, access, kind, -1, 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        NonNull::new(start.cast()).map(|start| Mapping { start, len })
    }

    impl Mapping {
        pub(super) fn bytes(&self) -> &[u8] {
            // SAFETY: `len` mapped bytes (or none, at a dangling pointer), which live as long as self and are zero or
            // written.
            unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
        }

        pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
            // SAFETY: as above, borrowed exclusively.
            unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
        }
    }

    impl Drop for Mapping {
        fn drop(&mut self) {
            if self.len > 0 {
                // SAFETY: mapped in `map` with this length, and nothing borrows from a value that is dropped.
                unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
            }
        }
    }
}

/// On other systems: the allocator's memory.
#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
mod allocated {
    #[derive(Debug)]
    pub(crate) struct Mapping(Vec<u8>);

    pub(super) fn map(len: usize) -> Option<Mapping> {
        let mut bytes = Vec::new();
        crate::sys::memory::resize(&mut bytes, len).ok()?;
        Some(Mapping(bytes))
    }

    impl Mapping {
        pub(super) fn bytes(&self) -> &[u8] {
            &self.0
        }

        pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
            &mut self.0
        }
    }
}

#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
fn unix_page_size() -> usize {
    // SAFETY: the call has no preconditions.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).ok().filter(|s| s.is_power_of_two()).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Status;

    #[test]
    fn every_byte_of_a_run_is_zero_afterwards_and_no_other_changes() {
        let page = page_size();
        let mut memory = vec![7u8; 8 * page];
        for (start, end) in [(0, 0), (1, 2), (0, 8 * page), (1, 8 * page - 1), (page - 1, page + 1), (3, 3 * page + 5)]
        {
            memory.fill(7);
            let returned = give_back(&mut memory[start..end]);
            assert!(returned as usize <= end - start);
            assert!(memory[start..end].iter().all(|b| *b == 0), "{start}..{end}");
            assert!(memory[..start].iter().chain(&memory[end..]).all(|b| *b == 7), "{start}..{end}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn populating_takes_the_whole_pages_of_a_run_and_changes_no_byte() {
        let page = page_size();
        let mut memory = vec![7u8; 64 * page];
        give_back(&mut memory[page..40 * page]);
        populate(&mut memory[..]);
        populate(&mut memory[3..5]);
        // Before any read, which would take pages, too. On a kernel that cannot, nothing was taken and nothing goes back.
        let taken = give_back(&mut memory[page..40 * page]) as usize;
        assert!(taken == 0 || taken >= 38 * page, "{taken}");
        populate(&mut memory[..]);
        assert!(
            memory.iter().enumerate().all(|(at, byte)| *byte == if (page..40 * page).contains(&at) { 0 } else { 7 })
        );
    }

    /// Memory of every kind that is not private and anonymous, and what is left in it after a run was given back.
    #[cfg(target_os = "linux")]
    #[test]
    fn memory_that_cannot_be_dropped_is_zeroed_and_not_counted() {
        use std::os::fd::AsRawFd;

        let page = page_size();
        let path = std::env::temp_dir().join(format!("mnnkv-pages-{}", std::process::id()));
        std::fs::write(&path, vec![9u8; 64 * page]).unwrap();
        let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let (anonymous, none) = (libc::MAP_ANONYMOUS, -1);
        for (name, len, flags, fd, locked) in [
            ("shared memory", 64 * page, libc::MAP_SHARED | anonymous, none, false),
            ("a shared file", 64 * page, libc::MAP_SHARED, file.as_raw_fd(), false),
            ("a private file", 64 * page, libc::MAP_PRIVATE, file.as_raw_fd(), false),
            ("locked memory", 64 * page, libc::MAP_PRIVATE | anonymous, none, true),
            ("huge pages", 4 << 20, libc::MAP_PRIVATE | anonymous | libc::MAP_HUGETLB, none, false),
        ] {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: a new mapping touches nothing that exists.
            let start = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, fd, 0) };
            // Huge pages exist where an administrator has set them aside.
            if start == libc::MAP_FAILED && flags & libc::MAP_HUGETLB != 0 {
                continue;
            }
            assert_ne!(start, libc::MAP_FAILED, "{name}");
            // SAFETY: mapped above with this length, and unmapped after the last use.
            let memory = unsafe { std::slice::from_raw_parts_mut(start.cast::<u8>(), len) };
            memory.fill(9);
            // SAFETY: the range is the mapping. By the system's number: AddressSanitizer's mlock does nothing.
            if locked && unsafe { libc::syscall(libc::SYS_mlock, start, len) } != 0 {
                continue;
            }
            let run = page..len - 2 * page;
            assert_eq!(give_back(&mut memory[run.clone()]), 0, "{name}");
            let outside = |at: &usize| !run.contains(at);
            assert!(memory[run.clone()].iter().all(|b| *b == 0), "{name}");
            assert!((0..len).filter(outside).all(|at| memory[at] == 9), "{name}");
            // SAFETY: as above.
            unsafe { libc::munmap(start, len) };
        }
    }

    #[test]
    fn a_region_is_zeros_of_its_own_and_an_impossible_one_is_an_error() {
        for len in [0, 1, 5000, 3 << 20] {
            let mut region = Region::new(len).unwrap();
            assert!(region.len() == len && region.iter().all(|b| *b == 0));
            region.fill(7);
            let moved = std::thread::spawn(move || region.iter().all(|b| *b == 7)).join().unwrap();
            assert!(moved);
        }
        assert_eq!(Region::new(isize::MAX as usize / 2).unwrap_err().status(), Status::OutOfMemory);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn pages_that_are_not_in_memory_are_not_counted_twice() {
        let page = page_size();
        let mut memory = vec![7u8; 64 * page];
        let first = give_back(&mut memory);
        assert!(first as usize >= 62 * page && first as usize <= 64 * page);
        assert_eq!(give_back(&mut memory[page..63 * page]), 0);
    }
}
