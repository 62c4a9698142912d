//! Any bytes as a blob of format v2, under a matching trailer: refused, or decoded to words with the checksum of the
//! header. If the last byte, which the trailer replaces, is not 0, the target writes the fixed start of a blob.
#![no_main]

#[path = "../counting.rs"]
mod counting;

use libfuzzer_sys::fuzz_target;
use mnnkv::dtype::Dtype;
use mnnkv::gear;
use xxhash_rust::xxh3::xxh3_64;

const CAPACITY: usize = 1 << 13;

fuzz_target!(|data: &[u8]| {
    if data.len() < 36 {
        return;
    }
    let mut blob = data.to_vec();
    if !data.ends_with(&[0]) {
        blob[..10].copy_from_slice(b"\0\0\0\0MNKV\x02\0");
        blob[10] = (blob[10].wrapping_sub(1) & 3) + 1;
        blob[11] = 1;
        // No more words than the capacity.
        blob[17] &= 31;
        blob[18..24].fill(0);
    }
    let end = blob.len() - 4;
    let checksum = xxh3_64(&blob[..end]) as u32;
    blob[end..].copy_from_slice(&checksum.to_le_bytes());
    for dtype in Dtype::ALL {
        let mut words = vec![0xA5; CAPACITY];
        match counting::bounded(&blob, dtype, &mut words) {
            Ok(len) if blob.starts_with(&[0; 4]) => {
                assert_eq!(gear::decoded_len(&blob, dtype).unwrap(), len);
                assert_eq!(xxh3_64(&words[..len]).to_le_bytes(), blob[24..32]);
            }
            Ok(_) => {}
            // A late failure leaves as many words undefined as the header announces.
            Err(_) => {
                let announced = blob.get(16..24).map_or(0, |len| u64::from_le_bytes(len.try_into().unwrap()) as usize);
                assert!(words.get(announced..).unwrap_or(&words).iter().all(|byte| *byte == 0xA5));
            }
        }
    }
});
