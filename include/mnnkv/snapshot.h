// mnnkv/snapshot.h: the file of a chat, saved step by step.
//
// Generated from src/ffi/snapshot by `make header`; do not edit. mnnkv.h has the conventions.

#ifndef MNNKV_SNAPSHOT_H
#define MNNKV_SNAPSHOT_H

#include "park.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- Snapshot: bytes of the host --------------------------------------------------------------------------------
//
// A snapshot is a file (mnnkv_snapshot_options::path), or bytes that the host keeps in a container of its own, encrypted
// or not (mnnkv_snapshot_options::io). Each of the host's functions returns 0, or any other number,
// with which the call fails with IO and which its text names. But append takes bytes that it cannot read for damaged, and
// writes their tokens again; verify names them.

/// Functions that read and write bytes. Copied by create and open; user must stay valid until mnnkv_snapshot_destroy
/// returns. They are called inside functions of the library, on the caller's thread, never two at once, and must neither
/// throw nor call the snapshot.
typedef struct mnnkv_snapshot_io {
    uint32_t struct_size;
    uint32_t reserved;
    /// The name of the bytes in error texts, UTF-8; copied. NULL = snapshot.
    const char *name;
    /// The first argument of each function.
    void *user;
    /// Writes the number of bytes to *size.
    int32_t (*size)(void *user, uint64_t *size);
    /// Reads len bytes from offset on; fewer are a failure.
    int32_t (*read)(void *user, uint64_t offset, void *to, size_t len);
    /// Writes len bytes at offset, over what is there, or after it. NULL = none; the access must be READ or SALVAGE.
    int32_t (*write)(void *user, uint64_t offset, const void *from, size_t len);
    /// Returns when all that was written would survive a power failure. NULL if write is NULL.
    int32_t (*sync)(void *user);
    /// Drops the bytes from size on. NULL = they stay; what a discarded save wrote is then overwritten by the next one.
    int32_t (*truncate)(void *user, uint64_t size);
} mnnkv_snapshot_io;

// --- Snapshot: the file of a chat -------------------------------------------------------------------------------
//
// A snapshot is a file that holds the layers of a chat, and sections of the host: bytes by name, such as token ids,
// recurrent state or the sampler. It is saved again and again, each time by what is new. docs/snapshot.md has its bytes.
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
/// Reads what is whole of a damaged file; its state may be an older one, or lack layers and sections.
#define MNNKV_SNAPSHOT_SALVAGE 2

/// An open snapshot.
typedef struct mnnkv_snapshot mnnkv_snapshot;

