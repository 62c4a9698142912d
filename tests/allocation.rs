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

use counting_allocator::allocations;
use mnnkv::dtype::Dtype;
use mnnkv::ffi::gear::{mnnkv_decode_gear, mnnkv_encode_fp16_gear, mnnkv_gear_bound};

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
