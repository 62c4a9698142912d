// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_ROWS_H
#define MNNKV_ROWS_H
#include "base.h"
#ifdef __cplusplus
extern "C" {
#endif
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
