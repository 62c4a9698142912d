// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_LAYOUT_H
#define MNNKV_LAYOUT_H
#include "base.h"
#ifdef __cplusplus
extern "C" {
#endif
mnnkv_status mnnkv_kv_index(const mnnkv_layout *layout, uint32_t token, uint32_t dim, uint64_t *key, uint64_t *value);
mnnkv_status mnnkv_kv_gather(const mnnkv_layout *layout,
                             const void *key,
                             const void *value,
                             uint32_t begin,
                             uint32_t count,
                             void *key_out,
                             void *value_out,
                             size_t cap_each);
mnnkv_status mnnkv_kv_scatter(const mnnkv_layout *layout,
                              const void *key_in,
                              const void *value_in,
                              size_t len_each,
                              uint32_t begin,
                              uint32_t count,
                              void *key,
                              void *value);
mnnkv_status mnnkv_kv_move(const mnnkv_layout *layout,
                           void *key,
                           void *value,
                           uint32_t src,
                           uint32_t dst,
                           uint32_t count);
mnnkv_status mnnkv_kv_compact(const mnnkv_layout *layout,
                              void *key,
                              void *value,
                              uint32_t base,
                              const int32_t *reserve_pairs,
                              size_t n_pairs,
                              uint32_t kv_len,
                              uint32_t *new_len);
mnnkv_status mnnkv_kv_zero(const mnnkv_layout *layout, void *key, void *value, uint32_t begin, uint32_t count);
mnnkv_status mnnkv_kv_release(const mnnkv_layout *layout,
                              void *key,
                              void *value,
                              uint32_t begin,
                              uint32_t count,
                              uint64_t *bytes);
#ifdef __cplusplus
}
#endif
#endif
