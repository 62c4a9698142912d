// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_BASE_H
#define MNNKV_BASE_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
typedef int32_t mnnkv_status;
#define MNNKV_OK 0
#define MNNKV_INVALID_ARGUMENT 1
#define MNNKV_BUFFER_TOO_SMALL 2
#define MNNKV_CORRUPT 3
#define MNNKV_UNSUPPORTED 4
#define MNNKV_NOT_FOUND 5
#define MNNKV_BUSY 6
#define MNNKV_STALE 7
#define MNNKV_IO 8
#define MNNKV_OUT_OF_MEMORY 9
#define MNNKV_INTERNAL 100
const char *mnnkv_status_name(mnnkv_status status);
const char *mnnkv_last_error(void);
#define MNNKV_VERSION_MAJOR 0
#define MNNKV_VERSION_MINOR 3
#define MNNKV_VERSION_PATCH 0
#define MNNKV_VERSION_NUMBER 300
#define MNNKV_ABI_VERSION 1
uint32_t mnnkv_version(void);
uint32_t mnnkv_abi_version(void);
const char *mnnkv_cpu_level(void);
#define MNNKV_DTYPE_F16 1
#define MNNKV_DTYPE_BF16 2
#define MNNKV_DTYPE_F32 3
#define MNNKV_DTYPE_INT8 4
#define MNNKV_DTYPE_TQ3 5
#define MNNKV_DTYPE_TQ4 6
typedef struct mnnkv_layout {
    uint32_t struct_size;
    uint32_t key_dtype;
    uint32_t value_dtype;
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t e_pack;
    uint32_t l_pack;
    uint32_t h_pack;
    uint32_t flash_block;
    uint32_t max_tokens;
    uint64_t key_head_stride;
    uint64_t value_head_stride;
    uint64_t key_token_stride;
    uint64_t value_token_stride;
    const struct mnnkv_int8 *int8;
} mnnkv_layout;
typedef struct mnnkv_cache {
    uint32_t struct_size;
    const mnnkv_layout *layout;
    void *key;
    void *value;
    uint32_t kv_len;
} mnnkv_cache;
mnnkv_status mnnkv_layout_check(const mnnkv_layout *layout, uint64_t *key_bytes, uint64_t *value_bytes);
#ifdef __cplusplus
}
#endif
#endif
