// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_STORE_H
#define MNNKV_STORE_H
#include "base.h"
#ifdef __cplusplus
extern "C" {
#endif
#ifdef MNNKV_EXPERIMENTAL
typedef struct mnnkv_store mnnkv_store;
typedef struct mnnkv_store_config {
    uint32_t struct_size;
    uint32_t workers;
    uint32_t key_predictors;
    uint32_t value_predictors;
    int32_t effort;
    uint32_t format;
    uint32_t max_queue;
    uint32_t strict_roundtrip;
    uint64_t pending_bytes;
    uint64_t decode_cache_bytes;
} mnnkv_store_config;
mnnkv_status mnnkv_store_create(const mnnkv_store_config *config, uint32_t abi_version, mnnkv_store **out);
void mnnkv_store_destroy(mnnkv_store *store);
#endif
#ifdef MNNKV_EXPERIMENTAL
mnnkv_status mnnkv_store_submit(mnnkv_store *store,
                                uint32_t layer,
                                const mnnkv_layout *layout,
                                const void *key,
                                const void *value,
                                uint32_t begin,
                                uint32_t count,
                                uint64_t *ticket);
mnnkv_status mnnkv_store_commit(mnnkv_store *store,
                                uint32_t layer,
                                const mnnkv_layout *layout,
                                void *key,
                                void *value,
                                uint64_t *released_bytes);
mnnkv_status mnnkv_store_prefetch(mnnkv_store *store, uint32_t layer);
mnnkv_status mnnkv_store_restore(mnnkv_store *store,
                                 uint32_t layer,
                                 const mnnkv_layout *layout,
                                 void *key,
                                 void *value,
                                 uint64_t *restored_bytes);
#endif
#ifdef MNNKV_EXPERIMENTAL
mnnkv_status mnnkv_store_compacted(mnnkv_store *store, uint32_t layer, const int32_t *reserve_pairs, size_t n_pairs);
mnnkv_status mnnkv_store_truncated(mnnkv_store *store, uint32_t layer, uint32_t kv_len);
mnnkv_status mnnkv_store_rewritten(mnnkv_store *store, uint32_t layer, uint32_t begin, uint32_t count);
#endif
#ifdef MNNKV_EXPERIMENTAL
typedef struct mnnkv_store_statistics {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t resident_blocks;
    uint64_t released_blocks;
    uint64_t raw_bytes;
    uint64_t compressed_bytes;
    uint64_t released_raw_bytes;
    uint64_t submitted_blocks;
    uint64_t no_gain_blocks;
    uint64_t stale_blocks;
    uint64_t restored_blocks;
    uint64_t released_bytes;
    uint64_t restored_bytes;
    uint64_t encoded_bytes;
    uint64_t encode_ns;
    uint64_t decoded_bytes;
    uint64_t decode_ns;
    uint64_t encoded_to_bytes;
    uint64_t queued_blocks;
    uint64_t queue_peak;
    uint64_t busy_blocks;
    uint64_t failed_blocks;
    uint64_t prefetch_hits;
    uint64_t cache_hits;
    uint64_t cache_misses;
    uint64_t decoded_cache_bytes;
} mnnkv_store_statistics;
mnnkv_status mnnkv_store_stats(const mnnkv_store *store, mnnkv_store_statistics *statistics);
#endif
#ifdef __cplusplus
}
#endif
#endif
