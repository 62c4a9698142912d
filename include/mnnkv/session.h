// mnnkv/session.h: all that a host needs: a model's KV caches, compressed as a JSON config says.
//
// Generated from src/ffi/session by `make header`; do not edit.

#ifndef MNNKV_SESSION_H
#define MNNKV_SESSION_H

#include "../mnnkv.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- Session -----------------------------------------------------------------------------------------------------------------
//
// A session compresses the KV caches of one chat, as a JSON config says. docs/config.md lists the keys. The main ones are
//
//   {"kv_memory_mb": 64, "kv_memory_file": "chat.kv"}   the caches take at most 64 MB; what has no room goes to a file
//   {"kv_quant": "k8v4"}                                every token stays, K in 8 bits and V in 4; "k4v4": both in 4
//
// Example: a step of one layer, with options.attends = 1. append and attention are your own code.
//
//   static mnnkv_status step(mnnkv_session* session, uint32_t layer, mnnkv_cache* cache, const mnnkv_attend* attend) {
//       mnnkv_step step = {0};
//       step.struct_size = sizeof step;
//       mnnkv_status status = mnnkv_session_begin(session, layer, cache, &step);
//       if (status != MNNKV_OK) return status;
//       append(cache, attend->rows);  // writes K and V of the new tokens from cache->kv_len on
//       cache->kv_len += attend->rows;
//       status = step.attends ? mnnkv_session_attend(session, layer, 0, 1, cache, attend)  // with threads: a part on each
//                             : attention(cache, attend);                                  // the cache has all tokens
//       if (status == MNNKV_OK) status = mnnkv_session_end(session, layer, attend->heads, attend->rows, cache);
//       if (status == MNNKV_OK) return MNNKV_OK;
//       cache->kv_len = step.kv_len;
//       mnnkv_session_abort(session, layer, cache);
//       return status;
//   }
//
// Conventions of all headers:
// - A function that can fail returns a mnnkv_status, and lists its failures as `STATUS: if <condition>`. Any function may also
//   return OUT_OF_MEMORY, INTERNAL and, for a breach of this list, INVALID_ARGUMENT. mnnkv_last_error has the text.
// - Outputs are written only on success. But BUFFER_TOO_SMALL writes the size needed, and decoders and attend may write and fail.
// - A pointer with length 0 may be NULL, others only where a comment says so. Structs must be aligned to 4 bytes and numbers to
//   their size; bytes and words need no alignment. A buffer that a call writes must not overlap its other buffers.
// - Structs begin with struct_size. Fill an input struct with zeros, set struct_size to its sizeof, then the fields that you
//   need: 0 is the default where it would make no sense as a value. Set struct_size of output structs, too. Options may be NULL.
// - Sizes are bytes where no unit is named. Arrays are dense and row-major: [head][token][dim] has dim innermost.
// - Texts are UTF-8. Input texts end with a zero unless their length is passed. Output texts (text, cap, len) have a terminating
//   zero, which *len counts. A call with NULL and 0 returns BUFFER_TOO_SMALL and the size.
// - The library keeps no pointer after a call, never calls back and never throws.
// - A function that makes a handle takes MNNKV_ABI_VERSION, returns UNSUPPORTED for another, and writes the handle to *out. Free
//   it once with its _destroy function, which takes NULL, too, and works after INTERNAL. Nothing else must be freed.
// - Calls with a const handle may overlap others with a const handle. A call with a non-const handle, _destroy included, must not
//   overlap any call on the handle. Comments name exceptions. Functions without a handle run on any thread.
// - Only a call that is passed a cache touches it, and may return its pages to the system. Between calls you may move or free it.
// - mnnkv_session_create takes up to 256 KB of the stack, other functions 128 KB. After fork the child may only destroy handles.
//
// Rules of a session:
// - Positions. The logical position of a token counts from the last reset of its layer: RoPE needs it, and you count it yourself.
//   The physical position is its slot in the cache. Tokens that leave the cache make them differ, in each layer for itself. Take
//   physical lengths from mnnkv_cache::kv_len.
// - Cache. Between begin and end you may read tokens below kv_len and append new ones (V INT8: then call mnnkv_kv_appended).
//   After writes to older tokens call mnnkv_session_rewritten before end. From end to the next begin or keep, stored
//   tokens read as zero, and only mnnkv_session_rewritten allows writes. You may copy the whole cache elsewhere at any time; the
//   copy takes memory for stored tokens until the next end. Only private anonymous memory (malloc's) returns to the system.
// - Threads. Several layers may be open at once. mnnkv_session_trim may overlap any call but destroy; h2o.h has another
//   exception. Functions with a const session wait while another call runs, but mnnkv_session_attend does not.
//   Calls that would change or close an open step return BUSY while a thread attends, abort too: join your threads first.

