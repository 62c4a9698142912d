//! The counters of a store.

use super::block::{Block, BlockState};

/// Counters. The first group is the present state, the second sums since the store was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Blocks whose raw bytes are in the cache, too.
    pub resident_blocks: u64,
    /// Blocks whose raw bytes are only in the store.
    pub released_blocks: u64,
    /// Raw bytes of all tokens that have a blob.
    pub raw_bytes: u64,
    /// Bytes of all blobs.
    pub compressed_bytes: u64,
    /// Raw bytes of parked tokens.
    pub parked_raw_bytes: u64,
    /// Bytes of their blobs.
    pub parked_bytes: u64,
    /// Raw bytes of tokens that are only in the store.
    pub released_raw_bytes: u64,
    /// Blocks that wait for an encoding worker or are with one.
    pub queued_blocks: u64,
    /// Bytes of decoded rows beside the caches.
    pub decoded_cache_bytes: u64,

    /// Blocks encoded.
    pub submitted_blocks: u64,
    /// Encoded blocks that were not kept, since the blobs are not smaller.
    pub no_gain_blocks: u64,
    /// Blocks whose encoding failed, or that did not pass the strict check; not in `submitted_blocks`.
    pub failed_blocks: u64,
    /// Blocks refused with BUSY.
    pub busy_blocks: u64,
    /// Most blocks that were queued at once.
    pub queue_peak: u64,
    /// Blocks dropped since the cache no longer equals them.
    pub stale_blocks: u64,
    /// Blocks written back.
    pub restored_blocks: u64,
    /// Restored blocks that a prefetch had decoded.
    pub prefetch_hits: u64,
    /// Restored blocks whose decoded rows an earlier restore kept.
    pub cache_hits: u64,
    /// Restored blocks decoded inside the restore.
    pub cache_misses: u64,
    /// Bytes returned to the system.
    pub released_bytes: u64,
    /// Bytes written back to the cache.
    pub restored_bytes: u64,
    /// Raw bytes encoded.
    pub encoded_bytes: u64,
    /// Bytes of the blobs of `encoded_bytes`; raw bytes where the blobs are not smaller.
    pub encoded_to_bytes: u64,
    /// Nanoseconds of encoding.
    pub encode_ns: u64,
    /// Raw bytes decoded.
    pub decoded_bytes: u64,
    /// Nanoseconds of decoding.
    pub decode_ns: u64,
}

/// Encoded blocks of a layer since the store was made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Encodings {
    /// Their number.
    pub blocks: u64,
    /// Raw bytes.
    pub bytes: u64,
    /// Bytes of the blobs; raw bytes where the blobs are not smaller.
    pub to_bytes: u64,
}

impl Statistics {
    /// Adds the present state of a block.
    pub(super) fn add_block(&mut self, block: &Block) {
        match block.state {
            BlockState::Encoding => self.queued_blocks += 1,
            BlockState::Raw => {}
            BlockState::Resident => self.resident_blocks += 1,
            BlockState::Released => {
                self.released_blocks += 1;
                self.released_raw_bytes += block.live_bytes() as u64;
            }
        }
        if block.is_parked {
            self.parked_raw_bytes += block.live_bytes() as u64;
            self.parked_bytes += block.blob_bytes() as u64;
        }
        if block.blob.is_some() {
            self.raw_bytes += block.live_bytes() as u64;
            self.compressed_bytes += block.blob_bytes() as u64;
        }
    }

    /// Adds sums, and takes the larger peak.
    pub(super) fn add(&mut self, other: &Statistics) {
        for (mine, theirs) in [
            (&mut self.resident_blocks, other.resident_blocks),
            (&mut self.released_blocks, other.released_blocks),
            (&mut self.raw_bytes, other.raw_bytes),
            (&mut self.compressed_bytes, other.compressed_bytes),
            (&mut self.parked_raw_bytes, other.parked_raw_bytes),
            (&mut self.parked_bytes, other.parked_bytes),
            (&mut self.released_raw_bytes, other.released_raw_bytes),
            (&mut self.queued_blocks, other.queued_blocks),
            (&mut self.decoded_cache_bytes, other.decoded_cache_bytes),
            (&mut self.submitted_blocks, other.submitted_blocks),
            (&mut self.no_gain_blocks, other.no_gain_blocks),
            (&mut self.failed_blocks, other.failed_blocks),
            (&mut self.busy_blocks, other.busy_blocks),
            (&mut self.stale_blocks, other.stale_blocks),
            (&mut self.restored_blocks, other.restored_blocks),
            (&mut self.prefetch_hits, other.prefetch_hits),
            (&mut self.cache_hits, other.cache_hits),
            (&mut self.cache_misses, other.cache_misses),
            (&mut self.released_bytes, other.released_bytes),
            (&mut self.restored_bytes, other.restored_bytes),
            (&mut self.encoded_bytes, other.encoded_bytes),
            (&mut self.encoded_to_bytes, other.encoded_to_bytes),
            (&mut self.encode_ns, other.encode_ns),
            (&mut self.decoded_bytes, other.decoded_bytes),
            (&mut self.decode_ns, other.decode_ns),
        ] {
            *mine += theirs;
        }
        self.queue_peak = self.queue_peak.max(other.queue_peak);
    }
}
