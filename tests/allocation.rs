//! Working memory: steady codec calls allocate nothing, and no call holds more than its bound. A program of its own: it
//! counts the allocations of its threads.

#[path = "allocation/budget.rs"]
mod budget;
mod common;
#[path = "common/counting_allocator.rs"]
mod counting_allocator;
#[path = "common/packing.rs"]
mod packing;
#[path = "allocation/working_memory.rs"]
mod working_memory;

use counting_allocator::{allocations, peak};
use mnnkv::dtype::Dtype;
use mnnkv::ffi::gear::{mnnkv_decode_gear, mnnkv_encode_fp16_gear, mnnkv_gear_bound};
use mnnkv::gear::Effort;
use mnnkv::layout::{Cache, Layout};
use mnnkv::store::{Packing, Parked, Settings, Store};
use std::sync::atomic::AtomicBool;

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
                mnnkv_decode_gear(
                    blob.as_ptr().cast(),
                    blob_len,
                    Dtype::F16 as u32,
                    std::ptr::null(),
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
    let before = allocations();
    assert!(before > 0);
    for _ in 0..3 {
        inputs.iter().for_each(|words| round(&words[..words.len() / 2]));
        inputs.iter().for_each(|words| round(words));
    }
    assert_eq!(allocations(), before);
}

// On other systems those pages are of the heap, too.
#[cfg(unix)]
#[test]
fn parking_holds_six_times_the_k_of_a_head_beside_pages_that_go_back_to_the_system() {
    let tokens = 4096;
    let layout = Layout::new(&packing::flash(16, 64, 8, tokens)).unwrap();
    let mut random = common::Random::new(7);
    let mut words = |bytes: usize| -> Vec<u8> {
        (0..bytes / 2).flat_map(|_| (0x3400 | random.next() as u16 & 0x80FF).to_le_bytes()).collect()
    };
    let (mut key, mut value) = (words(layout.key_bytes()), words(layout.value_bytes()));
    let head = key.len() / 16;
    let mut store = Store::new(Settings::default()).unwrap();
    let mut parked = Parked::default();
    let packing = Packing { effort: Effort::new(1, "effort").unwrap(), threads: 1 };
    let held = peak(|| {
        let cache = Cache::new(&layout, &mut key, &mut value).unwrap();
        parked = store.park(0, cache, tokens, &packing, &AtomicBool::new(false)).unwrap();
    });
    let bytes = parked.bytes as usize;
    assert!(bytes > 12 * head && held <= 6 * head, "{held} bytes held for {bytes}; a head has {head}");
}
