// mnnkv/recall.h: evicted tokens parked in blocks, which come back when a query wants them.
//
// Generated from src/ffi by `make header`; do not edit. mnnkv.h has the conventions.

#ifndef MNNKV_RECALL_H
#define MNNKV_RECALL_H

#include "session.h"
#include "snapshot.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- Recall -----------------------------------------------------------------------------------------------------
//
// With kv_recall_enable the tokens that a session evicts are not lost. Each is part of a block of kv_recall_block_tokens
// tokens, which is parked in memory or in the chat's file, and comes back when the newest queries want it:
//
//   cache.step_tokens = 1;                                 // tokens that the step appends: budgets hold for that many
//   mnnkv_session_begin(session, layer, &cache);           // blocks come back, in the place of others or behind all tokens;
//                                                          // others leave. kv_len may be larger than before
//   mnnkv_session_queries(session, layer, &queries);       // any time before end
//   mnnkv_session_end(session, layer, 0, rows, &cache);    // judges all blocks by the queries, and chooses
//
// Tokens of a cache then are in any order. Attention does not depend on it; mnnkv_session_positions tells it. A mask may
// refer to the tokens of the step alone. Tiles are not used: mnnkv_session_wants_scores is 0.
//
// A block comes back only if the buffers have room for it beside step_tokens (layout->max_tokens), and stays away otherwise.
// A step that appends more than step_tokens may exceed kv_h2o_max_tokens until the next begin.
//
// mnnkv_session_keep edits tokens wherever they are. Pinned tokens that are away come back. mnnkv_session_rewritten
// concerns tokens of the cache: those that are away keep their rotation. A snapshot has all tokens of a layer. A session
// without recall that loads it has them all in its cache: the host must have room for mnnkv_session_lengths. docs/config.md,
// "Recall", has the rules and the keys.

/// The query rows of a step of a layer, after their rotation, as its attention gets them.
typedef struct mnnkv_queries {
    uint32_t struct_size;
    /// MNNKV_DTYPE_F16, BF16 or F32.
    uint32_t dtype;
    /// Query heads, a multiple of the KV heads: head h reads KV head h / (heads / kv_heads).
    uint32_t heads;
    /// Rows of each head, at least 1, in the order of their tokens: all of the step, or the last ones, of which a session
    /// uses kv_recall_query_window.
    uint32_t rows;
    /// Elements of a row, as the layout's.
    uint32_t head_dim;
    /// The factor of a logit; 0 = 1 / sqrt(head_dim).
    float scale;
    /// Bytes from a head to the next, and from a row to the next. Both 0: [rows][heads][head_dim], as MNN has them.
    uint64_t head_stride;
    uint64_t row_stride;
    /// The elements, at any alignment.
    const void *data;
} mnnkv_queries;

/// Recall of a layer or of all. Counts are sums since create, the others as of now.
typedef struct mnnkv_recall_stats {
    uint32_t struct_size;
    uint32_t reserved;
    /// Tokens of the chat that are parked and not in the cache.
    uint64_t away_tokens;
    /// Those of them that the file has no more: they cannot come back.
    uint64_t lost_tokens;
    /// Tokens of the chat, in the cache or not, that a file has.
    uint64_t file_tokens;
    /// Bytes of memory that parked copies take, with 256 KiB a layer from the first on, and summaries.
    uint64_t parked_bytes;
    uint64_t summary_bytes;
    /// Blocks that left the cache, that came back (also within one begin), and that were encoded.
    uint64_t left_blocks;
    uint64_t returned_blocks;
    uint64_t parked_blocks;
    /// Writes that were put off, since a call had the snapshot.
    uint64_t late_writes;
    /// Attempts to park, read or judge a block that failed: it stayed where it was. mnnkv_session_warnings has the first
    /// reason of each layer.
    uint64_t failures;
    /// Query rows that blocks were judged by.
    uint64_t query_rows;
    /// Bytes written to files, and read from them.
    uint64_t written_bytes;
    uint64_t read_bytes;
    /// Writes that failed, and reads that failed or were other bytes.
    uint64_t failed_writes;
    uint64_t failed_reads;
    /// Nanoseconds in begin and in end.
    uint64_t begin_ns;
    uint64_t end_ns;
} mnnkv_recall_stats;

/// Gives the queries of a step of an open layer, before end; a second call replaces the first. Copies the last rows, at most
/// kv_recall_query_window. Layers without recall ignore them. Without queries blocks leave by age, and none comes back for
/// its worth.
/// INVALID_ARGUMENT: if layer is out of range or not open, heads is no multiple of the KV heads, head_dim is not
/// the layout's, an element of the last rows is not finite, scale is below 0 or not finite, or a stride is below the
/// bytes of a row
/// UNSUPPORTED: if dtype is none of these three
///
/// After a failure nothing has changed.
mnnkv_status mnnkv_session_queries(mnnkv_session *session,
                                   uint32_t layer,
                                   const mnnkv_queries *queries);

/// Parks blocks in the file of a snapshot from now on, where kv_recall_tier is "file"; other sessions ignore it. Without a
/// call, or with NULL, blocks are parked in memory. Waits for a call that has the snapshot; begin and end never do: a block
/// that cannot be written at once waits in memory. Recall writes each token once; mnnkv_snapshot_append, which has no use for
/// the copies of tokens that came back, writes those again. The call may come before or after mnnkv_snapshot_load, between
/// steps, on any thread.
/// snapshot: with access APPEND, or NULL. The session retains it, and the file stays open and locked: until all layers are
/// reset (MNNKV_ALL_LAYERS), the session is destroyed, or it was given another snapshot (or NULL) and has no block in this
/// one any more. mnnkv_snapshot_destroy may come before; functions of mnnkv_snapshot_io and their user must stay valid as
/// long, and are called in begin and in end, too.
/// INVALID_ARGUMENT: if the access is not APPEND
///
/// mnnkv_snapshot_commit makes parked blocks durable with all else; mnnkv_snapshot_discard keeps them. mnnkv_snapshot_copy and
/// mnnkv_snapshot_compact leave out those that no saved layer has.
///
/// Tokens are never replaced by others: what is read is compared with a checksum. Where the file cannot be written, blocks
/// wait in memory (8, or 4 MiB), then stay in the cache; so they do beyond kv_recall_max_write_bytes. A block that cannot be
/// read stays away. mnnkv_session_recall_stats counts all of this, and mnnkv_session_warnings has the first reason.
mnnkv_status mnnkv_session_recall_file(mnnkv_session *session,
                                       mnnkv_snapshot *snapshot);

/// Reads the recall of a layer, or of all with MNNKV_ALL_LAYERS; zeros without recall.
/// INVALID_ARGUMENT: if layer is out of range
mnnkv_status mnnkv_session_recall_stats(const mnnkv_session *session, uint32_t layer, mnnkv_recall_stats *stats);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MNNKV_RECALL_H
