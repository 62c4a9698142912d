// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_STATE_H
#define MNNKV_STATE_H
#include "base.h"
#ifdef __cplusplus
extern "C" {
#endif
#define MNNKV_STATE_WORDS 0
#define MNNKV_STATE_CHANNELS 1
#define MNNKV_STATE_BLOCKS 2
typedef struct mnnkv_state_tensor {
    uint32_t struct_size;
    uint32_t dtype;
    uint32_t layout;
    uint32_t block_bytes;
    uint32_t scale_bytes;
    uint32_t reserved;
    uint64_t offset;
    uint64_t rows;
    uint64_t row_bytes;
    uint64_t stride;
} mnnkv_state_tensor;
typedef struct mnnkv_state_options {
    uint32_t struct_size;
    int32_t effort;
    uint32_t threads;
    uint32_t reserved;
} mnnkv_state_options;
size_t mnnkv_state_bound(size_t src_len, const mnnkv_state_tensor *tensors, size_t n_tensors);
mnnkv_status mnnkv_state_encode(const void *src,
                                size_t src_len,
                                const mnnkv_state_tensor *tensors,
                                size_t n_tensors,
                                const mnnkv_state_options *options,
                                void *dst,
                                size_t dst_cap,
                                size_t *dst_len);
mnnkv_status mnnkv_state_decoded_size(const void *src, size_t src_len, size_t *size);
mnnkv_status mnnkv_state_decode(const void *src,
                                size_t src_len,
                                const mnnkv_state_options *options,
                                void *dst,
                                size_t dst_cap,
                                size_t *dst_len);
#ifdef __cplusplus
}
#endif
#endif
