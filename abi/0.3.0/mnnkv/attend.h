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
mnnkv_status mnnkv_session_attends(const mnnkv_session *session,
                                   uint32_t layer,
                                   int32_t *attends);
mnnkv_status mnnkv_session_attend(const mnnkv_session *session,
                                  uint32_t layer,
                                  uint32_t part,
                                  uint32_t parts,
                                  const mnnkv_cache *cache,
                                  const mnnkv_attend *attend);
#ifdef __cplusplus
}
#endif
#endif
