// mnnkv/park.h: a layer compressed as a whole, and its memory returned, while no step is due.
//
// Generated from src/ffi/snapshot by `make header`; do not edit. mnnkv.h has the conventions.

#ifndef MNNKV_PARK_H
#define MNNKV_PARK_H

#include "session.h"
#include "gear.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- Parking: a layer's memory while no step is due -------------------------------------------------------------
//
// mnnkv_session_park compresses all tokens of a layer, smaller and more slowly than the store does, and returns the
// memory of its buffers to the system. The next mnnkv_session_begin of the layer writes them back bit for bit, on all
// cores. Every config can be parked, {} included. Eviction, edits
// and positions work on parked layers as on others. A host parks each layer after a turn:
//
//   for (layer = 0; layer < layers && status == MNNKV_OK; ++layer)
//       status = mnnkv_session_park(session, layer, &options, &caches[layer], &parked);
//
// A message that arrives meanwhile must not wait: another thread calls mnnkv_session_interrupt, the loop ends with
// MNNKV_BUSY, and begin, which ends the interruption, writes the parked layers back. After park the buffers of a
// floating-point cache may be freed: the next mnnkv_session_begin or _keep must get buffers with room for the tokens. Those
// of a quantised cache must stay, or be copied as a whole. A host with a snapshot (snapshot.h) may append before it parks,
// or after.

/// How tokens are encoded. NULL = all defaults.
typedef struct mnnkv_park_options {
    uint32_t struct_size;  ///< sizeof(mnnkv_park_options)
    /// 1 = fastest .. 9 = smallest; 0 = 5, and 1 in mnnkv_snapshot_append. 2 and 3, 4 to 6, 7 and 8 are alike; 5 takes up
    /// to twice as long as 1, and 7 nearly four times as long as 5.
    int32_t effort;
    uint32_t threads;      ///< Threads that compress, the calling one included; 0 = one for each core.
    uint32_t reserved;     ///< Must be 0.
} mnnkv_park_options;

/// The outcome of mnnkv_session_park. All 0 if the layer was parked already; that call needs its layout and buffers, too.
typedef struct mnnkv_parked {
    uint32_t struct_size;     ///< sizeof(mnnkv_parked)
    uint32_t reserved;        ///< Must be 0.
    uint64_t raw_bytes;       ///< Bytes of the tokens.
    uint64_t encoded_bytes;   ///< Bytes of their blobs.
    uint64_t released_bytes;  ///< Bytes of the buffers that returned to the system.
} mnnkv_parked;

/// Compresses all tokens of a layer between steps, however few are new, and releases the memory of its cache; a layer that
/// is parked stays so, but for tokens rewritten since. Blocks while it compresses. Working memory: 8,192 tokens of the
/// layer, and for each thread six times the K of one head of them.
/// cache: as of mnnkv_session_begin; without tokens it may have no layout and no buffers.
/// parked: may be NULL.
/// INVALID_ARGUMENT: if layer is out of range or open, kv_len or cache does not fit it, or an option is out of range
/// BUSY: if the session is interrupted
/// CORRUPT: if tokens in the store do not decode
///
/// After a failure the layer is not parked, and its tokens are unchanged.
mnnkv_status mnnkv_session_park(mnnkv_session *session, uint32_t layer, const mnnkv_park_options *options, mnnkv_cache *cache,
                                mnnkv_parked *parked);

/// Interrupts a session (1), or ends its interruption (0), as the next begin of any layer does. While it is interrupted,
/// mnnkv_session_park and mnnkv_snapshot_append return BUSY; one that runs does so as soon as each of its threads has
/// encoded what it is at, at most 8,192 tokens of one head. Never blocks. May run at any time, beside any call but destroy.
/// INVALID_ARGUMENT: if interrupted is neither 0 nor 1
mnnkv_status mnnkv_session_interrupt(const mnnkv_session *session, uint32_t interrupted);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MNNKV_PARK_H