/// The caches of one chat (one sequence) of one model. A batch needs a session for each.
typedef struct mnnkv_session mnnkv_session;

/// The arguments of mnnkv_session_create.
typedef struct mnnkv_session_options {
    uint32_t struct_size;       ///< sizeof(mnnkv_session_options)
    uint32_t abi_version;       ///< MNNKV_ABI_VERSION
    uint32_t layers;            ///< Layers with a cache of their own, 1 to 4,096; others are never passed.
    uint32_t lanes;             ///< Threads of your attention, up to 1,024 (lanes of h2o.h; workers leave them cores); 0 = 1.
    const char *config_json;    ///< A JSON object; NULL = {}. docs/config.md lists the keys.
    size_t config_len;          ///< Bytes of config_json, which needs no terminating zero.
    const char *defaults_json;  ///< Your defaults for keys that config_json lacks; NULL = {}. They cause no warnings.
    size_t defaults_len;        ///< Bytes of defaults_json, likewise.
    uint32_t attends;           ///< 1 = you call mnnkv_session_attend where a step says so. 0 = no kv_quant and no budget.
    uint32_t reserved;          ///< Must be 0.
    /// The model, its rotation and whatever else a chat file must be of; compared byte by byte. NULL = none.
    const void *fingerprint;
    size_t fingerprint_len;     ///< Bytes of fingerprint, at most 64 KiB.
} mnnkv_session_options;

/// Makes a session.
/// INVALID_ARGUMENT: if a field or value is out of range, or a text no JSON object. kv_memory_base: as mnnkv_session_open, too
mnnkv_status mnnkv_session_create(const mnnkv_session_options *options, mnnkv_session **out);

/// Frees a session, and all tokens that are not in a cache. Waits for jobs of its workers that have begun; idle ones sleep.
void mnnkv_session_destroy(mnnkv_session *session);

// --- Steps of a layer --------------------------------------------------------------------------------------------------------

/// The step of a layer that mnnkv_session_begin has opened.
typedef struct mnnkv_step {
    uint32_t struct_size;   ///< sizeof(mnnkv_step)
    uint32_t rows;          ///< In: rows that each query head attends with; 0 if you do not know. The other fields are out.
    uint32_t kv_len;        ///< Tokens in the cache, as cache->kv_len: append after them.
    uint32_t attends;       ///< 1 = call mnnkv_session_attend. 0 = attend yourself: the cache has all tokens.
    uint32_t scored_rows;   ///< The last rows of each query head whose attention you sum and hand over (h2o.h); 0 = none.
    uint32_t block_tokens;  ///< Tokens of a block of these sums; 0 where no step of the layer is scored.
    uint32_t warnings;      ///< Changes with a new warning: read mnnkv_session_report then, and at the first begin.
} mnnkv_step;

/// Opens a step, before you append. Restores stored tokens bit for bit, and takes out of the cache what is quantised or evicted.
/// The tokens that stay move together, and the pages after them return to the system.
/// cache->kv_len: in, what the last end or keep left; 0 after create and reset. Out, the new length. With 0, layout, key and
/// value may be NULL. A prefix from elsewhere is a step of its own: begin with 0, fill the cache, end with queries 0.
/// step: NULL if you always attend yourself, and hand over no sums; then you need a config without a budget and kv_quant.
/// INVALID_ARGUMENT: if layer is out of range or open, kv_len differs, heads, head_dim or a dtype changed, or the budget is too
/// small for the model: the text has the least for layers like this one
/// CORRUPT, IO: if a stored token does not decode, or its file cannot be read
/// After a failure the layer is not open, and stored tokens must not be read. You may repeat the call.
mnnkv_status mnnkv_session_begin(mnnkv_session *session, uint32_t layer, mnnkv_cache *cache, mnnkv_step *step);

