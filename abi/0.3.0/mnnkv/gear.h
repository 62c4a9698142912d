// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_GEAR_H
#define MNNKV_GEAR_H
#include "base.h"
#ifdef __cplusplus
extern "C" {
#endif
#define MNNKV_GEAR_FORMAT_V1 1
#define MNNKV_GEAR_FORMAT_V2 2
#define MNNKV_GEAR_FORMAT_LANES 3
#define MNNKV_PREDICT_RAW 1
#define MNNKV_PREDICT_DELTA_SEQ 2
#define MNNKV_PREDICT_XOR_SEQ 4
typedef struct mnnkv_gear_options {
    uint32_t struct_size;
    uint32_t format;
    uint32_t predictors;
    int32_t effort;
    uint32_t head_dim;
    uint32_t reserved[3];
    uint32_t rope_pairing;
    uint32_t rope_dims;
    uint32_t rope_tokens;
    uint32_t rope_first_position;
    float rope_theta;
    uint32_t rope_reserved;
    const float *rope_inv_freq;
    const uint32_t *rope_positions;
} mnnkv_gear_options;
#ifdef MNNKV_EXPERIMENTAL
#define MNNKV_ROPE_HALF 1
#define MNNKV_ROPE_ADJACENT 2
#endif
size_t mnnkv_gear_bound(size_t src_len, uint32_t dtype);
mnnkv_status mnnkv_encode_gear(const void *src,
                               size_t src_len,
                               uint32_t dtype,
                               const mnnkv_gear_options *options,
                               void *dst,
                               size_t dst_cap,
                               size_t *dst_len);
mnnkv_status mnnkv_encode_fp16_gear(const void *src,
                                    size_t src_len,
                                    const mnnkv_gear_options *options,
                                    void *dst,
                                    size_t dst_cap,
                                    size_t *dst_len);
void mnnkv_thread_trim(void);
typedef struct mnnkv_decode_options {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t max_working_bytes;
} mnnkv_decode_options;
mnnkv_status mnnkv_decode_gear(const void *src,
                               size_t src_len,
                               uint32_t dtype,
                               const mnnkv_decode_options *options,
                               void *dst,
                               size_t dst_cap,
                               size_t *dst_len);
mnnkv_status mnnkv_decode_fp16_gear(const void *src, size_t src_len, void *dst, size_t dst_cap, size_t *dst_len);
#ifdef __cplusplus
}
#endif
#endif
