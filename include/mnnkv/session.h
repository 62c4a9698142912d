// mnnkv/session.h: all of a model's KV caches, compressed as a JSON config says.
//
// Generated from src/ffi/session by `make header`; do not edit. mnnkv.h has the conventions.

#ifndef MNNKV_SESSION_H
#define MNNKV_SESSION_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- Session: the handle ----------------------------------------------------------------------------------------
//
// A session quantises tokens (attend.h), evicts them (H2O), or stores them without loss. Per layer and step a host calls
//
//   mnnkv_session_begin     restores stored tokens, applies the planned eviction, updates cache->kv_len
//   ...                     the host appends K and V at kv_len (V INT8: mnnkv_kv_appended), and runs attention
//   ...                     only with kv_h2o_enable: sums its softmax values by block, and hands them over (scores.h)
//   mnnkv_session_end       scores the tokens, plans the next eviction, stores cold tokens
//
// Positions. The logical position of a token counts from the last reset of its layer; positional encodings need it. The
// physical position is the slot in the cache. Evictions make them differ, in each layer for itself. The host counts
// logical tokens as without a session, and takes physical lengths from mnnkv_cache::kv_len.
//
// Cache memory. Between begin and end, tokens below kv_len may be read and new tokens appended; writes to older tokens
// need mnnkv_session_rewritten before end. From end to the next begin or keep stored tokens read
// as zero, and the cache must not be written except as mnnkv_session_rewritten states. A host may copy the whole cache
// to another buffer at any time; the copy takes memory for stored tokens until the next end. Memory returns to the
// system if it is private and anonymous, such as malloc's. Layers without a cache of their own are never
// passed, and options.layers should not count them: a budget keeps a share for each layer that it counts.
//
// Threads. Several layers may be open at once, but calls with a non-const session must not overlap, except
// mnnkv_session_trim (memory.h), and mnnkv_session_block_sums: one thread per lane, and none while another non-const
// call runs.
// Functions with a const session run on any thread; they block while another call runs, but mnnkv_session_attend and
// _interrupt do not. Workers, which the sessions of a process share, sleep when idle. Only destroy waits for them, and begin when
// a token that it must restore is being decoded.

/// The caches of one chat (one sequence) of one model, and the state of their compression. A batch needs a session for each.
typedef struct mnnkv_session mnnkv_session;

/// The arguments of mnnkv_session_create.
typedef struct mnnkv_session_options {
    uint32_t struct_size;       ///< sizeof(mnnkv_session_options)
    uint32_t abi_version;       ///< MNNKV_ABI_VERSION
    uint32_t layers;            ///< Layers with a cache of their own, 1 to 4,096; others are never passed.
    uint32_t lanes;             ///< Threads that call mnnkv_session_block_sums (h2o.h), 1 to 1,024; 1 if none does.
    const char *config_json;    ///< A JSON object; NULL = {}. docs/config.md lists the keys.
    size_t config_len;          ///< Bytes of config_json, which needs no terminating zero.
    const char *defaults_json;  ///< Your defaults for keys that config_json lacks; NULL = {}. They cause no warnings.
    size_t defaults_len;        ///< Bytes of defaults_json, likewise.
    /// 1 = you call mnnkv_session_attend where mnnkv_step::attends is 1. With 0, kv_quant and a budget have no effect, and a
    /// warning says so.
    uint32_t attends;
    uint32_t reserved;          ///< Must be 0.
} mnnkv_session_options;

/// Makes a session. The JSON texts need no terminating zero.
/// INVALID_ARGUMENT: if layers or lanes is out of range, a text is no JSON object, or a value has a wrong type or range
/// OUT_OF_MEMORY: if memory is refused, or a thread for compression cannot be started
mnnkv_status mnnkv_session_create(const mnnkv_session_options *options, mnnkv_session **out);

/// Frees a session and its blobs. Blocks until its jobs that have begun are done. Stored tokens are lost.
void mnnkv_session_destroy(mnnkv_session *session);

// --- Session: the steps of a layer ------------------------------------------------------------------------------

/// The step of a layer that mnnkv_session_begin has opened.
typedef struct mnnkv_step {
    uint32_t struct_size;   ///< sizeof(mnnkv_step)
    uint32_t rows;          ///< In: rows that each query head attends with; 0 if you do not know. The other fields are out.
    uint32_t kv_len;        ///< Tokens in the cache, as cache->kv_len: append after them.
    /// 1 = call mnnkv_session_attend in place of your attention. 0 = attend yourself: the cache has all tokens of the layer. After
    /// a begin without buffers it may be 1 for a cache that you quantise: attend to it yourself.
    uint32_t attends;
    uint32_t scored_rows;   ///< The last rows of each query head whose attention you sum and hand over (h2o.h); 0 = none.
    uint32_t block_tokens;  ///< Tokens of a block of these sums; 0 where no step of the layer is scored.
    uint32_t warnings;      ///< Changes when the session warns of something new: read mnnkv_session_report then.
} mnnkv_step;