/// The arguments of mnnkv_snapshot_create and mnnkv_snapshot_open.
typedef struct mnnkv_snapshot_options {
    uint32_t struct_size;
    uint32_t abi_version;
    /// The file, or the functions of a host; the other one is NULL.
    const char *path;
    const mnnkv_snapshot_io *io;
    /// The model, its rotation and whatever else must be the same to load the caches: at most 64 KiB, compared byte by
    /// byte. NULL = none in create, any in open.
    const void *fingerprint;
    size_t fingerprint_len;
    /// MNNKV_SNAPSHOT_*; create ignores it.
    uint32_t access;
    uint32_t reserved;
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
/// INVALID_ARGUMENT: if not exactly one of path and io is given, the fingerprint is too long, or access is none of the three
/// IO: if the system or the host cannot read
mnnkv_status mnnkv_snapshot_open(const mnnkv_snapshot_options *options,
                                 mnnkv_snapshot **out);

/// Closes a snapshot. Drops what is not committed, and truncates the file to its committed state.
void mnnkv_snapshot_destroy(mnnkv_snapshot *snapshot);

/// Makes all that was given since the last commit the state of the file, durably; without any, does nothing. After a
/// failure the old state stands, and the call may be repeated, for example when there is room on the disk again. Where
/// the device fails on, so that discard and destroy cannot undo the writes, the file has the old state or the new one,
/// whole, when it is opened next. The call does not look at the path: where the file was removed or replaced there, it
/// saves to the removed file, and returns OK.
/// INVALID_ARGUMENT: if the access is not APPEND
/// IO: if the system or the host cannot write
mnnkv_status mnnkv_snapshot_commit(mnnkv_snapshot *snapshot);

/// Drops all that was given since the last commit.
/// IO: if a commit failed and its writes cannot be undone (see there); the call may be repeated
mnnkv_status mnnkv_snapshot_discard(mnnkv_snapshot *snapshot);

// --- Snapshot: sections, and what a file has --------------------------------------------------------------------

/// The contents of a snapshot. Bytes are of the committed state.
typedef struct mnnkv_snapshot_info {
    uint32_t struct_size;
    /// 1 = something was given since the last commit.
    uint32_t is_changed;
    /// The number of the committed state: 0 for an empty file, one more with each commit.
    uint64_t version;
    uint32_t layers;
    uint32_t sections;
    /// Pieces of tokens, those that no layer refers to any more included.
    uint32_t pieces;
    /// Damages that MNNKV_SNAPSHOT_SALVAGE found as it opened the file.
    uint32_t damages;
    /// All bytes of the file, to the end of the committed state.
    uint64_t file_bytes;
    /// Encoded tokens that layers refer to.
    uint64_t token_bytes;
    /// Sections, and what layers have beside tokens.
    uint64_t section_bytes;
    /// Bytes of earlier states and of commit records. mnnkv_snapshot_compact drops them, and often far more.
    uint64_t dead_bytes;
    /// See mnnkv_snapshot_fingerprint.
    uint64_t fingerprint_bytes;
} mnnkv_snapshot_info;

/// A layer of a snapshot.
typedef struct mnnkv_snapshot_layer_info {
    uint32_t struct_size;
    /// The number of the layer.
    uint32_t layer;
    uint32_t tokens;
    uint32_t kv_heads;
    uint32_t head_dim;
    /// MNNKV_DTYPE_*
    uint32_t key_dtype;
    uint32_t value_dtype;
    /// Runs of consecutive tokens in one piece.
    uint32_t runs;
    /// Positions, scores and what else belongs to the layer.
    uint64_t state_bytes;
} mnnkv_snapshot_layer_info;

/// Reads the contents of a snapshot.
mnnkv_status mnnkv_snapshot_get_info(const mnnkv_snapshot *snapshot, mnnkv_snapshot_info *info);

/// Reads a layer of the committed state. index: below mnnkv_snapshot_info::layers; layers ascend.
/// NOT_FOUND: if index is not below it
mnnkv_status mnnkv_snapshot_get_layer_info(const mnnkv_snapshot *snapshot,
                                           uint32_t index,
                                           mnnkv_snapshot_layer_info *info);

/// Writes the fingerprint that the snapshot was made with, and its length to *len.
mnnkv_status mnnkv_snapshot_fingerprint(const mnnkv_snapshot *snapshot, void *out, size_t cap, size_t *len);

/// Gives the bytes of a section, in place of those that it has. They are written at once, and part of the state from the
/// next commit on. If they begin with the committed bytes of the section, only the rest is written.
/// name: 1 to 255 bytes.
/// INVALID_ARGUMENT: if the name is empty or too long, or the access is not APPEND
/// IO: if the system or the host cannot write; what was given before is still there
mnnkv_status mnnkv_snapshot_put(mnnkv_snapshot *snapshot,
                                const char *name,
                                const void *bytes,
                                size_t len);

/// Removes a section with the next commit. A section that does not exist is no error.
/// INVALID_ARGUMENT: if the access is not APPEND
mnnkv_status mnnkv_snapshot_remove(mnnkv_snapshot *snapshot, const char *name);

/// Writes the committed bytes of a section, and their number to *len.
/// NOT_FOUND: if there is no such section
/// CORRUPT: if its bytes are damaged; other sections can still be read
/// IO: if the system or the host cannot read
mnnkv_status mnnkv_snapshot_get(const mnnkv_snapshot *snapshot, const char *name, void *out, size_t cap, size_t *len);

/// Compares all pieces, sections and states of layers with their checksums, without decoding them, and writes what is
/// damaged, one part per line, what MNNKV_SNAPSHOT_SALVAGE found included. The text is empty if the state is whole.
mnnkv_status mnnkv_snapshot_verify(const mnnkv_snapshot *snapshot, char *text, size_t cap, size_t *len);

// --- Snapshot: the layers of a session --------------------------------------------------------------------------
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
// steps encode badly: a chat that is saved after every few tokens is larger than one that is saved after every turn,
// until mnnkv_snapshot_compact.
//
// A turn that was not saved as a whole, after BUSY for example, should be dropped: mnnkv_snapshot_discard. After a commit,
// loading the snapshot into the same session parks all layers in the file; then the host frees its buffers.

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
/// dropped and counted (mnnkv_memory_stats::lost), and a repeated call writes the others
/// IO: if the system or the host cannot write
///
/// After a failure the session is unchanged, and what was given before is still there.
mnnkv_status mnnkv_snapshot_append(mnnkv_snapshot *snapshot,
                                   mnnkv_session *session,
                                   uint32_t layer,
                                   const mnnkv_park_options *options,
                                   mnnkv_cache *cache,
                                   uint32_t *written);

/// Replaces a layer of a session, or all with MNNKV_ALL_LAYERS, by the committed one of a snapshot: its tokens, logical
/// positions, scores, clock and planned eviction. Layers that the snapshot has not are reset where all are loaded. The
/// snapshot may be destroyed afterwards; its file must stay. Scores are unknown if the session's config adds them up in
/// another way (aggregation, alpha, block_tokens). With the same config the chat goes on as if it had never stopped,
/// with two exceptions. With kv_h2o_policy "keydiff", the default, the next begin computes the numbers of the keys again,
/// from the tokens that are left: where some were evicted before, later plans may keep other tokens. With a budget the
/// scores by which blocks leave memory begin anew; the last step's length, for which room is kept, is unknown, so that
/// tokens may stay raw for a step longer; and heads of dropped blocks that the file has from an earlier commit come back,
/// so that mnnkv_memory_stats::dropped_tokens may be less.
/// INVALID_ARGUMENT: if layer is out of range or open, the snapshot has more layers than the session, or the budget is too
/// small for them (memory.h)
/// NOT_FOUND: if the snapshot has not the layer, such as one that append did not record
/// UNSUPPORTED: if the layer has quantised tokens, and the session keeps that layer raw: by its config (neither kv_quant nor a
///     budget, kv_lossless, or a later kv_quant_layer_start), or since its host does not attend
/// CORRUPT: if the layer or one of its tokens is damaged; other layers can still be loaded
/// IO: if the system or the host cannot read
///
/// After a failure no layer has changed.
mnnkv_status mnnkv_snapshot_load(const mnnkv_snapshot *snapshot,
                                 mnnkv_session *session,
                                 uint32_t layer);

/// Gives `to`, which has no layers yet, the committed layers and sections of `from`: each layer encoded anew, and without
/// tokens that it has no more. A host creates another file, compacts into it, commits, destroys both, and renames the new
/// file. Sessions that go on must load from the new one, or the next append writes all tokens again.
/// options: as of mnnkv_session_park. Without a rotation hint a file that was written with one may become larger.
/// INVALID_ARGUMENT: if to is from, has layers, or its access is not APPEND
/// CORRUPT: if a part of `from` is damaged
/// IO: if the system or a host cannot read or write; what `to` was given is not committed
mnnkv_status mnnkv_snapshot_compact(const mnnkv_snapshot *from,
                                    const mnnkv_park_options *options,
                                    mnnkv_snapshot *to);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MNNKV_SNAPSHOT_H
