// mnnkv/heads.h: stored tokens restored by the attention threads, a head at a time.
//
// Generated from src/ffi by `make header`; do not edit. mnnkv.h has the conventions.

#ifndef MNNKV_HEADS_H
#define MNNKV_HEADS_H

#include "session.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- Heads: stored tokens restored where they are read ----------------------------------------------------------
//
// A session made with mnnkv_session_options::restores_heads = 1 restores nothing in mnnkv_session_begin: stored tokens
// still read as zero in the cache. Instead each attention thread calls mnnkv_session_head for a KV head just before it reads it,
// and only the heads that are being read take memory:
//
//   mnnkv_session_head       returns where the head can be read: in the cache, or decoded in memory of the lane
//   mnnkv_session_restore    decodes heads into the cache itself, for kernels that must read them there
//   mnnkv_session_released   returns the memory of heads that mnnkv_session_restore filled, after they were read
//
// mnnkv_session_head is the faster one: its memory is used for head after head, so that no page is taken or returned.
// A lane that has read a stored head keeps memory for K and V of one head of max_tokens until the session is destroyed;
// pages that no token has reached stay free. Each lane decodes for itself, so that query heads of one KV head belong on
// one thread.
//
// These three are called between begin and end, on any thread, one thread per lane. Different lanes may call them at the
// same time, also with mnnkv_session_block_sums. No other call with a non-const session may run. They take no lock and
// never block.
//
// A host that rewrites tokens (K-shift) must restore all heads first.
//
// begin restores quantised caches, and row-major ones whose heads share tokens, whatever the option says. begin also
// restores a layer in the steps that evict from it, and after mnnkv_session_keep has cut a stored block. The calls are
// allowed there, too, and find nothing to do.

/// Returns the addresses of K and V of one KV head, complete with all cache->kv_len tokens and with the packing of the
/// cache: index 0 is the head's first element. The addresses are in the cache if nothing of the layer is stored, else in
/// memory of the lane, also after mnnkv_session_restore. They are valid until the lane's next call of this function, or
/// the end of the step. Asking for the same head again with the same kv_len costs nothing. The head must not be written.
/// Call it after the append: memory of the lane has nothing that is written later.
/// lane: below the `lanes` of create; one thread at a time.
/// head: KV head (not query head).
/// cache->kv_len: physical tokens now, those appended since begin included.
/// INVALID_ARGUMENT: if layer, lane or head is out of range, the layer is not open, or the lane is in use
/// INVALID_ARGUMENT: if kv_len exceeds max_tokens, or stored tokens lie after it
/// STALE: if the layout has other heads, head_dim or dtypes than the stored tokens
/// CORRUPT: if a blob does not decode to the stored tokens; the blob is kept
/// OUT_OF_MEMORY: if memory for the lane is refused
mnnkv_status mnnkv_session_head(mnnkv_session *session,
                                uint32_t layer,
                                uint32_t lane,
                                uint32_t head,
                                const mnnkv_cache *cache,
                                const void **key,
                                const void **value);

/// Writes the stored tokens of KV heads head_begin .. head_begin + head_count to the cache, bit for bit. Heads that are
/// there already cost nothing. The memory goes back with mnnkv_session_released, else at the end of the step.
/// INVALID_ARGUMENT: if layer, lane or a head is out of range, the layer is not open, or the lane is in use
/// INVALID_ARGUMENT: if another lane restores or releases one of the heads now
/// STALE, CORRUPT: as mnnkv_session_head; heads before the one that failed are restored
mnnkv_status mnnkv_session_restore(mnnkv_session *session,
                                   uint32_t layer,
                                   uint32_t lane,
                                   uint32_t head_begin,
                                   uint32_t head_count,
                                   const mnnkv_cache *cache);

/// Declares that these heads were read: the memory of their stored tokens returns to the system, and they read as zero.
/// Heads that were not restored stay as they are.
/// INVALID_ARGUMENT: as mnnkv_session_restore
mnnkv_status mnnkv_session_released(mnnkv_session *session,
                                    uint32_t layer,
                                    uint32_t lane,
                                    uint32_t head_begin,
                                    uint32_t head_count,
                                    const mnnkv_cache *cache);

/// Checks that attention may read KV heads head_begin .. head_begin + head_count of an open layer in the cache: for tests
/// of a host. Heads that are read through mnnkv_session_head need no check. Blocks while another call with a non-const
/// session runs that is not one of the three above.
/// NOT_FOUND: if stored tokens of a head were not restored in the cache in this step, or were released again
/// INVALID_ARGUMENT: if layer is out of range or not open, or a head with stored tokens is out of range
mnnkv_status mnnkv_session_check_heads(const mnnkv_session *session,
                                       uint32_t layer,
                                       uint32_t head_begin,
                                       uint32_t head_count);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MNNKV_HEADS_H