/// Opens a layer's step, before the host appends. Restores stored tokens bit for bit, then applies the eviction that
/// the last end planned: kept tokens move together, and the pages after them are released.
/// cache->kv_len: in, the length that the last end or keep left, 0 after create and reset; out, the new length. With 0 layout, key
/// and value may be NULL. A prefix from elsewhere is a step of its own: begin with 0, fill the cache, end with queries 0.
/// step: rows are read, the other fields written. NULL is for hosts that always attend themselves and hand over no sums.
/// INVALID_ARGUMENT: if layer is out of range or open, kv_len differs, heads, head_dim or a dtype changed, or the budget is too small
/// for the model (memory.h)
/// CORRUPT, IO: if a blob does not decode to the stored tokens, or its file cannot be read
///
/// After a failure the layer is not open, and stored tokens must not be read; the call may be repeated.
mnnkv_status mnnkv_session_begin(mnnkv_session *session, uint32_t layer, mnnkv_cache *cache, mnnkv_step *step);

/// Closes a layer's step, after attention. Scores the tokens, plans the next eviction, encodes cold tokens where there are no workers,
/// and releases the memory of tokens whose blobs are complete. Compression fails open: the tokens stay raw, and a
/// metric counts the failure.
/// heads: query heads (not KV heads); read only where rows are scored. queries: rows of the step in each head, all of
/// which have attended where the session attends; 0 closes a step without attention, which drops block sums and is not counted.
/// cache->kv_len: physical tokens now; those after the length of begin are new. Layout and buffers are required. All
/// heads and rows that are scored must have handed over their sums, or none: then scores do not change.
/// INVALID_ARGUMENT: if layer is out of range or not open, or heads, head_dim or a dtype of the cache changed
/// INVALID_ARGUMENT: if kv_len is below that of begin, above max_tokens, or not the one that the step has attended with
/// INVALID_ARGUMENT: if a head or a part of one is missing, or has scored tokens after kv_len
///
/// After a failure the layer is still open and unchanged, for a corrected end or abort.
mnnkv_status mnnkv_session_end(mnnkv_session *session, uint32_t layer, uint32_t heads, uint32_t queries, mnnkv_cache *cache);

/// Closes a step that failed, in place of end. The effects of begin stay. Discards tokens appended since, and block
/// sums. The step is not counted. Releases memory of stored tokens again. V INT8: clears codes and sums after kv_len.
/// cache->kv_len: the length that begin left. With 0, the layout, key and value may be NULL.
/// INVALID_ARGUMENT: if layer is out of range or not open, kv_len differs, or heads, head_dim or a dtype changed
mnnkv_status mnnkv_session_abort(mnnkv_session *session, uint32_t layer, mnnkv_cache *cache);

// --- Session: history and positions -----------------------------------------------------------------------------

/// Every layer, where a function takes one or all.
#define MNNKV_ALL_LAYERS UINT32_MAX

/// Forgets the tokens, blobs, scores, plan and clock of a layer, or of all with MNNKV_ALL_LAYERS, open or not: its
/// cache was cleared. Metrics continue.
/// INVALID_ARGUMENT: if layer is out of range
/// BUSY: if a thread attends, or hands over sums
mnnkv_status mnnkv_session_reset(mnnkv_session *session, uint32_t layer);

/// Keeps only the tokens at the given logical positions, between steps (rollback, erase). The remaining tokens move
/// together, and cache->kv_len becomes the new physical length. Call it for each layer that has tokens.
/// logical_pairs: n_pairs times (offset, length), ascending, disjoint, within the logical length; none keeps nothing.
/// Logical positions are renumbered from 0, evicted tokens included; the logical length becomes the sum of all lengths.
/// Tokens keep the rotation that they were cached with, scores follow their tokens, stored tokens stay stored, and a
/// pending eviction is planned anew. With kv_len 0 layout, key and value may be NULL: a layer whose tokens are all quantised
/// (attend.h) may have no buffers. K INT8: a chat that has tokens must not be left without one in its cache.
/// INVALID_ARGUMENT: if layer is out of range or open, or pairs, kv_len or cache do not fit it; nothing has changed
mnnkv_status mnnkv_session_keep(mnnkv_session *session, uint32_t layer, const int32_t *logical_pairs, size_t n_pairs,
                                mnnkv_cache *cache);

/// Declares that the host has written tokens begin .. begin + count in place, by physical position (K-shift). Discards
/// their blobs. Scores stay, as do other tokens of the same blobs. Call it right after the writes, between begin and
/// end. Between end and begin stored tokens read as zero, so that the host must have written K and V completely.
/// INVALID_ARGUMENT: if layer is out of range, a token is past the length that begin, end or keep left, or the layer has quantised
/// tokens
/// OUT_OF_MEMORY: if memory is refused; repeat the call before any other call of the layer
mnnkv_status mnnkv_session_rewritten(mnnkv_session *session, uint32_t layer, uint32_t begin, uint32_t count);

/// Returns the logical and the physical length of a layer; of an open layer, those that begin left.
/// INVALID_ARGUMENT: if layer is out of range
mnnkv_status mnnkv_session_lengths(const mnnkv_session *session, uint32_t layer, uint32_t *logical, uint32_t *physical);

/// Returns the logical positions of the tokens in a layer's cache, in physical order; of an open layer, as begin left
/// them. Quantised tokens (attend.h) are not in it; stored ones are.
/// pairs: room for pairs_cap pairs (offset, length), merged where they touch; ascending.
/// INVALID_ARGUMENT: if layer is out of range
/// BUFFER_TOO_SMALL: if pairs_cap is too small; *n_pairs is the number needed
mnnkv_status mnnkv_session_positions(const mnnkv_session *session, uint32_t layer, int32_t *pairs, size_t pairs_cap,
                                     size_t *n_pairs);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MNNKV_SESSION_H
