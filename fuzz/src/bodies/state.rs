//! Any bytes as a blob of a state: refused, or decoded as announced. Unless the last byte is 0, the target writes the fixed
//! numbers of the header, and the checksum of the head where its tables end.

use super::counting_allocator::peak;
use mnnkv::state;
use xxhash_rust::xxh3::xxh3_64;

const CAPACITY: usize = 1 << 16;

fn number(blob: &[u8], at: usize) -> Option<usize> {
    Some(u64::from_le_bytes(*blob.get(at..)?.first_chunk()?) as usize)
}

/// Where the tables end, if the blob has all of them.
fn head_end(blob: &[u8]) -> Option<usize> {
    let mut at = 48;
    for _ in 0..number(blob, 32)? {
        at = number(blob, at + 24)?.checked_mul(24)?.checked_add(at + 32)?;
    }
    at.checked_add(number(blob, 40)?.checked_mul(24)?)
}

pub fn decode_state(data: &[u8]) {
    let mut blob = data.to_vec();
    if blob.len() >= 48 && !data.ends_with(&[0]) {
        blob[..16].copy_from_slice(b"MNKVSTAT\x01\0\0\0\0\0\0\0");
        let len = blob.len() as u64;
        blob[16..24].copy_from_slice(&len.to_le_bytes());
        if let Some(end) = head_end(&blob).filter(|end| end.checked_add(8).is_some_and(|end| end <= blob.len())) {
            let sum = xxh3_64(&blob[..end]);
            blob[end..end + 8].copy_from_slice(&sum.to_le_bytes());
        }
    }
    let mut out = vec![0xA5; CAPACITY];
    let mut result = Ok(0);
    let peak = peak(|| result = state::decode(&blob, 1, &mut out));
    assert!(peak <= 8 * (blob.len() + CAPACITY) + (1 << 20), "{peak} bytes for {}", blob.len());
    if let Ok(len) = result {
        assert_eq!(state::decoded_len(&blob).unwrap(), len);
        assert!(out[len..].iter().all(|byte| *byte == 0xA5));
    }
}
