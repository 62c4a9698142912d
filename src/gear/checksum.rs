//! XXH3-64 of words, piece by piece while they are in the cache.

use crate::arch::{self, xxh3};
use xxhash_rust::xxh3::xxh3_64;

/// The checksum of bytes that are complete.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    Checksum::new().finish(bytes)
}

/// The checksum of words that come into being from their start.
pub(super) struct Checksum {
    sums: xxh3::Sums,
    done: usize,
}

impl Checksum {
    pub(super) fn new() -> Self {
        Checksum { sums: xxh3::START, done: 0 }
    }

    /// Hashes what `words` has ready up to `end`, which the next call has, too.
    pub(super) fn advance(&mut self, words: &[u8], end: usize) {
        // The last block is hashed in another way.
        let end = end.min(words.len() - 1) / xxh3::BLOCK * xxh3::BLOCK;
        if end > self.done {
            (arch::kernels().xxh3_blocks)(&mut self.sums, &words[self.done..end]);
            self.done = end;
        }
    }

    /// The checksum of `words`.
    pub(super) fn finish(mut self, words: &[u8]) -> u64 {
        if words.len() <= xxh3::BLOCK {
            return xxh3_64(words);
        }
        self.advance(words, words.len());
        let last = words.last_chunk().expect("more than a block");
        xxh3::finish(self.sums, &words[self.done..], last, words.len())
    }
}
