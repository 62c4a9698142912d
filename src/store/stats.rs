//! What a store holds and has done.

use super::block::Block;

/// Counts. The first group is what the store holds now, the second sums over its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Blocks whose raw bytes are in the cache too.
    pub resident_blocks: u64,
    /// Blocks whose raw bytes are only in the store.
    pub released_blocks: u64,
    /// Raw bytes of all tokens the blobs stand for.
    pub raw_bytes: u64,
    /// Bytes of all blobs.
    pub compressed_bytes: u64,
    /// Raw bytes of tokens that are only in the store.
    pub released_raw_bytes: u64,

    /// Blocks encoded.
    pub submitted_blocks: u64,
    /// Of them, blocks not kept because they would not shrink.
    pub no_gain_blocks: u64,
    /// Blocks dropped because the cache no longer matched them.
    pub stale_blocks: u64,
    /// Blocks written back.
    pub restored_blocks: u64,
    /// Bytes that went back to the system.
    pub released_bytes: u64,
    /// Bytes written back to the cache.
    pub restored_bytes: u64,
    /// Raw bytes encoded, and the time it took.
    pub encoded_bytes: u64,
    /// See `encoded_bytes`.
    pub encode_ns: u64,
    /// Raw bytes decoded, and the time it took.
    pub decoded_bytes: u64,
    /// See `decoded_bytes`.
    pub decode_ns: u64,
}

impl Statistics {
    pub(super) fn add_block(&mut self, block: &Block) {
        if block.is_released() {
            self.released_blocks += 1;
            self.released_raw_bytes += block.live_bytes() as u64;
        } else {
            self.resident_blocks += 1;
        }
        self.raw_bytes += block.live_bytes() as u64;
        self.compressed_bytes += (block.key.len() + block.value.len()) as u64;
    }
}
