// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_QUANTISED_H
#define MNNKV_QUANTISED_H
#include "base.h"
#ifdef __cplusplus
extern "C" {
#endif
typedef struct mnnkv_int8 {
    uint32_t struct_size;
    uint32_t l_pack;
    uint32_t h_pack;
    uint32_t key_center_dtype;
    float *key_sum;
    uint64_t key_sum_bytes;
    float *value_sum;
    uint64_t value_sum_bytes;
    const void *key_center;
    uint64_t key_center_bytes;
} mnnkv_int8;
mnnkv_status mnnkv_kv_appended(const mnnkv_layout *layout, void *key, void *value, uint32_t begin, uint32_t count);
mnnkv_status mnnkv_kv_changed(const mnnkv_layout *layout,
                              void *key,
                              void *value,
                              uint32_t begin,
                              uint32_t count,
                              uint32_t kv_len);
mnnkv_status mnnkv_kv_dequantize(const mnnkv_layout *layout,
                                 const void *key,
                                 const void *value,
                                 uint32_t begin,
                                 uint32_t count,
                                 uint32_t dtype,
                                 void *key_out,
                                 void *value_out,
                                 size_t cap_each);
#ifdef __cplusplus
}
#endif
#endif
