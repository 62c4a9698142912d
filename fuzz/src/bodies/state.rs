//! Any bytes as a blob of a state: refused, or decoded as announced. Unless the last byte is 0, the target writes the fixed
//! numbers of the header, and all checksums where the table says that they are.

use super::counting_allocator::peak;
use mnnkv_llama::state;
use xxhash_rust::xxh3::xxh3_64;

const CAPACITY: usize = 1 << 16;

fn number(blob: &[u8], at: usize) -> Option<usize> {
    Some(u64::from_le_bytes(*blob.get(at..)?.first_chunk()?) as usize)
}

/// Where the table ends, if the blob has all of it.
fn head_end(blob: &[u8]) -> Option<usize> {
    number(blob, 32)?.checked_mul(32)?.checked_add(40)
}

pub fn decode_state(data: &[u8]) {
    let mut blob = data.to_vec();
    if blob.len() >= 40 && !data.ends_with(&[0]) {
        blob[..16].copy_from_slice(b"MNKVSTAT\x01\0\0\0\0\0\0\0");
        let len = blob.len() as u64;
        blob[16..24].copy_from_slice(&len.to_le_bytes());
        if let Some(end) = head_end(&blob).filter(|end| end.checked_add(8).is_some_and(|end| end <= blob.len())) {
            let mut payload = end + 8;
            for entry in (40..end).step_by(32) {
                let to =
                    number(&blob, entry + 8).and_then(|len| payload.checked_add(len)).filter(|to| *to <= blob.len());
                let Some(to) = to else { break };
                let sum = xxh3_64(&blob[payload..to]);
                blob[entry + 16..entry + 24].copy_from_slice(&sum.to_le_bytes());
                payload = to;
            }
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
