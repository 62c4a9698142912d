// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_SESSION_H
#define MNNKV_SESSION_H
#include "base.h"
#ifdef __cplusplus
extern "C" {
#endif
typedef struct mnnkv_session mnnkv_session;
typedef struct mnnkv_session_options {
    uint32_t struct_size;
    uint32_t abi_version;
    uint32_t layers;
    uint32_t lanes;
    const char *config_json;
    size_t config_len;
    const char *defaults_json;
    size_t defaults_len;
    uint32_t host_threads;
    uint32_t restores_heads;
    const struct mnnkv_executor *executor;
    uint32_t attends;
} mnnkv_session_options;
mnnkv_status mnnkv_session_create(const mnnkv_session_options *options, mnnkv_session **out);
void mnnkv_session_destroy(mnnkv_session *session);
mnnkv_status mnnkv_session_outlook(const mnnkv_session *session, char *text, size_t cap, size_t *len);
mnnkv_status mnnkv_session_warnings(const mnnkv_session *session, char *text, size_t cap, size_t *len);
mnnkv_status mnnkv_session_begin(mnnkv_session *session, uint32_t layer, mnnkv_cache *cache);
mnnkv_status mnnkv_session_end(mnnkv_session *session,
                               uint32_t layer,
                               uint32_t heads,
                               uint32_t queries,
                               mnnkv_cache *cache);
mnnkv_status mnnkv_session_abort(mnnkv_session *session, uint32_t layer, mnnkv_cache *cache);
#define MNNKV_ALL_LAYERS UINT32_MAX
mnnkv_status mnnkv_session_reset(mnnkv_session *session, uint32_t layer);
mnnkv_status mnnkv_session_keep(mnnkv_session *session,
                                uint32_t layer,
                                const int32_t *logical_pairs,
                                size_t n_pairs,
                                mnnkv_cache *cache);
mnnkv_status mnnkv_session_rewritten(mnnkv_session *session, uint32_t layer, uint32_t begin, uint32_t count);
mnnkv_status mnnkv_session_lengths(const mnnkv_session *session, uint32_t layer, uint32_t *logical, uint32_t *physical);
mnnkv_status mnnkv_session_positions(const mnnkv_session *session,
                                     uint32_t layer,
                                     int32_t *pairs,
                                     size_t pairs_cap,
                                     size_t *n_pairs);
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
} mnnkv_metrics;
mnnkv_status mnnkv_session_metrics(const mnnkv_session *session, mnnkv_metrics *metrics);
mnnkv_status mnnkv_session_layer_metrics(const mnnkv_session *session, uint32_t layer, mnnkv_metrics *metrics);
mnnkv_status mnnkv_session_metrics_json(const mnnkv_session *session, char *text, size_t cap, size_t *len);
#ifdef __cplusplus
}
#endif
#endif
