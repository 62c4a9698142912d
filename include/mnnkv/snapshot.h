// mnnkv/snapshot.h: layers that are parked between turns, and the file of a chat.
//
// Generated from src/ffi/snapshot by `make header`; do not edit. mnnkv/session.h has the conventions.

#ifndef MNNKV_SNAPSHOT_H
#define MNNKV_SNAPSHOT_H

#include "session.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- Parking: a layer's memory while no step is due --------------------------------------------------------------------------
//
// mnnkv_session_park compresses all tokens of a layer, smaller and more slowly than the store does, and returns the
// memory of its buffers to the system. The next mnnkv_session_begin of the layer writes them back bit for bit, on all
// cores. Every config can be parked, {} included. Eviction, edits and positions work on parked layers as on others. A host
// parks each layer after a turn:
//
//   for (layer = 0; layer < layers && status == MNNKV_OK; ++layer)
//       status = mnnkv_session_park(session, layer, &options, &caches[layer], &parked);
//
// A message that arrives meanwhile must not wait: another thread calls mnnkv_session_interrupt, the loop ends with
// MNNKV_BUSY, and begin, which ends the interruption, writes the parked layers back. After park the buffers of a
// floating-point cache may be freed: the next mnnkv_session_begin or _keep must get buffers with room for the tokens. Those
// of a quantised cache must stay, or be copied as a whole. A host with a snapshot may append before it parks, or after.

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

// --- Snapshot: bytes of the host ---------------------------------------------------------------------------------------------
//
// A snapshot is a file (mnnkv_snapshot_options::path), or bytes that the host keeps in a container of its own, encrypted
// or not (mnnkv_snapshot_options::io). Each of the host's functions returns 0, or any other number,
// with which the call fails with IO and which its text names. But append takes bytes that it cannot read for damaged, and
// writes their tokens again; verify names them.

/// Functions that read and write bytes. Copied by create and open; user must stay valid until mnnkv_snapshot_destroy
/// returns. They are called inside functions of the library, on the caller's thread, never two at once, and must neither
/// throw nor call the snapshot.
typedef struct mnnkv_snapshot_io {
    uint32_t struct_size;         ///< sizeof(mnnkv_snapshot_io)
    uint32_t reserved;            ///< Must be 0.
    const char *name;             ///< The name of the bytes in error texts, UTF-8; copied. NULL = snapshot.
    void *user;                   ///< The first argument of each function.
    /// Writes the number of bytes to *size.
    int32_t (*size)(void *user, uint64_t *size);
    /// Reads len bytes from offset on; fewer are a failure.
    int32_t (*read)(void *user, uint64_t offset, void *to, size_t len);
    /// Writes len bytes at offset, over what is there, or after it. NULL = none; the access must be READ.
    int32_t (*write)(void *user, uint64_t offset, const void *from, size_t len);
    int32_t (*sync)(void *user);  ///< Returns when all that was written would survive a power failure. NULL if write is NULL.
    /// Drops the bytes from size on. NULL = they stay; what a discarded save wrote is then overwritten by the next one.
    int32_t (*truncate)(void *user, uint64_t size);
} mnnkv_snapshot_io;

// --- Snapshot: the file of a chat --------------------------------------------------------------------------------------------
//
// A snapshot is a file that holds the layers of a chat, and sections of the host: bytes by name, such as token ids,
// recurrent state or the sampler. It is saved again and again, each time by what is new. docs/format.md has its bytes.
//
//   mnnkv_snapshot_put     gives a section
//   mnnkv_snapshot_commit  makes all that was given since the last commit the state of the file, durably
//
// A process or power that fails at any moment leaves the last state or the new one. Damage is found by checksums, and
// named; it is never read as something else, and never leads to an older state. All readers see the committed state.
//
// A file is open for one writer, or for any number of readers (BUSY), on systems that lock files; with io the host must
// see to it. It must not be truncated while it is open, nor while a session that loaded it has not begun each of the loaded
// layers: reading it may then raise a signal. A file written on one CPU opens on every other one.

