// mnnkv/memory.h: a budget in bytes for all of a session's caches.
//
// Generated from src/ffi/session by `make header`; do not edit. mnnkv.h has the conventions.

#ifndef MNNKV_MEMORY_H
#define MNNKV_MEMORY_H

#include "attend.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- Memory -----------------------------------------------------------------------------------------------------
//
// {"kv_memory_mb": 64} is all the config that a bounded chat needs. 64 MB (10^6 bytes) is then all memory that the session's
// caches take: raw tokens in the host's buffers, blocks, and working memory. It holds after every step, with two exceptions. A
// step in which working memory grows, such as the first that attends, may exceed it; the next one makes room. A step of more
// than 16 tokens, a chunk of a prompt, may exceed it by its raw tokens until the next begin of the layer: a host that pauses
// after a prompt calls begin and end without tokens. Working memory of attention is freed after a step where it takes more than
// an eighth of the budget. While memory is refused, tokens stay raw and nothing is dropped for them. The host calls
// mnnkv_session_attend where mnnkv_step::attends is 1 (attend.h).
// Sessions share no budget, and no file. mnnkv_session_report (report.h) has what one takes.
// States of a layer, the mildest first:
//
//   raw         all tokens are in the host's cache, and the host attends. They take at most half of the budget: a host that
//               grows its buffers has the old ones beside the new
//   quantised   K has 8 bits and V 4; the first and the newest tokens stay raw
//   file        blocks that got the least attention lately are in kv_memory_file; a step reads those that by a sketch of their
//               keys count most: so many that it attends to 32 blocks of a head, or half if that is more (docs/config.md). A
//               sketch is an estimate: of keys without main directions a step may miss the block that counts
//   dropping    without a file, or once it or the room for sketches is full, they are dropped, head by head: their tokens can be
//               attended to no more
//
// The first tokens, the newest 25 to 95 and pinned ones are never dropped, nor does a block with a pinned token go to the file:
// pins that take more than the budget exceed it (over_steps). Each layer has its share, which no other takes.
// Blocks and layers whose numbers 8 and 4 bits cannot hold stay raw, and may take more: over_steps counts it, and a warning
// says why.
// A budget that is too small for the model is refused by the first begin of a layer that shows it, or by a load; the
// message has the least that would do for the layers that have begun and others like the first.
//
// kv_memory_file is scratch of one session: made by mnnkv_session_create, locked, and removed by
// mnnkv_session_destroy. An empty file, or one that a killed process has left, is replaced. Any other file that exists, and a
// symbolic link, is left alone: blocks are then dropped, which a warning says at once, and later one of a full
// disk. A host with a limit of file sizes (RLIMIT_FSIZE) must ignore SIGXFSZ, which else ends its process. A relative path is that
// of the working folder at that moment. Blocks are verified by a checksum when they are read. Each layer's
// attention waits at most kv_memory_wait_us for each token of the step; a block that comes later counts in a later step. Begin,
// end and trim write blocks on the thread that calls. On that thread the raw tokens that fill the budget are
// quantised, in eight steps of single tokens, in about 0.06 ms a step for each MB of the budget, or in one step of a prompt; and
// the step in which the first blocks go to the file chooses the directions of sketches, in about 2 ms for each KV head of 128 dims. A prompt usually contains both steps. The file is
// not encrypted and has default permissions: give it a private folder that is not backed up.

/// Sets the budget to `bytes`, or the least that the model may have if that is more, from now on, for a system that is short
/// of memory (onTrimMemory and its like), and lets blocks go to the file, or be dropped, until it holds. Layers with an open step, and
/// raw tokens that take more, follow in their next begin. A later call with more bytes lets blocks come back as they are
/// used; those that were dropped do not. Any thread. Waits for calls with the session that run, also for a park or a save, but
/// never for attention; and writes blocks to the file before it returns, so do not call it on a thread that must not wait.
/// *in_use: bytes in use afterwards; may be NULL.
/// INVALID_ARGUMENT: if the config sets no budget
mnnkv_status mnnkv_session_trim(mnnkv_session *session, uint64_t bytes, uint64_t *in_use);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MNNKV_MEMORY_H
