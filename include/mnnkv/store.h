// mnnkv/store.h: cold tokens as blobs, their memory returned to the system.
//
// Generated from src/ffi/store by `make header`; do not edit. mnnkv/session.h has the conventions.

#ifndef MNNKV_STORE_H
#define MNNKV_STORE_H

#include "../mnnkv.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- Store: the handle -------------------------------------------------------------------------------------------------------
//
// A store keeps cold tokens of any number of layers as blobs. A block is a range of tokens of one layer that is encoded
// as one. It is resident while the cache still holds its raw bytes, and released once commit has returned them to the
// system. Per layer and step a host calls
//
//   mnnkv_store_restore     before attention reads the layer
//   mnnkv_store_submit      after attention, for each range that has become cold
//   mnnkv_store_commit      releases the raw bytes of encoded blocks
//
// and reports its own edits of the cache by mnnkv_store_compacted. Between commit and
// restore, released tokens must be neither read nor written; they may be moved with others, and the whole cache may be
// copied to another buffer.
//
// Threads. Calls must not overlap, except mnnkv_store_stats. Workers encode and decode copies and blobs, and sleep when
// idle. Memory besides the blobs: waiting copies, decode_cache_bytes, and per thread four times
// the raw bytes of the largest block.
//
// A host that has a session needs no store: a session stores cold tokens itself.

/// The blobs of one model, and the workers that make them.
typedef struct mnnkv_store mnnkv_store;

/// Settings of a store. NULL = all defaults.
typedef struct mnnkv_store_config {
    uint32_t struct_size;       ///< sizeof(mnnkv_store_config)
    /// Most workers that work for the store at once, at most 64. 0 = submit encodes and restore decodes.
    uint32_t workers;
    uint32_t key_predictors;    ///< MNNKV_PREDICT_* (gear.h) to try on K; 0 = all.
    uint32_t value_predictors;  ///< MNNKV_PREDICT_* to try on V; 0 = all.
    int32_t effort;             ///< mnnkv_gear_options::effort
    uint32_t reserved;          ///< Must be 0.
    uint32_t max_queue;         ///< Blocks that may wait to be encoded; 0 = 256.
    /// 1 = decode and compare every block after encoding; a block that differs stays raw (failed_blocks). 0 = rely on
    /// the checksum that each restore verifies.
    uint32_t strict_roundtrip;
    /// Bytes of copies that wait, and of blobs whose raw bytes are not released yet; one block is always admitted. Only
    /// with workers. 0 = no limit but max_queue.
    uint64_t pending_bytes;
    /// Bytes of decoded rows to keep for later restores, in equal shares per layer with blocks. A larger block is not
    /// kept. 0 = none.
    uint64_t decode_cache_bytes;
} mnnkv_store_config;

/// Makes an empty store. Its workers are shared with the other stores and sessions of the process.
/// INVALID_ARGUMENT: if a field of config is out of range
/// OUT_OF_MEMORY: if memory or a thread is refused
mnnkv_status mnnkv_store_create(const mnnkv_store_config *config, uint32_t abi_version, mnnkv_store **out);

/// Frees a store and its blobs. Blocks until its jobs that have begun are done. Released tokens are lost.
void mnnkv_store_destroy(mnnkv_store *store);

// --- Store: blocks -----------------------------------------------------------------------------------------------------------

/// Copies tokens begin .. begin + count of a layer, to be encoded by a worker, or within the call without workers.
/// Never blocks. Pointers are not retained, and the cache is only read. The tokens stay raw until commit. 64 to 256
/// tokens are a good block.
/// ticket: the number of the block in error texts. Submitting an unchanged range again returns its ticket and encodes
/// nothing. A block that does not shrink is dropped and counted (no_gain_blocks), which is not an error. A block whose
/// tokens were rewritten is dropped for one that overlaps it (stale_blocks).
/// INVALID_ARGUMENT: if count is 0, the range exceeds max_tokens, or it overlaps released tokens or another range whose
/// block is unchanged
/// BUSY: if max_queue or pending_bytes is reached
/// OUT_OF_MEMORY: if memory is refused; the store is as before
mnnkv_status mnnkv_store_submit(mnnkv_store *store, uint32_t layer, const mnnkv_layout *layout, const void *key,
                                const void *value, uint32_t begin, uint32_t count, uint64_t *ticket);

