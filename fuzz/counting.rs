//! Decoding under the two bounds of the header: working memory and time.

use mnnkv::dtype::Dtype;
use mnnkv::gear::{self, Decoder};
use mnnkv::status::Result;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::{Duration, Instant};

struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.set(HELD.get() + layout.size() as isize);
        PEAK.set(PEAK.get().max(HELD.get()));
        // SAFETY: passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        HELD.set(HELD.get() - layout.size() as isize);
        // SAFETY: passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Decodes with a decoder of its own; panics when that takes more than three times the blob and its words and 256 KiB,
/// or more than a second: 40 MB/s, and what sanitizers and other processes take.
pub fn bounded(blob: &[u8], dtype: Dtype, words: &mut [u8]) -> Result<usize> {
    let given = blob.len() + gear::decoded_len(blob, dtype).unwrap_or(0).min(words.len());
    let before = HELD.get();
    PEAK.set(before);
    let start = Instant::now();
    let result = Decoder::new().decode(blob, dtype, words);
    let held = (PEAK.get() - before) as usize;
    assert!(held <= 3 * given + (256 << 10), "{held} bytes for {given}");
    assert!(start.elapsed() < Duration::from_secs(1) + Duration::from_nanos(25 * given as u64));
    result
}
