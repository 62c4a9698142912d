//! Decoding under the bounds of the header: working memory and time.

#[path = "../tests/common/counting_allocator.rs"]
mod counting_allocator;

use counting_allocator::peak;
use mnnkv::dtype::Dtype;
use mnnkv::gear::{self, Decoder};
use mnnkv::status::Result;
use std::time::{Duration, Instant};

/// Decodes with a new decoder. Panics above three times the blob and its words plus 256 KiB of memory, or above one
/// second plus 25 ns per byte, which allows for sanitizers and other processes.
pub fn bounded(blob: &[u8], dtype: Dtype, words: &mut [u8]) -> Result<usize> {
    let given = blob.len() + gear::decoded_len(blob, dtype).unwrap_or(0).min(words.len());
    let start = Instant::now();
    let mut result = Ok(0);
    let held = peak(|| result = Decoder::new().decode(blob, dtype, words));
    assert!(held <= 3 * given + (256 << 10), "{held} bytes for {given}");
    assert!(start.elapsed() < Duration::from_secs(1) + Duration::from_nanos(25 * given as u64));
    result
}