/// Releases the raw bytes of every encoded block that still equals the cache; its tokens read as zero until restore.
/// Blocks that were rewritten or do not fit the layout are dropped and counted (stale_blocks). May be called every
/// step.
/// released_bytes: bytes returned to the system, as in mnnkv_kv_release.
mnnkv_status mnnkv_store_commit(mnnkv_store *store, uint32_t layer, const mnnkv_layout *layout, void *key, void *value,
                                uint64_t *released_bytes);

/// Writes every released token of a layer back, bit for bit. Blobs of complete blocks are kept, so that the next commit
/// needs no encoding; blobs that an edit has cut are dropped.
///
/// Packing, strides and max_tokens may differ from submit; heads, head_dim and dtypes must not.
/// V INT8: the sums of V (layout.h) lack tokens that were released while mnnkv_store_compacted told an edit. Call
/// mnnkv_kv_changed, and mnnkv_kv_appended, from the first token of that edit on. Sessions see to it.
/// restored_bytes: raw bytes written.
/// STALE: if the layout does not fit a block
/// CORRUPT: if a blob does not decode to the submitted words
///
/// After a failure that block stays in the store, and its tokens are as before. Other blocks may be restored.
mnnkv_status mnnkv_store_restore(mnnkv_store *store, uint32_t layer, const mnnkv_layout *layout, void *key, void *value,
                                 uint64_t *restored_bytes);

// --- Store: edits of the cache by the host, to be declared before the next call of the layer ---------------------------------

/// Declares that only the tokens of the reserve pairs are left, moved together: call it right after mnnkv_kv_compact or
/// the host's own move. Blocks follow their tokens and lose those that are gone.
/// reserve_pairs: n_pairs times (offset, length) in positions before the move, ascending and disjoint. After a compact
/// with a base: (0, base) first, and base added to the other offsets. A truncation is one pair, (0, kv_len); no pair: all are
/// gone. A host that rewrites tokens from begin on restores them first, and passes (0, begin) here: later ones are submitted
/// anew.
/// INVALID_ARGUMENT: if a number is negative, or pairs overlap or descend; the store is as before
/// OUT_OF_MEMORY: if memory is refused; repeat the call before any other call of the layer
mnnkv_status mnnkv_store_compacted(mnnkv_store *store, uint32_t layer, const int32_t *reserve_pairs, size_t n_pairs);

// --- Store: statistics -------------------------------------------------------------------------------------------------------

/// Counters of a store: "now" is the present state, others are sums since create.
typedef struct mnnkv_store_statistics {
    uint32_t struct_size;          ///< sizeof(mnnkv_store_statistics)
    uint32_t reserved;             ///< Must be 0.
    uint64_t resident_blocks;      ///< Now: blocks whose raw bytes are also in the cache.
    uint64_t released_blocks;      ///< Now: blocks whose raw bytes are only in the store.
    uint64_t raw_bytes;            ///< Now: raw bytes of all blocks.
    uint64_t compressed_bytes;     ///< Now: bytes of all blobs.
    uint64_t released_raw_bytes;   ///< Now: raw bytes of released tokens.
    uint64_t submitted_blocks;     ///< Blocks encoded.
    uint64_t no_gain_blocks;       ///< Blocks that did not shrink and stay raw.
    uint64_t stale_blocks;         ///< Blocks dropped because the cache had changed.
    uint64_t restored_blocks;      ///< Blocks restored.
    uint64_t released_bytes;       ///< Bytes returned to the system.
    uint64_t restored_bytes;       ///< Bytes written to the cache by restore.
    uint64_t encoded_bytes;        ///< Raw bytes encoded.
    uint64_t encode_ns;            ///< Nanoseconds of encoding.
    uint64_t decoded_bytes;        ///< Raw bytes decoded.
    uint64_t decode_ns;            ///< Nanoseconds of decoding.
    uint64_t encoded_to_bytes;     ///< Bytes that encoded_bytes became; the raw size of a block that did not shrink.
    uint64_t queued_blocks;        ///< Now: blocks that wait for a worker or are being encoded.
    uint64_t queue_peak;           ///< The maximum of queued_blocks.
    uint64_t busy_blocks;          ///< Blocks refused with BUSY.
    uint64_t failed_blocks;        ///< Blocks that failed to encode, or the strict check, and stay raw.
    uint64_t cache_hits;           ///< Restored blocks that were kept decoded.
    uint64_t cache_misses;         ///< Restored blocks that restore decoded.
    uint64_t decoded_cache_bytes;  ///< Now: bytes of decoded rows.
} mnnkv_store_statistics;

/// Reads the counters. Any thread; blocks while another call runs.
mnnkv_status mnnkv_store_stats(const mnnkv_store *store, mnnkv_store_statistics *statistics);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MNNKV_STORE_H