/// Closes a step, after attention. Plans the next eviction, and stores cold tokens; where that fails they stay raw.
/// heads: query heads, not KV heads; read only where rows are scored (h2o.h).
/// queries: rows of the step in each head. 0 closes a step without attention, which drops block sums and is not counted.
/// cache->kv_len: tokens in the cache now; those after the length of begin are new. Layout and buffers are required.
/// INVALID_ARGUMENT: if layer is out of range or not open; heads, head_dim or a dtype of the cache changed; kv_len is below that
/// of begin, above max_tokens, or not that of the attention; other than `queries` rows have attended; or sums are missing (h2o.h)
/// After a failure the layer is open and unchanged: correct the call, or abort.
mnnkv_status mnnkv_session_end(mnnkv_session *session, uint32_t layer, uint32_t heads, uint32_t queries, mnnkv_cache *cache);

/// Closes a step that failed, in place of end. Drops the tokens appended since begin, and block sums; what begin did stays.
/// cache->kv_len: the length that begin left. With 0, layout, key and value may be NULL.
/// INVALID_ARGUMENT: if layer is out of range or not open, kv_len differs, or heads, head_dim or a dtype changed
mnnkv_status mnnkv_session_abort(mnnkv_session *session, uint32_t layer, mnnkv_cache *cache);

// --- Attention ---------------------------------------------------------------------------------------------------------------
//
// With a budget or kv_quant, tokens leave the cache in begin, in blocks of 64 with K in 8 bits and V in 4. The first
// kv_quant_sink_tokens and the newest 25 to 95 stay raw in the cache. mnnkv_session_attend reads both, in place of your
// attention. docs/config.md (Fewer bits) has the rounding, and which blocks stay raw.
//
// - After begin your buffers need room for kv_quant_sink_tokens (16), 95, the tokens of the step, and blocks that stay raw.
// - K of a raw token that a row attends to must be finite, or the call is refused. V of all raw tokens must be finite, also of
//   those that a row does not attend to, or its output may be NaN.
// - Slopes (ALiBi), and a V of another width than K, are not supported.

/// The attention of a step of a layer.
typedef struct mnnkv_attend {
    uint32_t struct_size;         ///< sizeof(mnnkv_attend)
    uint32_t dtype;               ///< MNNKV_DTYPE_F16, BF16 or F32: of queries and output.
    uint32_t heads;               ///< Query heads, a multiple of the KV heads: head h reads KV head h / (heads / kv_heads).
    uint32_t rows;                ///< Rows of each head, of the last `rows` tokens: row r is of the (rows - r)th from the end.
    uint32_t head_dim;            ///< Elements of a row, as the layout's; layers stay raw where it is no multiple of 8 up to 512.
    float scale;                  ///< The factor of a logit, not negative; 0 = 1 / sqrt(head_dim).
    const void *queries;          ///< Queries after their rotation (RoPE). Keys must be cached after theirs, too.
    uint64_t query_head_stride;   ///< Bytes from a head to the next. Both strides 0 = [rows][heads][head_dim].
    uint64_t query_row_stride;    ///< Bytes from a row to the next.
    void *output;                 ///< Written; a row that attends to nothing is 0. Rows must not overlap.
    uint64_t output_head_stride;  ///< As query_head_stride.
    uint64_t output_row_stride;   ///< As query_row_stride.
    uint32_t causal;              ///< 1 = a row attends up to its own token (if rows > 1, these tokens must be raw); 0 = to all.
    /// A row does not attend to tokens that are `window` or more before its own; 0 = no bound but mnnkv_session_window's.
    uint32_t window;
    float soft_cap;               ///< Logits x become soft_cap * tanh(x / soft_cap); 0 = none.
    uint32_t mask_tokens;         ///< Columns of mask: the newest tokens of the chat, at most all. Older ones have the addend 0.
    const float *mask;            ///< [rows][mask_tokens], added to logits after the soft cap; finite or -inf. NULL = none.
    uint64_t mask_row_stride;     ///< Floats from a row of the mask to the next; 0 = mask_tokens.
    const float *sinks;           ///< [heads]: attention sinks, finite logits that join the softmax without a V. NULL = none.
} mnnkv_attend;