/// Reads.
#define MNNKV_SNAPSHOT_READ 0
/// Reads and saves.
#define MNNKV_SNAPSHOT_APPEND 1

/// An open snapshot.
typedef struct mnnkv_snapshot mnnkv_snapshot;

/// The arguments of mnnkv_snapshot_create and mnnkv_snapshot_open.
typedef struct mnnkv_snapshot_options {
    uint32_t struct_size;         ///< sizeof(mnnkv_snapshot_options)
    uint32_t abi_version;         ///< MNNKV_ABI_VERSION
    const char *path;             ///< The file; NULL with io.
    const mnnkv_snapshot_io *io;  ///< The functions of a host in place of a file; NULL with path.
    /// The model, its rotation and whatever else must be the same to load the caches: at most 64 KiB, compared byte by
    /// byte. NULL = none in create, any in open.
    const void *fingerprint;
    size_t fingerprint_len;       ///< Bytes of fingerprint.
    uint32_t access;              ///< MNNKV_SNAPSHOT_*; create ignores it.
    uint32_t reserved;            ///< Must be 0.
} mnnkv_snapshot_options;

/// Makes an empty snapshot, for further saves. A failure leaves no file.
/// INVALID_ARGUMENT: if not exactly one of path and io is given, the fingerprint is too long, or the host has bytes
/// already
/// NOT_FOUND: if the folder does not exist
/// IO: if there is a file at path, or it cannot be written
mnnkv_status mnnkv_snapshot_create(const mnnkv_snapshot_options *options, mnnkv_snapshot **out);

/// Opens a snapshot at its newest state.
/// NOT_FOUND: if there is no file at path
/// BUSY: if another handle writes the file, or access is APPEND and any handle has it open
/// CORRUPT: if it is no snapshot, one whose making was killed (remove it), or damaged: the text has the part and its offset
/// STALE: if it is for another fingerprint
/// UNSUPPORTED: if it needs a later version of the library
/// INVALID_ARGUMENT: if not exactly one of path and io is given, the fingerprint is too long, or access is neither
/// IO: if the system or the host cannot read
mnnkv_status mnnkv_snapshot_open(const mnnkv_snapshot_options *options, mnnkv_snapshot **out);

/// Closes a snapshot. Drops what is not committed, and truncates the file to its committed state.
void mnnkv_snapshot_destroy(mnnkv_snapshot *snapshot);

/// Makes all that was given since the last commit the state of the file, durably; without any, does nothing. After a
/// failure the old state stands, and the call may be repeated, for example when there is room on the disk again. Where
/// the device fails on, so that destroy cannot undo the writes, the file has the old state or the new one,
/// whole, when it is opened next. The call does not look at the path: where the file was removed or replaced there, it
/// saves to the removed file, and returns OK.
/// INVALID_ARGUMENT: if the access is not APPEND
/// IO: if the system or the host cannot write
mnnkv_status mnnkv_snapshot_commit(mnnkv_snapshot *snapshot);

// --- Snapshot: sections, and what a file has ---------------------------------------------------------------------------------

/// Gives the bytes of a section, in place of those that it has. They are written at once, and part of the state from the
/// next commit on. If they begin with the committed bytes of the section, only the rest is written.
/// name: 1 to 255 bytes.
/// INVALID_ARGUMENT: if the name is empty or too long, or the access is not APPEND
/// IO: if the system or the host cannot write; what was given before is still there
mnnkv_status mnnkv_snapshot_put(mnnkv_snapshot *snapshot, const char *name, const void *bytes, size_t len);

/// Writes the committed bytes of a section, and their number to *len.
/// NOT_FOUND: if there is no such section
/// CORRUPT: if its bytes are damaged; other sections can still be read
/// IO: if the system or the host cannot read
mnnkv_status mnnkv_snapshot_get(const mnnkv_snapshot *snapshot, const char *name, void *out, size_t cap, size_t *len);

