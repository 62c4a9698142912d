// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_PARK_H
#define MNNKV_PARK_H
#include "session.h"
#include "gear.h"
#ifdef __cplusplus
extern "C" {
#endif
typedef struct mnnkv_park_options {
    uint32_t struct_size;
    int32_t effort;
    uint32_t threads;
    uint32_t rope_pairing;
    uint32_t rope_dims;
    float rope_theta;
    const float *rope_inv_freq;
} mnnkv_park_options;
typedef struct mnnkv_parked {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t raw_bytes;
    uint64_t encoded_bytes;
    uint64_t released_bytes;
} mnnkv_parked;
mnnkv_status mnnkv_session_park(mnnkv_session *session,
                                uint32_t layer,
                                const mnnkv_park_options *options,
                                mnnkv_cache *cache,
                                mnnkv_parked *parked);
mnnkv_status mnnkv_session_interrupt(const mnnkv_session *session,
                                     uint32_t interrupted);
#ifdef __cplusplus
}
#endif
#endif
