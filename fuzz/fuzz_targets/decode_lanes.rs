//! Any bytes as a blob of format lanes: refused, or decoded to words with the checksum of the header. Unless the last byte
//! is 0, the target writes the fixed start of a blob, and a length within the capacity.
#![no_main]

#[path = "../counting.rs"]
mod counting;

use libfuzzer_sys::fuzz_target;
use mnnkv::dtype::Dtype;
use mnnkv::gear;
use xxhash_rust::xxh3::xxh3_64;

const CAPACITY: usize = 1 << 15;

fuzz_target!(|data: &[u8]| {
    if data.len() < 24 {
        return;
    }
    let mut blob = data.to_vec();
    if !data.ends_with(&[0]) {
        blob[..9].copy_from_slice(b"\0\0\0\0MNKV\x03");
        blob[9] = (blob[9].wrapping_sub(1) & 3) + 1;
        blob[11] = (blob[11] & 1) + 1;
        // Two bytes: fewer than 2^14.
        (blob[20], blob[21]) = (blob[20] | 128, blob[21] & 127);
    }
    for dtype in Dtype::ALL {
        let mut words = vec![0xA5; CAPACITY];
        let announced = gear::decoded_len(&blob, dtype);
        match counting::bounded(&blob, dtype, &mut words) {
            Ok(len) if blob.starts_with(b"\0\0\0\0MNKV\x03") => {
                assert_eq!(announced.unwrap(), len);
                assert_eq!(xxh3_64(&words[..len]).to_le_bytes(), blob[12..20]);
            }
            Ok(_) => {}
            // A late failure leaves as many words undefined as the header announces.
            Err(_) => {
                let announced = announced.unwrap_or(0);
                assert!(words.get(announced..).unwrap_or(&words).iter().all(|byte| *byte == 0xA5));
            }
        }
    }
});
