//! Exports of the session room: metrics.

use super::handle::{mnnkv_session, with};
use crate::ffi::pointer::{self, Out, Sized32, SizedOut};
use crate::ffi::status::mnnkv_status;
use crate::session::metrics::Metrics;
use std::ffi::c_char;

/// What a session has measured, of one layer or of all together. NaN is "not measured": nothing of the kind has happened,
/// or it is switched off. A count of 0 is a measurement. Set struct_size before the call; the fields it covers are
/// written. Counts and sums are since the session was made; ratios and tokens are of now.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_metrics {
    /// sizeof(mnnkv_metrics)
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// Ratio: tokens in the caches over the chat's, of the layers that tokens are evicted from.
    pub h2o_keep_ratio: f64,
    /// Ratio: the chat's tokens over those in the caches, of the layers that tokens are evicted from.
    pub h2o_lossy_ratio: f64,
    /// Ratio: raw bytes over compressed bytes; blocks that stayed raw count as 1.
    pub h2o_lossless_ratio: f64,
    /// Ratio: share of the chat (basis physical: of the cache) that the last plans aimed at: the target, or the protected
    /// tokens where those are more; mean over layers.
    pub h2o_target_keep_effective: f64,
    /// Ratio: share of it in protected (first and recent) blocks; mean over layers.
    pub h2o_floor_keep_by_recent_sink: f64,
    /// Ratio: the share aimed at, rounded up to whole blocks; mean over layers.
    pub h2o_block_quantized_keep: f64,
    /// Microseconds: evicting, that is moving the tokens that stay and giving the pages behind them back; sum.
    pub h2o_evict_us: f64,
    /// Microseconds: encoding and decoding; sum.
    pub h2o_codec_us: f64,
    /// Bytes: raw size of all blocks that were encoded.
    pub h2o_lossless_raw_bytes: f64,
    /// Bytes: what those blocks became; raw ones count with their raw size.
    pub h2o_lossless_compressed_bytes: f64,
    /// Bytes: raw size of all that was decoded.
    pub h2o_lossless_decompressed_bytes: f64,
    /// Microseconds: encoding; sum.
    pub h2o_lossless_compress_us: f64,
    /// Microseconds: decoding; sum.
    pub h2o_lossless_decompress_us: f64,
    /// Count: most blocks that ever waited for a worker or were with one; needs workers.
    pub h2o_lossless_queue_depth_peak: f64,
    /// Count: blocks that stayed raw, and plans that were not made, because something failed.
    pub h2o_lossless_fallback_count: f64,
    /// Count: blocks that were skipped because the queue was full.
    pub h2o_lossless_backpressure_skip_count: f64,
    /// Count: the same as h2o_lossless_queue_depth_peak, where there are workers.
    pub h2o_lossless_async_queue_peak: f64,
    /// Microseconds: begin restoring compressed tokens, waiting for workers included; sum.
    pub h2o_lossless_async_wait_us: f64,
    /// Count: restored blocks whose decoded rows were there, decoded ahead or kept.
    pub h2o_lossless_decode_cache_hit: f64,
    /// Count: restored blocks that begin had to decode.
    pub h2o_lossless_decode_cache_miss: f64,
    /// Tokens: evicted by the last eviction, summed over layers.
    pub h2o_last_evict_tokens: f64,
    /// Tokens: evicted by all evictions, summed over layers.
    pub h2o_total_evict_tokens: f64,
    /// Tokens: the chat's length, with those that were evicted, summed over layers.
    pub h2o_logical_tokens: f64,
    /// Tokens: what the caches hold, summed over layers.
    pub h2o_physical_tokens: f64,
    /// Microseconds: turning what the lanes gathered into scores, at end; sum. The time that attention threads spend in
    /// mnnkv_session_scores is not measured: asking for it would cost as much as a tile.
    pub h2o_score_us: f64,
    /// Microseconds: deciding what stays; sum.
    pub h2o_plan_us: f64,
    /// Count: plans made.
    pub h2o_plan_count: f64,
    /// Count: plans dropped because the cache had changed.
    pub h2o_stale_plan_count: f64,
    /// Bytes: memory given back to the system, ever.
    pub h2o_released_bytes: f64,
    /// Bytes: memory that the caches do not take now, since tokens were evicted (whole pages behind those that are left, and
    /// tokens that the buffers have no room for) or are only in the store (whole pages that they have left), less the
    /// blobs and decoded rows kept for them. Memory that the system does not drop is not in it, nor the threads' working
    /// memory. Below 0 where blobs take more than went back.
    pub h2o_resident_saved_bytes: f64,
    /// Bytes: tails of the caches behind their tokens; a host could move to buffers this much smaller.
    pub h2o_reclaimable_bytes: f64,
    /// Count: blocks written back to a cache.
    pub h2o_lossless_restored_blocks: f64,
    /// Bytes: raw size of what was written back.
    pub h2o_lossless_restored_bytes: f64,
    /// Count: restored blocks whose decoded rows had been kept from an earlier step.
    pub h2o_lossless_restore_hit: f64,
    /// Count: restored blocks that were decoded ahead.
    pub h2o_lossless_prefetch_hit: f64,
    /// Count: restored blocks that should have been decoded ahead and were not.
    pub h2o_lossless_prefetch_miss: f64,
    /// Count: compressed blocks dropped because the cache had changed.
    pub h2o_lossless_stale_count: f64,
    /// Microseconds: what begin spent on restoring, where there was something; half of the calls took less.
    pub h2o_host_wait_us_p50: f64,
    /// Microseconds: as above; 95 of 100 calls took less.
    pub h2o_host_wait_us_p95: f64,
    /// Microseconds: as above, the longest.
    pub h2o_host_wait_us_max: f64,
    /// Count: plans that were not made, or left more tokens than the config says, since no scored row has seen them;
    /// see kv_h2o_evict_unscored.
    pub h2o_unscored_plan_count: f64,
    /// Count: steps that left more tokens in a cache than kv_h2o_max_tokens, where there is such a limit.
    pub h2o_over_limit_count: f64,
}

