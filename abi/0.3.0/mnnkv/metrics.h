// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_METRICS_H
#define MNNKV_METRICS_H
#include "session.h"
#ifdef __cplusplus
extern "C" {
#endif
typedef struct mnnkv_metrics {
    uint32_t struct_size;
    uint32_t reserved;
    double h2o_keep_ratio;
    double h2o_lossy_ratio;
    double h2o_lossless_ratio;
    double h2o_target_keep_effective;
    double h2o_floor_keep_by_recent_sink;
    double h2o_block_quantized_keep;
    double h2o_evict_us;
    double h2o_codec_us;
    double h2o_lossless_raw_bytes;
    double h2o_lossless_compressed_bytes;
    double h2o_lossless_decompressed_bytes;
    double h2o_lossless_compress_us;
    double h2o_lossless_decompress_us;
    double h2o_lossless_queue_depth_peak;
    double h2o_lossless_fallback_count;
    double h2o_lossless_backpressure_skip_count;
    double h2o_lossless_async_queue_peak;
    double h2o_lossless_async_wait_us;
    double h2o_lossless_decode_cache_hit;
    double h2o_lossless_decode_cache_miss;
    double h2o_last_evict_tokens;
    double h2o_total_evict_tokens;
    double h2o_logical_tokens;
    double h2o_physical_tokens;
    double h2o_score_us;
    double h2o_plan_us;
    double h2o_plan_count;
    double h2o_stale_plan_count;
    double h2o_released_bytes;
    double h2o_resident_saved_bytes;
    double h2o_reclaimable_bytes;
    double h2o_lossless_restored_blocks;
    double h2o_lossless_restored_bytes;
    double h2o_lossless_restore_hit;
    double h2o_lossless_prefetch_hit;
    double h2o_lossless_prefetch_miss;
    double h2o_lossless_stale_count;
    double h2o_host_wait_us_p50;
    double h2o_host_wait_us_p95;
    double h2o_host_wait_us_max;
    double h2o_unscored_plan_count;
    double h2o_over_limit_count;
    double h2o_host_wait_us_p99;
    double h2o_parked_raw_bytes;
    double h2o_parked_bytes;
    double quant_tokens;
    double quant_bytes;
    double quant_block_count;
    double quant_unfit_block_count;
    double quant_failure_count;
    double quant_begin_us;
} mnnkv_metrics;
mnnkv_status mnnkv_session_metrics(const mnnkv_session *session, uint32_t layer, mnnkv_metrics *metrics);
mnnkv_status mnnkv_session_metrics_json(const mnnkv_session *session,
                                        char *text,
                                        size_t cap,
                                        size_t *len);
#ifdef __cplusplus
}
#endif
#endif
