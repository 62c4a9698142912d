// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_SNAPSHOT_H
#define MNNKV_SNAPSHOT_H
#include "park.h"
#ifdef __cplusplus
extern "C" {
#endif
typedef struct mnnkv_snapshot_io {
    uint32_t struct_size;
    uint32_t reserved;
    const char *name;
    void *user;
    int32_t (*size)(void *user, uint64_t *size);
    int32_t (*read)(void *user, uint64_t offset, void *to, size_t len);
    int32_t (*write)(void *user, uint64_t offset, const void *from, size_t len);
    int32_t (*sync)(void *user);
    int32_t (*truncate)(void *user, uint64_t size);
} mnnkv_snapshot_io;
#define MNNKV_SNAPSHOT_READ 0
#define MNNKV_SNAPSHOT_APPEND 1
#define MNNKV_SNAPSHOT_SALVAGE 2
typedef struct mnnkv_snapshot mnnkv_snapshot;
typedef struct mnnkv_snapshot_options {
    uint32_t struct_size;
    uint32_t abi_version;
    const char *path;
    const mnnkv_snapshot_io *io;
    const void *fingerprint;
    size_t fingerprint_len;
    uint32_t access;
    uint32_t reserved;
} mnnkv_snapshot_options;
mnnkv_status mnnkv_snapshot_create(const mnnkv_snapshot_options *options, mnnkv_snapshot **out);
mnnkv_status mnnkv_snapshot_open(const mnnkv_snapshot_options *options,
                                 mnnkv_snapshot **out);
void mnnkv_snapshot_destroy(mnnkv_snapshot *snapshot);
mnnkv_status mnnkv_snapshot_commit(mnnkv_snapshot *snapshot);
mnnkv_status mnnkv_snapshot_discard(mnnkv_snapshot *snapshot);
typedef struct mnnkv_snapshot_info {
    uint32_t struct_size;
    uint32_t is_changed;
    uint64_t version;
    uint32_t layers;
    uint32_t sections;
    uint32_t pieces;
    uint32_t damages;
    uint64_t file_bytes;
    uint64_t token_bytes;
    uint64_t section_bytes;
    uint64_t dead_bytes;
    uint64_t fingerprint_bytes;
} mnnkv_snapshot_info;
typedef struct mnnkv_snapshot_layer_info {
    uint32_t struct_size;
    uint32_t layer;
    uint32_t tokens;
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t key_dtype;
    uint32_t value_dtype;
    uint32_t runs;
    uint64_t state_bytes;
} mnnkv_snapshot_layer_info;
mnnkv_status mnnkv_snapshot_get_info(const mnnkv_snapshot *snapshot, mnnkv_snapshot_info *info);
mnnkv_status mnnkv_snapshot_get_layer_info(const mnnkv_snapshot *snapshot,
                                           uint32_t index,
                                           mnnkv_snapshot_layer_info *info);
mnnkv_status mnnkv_snapshot_fingerprint(const mnnkv_snapshot *snapshot, void *out, size_t cap, size_t *len);
mnnkv_status mnnkv_snapshot_put(mnnkv_snapshot *snapshot,
                                const char *name,
                                const void *bytes,
                                size_t len);
mnnkv_status mnnkv_snapshot_remove(mnnkv_snapshot *snapshot, const char *name);
mnnkv_status mnnkv_snapshot_get(const mnnkv_snapshot *snapshot, const char *name, void *out, size_t cap, size_t *len);
mnnkv_status mnnkv_snapshot_verify(const mnnkv_snapshot *snapshot, char *text, size_t cap, size_t *len);
mnnkv_status mnnkv_snapshot_append(mnnkv_snapshot *snapshot,
                                   mnnkv_session *session,
                                   uint32_t layer,
                                   const mnnkv_park_options *options,
                                   mnnkv_cache *cache,
                                   uint32_t *written);
mnnkv_status mnnkv_snapshot_load(const mnnkv_snapshot *snapshot,
                                 mnnkv_session *session,
                                 uint32_t layer);
mnnkv_status mnnkv_snapshot_compact(const mnnkv_snapshot *from,
                                    const mnnkv_park_options *options,
                                    mnnkv_snapshot *to);
#ifdef __cplusplus
}
#endif
#endif