// SAFETY: repr(C), begins with a u32, integers and floats only.
unsafe impl Sized32 for mnnkv_metrics {
    const MIN: usize = 328;
}
const _: () = assert!(size_of::<mnnkv_metrics>() == 344);

impl From<Metrics> for mnnkv_metrics {
    fn from(m: Metrics) -> Self {
        mnnkv_metrics {
            struct_size: size_of::<Self>() as u32,
            reserved: 0,
            h2o_keep_ratio: m.h2o_keep_ratio,
            h2o_lossy_ratio: m.h2o_lossy_ratio,
            h2o_lossless_ratio: m.h2o_lossless_ratio,
            h2o_target_keep_effective: m.h2o_target_keep_effective,
            h2o_floor_keep_by_recent_sink: m.h2o_floor_keep_by_recent_sink,
            h2o_block_quantized_keep: m.h2o_block_quantized_keep,
            h2o_evict_us: m.h2o_evict_us,
            h2o_codec_us: m.h2o_codec_us,
            h2o_lossless_raw_bytes: m.h2o_lossless_raw_bytes,
            h2o_lossless_compressed_bytes: m.h2o_lossless_compressed_bytes,
            h2o_lossless_decompressed_bytes: m.h2o_lossless_decompressed_bytes,
            h2o_lossless_compress_us: m.h2o_lossless_compress_us,
            h2o_lossless_decompress_us: m.h2o_lossless_decompress_us,
            h2o_lossless_queue_depth_peak: m.h2o_lossless_queue_depth_peak,
            h2o_lossless_fallback_count: m.h2o_lossless_fallback_count,
            h2o_lossless_backpressure_skip_count: m.h2o_lossless_backpressure_skip_count,
            h2o_lossless_async_queue_peak: m.h2o_lossless_async_queue_peak,
            h2o_lossless_async_wait_us: m.h2o_lossless_async_wait_us,
            h2o_lossless_decode_cache_hit: m.h2o_lossless_decode_cache_hit,
            h2o_lossless_decode_cache_miss: m.h2o_lossless_decode_cache_miss,
            h2o_last_evict_tokens: m.h2o_last_evict_tokens,
            h2o_total_evict_tokens: m.h2o_total_evict_tokens,
            h2o_logical_tokens: m.h2o_logical_tokens,
            h2o_physical_tokens: m.h2o_physical_tokens,
            h2o_score_us: m.h2o_score_us,
            h2o_plan_us: m.h2o_plan_us,
            h2o_plan_count: m.h2o_plan_count,
            h2o_stale_plan_count: m.h2o_stale_plan_count,
            h2o_released_bytes: m.h2o_released_bytes,
            h2o_resident_saved_bytes: m.h2o_resident_saved_bytes,
            h2o_reclaimable_bytes: m.h2o_reclaimable_bytes,
            h2o_lossless_restored_blocks: m.h2o_lossless_restored_blocks,
            h2o_lossless_restored_bytes: m.h2o_lossless_restored_bytes,
            h2o_lossless_restore_hit: m.h2o_lossless_restore_hit,
            h2o_lossless_prefetch_hit: m.h2o_lossless_prefetch_hit,
            h2o_lossless_prefetch_miss: m.h2o_lossless_prefetch_miss,
            h2o_lossless_stale_count: m.h2o_lossless_stale_count,
            h2o_host_wait_us_p50: m.h2o_host_wait_us_p50,
            h2o_host_wait_us_p95: m.h2o_host_wait_us_p95,
            h2o_host_wait_us_max: m.h2o_host_wait_us_max,
            h2o_unscored_plan_count: m.h2o_unscored_plan_count,
            h2o_over_limit_count: m.h2o_over_limit_count,
        }
    }
}

/// Reads the metrics of all layers together. Set metrics->struct_size first. May run beside any other call; it waits
/// for one under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_session_metrics(
    session: *const mnnkv_session,
    metrics: *mut mnnkv_metrics,
) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers.
    unsafe {
        with(session, |session| {
            let metrics = SizedOut::new(metrics, "metrics")?;
            metrics.set(&session.metrics(None)?.into());
            Ok(())
        })
    }
}

/// As mnnkv_session_metrics, of one layer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_session_layer_metrics(
    session: *const mnnkv_session,
    layer: u32,
    metrics: *mut mnnkv_metrics,
) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers.
    unsafe {
        with(session, |session| {
            let metrics = SizedOut::new(metrics, "metrics")?;
            metrics.set(&session.metrics(Some(layer))?.into());
            Ok(())
        })
    }
}

/// The metrics as JSON: {"h2o_lossy_ratio": 3.4, ..., "layers": [{"layer": 2, ...}, ...]}, with the names of
/// mnnkv_metrics. What was not measured is absent; layers that were never named are too ("layers" is [] at first).
///
/// text: room for cap bytes; the text is zero-terminated. len: its length with the zero. BUFFER_TOO_SMALL: *len is what
/// is needed now; it may have grown at the next call. Threads as mnnkv_session_metrics.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_session_metrics_json(
    session: *const mnnkv_session,
    text: *mut c_char,
    cap: usize,
    len: *mut usize,
) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers.
    unsafe {
        with(session, |session| {
            let (out, len) = (pointer::output(text.cast::<u8>(), cap, "text")?, Out::new(len, "len")?);
            pointer::put_text(&session.metrics_json()?, out, &len)
        })
    }
}
