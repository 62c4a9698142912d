//! A steady stream of codec calls allocates nothing, and no call holds more than it may. A program of its own, since it
//! counts every allocation of its thread (the test program's main thread has its own, now and then).

mod common;
#[path = "allocation/mutations.rs"]
mod mutations;
#[path = "allocation/working_memory.rs"]
mod working_memory;

use mnnkv::ffi::gear::{mnnkv_decode_fp16_gear, mnnkv_encode_fp16_gear, mnnkv_gear_bound};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// The most bytes that `body` held at once, beyond those that were held before.
fn peak(body: impl FnOnce()) -> usize {
    let before = HELD.get();
    PEAK.set(before);
    body();
    (PEAK.get() - before) as usize
}

// SAFETY: every call is passed on to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
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

#[test]
fn steady_encoding_and_decoding_allocates_nothing() {
    let inputs = ["kv/l0_v_h2_t1088_d64.f16", "kv/l3_k_h2_t1088_d64.f16"].map(common::read);
    let mut blob = vec![0u8; mnnkv_gear_bound(inputs[0].len(), 1)];
    let mut back = vec![0u8; inputs[0].len()];
    let mut round = |words: &[u8]| {
        let (mut blob_len, mut back_len) = (0, 0);
        // SAFETY: all buffers are live and as long as stated.
        let statuses = unsafe {
            [
                mnnkv_encode_fp16_gear(
                    words.as_ptr().cast(),
                    words.len(),
                    std::ptr::null(),
                    blob.as_mut_ptr().cast(),
                    blob.len(),
                    &mut blob_len,
                ),
                mnnkv_decode_fp16_gear(
                    blob.as_ptr().cast(),
                    blob_len,
                    back.as_mut_ptr().cast(),
                    back.len(),
                    &mut back_len,
                ),
            ]
        };
        assert_eq!(statuses, [0, 0]);
        assert!(back[..back_len] == *words);
    };
    inputs.iter().for_each(|words| round(words));
    let before = ALLOCATIONS.get();
    assert!(before > 0);
    for _ in 0..3 {
        inputs.iter().for_each(|words| round(&words[..words.len() / 2]));
        inputs.iter().for_each(|words| round(words));
    }
    assert_eq!(ALLOCATIONS.get(), before);
}
