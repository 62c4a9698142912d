// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_POLICY_H
#define MNNKV_POLICY_H
#include "session.h"
#ifdef __cplusplus
extern "C" {
#endif
typedef struct mnnkv_rotation {
    uint32_t struct_size;
    uint32_t pairing;
    uint32_t dims;
    float theta;
    const float *inv_freq;
} mnnkv_rotation;
mnnkv_status mnnkv_session_pin(mnnkv_session *session,
                               uint32_t first,
                               uint32_t count,
                               uint32_t on);
mnnkv_status mnnkv_session_rotation(mnnkv_session *session,
                                    uint32_t layer,
                                    const mnnkv_rotation *rotation);
#ifdef __cplusplus
}
#endif
#endif
