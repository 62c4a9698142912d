// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_ATTEND_H
#define MNNKV_ATTEND_H
#include "session.h"
#ifdef __cplusplus
extern "C" {
#endif
typedef struct mnnkv_attend {
    uint32_t struct_size;
    uint32_t dtype;
    uint32_t heads;
    uint32_t rows;
    uint32_t head_dim;
    float scale;
    const void *queries;
    uint64_t query_head_stride;
    uint64_t query_row_stride;
    void *output;
    uint64_t output_head_stride;
    uint64_t output_row_stride;
    uint32_t causal;
    uint32_t window;
    float soft_cap;
    uint32_t mask_tokens;
    const float *mask;
    uint64_t mask_row_stride;
    const float *sinks;
} mnnkv_attend;
typedef struct mnnkv_attend_stats {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t tokens;
    uint64_t bytes;
    uint64_t blocks;
    uint64_t unfit_blocks;
    uint64_t failures;
    uint64_t begin_ns;
} mnnkv_attend_stats;
mnnkv_status mnnkv_session_attends(const mnnkv_session *session,
                                   uint32_t layer,
                                   int32_t *attends);
mnnkv_status mnnkv_session_attend(const mnnkv_session *session,
                                  uint32_t layer,
                                  uint32_t part,
                                  uint32_t parts,
                                  const mnnkv_cache *cache,
                                  const mnnkv_attend *attend);
mnnkv_status mnnkv_session_attend_stats(const mnnkv_session *session, uint32_t layer, mnnkv_attend_stats *stats);
#define MNNKV_ROWS_F16 1
#define MNNKV_ROWS_Q8_0 2
#define MNNKV_ROWS_Q4_0 3
typedef struct mnnkv_rows {
    uint32_t struct_size;
    uint32_t heads;
    uint32_t rows;
    uint32_t kv_heads;
    uint32_t tokens;
    uint32_t key_type;
    uint32_t value_type;
    uint32_t key_dim;
    uint32_t value_dim;
    float scale;
    float soft_cap;
    uint32_t reserved;
    const void *key;
    uint64_t key_token_stride;
    uint64_t key_head_stride;
    const void *value;
    uint64_t value_token_stride;
    uint64_t value_head_stride;
    const float *queries;
    uint64_t query_head_stride;
    uint64_t query_row_stride;
    float *output;
    uint64_t output_head_stride;
    uint64_t output_row_stride;
    const void *mask;
    uint64_t mask_row_stride;
    const float *slopes;
    const float *sinks;
} mnnkv_rows;
mnnkv_status mnnkv_rows_scratch(const mnnkv_rows *rows, uint32_t parts, uint64_t *bytes);
mnnkv_status mnnkv_rows_attend(const mnnkv_rows *rows,
                               uint32_t part,
                               uint32_t parts,
                               void *scratch,
                               uint64_t scratch_bytes);
mnnkv_status mnnkv_rows_merge(const mnnkv_rows *rows,
                              uint32_t part,
                              uint32_t parts,
                              const void *scratch,
                              uint64_t scratch_bytes);
#ifdef __cplusplus
}
#endif
#endif
