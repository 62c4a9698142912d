//! Any bytes as a blob of format v1: refused, or decoded to the announced number of words.
#![no_main]

#[path = "../counting.rs"]
mod counting;

use libfuzzer_sys::fuzz_target;
use mnnkv::dtype::Dtype;
use mnnkv::gear;

const CAPACITY: usize = 1 << 13;

fuzz_target!(|blob: &[u8]| {
    for dtype in [Dtype::F16, Dtype::F32] {
        let mut words = vec![0xA5; CAPACITY];
        match counting::bounded(blob, dtype, &mut words) {
            Ok(len) => assert_eq!(gear::decoded_len(blob, dtype).unwrap(), len),
            Err(_) => assert!(words.iter().all(|byte| *byte == 0xA5)),
        }
    }
});