// --- Snapshot: the layers of a session ---------------------------------------------------------------------------------------
//
// A host saves between steps: mnnkv_snapshot_append for each layer, its own sections, and a commit. To go on, also in
// another process and with another packing of its caches, it opens the file, makes a session, and loads:
//
//   mnnkv_snapshot_load(snapshot, session, MNNKV_ALL_LAYERS);
//   mnnkv_session_lengths(session, layer, &logical, &cache.kv_len);   // then mnnkv_session_begin as always
//
// Loading compares the tokens with their checksums, as fast as memory is read, and decodes none: raw ones stay in the
// file until begin writes them to the cache; with io they are kept in memory as encoded. Quantised ones come to
// memory, and where the budget has no room for them go to its file, or are dropped. Several sessions may load one
// snapshot, such as that of a system prompt, and share its pages. Tokens that a session has loaded from a snapshot or
// saved to it are not written again by a later append to the same one, unless another snapshot came between. Small
// steps encode badly: a chat that is saved after every few tokens is larger than one that is saved after every turn.
//
// A turn that was not saved as a whole, after BUSY for example, should be dropped: destroy the snapshot and open it again.
// After a commit, loading the snapshot into the same session parks all layers in the file; then the host frees its buffers.

/// Writes the tokens of a closed layer that the snapshot lacks, and records which of its tokens the layer still has. They are
/// written at once, and part of the state from the next commit on. The layer stays as it is, parked or not. Blocks while it
/// encodes; mnnkv_session_interrupt ends it.
/// options: as of mnnkv_session_park. Tokens that are parked are written as they were encoded then.
/// cache: as of mnnkv_session_park. Where all tokens are loaded and not begun since, layout, key and value may all three be
/// NULL; where they are parked too, unless V is INT8. kv_len is always read.
/// written: tokens of the layer written; may be NULL. A layer that was given no cache since create or
/// its reset has no tokens, and is not recorded unless the snapshot has it already.
/// INVALID_ARGUMENT: if layer is out of range or open, kv_len or cache does not fit it, or the access is not APPEND
/// BUSY: if the session is interrupted
/// CORRUPT: if tokens in the store do not decode, or tokens that only a file has are damaged there. Those of kv_memory_file are
/// dropped and counted ("lost", docs/report.md), and a repeated call writes the others
/// IO: if the system or the host cannot write
///
/// After a failure the session is unchanged, and what was given before is still there.
mnnkv_status mnnkv_snapshot_append(mnnkv_snapshot *snapshot, mnnkv_session *session, uint32_t layer,
                                   const mnnkv_park_options *options, mnnkv_cache *cache, uint32_t *written);

/// Replaces a layer of a session, or all with MNNKV_ALL_LAYERS, by the committed one of a snapshot: its tokens, logical
/// positions, scores, clock and planned eviction. Layers that the snapshot has not are reset where all are loaded. The
/// snapshot may be destroyed afterwards; its file must stay. Scores are unknown if the session's config adds them up in
/// another way (aggregation, alpha, block_tokens). With the same config the chat goes on as if it had never stopped,
/// with one exception. With a budget the scores by which blocks leave memory begin anew; the last step's length, for which room
/// is kept, is unknown, so that tokens may stay raw for a step longer; and heads of dropped blocks that the file has from an
/// earlier commit come back, so that "dropped_tokens" (docs/report.md) may be less.
/// INVALID_ARGUMENT: if layer is out of range or open, the snapshot has more layers than the session, or the budget is too
/// small for them
/// NOT_FOUND: if the snapshot has not the layer, such as one that append did not record
/// UNSUPPORTED: if the layer has quantised tokens, and the session keeps that layer raw: by its config (neither kv_quant nor a
///     budget, or a later kv_quant_layer_start), or since its host does not attend
/// CORRUPT: if the layer or one of its tokens is damaged; other layers can still be loaded
/// IO: if the system or the host cannot read
///
/// After a failure no layer has changed.
mnnkv_status mnnkv_snapshot_load(const mnnkv_snapshot *snapshot, mnnkv_session *session, uint32_t layer);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MNNKV_SNAPSHOT_H
