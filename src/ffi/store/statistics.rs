//! Store: statistics

use super::handle::{mnnkv_store, with};
use crate::ffi::panic::body;
use crate::ffi::pointer::{Sized32, SizedOut};
use crate::ffi::status::mnnkv_status;
use crate::store::Statistics;

/// Counters of a store: "now" is the present state, others are sums since create.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_store_statistics {
    /// sizeof(mnnkv_store_statistics)
    pub struct_size: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Now: blocks whose raw bytes are also in the cache.
    pub resident_blocks: u64,
    /// Now: blocks whose raw bytes are only in the store.
    pub released_blocks: u64,
    /// Now: raw bytes of all blocks.
    pub raw_bytes: u64,
    /// Now: bytes of all blobs.
    pub compressed_bytes: u64,
    /// Now: raw bytes of released tokens.
    pub released_raw_bytes: u64,
    /// Blocks encoded.
    pub submitted_blocks: u64,
    /// Blocks that did not shrink and stay raw.
    pub no_gain_blocks: u64,
    /// Blocks dropped because the cache had changed.
    pub stale_blocks: u64,
    /// Blocks restored.
    pub restored_blocks: u64,
    /// Bytes returned to the system.
    pub released_bytes: u64,
    /// Bytes written to the cache by restore.
    pub restored_bytes: u64,
    /// Raw bytes encoded.
    pub encoded_bytes: u64,
    /// Nanoseconds of encoding.
    pub encode_ns: u64,
    /// Raw bytes decoded.
    pub decoded_bytes: u64,
    /// Nanoseconds of decoding.
    pub decode_ns: u64,
    /// Bytes that encoded_bytes became; the raw size of a block that did not shrink.
    pub encoded_to_bytes: u64,
    /// Now: blocks that wait for a worker or are being encoded.
    pub queued_blocks: u64,
    /// The maximum of queued_blocks.
    pub queue_peak: u64,
    /// Blocks refused with BUSY.
    pub busy_blocks: u64,
    /// Blocks that failed to encode, or the strict check, and stay raw.
    pub failed_blocks: u64,
    /// Restored blocks that were kept decoded.
    pub cache_hits: u64,
    /// Restored blocks that restore decoded.
    pub cache_misses: u64,
    /// Now: bytes of decoded rows.
    pub decoded_cache_bytes: u64,
}

// SAFETY: repr(C), begins with a u32, integers only.
unsafe impl Sized32 for mnnkv_store_statistics {
    const MIN: usize = 128;
}
const _: () = assert!(size_of::<mnnkv_store_statistics>() == 192);

impl From<Statistics> for mnnkv_store_statistics {
    fn from(s: Statistics) -> Self {
        mnnkv_store_statistics {
            struct_size: size_of::<Self>() as u32,
            reserved: 0,
            resident_blocks: s.resident_blocks,
            released_blocks: s.released_blocks,
            raw_bytes: s.raw_bytes,
            compressed_bytes: s.compressed_bytes,
            released_raw_bytes: s.released_raw_bytes,
            submitted_blocks: s.submitted_blocks,
            no_gain_blocks: s.no_gain_blocks,
            stale_blocks: s.stale_blocks,
            restored_blocks: s.restored_blocks,
            released_bytes: s.released_bytes,
            restored_bytes: s.restored_bytes,
            encoded_bytes: s.encoded_bytes,
            encode_ns: s.encode_ns,
            decoded_bytes: s.decoded_bytes,
            decode_ns: s.decode_ns,
            encoded_to_bytes: s.encoded_to_bytes,
            queued_blocks: s.queued_blocks,
            queue_peak: s.queue_peak,
            busy_blocks: s.busy_blocks,
            failed_blocks: s.failed_blocks,
            cache_hits: s.cache_hits,
            cache_misses: s.cache_misses,
            decoded_cache_bytes: s.decoded_cache_bytes,
        }
    }
}

/// Reads the counters. Any thread; blocks while another call runs.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_store_stats(
    store: *const mnnkv_store,
    statistics: *mut mnnkv_store_statistics,
) -> mnnkv_status {
    body!(with(store, |store| {
        let statistics = SizedOut::new(statistics, "statistics")?;
        statistics.set(&store.statistics(None).into());
        Ok(())
    }))
}
