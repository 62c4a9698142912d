// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_EXECUTOR_H
#define MNNKV_EXECUTOR_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
typedef struct mnnkv_executor {
    uint32_t struct_size;
    uint32_t reserved;
    int32_t (*submit)(void *user, void (*run)(void *job), void *job);
    void *user;
} mnnkv_executor;
#ifdef __cplusplus
}
#endif
#endif
