//! The system allocator, with counts for each thread.
#![allow(dead_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicIsize, Ordering};

struct Counting;

/// Bytes that all threads hold.
static ALL: AtomicIsize = AtomicIsize::new(0);

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// Allocations of this thread so far.
pub fn allocations() -> usize {
    ALLOCATIONS.get()
}

/// Bytes that this thread holds.
pub fn held() -> isize {
    HELD.get()
}

/// Bytes that all threads hold.
pub fn held_by_all() -> isize {
    ALL.load(Ordering::Relaxed)
}

/// The most bytes that `body` held at once, beyond those that were held before.
pub fn peak(body: impl FnOnce()) -> usize {
    let before = HELD.get();
    PEAK.set(before);
    body();
    (PEAK.get() - before) as usize
}

// SAFETY: every call is passed on to the system allocator. `alloc_zeroed` and `realloc` come here, too.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        HELD.set(HELD.get() + layout.size() as isize);
        ALL.fetch_add(layout.size() as isize, Ordering::Relaxed);
        PEAK.set(PEAK.get().max(HELD.get()));
        // SAFETY: passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        HELD.set(HELD.get() - layout.size() as isize);
        ALL.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
