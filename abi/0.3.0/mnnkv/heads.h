// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_HEADS_H
#define MNNKV_HEADS_H
#include "session.h"
#ifdef __cplusplus
extern "C" {
#endif
mnnkv_status mnnkv_session_head(mnnkv_session *session,
                                uint32_t layer,
                                uint32_t lane,
                                uint32_t head,
                                const mnnkv_cache *cache,
                                const void **key,
                                const void **value);
mnnkv_status mnnkv_session_restore(mnnkv_session *session,
                                   uint32_t layer,
                                   uint32_t lane,
                                   uint32_t head_begin,
                                   uint32_t head_count,
                                   const mnnkv_cache *cache);
mnnkv_status mnnkv_session_released(mnnkv_session *session,
                                    uint32_t layer,
                                    uint32_t lane,
                                    uint32_t head_begin,
                                    uint32_t head_count,
                                    const mnnkv_cache *cache);
mnnkv_status mnnkv_session_check_heads(const mnnkv_session *session,
                                       uint32_t layer,
                                       uint32_t head_begin,
                                       uint32_t head_count);
#ifdef __cplusplus
}
#endif
#endif
