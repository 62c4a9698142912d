// mnnkv/metrics.h: what a session has measured.
//
// Generated from src/ffi/session by `make header`; do not edit. mnnkv.h has the conventions.

#ifndef MNNKV_METRICS_H
#define MNNKV_METRICS_H

#include "session.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- Session: metrics -------------------------------------------------------------------------------------------

/// Measurements of a layer or a session. NaN = not measured; a count of 0 is a measurement. Counts, bytes and us
/// (microseconds) are totals since create, except those marked "now". MNNKV_ALL_LAYERS sums them over the layers. Peaks,
/// maxima and percentiles are computed over all layers instead.
typedef struct mnnkv_metrics {
    uint32_t struct_size;
    uint32_t reserved;
    double h2o_keep_ratio;                       ///< ratio: physical / logical tokens, layers that evict
    double h2o_lossy_ratio;                      ///< ratio: logical / physical tokens, layers that evict
    double h2o_lossless_ratio;                   ///< ratio: raw / encoded bytes, blocks left raw included
    double h2o_target_keep_effective;            ///< ratio: share that plans aim at: target or floor, mean
    double h2o_floor_keep_by_recent_sink;        ///< ratio: floor: share in sink, recent and pinned blocks, mean
    /// ratio: that share rounded up to whole blocks, mean; plans keep all where the floor reaches the target
    double h2o_block_quantized_keep;
    double h2o_evict_us;                         ///< us: moving kept tokens, releasing pages
    double h2o_codec_us;                         ///< us: encoding and decoding
    double h2o_lossless_raw_bytes;               ///< bytes: blocks encoded, raw size
    double h2o_lossless_compressed_bytes;        ///< bytes: blocks encoded, encoded size (raw if no gain)
    double h2o_lossless_decompressed_bytes;      ///< bytes: blocks decoded, raw size
    double h2o_lossless_compress_us;             ///< us: encoding
    double h2o_lossless_decompress_us;           ///< us: decoding
    double h2o_lossless_queue_depth_peak;        ///< count: most blocks queued; NaN without workers
    double h2o_lossless_fallback_count;          ///< count: failures: blocks left raw, plans not made
    /// count: blocks skipped: queue full, pending bytes used up, refused
    double h2o_lossless_backpressure_skip_count;
    double h2o_lossless_async_queue_peak;        ///< count: as h2o_lossless_queue_depth_peak
    double h2o_lossless_async_wait_us;           ///< us: restoring in begin, waits included
    double h2o_lossless_decode_cache_hit;        ///< count: restored blocks decoded before begin
    double h2o_lossless_decode_cache_miss;       ///< count: restored blocks decoded by begin, or by head
    double h2o_last_evict_tokens;                ///< tokens: removed by the last eviction of each layer
    double h2o_total_evict_tokens;               ///< tokens: removed by all evictions
    double h2o_logical_tokens;                   ///< tokens: now: in the chat
    double h2o_physical_tokens;                  ///< tokens: now: in the caches
    double h2o_score_us;                         ///< us: scoring in end; block sums are not timed
    double h2o_plan_us;                          ///< us: planning
    double h2o_plan_count;                       ///< count: plans made
    double h2o_stale_plan_count;                 ///< count: plans dropped, cache had changed
    double h2o_released_bytes;                   ///< bytes: returned to the system; a tail of INT8 V once
    /// bytes: now: pages of evicted and stored tokens, less blobs, copies, summaries and decoded rows; may be negative
    double h2o_resident_saved_bytes;
    double h2o_reclaimable_bytes;                ///< bytes: now: buffers after the last token
    double h2o_lossless_restored_blocks;         ///< count: blocks restored; by head, each head of a block
    double h2o_lossless_restored_bytes;          ///< bytes: blocks restored, raw size
    double h2o_lossless_restore_hit;             ///< count: restored blocks kept decoded since earlier steps
    double h2o_lossless_prefetch_hit;            ///< count: restored blocks that a worker decoded ahead
    double h2o_lossless_prefetch_miss;           ///< count: restored blocks that no worker decoded in time
    double h2o_lossless_stale_count;             ///< count: blocks dropped, cache had changed
    double h2o_host_wait_us_p50;                 ///< us: median of the begins that restored, within 5%
    double h2o_host_wait_us_p95;                 ///< us: 95th percentile, likewise
    double h2o_host_wait_us_max;                 ///< us: maximum, exact
    double h2o_unscored_plan_count;              ///< count: plans that kept more than planned: unscored tokens
    double h2o_over_limit_count;                 ///< count: steps that ended above kv_h2o_max_tokens; NaN without
    double h2o_host_wait_us_p99;                 ///< us: 99th percentile, within 5%
    double h2o_parked_raw_bytes;                 ///< bytes: now: parked tokens, raw size
    double h2o_parked_bytes;                     ///< bytes: now: parked tokens, encoded size
    /// tokens: now: in 8 and 4 bits, in memory or in the file (attend.h), if only for one head
    double quant_tokens;
    double quant_bytes;                          ///< bytes: now: of their codes, sketches and lists, in memory
    double quant_block_count;                    ///< count: blocks of 64 tokens made
    /// count: blocks that stayed raw: a number is not finite, or codes would be too far from it
    double quant_unfit_block_count;
    double quant_failure_count;                  ///< count: begins that left tokens raw: memory was refused
    double quant_begin_us;                       ///< us: making blocks in begin
} mnnkv_metrics;

/// Reads the metrics of a layer, or of all together with MNNKV_ALL_LAYERS.
/// INVALID_ARGUMENT: if layer is out of range
mnnkv_status mnnkv_session_metrics(const mnnkv_session *session, uint32_t layer, mnnkv_metrics *metrics);

/// Writes the metrics as JSON: {"h2o_lossy_ratio": 3.4, ..., "layers": [{"layer": 2, ...}, ...]}, without members that
/// were not measured and layers that were never passed. With a budget also "memory": the fields of mnnkv_memory_stats, with "state"
/// as a name. The text may grow between two calls.
mnnkv_status mnnkv_session_metrics_json(const mnnkv_session *session,
                                        char *text,
                                        size_t cap,
                                        size_t *len);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MNNKV_METRICS_H
