// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_SESSION_H
#define MNNKV_SESSION_H
#include "base.h"
#ifdef __cplusplus
extern "C" {
#endif
typedef struct mnnkv_session mnnkv_session;
typedef struct mnnkv_session_options {
    uint32_t struct_size;
    uint32_t abi_version;
    uint32_t layers;
    uint32_t lanes;
    const char *config_json;
    size_t config_len;
    const char *defaults_json;
    size_t defaults_len;
    uint32_t host_threads;
    uint32_t restores_heads;
    const struct mnnkv_executor *executor;
    uint32_t attends;
} mnnkv_session_options;
mnnkv_status mnnkv_session_create(const mnnkv_session_options *options, mnnkv_session **out);
void mnnkv_session_destroy(mnnkv_session *session);
mnnkv_status mnnkv_session_outlook(const mnnkv_session *session,
                                   char *text,
                                   size_t cap,
                                   size_t *len);
mnnkv_status mnnkv_session_warnings(const mnnkv_session *session, char *text, size_t cap, size_t *len);
mnnkv_status mnnkv_session_begin(mnnkv_session *session,
                                 uint32_t layer,
                                 mnnkv_cache *cache);
mnnkv_status mnnkv_session_end(mnnkv_session *session,
                               uint32_t layer,
                               uint32_t heads,
                               uint32_t queries,
                               mnnkv_cache *cache);
mnnkv_status mnnkv_session_abort(mnnkv_session *session, uint32_t layer, mnnkv_cache *cache);
#define MNNKV_ALL_LAYERS UINT32_MAX
mnnkv_status mnnkv_session_reset(mnnkv_session *session, uint32_t layer);
mnnkv_status mnnkv_session_keep(mnnkv_session *session,
                                uint32_t layer,
                                const int32_t *logical_pairs,
                                size_t n_pairs,
                                mnnkv_cache *cache);
mnnkv_status mnnkv_session_rewritten(mnnkv_session *session,
                                     uint32_t layer,
                                     uint32_t begin,
                                     uint32_t count);
mnnkv_status mnnkv_session_lengths(const mnnkv_session *session, uint32_t layer, uint32_t *logical, uint32_t *physical);
mnnkv_status mnnkv_session_positions(const mnnkv_session *session,
                                     uint32_t layer,
                                     int32_t *pairs,
                                     size_t pairs_cap,
                                     size_t *n_pairs);
#ifdef __cplusplus
}
#endif
#endif