/// Says how far rows of a layer attend, or of all layers with MNNKV_ALL_LAYERS (sliding windows): from the next begin on tokens
/// leave that no later row attends to, 64 at a time, pinned ones as well. Attention is the same; with k8v4 to the bit, but after
/// an edit in the middle or of the first tokens, and where 8 and 4 bits do not hold a block. A reset keeps the window, but not
/// one that an opened chat has brought. h2o evicts nothing of a layer with one.
/// window: tokens that a row attends to, its own included; 0 = all. mnnkv_session_attend applies it beside mnnkv_attend::window.
/// If you attend yourself, the cache has the newest tokens: count from its last one.
/// rollback: tokens that you may take back (mnnkv_session_keep) from the longest begin so far, such as drafts. As many more stay.
/// INVALID_ARGUMENT: if layer is out of range or open, window + rollback is above 2^31 - 1, or tokens have gone that rows would
/// attend to; nothing has changed
mnnkv_status mnnkv_session_window(mnnkv_session *session, uint32_t layer, uint32_t window, uint32_t rollback);

/// Runs part `part` of the `parts` (1 to 64) of the attention of an open step. Call each part once, on any thread and in any
/// order; none waits for another. The output is complete when all have returned. Then you may append further tokens of the step,
/// and call all parts again for their rows. The rows of all such rounds add up to `queries` of end.
/// A layer that reads K and V of another one passes that one's number after its end: rows attend to what end has left. All parts
/// of one such layer come before those of the next; until then a trim leaves the layer alone. These calls wait for others.
/// cache->kv_len: raw tokens now; those of the step are the last. The buffers are only read.
/// INVALID_ARGUMENT: if layer is out of range, has not begun, or does not attend; kv_len is below the length of begin or above
/// max_tokens; heads, head_dim or a dtype is not that of begin; a field or stride does not fit; mask or sinks overlap the output;
/// the token of one of several causal rows is quantised; a query is not finite, or above 1e26 times scale; a logit overflows; K
/// of a raw token is not finite; the mask has a NaN or +inf; or a part comes twice, or differs from the first in parts, rows,
/// heads or kv_len (other fields must be the same, too)
/// UNSUPPORTED: if you quantise the cache yourself, or dtype is none of the three
/// After a failure you may call the part again.
mnnkv_status mnnkv_session_attend(const mnnkv_session *session, uint32_t layer, uint32_t part, uint32_t parts,
                                  const mnnkv_cache *cache, const mnnkv_attend *attend);

// --- History -----------------------------------------------------------------------------------------------------------------

/// Every layer, where a function takes one or all; and the cache, where it takes a KV head.
#define MNNKV_ALL_LAYERS UINT32_MAX
#define MNNKV_IN_CACHE UINT32_MAX

/// Forgets the tokens and pins of a layer, or of all with MNNKV_ALL_LAYERS, open or not: you have cleared the cache.
/// INVALID_ARGUMENT: if layer is out of range
mnnkv_status mnnkv_session_reset(mnnkv_session *session, uint32_t layer);

/// Keeps only the tokens at given logical positions, between steps (rollback, erase). Call it for each layer with tokens. They
/// move together, and cache->kv_len becomes the new length. Positions count anew from 0, evicted tokens included. Rotations stay.
/// logical_pairs: n_pairs times (offset, length), ascending, disjoint, within the logical length; none keeps nothing.
/// cache: with kv_len 0, layout, key and value may be NULL. K INT8: a chat that has tokens must keep one in its cache.
/// INVALID_ARGUMENT: if layer is out of range or open, pairs, kv_len or cache do not fit it, or the window of a layer as long has
/// left tokens behind that the next row would attend to; nothing has changed
mnnkv_status mnnkv_session_keep(mnnkv_session *session, uint32_t layer, const int32_t *logical_pairs, size_t n_pairs,
                                mnnkv_cache *cache);

