//! The counters of a store.

use super::block::{Block, BlockState};

macro_rules! counters {
    ($($(#[$meaning:meta])* $name:ident,)*) => {
        /// Counters. The first group is the present state, the second sums since the store was made.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Statistics {
            $($(#[$meaning])* pub $name: u64,)*
            /// Most blocks that were queued at once.
            pub queue_peak: u64,
        }

        impl Statistics {
            /// Adds sums, and takes the larger peak.
            pub(super) fn add(&mut self, other: &Statistics) {
                $(self.$name += other.$name;)*
                self.queue_peak = self.queue_peak.max(other.queue_peak);
            }
        }
    };
}

counters! {
    /// Blocks whose raw bytes are in the cache, too.
    resident_blocks,
    /// Blocks whose raw bytes are only in the store.
    released_blocks,
    /// Raw bytes of all tokens that have a blob.
    raw_bytes,
    /// Bytes of all blobs.
    compressed_bytes,
    /// Raw bytes of tokens that are only in the store.
    released_raw_bytes,
    /// Blocks that wait for an encoding worker or are with one.
    queued_blocks,
    /// Bytes of decoded rows beside the caches.
    decoded_cache_bytes,

    /// Blocks encoded.
    submitted_blocks,
    /// Encoded blocks that were not kept, since the blobs are not smaller.
    no_gain_blocks,
    /// Blocks whose encoding failed, or that did not pass the strict check; not in `submitted_blocks`.
    failed_blocks,
    /// Blocks refused with BUSY.
    busy_blocks,
    /// Blocks dropped since the cache no longer equals them.
    stale_blocks,
    /// Blocks written back.
    restored_blocks,
    /// Restored blocks that a prefetch had decoded.
    prefetch_hits,
    /// Restored blocks whose decoded rows an earlier restore kept.
    cache_hits,
    /// Restored blocks decoded inside the restore.
    cache_misses,
    /// Bytes returned to the system.
    released_bytes,
    /// Bytes written back to the cache.
    restored_bytes,
    /// Raw bytes encoded.
    encoded_bytes,
    /// Bytes of the blobs of `encoded_bytes`; raw bytes where the blobs are not smaller.
    encoded_to_bytes,
    /// Nanoseconds of encoding.
    encode_ns,
    /// Raw bytes decoded.
    decoded_bytes,
    /// Nanoseconds of decoding.
    decode_ns,
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
        if block.blob.is_some() {
            self.raw_bytes += block.live_bytes() as u64;
            self.compressed_bytes += block.blob_bytes() as u64;
        }
    }
}