/// Says that you have written tokens begin .. begin + count of the cache in place (K-shift), by physical position. Call it right
/// after the writes. Between end and begin you must have written K and V completely, since stored tokens read as zero.
/// INVALID_ARGUMENT: if layer is out of range, a token is past the length that begin, end or keep left, or the layer has
/// quantised tokens, whose keys keep their rotation
/// OUT_OF_MEMORY: if memory is refused. Repeat the call before any other call of the layer
mnnkv_status mnnkv_session_rewritten(mnnkv_session *session, uint32_t layer, uint32_t begin, uint32_t count);

/// Returns the logical and the physical length of a layer; of an open layer those that begin left.
/// INVALID_ARGUMENT: if layer is out of range
mnnkv_status mnnkv_session_lengths(const mnnkv_session *session, uint32_t layer, uint32_t *logical, uint32_t *physical);

/// Returns the logical positions of the tokens that a KV head can still attend to, anywhere; of an open layer as of begin.
/// kv_head: MNNKV_IN_CACHE = those in the cache, in physical order: stored ones, too, but not quantised ones.
/// pairs: room for pairs_cap pairs (offset, length), ascending, merged where they touch.
/// INVALID_ARGUMENT: if layer or kv_head is out of range
/// BUFFER_TOO_SMALL: if pairs_cap is too small; *n_pairs is the number needed
mnnkv_status mnnkv_session_positions(const mnnkv_session *session, uint32_t layer, uint32_t kv_head, int32_t *pairs,
                                     size_t pairs_cap, size_t *n_pairs);

/// Pins (on = 1) or unpins (0) the tokens at logical positions first .. first + count, also future ones, in all layers, open or
/// not. They and their blocks are never evicted or dropped. Pins follow their tokens through keep and chat files.
/// INVALID_ARGUMENT: if first + count is above 2^31 - 1, or on is not 0 or 1; nothing has changed
mnnkv_status mnnkv_session_pin(mnnkv_session *session, uint32_t first, uint32_t count, uint32_t on);

// --- Budget ------------------------------------------------------------------------------------------------------------------
//
// {"kv_memory_mb": 64} bounds the raw tokens in your buffers, blocks and working memory to 64 MB (10^6 bytes) after every step. A
// layer that needs more than its share goes to the next of these states (docs/config.md, Budget):
//
//   raw         all tokens are in the cache, and you attend. They take at most half of the budget
//   k8v4, k4v4  K has 8 bits and V 4, but for the first and the newest tokens; then both have 4, where attention is least
//   file        blocks with the least attention are in kv_memory_file. A step reads those that an estimate ranks highest
//   dropping    without a file, or once it is full, such blocks are dropped. No step attends to their tokens again
//
// - A step in which working memory grows may exceed the budget until the next one, and a step of more than 16 tokens by its raw
//   tokens until the next begin of the layer: if you pause after a prompt, call begin and end without tokens.
// - Pinned tokens, and blocks that k8v4 does not fit, may exceed it; a warning says so. First and newest ones stay.
// - kv_memory_file is the chat file (below). It is not encrypted. A thread of the session writes it: no step waits for a disk.

/// Sets the budget to `bytes` from now on, or to the least of the model if that is more, when the system is short of memory.
/// Blocks go to the file or are dropped until it holds. Open layers, and raw tokens that take more, follow in their next begin.
/// With more bytes, blocks of the file come back as they are used. Any thread. It waits for other calls, also for a
/// save, but not for attention, and writes the file: do not call it on a thread that must not wait.
/// in_use: bytes in use afterwards; may be NULL.
/// INVALID_ARGUMENT: if the config sets no budget
mnnkv_status mnnkv_session_trim(mnnkv_session *session, uint64_t bytes, uint64_t *in_use);

// --- Chat file ---------------------------------------------------------------------------------------------------------------
//
// A chat is saved to a file, and opened again: later, in another process, in caches of another packing.
//
//   mnnkv_session_put(session, "tokens", ids, bytes);             // your own: token ids, sampler, recurrent state
//   mnnkv_session_save(session, NULL, caches, layers, NULL);      // after a turn
//
//   mnnkv_session_open(session, NULL);                            // of a new session; NOT_FOUND: no chat was saved yet
//   mnnkv_session_lengths(session, layer, &logical, &cache.kv_len);  // then mnnkv_session_begin as always
//
// - The file is kv_memory_file, if the config names one. A save writes what is not there yet, and commits it: a kill leaves the
//   last save or the new one. Open reads an index, and what was in memory; other blocks come as they are asked for.
// - Before the first save the file goes with the session; later it is cut back to the last one. One session has it open (BUSY).
// - To free the buffers while you wait for the user, save, open, and free them.

/// Gives the bytes of a section, which the next save writes. Sections stay until they are given anew.
/// name: 1 to 255 bytes.
/// INVALID_ARGUMENT: if the name is empty or too long
mnnkv_status mnnkv_session_put(mnnkv_session *session, const char *name, const void *bytes, size_t len);

/// Writes the bytes of a section, as they were given or saved last, and their number to *len.
/// NOT_FOUND: if the chat has no such section
/// CORRUPT: if its bytes are damaged. IO: if the file cannot be read
mnnkv_status mnnkv_session_get(const mnnkv_session *session, const char *name, void *out, size_t cap, size_t *len);

/// Saves the chat, durably: what is new, or all of it where more than half of the file is free.
/// path: the chat's file, or a new one, which it then is; the one before stays as it was saved. NULL = the chat's file:
/// kv_memory_file, in which a chat that was not opened is replaced, or the one that was opened or saved to last.
/// caches: of all layers of the session, with kv_len. Layout and buffers of one may be NULL if it has no tokens, or was opened
/// and has not begun since.
/// written: bytes written; may be NULL.
/// INVALID_ARGUMENT: if a layer is open, layers, kv_len or a cache does not fit, there is no path, or another file has taken it
/// IO: if the system cannot write, or another file is at path. NOT_FOUND: if its folder is missing. BUSY, STALE: as for open
/// CORRUPT: if blocks that only the file had are damaged there. They are dropped and counted ("lost", docs/report.md), and a
/// repeated call saves the rest
/// After a failure the last save stands, and the chat goes on.
mnnkv_status mnnkv_session_save(mnnkv_session *session, const char *path, const mnnkv_cache *caches, uint32_t layers,
                                uint64_t *written);

/// Goes on with a saved chat, with the same config as if it had never stopped: its tokens, positions, scores, plan, windows and
/// sections take the place of the session's; windows of the session stay. Layers that it has not are reset.
/// path: the file, which is the chat's from now on. NULL = as for mnnkv_session_save.
/// NOT_FOUND: if there is no file, or no chat was saved in it. IO: if the system cannot read it
/// STALE: if it has another fingerprint than the session's options
/// BUSY: if it is open, in this process or another
/// INVALID_ARGUMENT: if a layer is open, the chat has more layers, the budget is too small for it, a window of the session shows
/// tokens that the chat has left behind (mnnkv_session_window), or there is no path
/// UNSUPPORTED: if it needs a later version, or has quantised tokens of a layer that the session keeps raw
/// CORRUPT: if it is damaged: the text has the part and its offset. Blocks that only the file has are checked as they are read
/// After a failure nothing has changed.
mnnkv_status mnnkv_session_open(mnnkv_session *session, const char *path);

// --- Report ------------------------------------------------------------------------------------------------------------------

/// Writes one JSON object that says what the session does (docs/report.md). Any thread. It may grow between two calls.
///
///   {"does": "layers 2 to 29: one token in 3.5 stays, ...",   // the effect of the config, one line for a log
///    "warnings": ["...", ...],                                // keys without effect, a failed file, tokens that were dropped
///    "h2o_lossy_ratio": 3.4, ...,                             // totals of all layers since create
///    "memory": {"state": "k8v4", ...},                        // with a budget or a file
///    "layers": [{"layer": 2, ...}, ...]}                      // the totals of each layer
mnnkv_status mnnkv_session_report(const mnnkv_session *session, char *text, size_t cap, size_t *len);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MNNKV_SESSION_H
