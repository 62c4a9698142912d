/*
 * mnn-kv: KV-cache compression for on-device LLM hosts.
 *
 * Generated from src/ffi by `make header`; do not edit. This file is the manual.
 *
 * What is here
 *   gear     lossless codec for fp16, bf16, fp32 and int8 words
 *   layout   packed KV caches as MNN has them: index, gather, scatter, move, compact, zero, release, tail
 *   h2o      which tokens to keep, from the attention they gathered
 *   store    cold tokens kept compressed, their memory given back
 *   session  all of it, as a JSON config says: begin, scores, end. Where a host starts; the others are its parts
 *
 * Conventions
 *   - Every function that can fail returns mnnkv_status; mnnkv_last_error() then says what was given and what was
 *     allowed. Outputs are written only on success, except that BUFFER_TOO_SMALL writes the length that is needed.
 *   - NULL with length 0 is legal; any other NULL is INVALID_ARGUMENT. Pointers to integers, floats and structs are
 *     aligned as their types, option structs as uint32_t; byte buffers need no alignment.
 *   - Option structs begin with struct_size: zero the struct, set struct_size to its sizeof, then set what differs
 *     from the default. 0 in a field means its default where 0 makes no sense. A NULL options pointer means all
 *     defaults. Reserved fields must be 0. A struct_size below the struct's first version, or over 4,096, is
 *     INVALID_ARGUMENT; a larger one than the library knows is accepted while the bytes it does not know are 0, else
 *     UNSUPPORTED.
 *   - Structs that a call fills in begin with struct_size, too: set it to the sizeof before the call.
 *   - Text outputs (text, cap, len) are UTF-8 with a zero at the end, which *len counts. Ask with NULL, 0 for the length
 *     (BUFFER_TOO_SMALL), then for the text. Paths and other texts that go in are UTF-8, terminated by a zero, unless
 *     their length goes beside them.
 *   - Buffers that a call writes must not overlap any other buffer of the call: INVALID_ARGUMENT.
 *   - Pages: only a call that is handed a cache names its addresses to the system, and only those of the call. It may
 *     give whole pages of released tokens back (they read as zero) and take pages of tokens that it restores. Threads of
 *     the library never touch cache memory, so a host may move or free a cache between any two calls.
 *   - Memory that is refused is OUT_OF_MEMORY: nothing was changed, and the call may be made again.
 *   - Nothing that the library allocates has to be freed by the host, except handles by their _destroy function.
 *     _destroy(NULL) does nothing.
 *   - A function that takes a const handle may run on several threads at once with others that do; any other call
 *     needs its handle to itself, except mnnkv_session_scores: one thread per lane. Functions without a handle run on
 *     any thread.
 *   - Nothing throws, and no function calls back. A panic inside the library is caught: the call answers INTERNAL.
 *   - After fork, the child must not use handles made before it, except to destroy them.
 */


#ifndef MNNKV_H
#define MNNKV_H

#include <stddef.h>
#include <stdint.h>

/// Version of this header, major part.
#define MNNKV_VERSION_MAJOR 0

/// Version of this header, minor part.
#define MNNKV_VERSION_MINOR 1

/// Version of this header, patch part.
#define MNNKV_VERSION_PATCH 0

/// Version of this header as major * 10000 + minor * 100 + patch.
#define MNNKV_VERSION_NUMBER 100

/// Number of the binary interface; pass it to every _create function. It changes only when a program built with an
/// older header could no longer run.
#define MNNKV_ABI_VERSION 1

/// Format v1 of gear blobs, of the reference system: F16 and F32.
#define MNNKV_GEAR_FORMAT_V1 1

/// Format v2: all types, knows rows and channels, has checksums. Smaller where channels differ or rows repeat, most
/// from effort 7 on; slower than v1. Libraries before it answer CORRUPT. docs/format.md has both byte for byte.
#define MNNKV_GEAR_FORMAT_V2 2

/// The bytes as they are; in both formats.
#define MNNKV_PREDICT_RAW 1

/// v1: the difference of each byte to the one before it.
#define MNNKV_PREDICT_DELTA_SEQ 2

/// v1: the exclusive or of each byte with the one before it.
#define MNNKV_PREDICT_XOR_SEQ 4

/// v2: the difference to the token before, same channel, byte by byte as all predictors.
#define MNNKV_PREDICT_DELTA_TOKEN 8

/// v2: the exclusive or with the token before, same channel.
#define MNNKV_PREDICT_XOR_TOKEN 16

/// v2: the difference of an odd channel to the even one before it, same token.
#define MNNKV_PREDICT_DELTA_PAIR 32

/// v2: DELTA_PAIR, and then the difference to the token before.
#define MNNKV_PREDICT_DELTA_PAIR_TOKEN 64

/// Rotation turns channels d and d + rope_dims / 2 together, as in Llama (rotate_half).
#define MNNKV_ROPE_HALF 1

/// Rotation turns channels 2 d and 2 d + 1 together, as in GPT-J.
#define MNNKV_ROPE_ADJACENT 2

/// IEEE 754 binary16.
#define MNNKV_DTYPE_F16 1

/// bfloat16.
#define MNNKV_DTYPE_BF16 2

/// IEEE 754 binary32.
#define MNNKV_DTYPE_F32 3

/// One byte, as MNN's int8 cache (attention_mode 9 and 10). gear encodes it; layouts and the store answer UNSUPPORTED in
/// this version.
#define MNNKV_DTYPE_INT8 4

/// MNN's 3-bit cache. Not in this version: UNSUPPORTED.
#define MNNKV_DTYPE_TQ3 5

/// MNN's 4-bit cache. Not in this version: UNSUPPORTED.
#define MNNKV_DTYPE_TQ4 6

/// mnnkv_h2o_config::target_mode: keep the share target_keep_ratio.
#define MNNKV_TARGET_STATIC 1

/// mnnkv_h2o_config::target_mode: keep one token in target_lossy_ratio.
#define MNNKV_TARGET_ADAPTIVE 2

/// mnnkv_score_tile::flags: the first tile of a query head.
#define MNNKV_TILE_FIRST 1

/// mnnkv_score_tile::flags: the last tile of a query head. A head of one tile has both.
#define MNNKV_TILE_LAST 2

/// Names every layer at once in mnnkv_session_reset.
#define MNNKV_ALL_LAYERS UINT32_MAX

/// The compression of one model's KV caches, run as a JSON config says: a handle from mnnkv_session_create.
///
/// A host calls, per layer and step:
///
///   mnnkv_session_begin     before it appends: the eviction planned last step is applied, compressed tokens are back
///   ... append K and V of the new tokens at the physical end, attention; its threads call
///   mnnkv_session_scores    for each softmax tile (only needed with kv_h2o_enable)
///   mnnkv_session_end       after attention: scores are folded in, the next eviction is planned, cold tokens are
///                           handed to the workers, and those that are compressed leave memory again
///
/// mnnkv_session_abort in place of end when a step failed, mnnkv_session_keep when it edits the chat's history,
/// mnnkv_session_reset when it clears a cache, and mnnkv_session_rewritten when it has written to tokens in place.
///
/// Logical positions are the chat's: a token's number since the layer was reset, which positional encodings need.
/// Physical positions are the cache's: where the token lies now. They part when tokens are evicted, per layer. The
/// session knows both; the host keeps its own count of logical tokens as ever, and takes physical lengths from
/// mnnkv_cache::kv_len.
///
/// Between begin and end the host may read every token below kv_len and append behind it; when it writes older ones, it
/// says so by mnnkv_session_rewritten before end.
/// From end to the next begin (keep, reset) it leaves the cache as it is: tokens that are compressed read as zero. It
/// may copy the whole cache to a larger buffer at any time and hand that in from then on (between end and begin such a
/// copy takes memory for compressed tokens, too, until the next end). Layers without a cache, and layers that read
/// another layer's, are never named.
///
/// Several layers may be open at once. One thread at a time, except: mnnkv_session_scores may run on several threads at
/// once, each with its own lane, but not beside begin, end, keep, reset or destroy, of whatever layer; functions with a
/// const session may run at any time (they wait for a call under way). Workers
/// (kv_lossless_async_threads, with kv_lossless_runtime_enable) sleep when idle; the host never waits for one except in
/// begin, for tokens that it would have to decode itself otherwise.
typedef struct mnnkv_session mnnkv_session;

/// Cold tokens of a model's KV cache, compressed: a handle from mnnkv_store_create.
///
/// Blocks (ranges of tokens of one layer) are resident while the cache holds their raw bytes too, and released once
/// mnnkv_store_commit gave those back. One step of a host, per layer:
///
///   mnnkv_store_restore     before attention reads the layer: every released token is back
///   ... attention ...
///   mnnkv_store_submit      tokens that have become cold: copied out and encoded
///   mnnkv_store_commit      raw bytes of everything submitted go back to the system
///
/// and, whenever it edits the layer's cache, mnnkv_store_compacted, mnnkv_store_truncated or mnnkv_store_rewritten.
/// Between commit and restore
/// the host must neither read nor write released tokens; it may move them together with others, and copy the whole
/// cache to a larger buffer. A store may serve any number of layers; numbers are the host's. One thread at a time,
/// except mnnkv_store_stats.
///
/// With workers, submit only copies the tokens and prefetch only asks: threads of the store encode and decode, and
/// sleep when there is nothing to do. They work on copies and blobs, never on the cache. Memory besides the blobs: the
/// copies that wait (max_queue, pending_bytes), the layer that was prefetched, decode_cache_bytes, and about four times
/// the raw bytes of the largest block for each thread and for the host's.
typedef struct mnnkv_store mnnkv_store;

/// The outcome of a call: MNNKV_OK or one of the MNNKV_* failures. Numbers never change meaning.
typedef int32_t mnnkv_status;

/// How to encode. Zero every field, then set struct_size; a NULL pointer means the same as all zeros. Decoding needs
/// none of this. Working memory and time are bounded whatever is asked for.
typedef struct mnnkv_gear_options {
    /// sizeof(mnnkv_gear_options)
    uint32_t struct_size;
    /// MNNKV_GEAR_FORMAT_*; 0 = V1 for F16 and F32, V2 for BF16 and INT8, which V1 does not have.
    uint32_t format;
    /// Which predictors to try, MNNKV_PREDICT_* of the format or-ed together; 0 = all of them. Bits of the other format
    /// are INVALID_ARGUMENT.
    uint32_t predictors;
    /// 1 = fastest .. 9 = smallest, 0 = 5. Up to 6, a look at the words chooses what is tried; at 9 everything is. A
    /// higher one is never larger than a lower one by more than 0.1%. Every decoder reads the blobs of all.
    int32_t effort;
    /// V2: elements per row (one token of one head). 0 = unknown, or more than src holds: compresses worse. So do fewer
    /// than 64 rows of more than 4,096 bytes: they are taken for unknown. src need not be whole rows, except with a
    /// rotation hint.
    uint32_t head_dim;
    /// Must be 0.
    uint32_t reserved[3];
    /// V2, for K: MNNKV_ROPE_* says how the host rotated keys by position, 0 = not known or not rotated; then no field
    /// below is read. Keys are compared as they were before, which pays most in the first layer, where they depend on
    /// the token alone, and takes several times as long where it pays. Bit-exact whatever arithmetic the host used;
    /// F32 keys gain most when rope_inv_freq are the host's own numbers. src must be [head][token][dim] with head_dim
    /// set. V1 has no use for it.
    uint32_t rope_pairing;
    /// Rotated channels, the first of each row: even, at most head_dim; 0 = head_dim.
    uint32_t rope_dims;
    /// Tokens per head, of which the rows in src are a multiple; 0 = all rows are one head. Set it with rope_positions.
    uint32_t rope_tokens;
    /// Position of each head's first token; the others follow. Not read with rope_positions.
    uint32_t rope_first_position;
    /// Pair i of a token at position p was turned by p * rope_theta^(-2 i / rope_dims) radians; 1 to 1e30, 0 = 10000.
    /// Not read with rope_inv_freq.
    float rope_theta;
    /// Must be 0.
    uint32_t rope_reserved;
    /// The angles per position in radians, rope_dims / 2 numbers of 0 to 1e6, for scaled variants; NULL = from
    /// rope_theta. This array and the next are read during the call only.
    const float *rope_inv_freq;
    /// The position of each of the rope_tokens tokens; NULL = counting from rope_first_position.
    const uint32_t *rope_positions;
} mnnkv_gear_options;

/// How to decode. Zero every field, then set struct_size; a NULL pointer means the same as all zeros.
typedef struct mnnkv_decode_options {
    /// sizeof(mnnkv_decode_options)
    uint32_t struct_size;
    /// Must be 0.
    uint32_t reserved;
    /// The working memory that the call may take, with what the calling thread keeps; more and less than the default
    /// are allowed. 0 = three times src_len and the decoded length together, and 256 KiB.
    uint64_t max_working_bytes;
} mnnkv_decode_options;

/// A layer's packed KV cache: one buffer for K, one for V, in each one region per KV head. With D = head_dim,
/// lP = l_pack, hP = h_pack, F = flash_block and UP(a, b) = a / b rounded up, an element lies within its head at
///
///   K [max_tokens/hP][D/lP][hP][lP]
///     (t/hP)*UP(D,lP)*lP*hP + (d/lP)*hP*lP + (t%hP)*lP + d%lP
///   V [max_tokens/F][D/hP][F/lP][hP][lP], u = t%F
///     (t/F)*UP(D,hP)*s + (d/hP)*s + (u/lP)*hP*lP + (d%hP)*lP + u%lP      with s = UP(F,lP)*lP*hP
///
/// as in MNN 3.6 (CPUKVCacheManager). Lanes and dims that only fill up a packing unit are padding; no function but
/// mnnkv_kv_release writes them.
///
/// MNN's packing, element type first: Arm 64 fp16 f16 1/16, Arm 64 f32 1/8, Arm 32 f32 1/4, Arm bf16 1/8 (ARMv8.6:
/// 4/8), SME2 f32 1/64 and f16 2/64, x86 SSE and AVX2 f32 1/4, x86 AVX-512 f32 1/8, x86 bf16 8/4 (l_pack/h_pack).
///
/// Row-major caches, as llama.cpp has them, are packings of one, with N = kv_heads * head_dim and S bytes an element:
///
///   K [token][head][dim]        l_pack 1, h_pack 1, key_token_stride N*S
///   V [token][head][dim]        flash_block 1, value_token_stride N*S (flash attention)
///   V [head][dim][token]        flash_block max_tokens, no value_token_stride (transposed)
///
///   mnnkv_layout l = {0};                   // K and V of a tensor row per token, f16
///   l.struct_size = sizeof l;
///   l.key_dtype = l.value_dtype = MNNKV_DTYPE_F16;
///   l.kv_heads = 8; l.head_dim = 128; l.max_tokens = n_ctx;
///   l.l_pack = l.h_pack = 1;
///   l.key_token_stride = 8 * 128 * 2;       // ggml's nb of the token dimension
///   l.flash_block = 1; l.value_token_stride = 8 * 128 * 2;
///   // or, where V is transposed: l.flash_block = n_ctx; l.value_token_stride = 0;
typedef struct mnnkv_layout {
    /// sizeof(mnnkv_layout)
    uint32_t struct_size;
    /// MNNKV_DTYPE_* of K: F16, BF16 or F32.
    uint32_t key_dtype;
    /// MNNKV_DTYPE_* of V.
    uint32_t value_dtype;
    /// KV heads (not query heads), at least 1.
    uint32_t kv_heads;
    /// Elements per head and token, at least 1.
    uint32_t head_dim;
    /// MNN's eP. It packs the query and enters no KV index; any value.
    uint32_t e_pack;
    /// MNN's lP, at least 1.
    uint32_t l_pack;
    /// MNN's hP, at least 1.
    uint32_t h_pack;
    /// Tokens per value block, at least 1: 64 with flash attention, max_tokens without.
    uint32_t flash_block;
    /// Tokens the buffers have room for, at least 1.
    uint32_t max_tokens;
    /// Bytes from one head's K to the next, a multiple of the element size; 0 = heads lie side by side.
    uint64_t key_head_stride;
    /// Bytes from one head's V to the next, a multiple of the element size; 0 = heads lie side by side.
    uint64_t value_head_stride;
    /// Bytes from one token's K to the next of the same head, a multiple of the element size, where h_pack is 1: a
    /// row-major cache. 0 = tokens lie side by side. With a token stride, key_head_stride 0 means that the heads of a
    /// token lie side by side inside it (INVALID_ARGUMENT where they do not fit), and any head stride that keeps them
    /// inside the token stride, or apart by whole heads, is accepted.
    uint64_t key_token_stride;
    /// As key_token_stride, for V, where flash_block is 1.
    uint64_t value_token_stride;
} mnnkv_layout;

/// When and how much to evict. Start from mnnkv_h2o_config_default; a NULL pointer means those defaults.
typedef struct mnnkv_h2o_config {
    /// sizeof(mnnkv_h2o_config)
    uint32_t struct_size;
    /// Tokens per block, the unit of scores and of eviction; 0 = 64.
    uint32_t block_tokens;
    /// The first tokens, which always stay with the blocks they touch; default 32, 0 = none.
    uint32_t sink_tokens;
    /// The last tokens, which always stay with the blocks they touch; default 256, 0 = none (but a last block that is
    /// not full stays).
    uint32_t recent_tokens;
    /// MNNKV_TARGET_STATIC or MNNKV_TARGET_ADAPTIVE; 0 = adaptive.
    uint32_t target_mode;
    /// Static mode: share of the cache to keep, clamped to 0 .. 1; default 0.5.
    float target_keep_ratio;
    /// Adaptive mode: cache length over kept tokens, below 1 counts as 1; 0 = 3.5.
    float target_lossy_ratio;
    /// Weight of the old score in mnnkv_h2o_update_scores, 0 .. 1; default 0.9. Plans do not read it.
    float ema_alpha;
    /// Evict from this length on; 0 = 512. For the host's (or session's) trigger; plans do not read it.
    uint32_t trigger_min_tokens;
    /// Steps between evictions; 0 = 16. Plans do not read it.
    uint32_t update_interval;
    /// First layer to evict from; default 2. Plans do not read it.
    int32_t layer_start;
    /// Last layer to evict from, -1 = the last of the model; default -1. Plans do not read it.
    int32_t layer_end;
    /// Tokens to keep, whatever the mode and the length; 0 = from the ratio.
    uint32_t target_tokens;
    /// Must be 0.
    uint32_t reserved[3];
} mnnkv_h2o_config;

/// What a plan does, and why that much. Set struct_size before the call; the fields it covers are written.
typedef struct mnnkv_h2o_plan {
    /// sizeof(mnnkv_h2o_plan)
    uint32_t struct_size;
    /// Tokens that stay.
    uint32_t kept_tokens;
    /// Tokens that go.
    uint32_t evicted_tokens;
    /// 1 when the protected tokens alone reach the target: nothing is evicted, since only protected tokens would
    /// be left.
    uint32_t floor_dominates;
    /// Share of the cache in protected blocks.
    float floor_keep;
    /// Share aimed at: the target, or the floor where that is more.
    float target_keep_effective;
    /// That share rounded up to whole blocks.
    float block_quantized_keep;
    /// Cache length over kept tokens; 1 for an empty cache.
    float lossy_ratio;
} mnnkv_h2o_plan;

/// How a store works. Zero every field, then set struct_size; a NULL pointer means the same as all zeros.
typedef struct mnnkv_store_config {
    /// sizeof(mnnkv_store_config)
    uint32_t struct_size;
    /// Threads of the store, at most 64; 0 = work inside the calls.
    uint32_t workers;
    /// MNNKV_PREDICT_* of the format to try on K; 0 = all.
    uint32_t key_predictors;
    /// MNNKV_PREDICT_* of the format to try on V; 0 = all.
    uint32_t value_predictors;
    /// As mnnkv_gear_options::effort.
    int32_t effort;
    /// MNNKV_GEAR_FORMAT_* of the blobs; 0 = V1, which decodes fastest.
    uint32_t format;
    /// Blocks that may wait for a worker to encode them; 0 = 256.
    uint32_t max_queue;
    /// 1 = decode every block once after encoding it and compare; one that differs stays raw (failed_blocks). 0 = the
    /// digest that every restore checks is enough.
    uint32_t strict_roundtrip;
    /// Bytes of copies that wait and of blobs that have not replaced raw bytes yet; one block is let in where there are
    /// none. Without workers not used. 0 = as many as max_queue allows.
    uint64_t pending_bytes;
    /// Bytes of decoded rows that the store keeps beside the caches, so that restoring them again needs no decoding.
    /// Each layer with blocks has an equal share, and a block larger than that is not kept. 0 = none.
    uint64_t decode_cache_bytes;
} mnnkv_store_config;

/// What a store holds and has done. Set struct_size before the call; the fields it covers are written.
typedef struct mnnkv_store_statistics {
    /// sizeof(mnnkv_store_statistics)
    uint32_t struct_size;
    /// 0.
    uint32_t reserved;
    /// Now: blocks whose raw bytes are in the cache too.
    uint64_t resident_blocks;
    /// Now: blocks whose raw bytes are only in the store.
    uint64_t released_blocks;
    /// Now: raw bytes of all tokens that the blobs stand for.
    uint64_t raw_bytes;
    /// Now: bytes of all blobs. raw_bytes / compressed_bytes is the lossless ratio.
    uint64_t compressed_bytes;
    /// Now: raw bytes of tokens that are only in the store.
    uint64_t released_raw_bytes;
    /// Ever: blocks encoded.
    uint64_t submitted_blocks;
    /// Ever: blocks that would not have shrunk and were left raw.
    uint64_t no_gain_blocks;
    /// Ever: blocks dropped because the cache no longer matched them; their tokens stayed raw.
    uint64_t stale_blocks;
    /// Ever: blocks written back.
    uint64_t restored_blocks;
    /// Ever: bytes that went back to the system.
    uint64_t released_bytes;
    /// Ever: bytes written back to the cache.
    uint64_t restored_bytes;
    /// Ever: raw bytes encoded.
    uint64_t encoded_bytes;
    /// Ever: nanoseconds spent encoding them.
    uint64_t encode_ns;
    /// Ever: raw bytes decoded.
    uint64_t decoded_bytes;
    /// Ever: nanoseconds spent decoding them.
    uint64_t decode_ns;
    /// Ever: what encoded_bytes became; as they were where nothing was gained.
    uint64_t encoded_to_bytes;
    /// Now: blocks that wait for a worker or are with one, to be encoded.
    uint64_t queued_blocks;
    /// Ever: the most that were queued at once.
    uint64_t queue_peak;
    /// Ever: blocks that submit refused with BUSY.
    uint64_t busy_blocks;
    /// Ever: blocks that could not be encoded, or failed the strict check; their tokens stayed raw.
    uint64_t failed_blocks;
    /// Ever: of restored_blocks, those that a prefetch had decoded.
    uint64_t prefetch_hits;
    /// Ever: of restored_blocks, those whose decoded rows were kept.
    uint64_t cache_hits;
    /// Ever: of restored_blocks, those decoded inside mnnkv_store_restore.
    uint64_t cache_misses;
    /// Now: bytes of decoded rows beside the caches.
    uint64_t decoded_cache_bytes;
} mnnkv_store_statistics;

/// The arguments of mnnkv_session_create. Zero every field, then set those that are needed.
typedef struct mnnkv_session_options {
    /// sizeof(mnnkv_session_options)
    uint32_t struct_size;
    /// MNNKV_ABI_VERSION
    uint32_t abi_version;
    /// Layers of the model, 1 to 4,096.
    uint32_t layers;
    /// Attention threads that may call mnnkv_session_scores at once, 1 to 1,024.
    uint32_t lanes;
    /// A JSON object, such as the host's own config: keys that begin with kv_h2o_ or kv_lossless_ are read, others are
    /// ignored. docs/config.md lists them with types, ranges and defaults. Unless kv_h2o_enable is true no token is
    /// evicted; unless kv_lossless_enable and kv_lossless_runtime_enable are true no token is compressed. NULL = no keys.
    const char *config_json;
    /// Bytes of config_json; no terminating zero needed.
    size_t config_len;
    /// A JSON object of the defaults that the host recommends: its keys hold where config_json has none. They are checked
    /// alike; a key without effect is no warning. NULL = those of docs/config.md.
    const char *defaults_json;
    /// Bytes of defaults_json.
    size_t defaults_len;
} mnnkv_session_options;

/// A layer's cache as it is now.
typedef struct mnnkv_cache {
    /// sizeof(mnnkv_cache)
    uint32_t struct_size;
    /// What the buffers look like. Packing and max_tokens may change from call to call (a cache that has grown); heads,
    /// head_dim and element types may not.
    const struct mnnkv_layout *layout;
    /// K of all heads.
    void *key;
    /// V of all heads.
    void *value;
    /// In: physical tokens in the cache. Out, on success of begin and keep: how many there are now.
    uint32_t kv_len;
} mnnkv_cache;

/// The softmax values of one query head for some tokens, as attention has them before it multiplies by V.
///
/// data holds exp(x - m) with m the largest x of the row so far (flash attention), or finished probabilities. What the
/// session makes of it is exact: a value times every later update_scale of its row, divided by row_sum.
typedef struct mnnkv_score_tile {
    /// sizeof(mnnkv_score_tile)
    uint32_t struct_size;
    /// MNNKV_DTYPE_F16, BF16 or F32: of data.
    uint32_t dtype;
    /// Order of data: [UP(tokens, pack)][queries][pack], with anything in the lanes past the last token; 0 = rows
    /// [queries][tokens]. MNN's tiles have 4, 8 or 16.
    uint32_t pack;
    /// Query rows, at least 1: all rows of the step, the same in every tile of a head. A host that computes several query
    /// heads together may give them as rows of one tile, which saves calls; see heads. pack then says how far rows are
    /// apart, when it is not less than tokens.
    uint32_t queries;
    /// Tokens, at least 1.
    uint32_t tokens;
    /// Physical position of the first token.
    uint32_t token_begin;
    /// MNNKV_TILE_FIRST, MNNKV_TILE_LAST, both or 0.
    uint32_t flags;
    /// Query heads that the rows belong to: [heads][queries / heads]. Read in the first tile of a head. queries is a multiple
    /// of it. 0 = not said: one head, or outside prompts any number. A step's rows say what a prompt is, so tiles of more
    /// than 64 rows that do not say are added up either way, which takes longer; and in a prompt of which only some rows
    /// count such a tile is one head.
    uint32_t heads;
    /// The values, 0 or more; no alignment needed. NaN, infinity and negative sums are found with the last tile.
    const void *data;
    /// [queries] or NULL (all 1): multiplies what this head gathered so far, before this tile (exp(old maximum - new
    /// maximum)). Not read in the first tile of a head.
    const float *update_scale;
    /// [queries] or NULL (all 1): the sum of each row over all tokens. With the last tile only.
    const float *row_sum;
} mnnkv_score_tile;

/// What a session has measured, of one layer or of all together. NaN is "not measured": nothing of the kind has happened,
/// or it is switched off. A count of 0 is a measurement. Set struct_size before the call; the fields it covers are
/// written. Counts and sums are since the session was made; ratios and tokens are of now.
typedef struct mnnkv_metrics {
    /// sizeof(mnnkv_metrics)
    uint32_t struct_size;
    /// 0.
    uint32_t reserved;
    /// Ratio: tokens in the caches over the chat's, of the layers that tokens are evicted from.
    double h2o_keep_ratio;
    /// Ratio: the chat's tokens over those in the caches, of the layers that tokens are evicted from.
    double h2o_lossy_ratio;
    /// Ratio: raw bytes over compressed bytes; blocks that stayed raw count as 1.
    double h2o_lossless_ratio;
    /// Ratio: share of the chat (basis physical: of the cache) that the last plans aimed at: the target, or the protected
    /// tokens where those are more; mean over layers.
    double h2o_target_keep_effective;
    /// Ratio: share of it in protected (first and recent) blocks; mean over layers.
    double h2o_floor_keep_by_recent_sink;
    /// Ratio: the share aimed at, rounded up to whole blocks; mean over layers.
    double h2o_block_quantized_keep;
    /// Microseconds: evicting, that is moving the tokens that stay and giving the pages behind them back; sum.
    double h2o_evict_us;
    /// Microseconds: encoding and decoding; sum.
    double h2o_codec_us;
    /// Bytes: raw size of all blocks that were encoded.
    double h2o_lossless_raw_bytes;
    /// Bytes: what those blocks became; raw ones count with their raw size.
    double h2o_lossless_compressed_bytes;
    /// Bytes: raw size of all that was decoded.
    double h2o_lossless_decompressed_bytes;
    /// Microseconds: encoding; sum.
    double h2o_lossless_compress_us;
    /// Microseconds: decoding; sum.
    double h2o_lossless_decompress_us;
    /// Count: most blocks that ever waited for a worker or were with one; needs workers.
    double h2o_lossless_queue_depth_peak;
    /// Count: blocks that stayed raw, and plans that were not made, because something failed.
    double h2o_lossless_fallback_count;
    /// Count: blocks that were skipped because the queue was full.
    double h2o_lossless_backpressure_skip_count;
    /// Count: the same as h2o_lossless_queue_depth_peak, where there are workers.
    double h2o_lossless_async_queue_peak;
    /// Microseconds: begin restoring compressed tokens, waiting for workers included; sum.
    double h2o_lossless_async_wait_us;
    /// Count: restored blocks whose decoded rows were there, decoded ahead or kept.
    double h2o_lossless_decode_cache_hit;
    /// Count: restored blocks that begin had to decode.
    double h2o_lossless_decode_cache_miss;
    /// Tokens: evicted by the last eviction, summed over layers.
    double h2o_last_evict_tokens;
    /// Tokens: evicted by all evictions, summed over layers.
    double h2o_total_evict_tokens;
    /// Tokens: the chat's length, with those that were evicted, summed over layers.
    double h2o_logical_tokens;
    /// Tokens: what the caches hold, summed over layers.
    double h2o_physical_tokens;
    /// Microseconds: turning what the lanes gathered into scores, at end; sum. The time that attention threads spend in
    /// mnnkv_session_scores is not measured: asking for it would cost as much as a tile.
    double h2o_score_us;
    /// Microseconds: deciding what stays; sum.
    double h2o_plan_us;
    /// Count: plans made.
    double h2o_plan_count;
    /// Count: plans dropped because the cache had changed.
    double h2o_stale_plan_count;
    /// Bytes: memory given back to the system, ever.
    double h2o_released_bytes;
    /// Bytes: memory that the caches do not take now, since tokens were evicted (whole pages behind those that are left, and
    /// tokens that the buffers have no room for) or are only in the store (whole pages that they have left), less the
    /// blobs and decoded rows kept for them. Memory that the system does not drop is not in it, nor the threads' working
    /// memory. Below 0 where blobs take more than went back.
    double h2o_resident_saved_bytes;
    /// Bytes: tails of the caches behind their tokens; a host could move to buffers this much smaller.
    double h2o_reclaimable_bytes;
    /// Count: blocks written back to a cache.
    double h2o_lossless_restored_blocks;
    /// Bytes: raw size of what was written back.
    double h2o_lossless_restored_bytes;
    /// Count: restored blocks whose decoded rows had been kept from an earlier step.
    double h2o_lossless_restore_hit;
    /// Count: restored blocks that were decoded ahead.
    double h2o_lossless_prefetch_hit;
    /// Count: restored blocks that should have been decoded ahead and were not.
    double h2o_lossless_prefetch_miss;
    /// Count: compressed blocks dropped because the cache had changed.
    double h2o_lossless_stale_count;
    /// Microseconds: what begin spent on restoring, where there was something; half of the calls took less.
    double h2o_host_wait_us_p50;
    /// Microseconds: as above; 95 of 100 calls took less.
    double h2o_host_wait_us_p95;
    /// Microseconds: as above, the longest.
    double h2o_host_wait_us_max;
    /// Count: plans that were not made, or left more tokens than the config says, since no scored row has seen them;
    /// see kv_h2o_evict_unscored.
    double h2o_unscored_plan_count;
    /// Count: steps that left more tokens in a cache than kv_h2o_max_tokens, where there is such a limit.
    double h2o_over_limit_count;
} mnnkv_metrics;

/// Success.
#define MNNKV_OK 0

/// An argument is outside what the function allows.
#define MNNKV_INVALID_ARGUMENT 1

/// An output buffer is too small; a length output of the call holds what is needed.
#define MNNKV_BUFFER_TOO_SMALL 2

/// Encoded input is malformed.
#define MNNKV_CORRUPT 3

/// Well-formed, but this version of the library cannot do it.
#define MNNKV_UNSUPPORTED 4

/// The named thing does not exist.
#define MNNKV_NOT_FOUND 5

/// A bounded queue is full; nothing was done, try again later.
#define MNNKV_BUSY 6

/// A plan or block no longer fits the cache.
#define MNNKV_STALE 7

/// The operating system refused a read or write.
#define MNNKV_IO 8

/// Memory could not be had; nothing was changed.
#define MNNKV_OUT_OF_MEMORY 9

/// A bug in the library was caught. The handle answers INTERNAL from now on; destroying it still works.
#define MNNKV_INTERNAL 100

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/// The name of a status without its prefix, such as "CORRUPT"; "UNKNOWN" for any other number.
/// The text is static. Any thread.
const char *mnnkv_status_name(mnnkv_status status);

/// One sentence about the last call that failed on the calling thread: what was given and what was allowed.
/// Empty when none failed. UTF-8 of at most 1,023 bytes, never NULL; valid until the next mnnkv call on this thread. A successful call
/// leaves it as it is, so look at the status first.
const char *mnnkv_last_error(void);

/// The version of the library that is loaded, as MNNKV_VERSION_NUMBER counts it. Any thread.
uint32_t mnnkv_version(void);

/// The ABI number of the library that is loaded. Any thread.
uint32_t mnnkv_abi_version(void);

/// The SIMD level in use: "portable", "sse2", "avx2", "avx512" or "neon". The environment variable MNNKV_CPU_LEVEL, one
/// of these names, read once, can lower it; other values are ignored. Results never depend on it. The text is static.
/// Any thread.
const char *mnnkv_cpu_level(void);

/// The capacity that is always enough to encode src_len bytes of dtype (MNNKV_DTYPE_F16, BF16, F32 or INT8) in any
/// format that can hold them: a little over src_len. 0 when none can: length 0, not a whole number of words, or larger
/// than memory. Any thread.
size_t mnnkv_gear_bound(size_t src_len,
                        uint32_t dtype);

/// Encodes src_len bytes of fp16 words, bit-exactly whatever the bits are.
///
/// src: little-endian words, at least one; [head][token][dim], though other orders only compress worse.
/// dst: dst_cap bytes that do not overlap src; mnnkv_gear_bound is always enough. dst_len: bytes written.
/// INVALID_ARGUMENT: src_len is 0 or no whole number of words (with a rotation hint: of rows), or over V1's limit of
/// 4,261,672,974 words (it counts in 32 bits, overhead included); an option is out of range or does not fit src_len.
/// UNSUPPORTED: format V1 with BF16 or INT8 words.
/// BUFFER_TOO_SMALL: *dst_len is what this input needs; dst is untouched.
/// OUT_OF_MEMORY: dst is untouched.
/// Working memory is at most six times src_len and 2 MiB, whatever the options. The calling thread keeps it for its next
/// call of this kind (mnnkv_thread_trim gives it back), at most as much as its largest call may take, beside what decoding
/// keeps. Any thread.
mnnkv_status mnnkv_encode_fp16_gear(const void *src,
                                    size_t src_len,
                                    const struct mnnkv_gear_options *options,
                                    void *dst,
                                    size_t dst_cap,
                                    size_t *dst_len);

/// Decodes a blob of either format that mnnkv_encode_fp16_gear made (BF16: also V1 blobs of bf16 words that were
/// passed as fp16). The blob may come from anywhere: it is checked throughout.
///
/// dst: dst_cap bytes that do not overlap src. dst_len: bytes written. To ask for the size, pass dst NULL and
/// dst_cap 0: the answer is BUFFER_TOO_SMALL and *dst_len, from headers that agree with each other. It is the blob's
/// claim: bound it before you allocate for a blob from elsewhere.
/// CORRUPT: the blob is malformed; dst is untouched. A damaged or cut V2 blob is always refused, by its checksums. V1
/// has none: with flipped bits it may decode to other words of the right number.
/// INVALID_ARGUMENT: the V2 blob holds words of another type. UNSUPPORTED: a V2 blob of a later version of the library
/// that this one cannot read, or one whose damage looks like that.
/// OUT_OF_MEMORY: dst is untouched.
/// Working memory is at most three times src_len and the decoded length together and 256 KiB, whatever the blob: one
/// that takes more is OUT_OF_MEMORY, which no encoder of this library wrote (mnnkv_decode_gear has another limit). The
/// calling thread keeps it for its next call (mnnkv_thread_trim gives it back), beside what encoding keeps. Any thread.
mnnkv_status mnnkv_decode_fp16_gear(const void *src,
                                    size_t src_len,
                                    void *dst,
                                    size_t dst_cap,
                                    size_t *dst_len);

/// As mnnkv_encode_fp16_gear, for bf16 words. Format V2 only.
mnnkv_status mnnkv_encode_bf16_gear(const void *src,
                                    size_t src_len,
                                    const struct mnnkv_gear_options *options,
                                    void *dst,
                                    size_t dst_cap,
                                    size_t *dst_len);

/// As mnnkv_decode_fp16_gear, for bf16 words.
mnnkv_status mnnkv_decode_bf16_gear(const void *src,
                                    size_t src_len,
                                    void *dst,
                                    size_t dst_cap,
                                    size_t *dst_len);

/// As mnnkv_encode_fp16_gear, for 4-byte words. Both formats.
mnnkv_status mnnkv_encode_fp32_gear(const void *src,
                                    size_t src_len,
                                    const struct mnnkv_gear_options *options,
                                    void *dst,
                                    size_t dst_cap,
                                    size_t *dst_len);

/// As mnnkv_decode_fp16_gear, for 4-byte words.
mnnkv_status mnnkv_decode_fp32_gear(const void *src,
                                    size_t src_len,
                                    void *dst,
                                    size_t dst_cap,
                                    size_t *dst_len);

/// As mnnkv_encode_fp16_gear, for one-byte words, such as a quantised cache. Format V2 only; a rotation hint is
/// INVALID_ARGUMENT.
mnnkv_status mnnkv_encode_int8_gear(const void *src,
                                    size_t src_len,
                                    const struct mnnkv_gear_options *options,
                                    void *dst,
                                    size_t dst_cap,
                                    size_t *dst_len);

/// As mnnkv_decode_fp16_gear, for one-byte words, such as a quantised cache.
mnnkv_status mnnkv_decode_int8_gear(const void *src,
                                    size_t src_len,
                                    void *dst,
                                    size_t dst_cap,
                                    size_t *dst_len);

/// As mnnkv_decode_fp16_gear, for words of dtype (MNNKV_DTYPE_F16, BF16, F32 or INT8) and with options, which may be
/// NULL.
///
/// OUT_OF_MEMORY: also when the blob takes more working memory than options->max_working_bytes; mnnkv_last_error has
/// both numbers. dst is untouched. Any thread.
mnnkv_status mnnkv_decode_gear(const void *src,
                               size_t src_len,
                               uint32_t dtype,
                               const struct mnnkv_decode_options *options,
                               void *dst,
                               size_t dst_cap,
                               size_t *dst_len);

/// Reads a list of V1's predictors as hosts' configs have it, such as "raw,delta_seq,xor_seq", into the bits of
/// mnnkv_gear_options::predictors.
///
/// list: len bytes of text without a terminator; NULL with len 0 is the empty list. Blanks around names and unknown
/// names are ignored; a list with no known name means raw. INVALID_ARGUMENT: the text is not UTF-8. Any thread.
mnnkv_status mnnkv_predictors_parse(const char *list,
                                    size_t len,
                                    uint32_t *predictors);

/// Frees the working memory that encode and decode calls left with the calling thread. Never needed for
/// correctness; useful after a rare large call. Any thread.
void mnnkv_thread_trim(void);

/// Checks a layout. key_bytes, value_bytes: sizes of the two buffers, all heads, up to the end of the last head.
/// INVALID_ARGUMENT names the field that is wrong; UNSUPPORTED is a quantised dtype. Any thread.
mnnkv_status mnnkv_layout_check(const struct mnnkv_layout *layout,
                                uint64_t *key_bytes,
                                uint64_t *value_bytes);

/// Where K of one token and dim lies within its head, in elements. For tests and debugging: to copy tokens, gather.
/// Any thread.
mnnkv_status mnnkv_key_index(const struct mnnkv_layout *layout,
                             uint32_t token,
                             uint32_t dim,
                             uint64_t *element);

/// Where V of one token and dim lies within its head, in elements. Any thread.
mnnkv_status mnnkv_value_index(const struct mnnkv_layout *layout,
                               uint32_t token,
                               uint32_t dim,
                               uint64_t *element);

/// Copies tokens begin .. begin + count out of a packed cache.
///
/// key, value: the buffers of the layout. key_out, value_out: dense rows [head][token][dim], kv_heads * count *
/// head_dim elements each; cap_each is the capacity of each in bytes. No buffer may overlap another that is written.
/// INVALID_ARGUMENT: the range is not inside max_tokens. BUFFER_TOO_SMALL: cap_each; mnnkv_last_error says what is
/// needed. Any thread, also on the same cache as long as nobody writes it.
mnnkv_status mnnkv_kv_gather(const struct mnnkv_layout *layout,
                             const void *key,
                             const void *value,
                             uint32_t begin,
                             uint32_t count,
                             void *key_out,
                             void *value_out,
                             size_t cap_each);

/// Copies dense rows [head][token][dim] into tokens begin .. begin + count of a packed cache; the inverse of gather.
///
/// len_each: bytes in each of key_in and value_in, exactly those of the range (where K and V have element types of
/// different size: those of the larger, and the smaller one's bytes lie at the start of its buffer). Padding and
/// other tokens are untouched. One thread per cache.
mnnkv_status mnnkv_kv_scatter(const struct mnnkv_layout *layout,
                              const void *key_in,
                              const void *value_in,
                              size_t len_each,
                              uint32_t begin,
                              uint32_t count,
                              void *key,
                              void *value);

/// Moves count tokens from src to dst inside a packed cache, as memmove: the ranges may overlap. Tokens of src that
/// are not in dst keep what they hold. One thread per cache.
mnnkv_status mnnkv_kv_move(const struct mnnkv_layout *layout,
                           void *key,
                           void *value,
                           uint32_t src,
                           uint32_t dst,
                           uint32_t count);

/// Evicts tokens: keeps tokens below base and the reserve pairs, closes the gaps, and says the new length.
///
/// reserve_pairs: n_pairs times (offset, length), relative to base as in MNN's KVMeta, ascending and disjoint, inside
/// kv_len - base; a length may be 0. n_pairs 0 keeps only tokens below base. kv_len: tokens now in the cache.
/// new_len: base plus all lengths. Tokens from *new_len on hold anything afterwards.
/// INVALID_ARGUMENT: a pair or the lengths are wrong; all are checked before the first byte moves. One thread per
/// cache.
mnnkv_status mnnkv_kv_compact(const struct mnnkv_layout *layout,
                              void *key,
                              void *value,
                              uint32_t base,
                              const int32_t *reserve_pairs,
                              size_t n_pairs,
                              uint32_t kv_len,
                              uint32_t *new_len);

/// Sets tokens begin .. begin + count to zero bits. Padding and other tokens are untouched. One thread per cache.
mnnkv_status mnnkv_kv_zero(const struct mnnkv_layout *layout,
                           void *key,
                           void *value,
                           uint32_t begin,
                           uint32_t count);

/// As mnnkv_kv_zero, and gives the whole memory pages inside the range back to the system; the addresses stay valid
/// and take memory again when written. Padding of the released tokens is zeroed, too, so that it keeps no page.
///
/// bytes: what left memory (pages that were not in memory do not count). The contents are zero whatever the memory is;
/// pages go back where the system can drop them. Linux and Android: private anonymous memory (malloc, new, anonymous
/// mmap) by madvise(MADV_DONTNEED); shared memory, file mappings, locked memory and huge pages of hugetlbfs are zeroed
/// and stay. macOS: MADV_FREE_REUSABLE. Windows trims the working set. Elsewhere tokens are only zeroed and bytes is 0.
/// K goes back in whole groups of h_pack tokens, V in whole flash blocks, as far as they cover pages. One thread per
/// cache.
mnnkv_status mnnkv_kv_release(const struct mnnkv_layout *layout,
                              void *key,
                              void *value,
                              uint32_t begin,
                              uint32_t count,
                              uint64_t *bytes);

/// Where a cache of kv_len tokens holds nothing: *begin is kv_len, *count what is left up to max_tokens, and *bytes how
/// much of the two buffers that is, the tails of every head.
///
/// What eviction leaves behind: mnnkv_kv_release(begin, count) gives its pages back, in place, and counts how many were
/// in memory; buffers of kv_len tokens would be this much smaller. Padding is not counted.
/// INVALID_ARGUMENT: kv_len over max_tokens. Any thread.
mnnkv_status mnnkv_kv_tail(const struct mnnkv_layout *layout,
                           uint32_t kv_len,
                           uint32_t *begin,
                           uint32_t *count,
                           uint64_t *bytes);

/// Fills in the defaults named at the fields, struct_size included. NULL is ignored. Any thread.
void mnnkv_h2o_config_default(struct mnnkv_h2o_config *config);

/// Folds a step's attention into the scores: score = alpha * score + (1 - alpha) * block_acc / norm.
///
/// scores: one number per block, 0 for a new block; changed in place. block_acc: the attention that the step's softmax
/// rows gave to each block, summed over query heads and queries. norm: heads * queries. n_blocks 0 is legal.
/// INVALID_ARGUMENT: alpha outside 0 .. 1, norm not a positive finite number, a block_acc that is not finite or
/// overflows when divided by norm (the message says which), the two arrays overlap; no score has changed then. Any
/// thread.
mnnkv_status mnnkv_h2o_update_scores(float *scores,
                                     size_t n_blocks,
                                     const float *block_acc,
                                     float alpha,
                                     float norm);

/// Decides which tokens of a cache of kv_len tokens stay: heavy-hitter eviction (H2O, Zhang et al. 2023) by whole
/// blocks, with tokens really dropped.
///
/// scores: n_blocks numbers, block i covers tokens from i * block_tokens on. Missing ones count as 0, further ones are
/// ignored; NaN counts as the lowest score, and of equal scores the lower block wins.
/// Blocks that touch the first sink_tokens or the last recent_tokens stay; then whole blocks by descending score until
/// the target, rounded up to blocks, is reached.
/// pairs: room for pairs_cap pairs (offset, length), ascending, never touching; ready for mnnkv_kv_compact with base 0.
/// n_pairs: how many. plan: what the pairs amount to. An empty cache gives no pairs; floor_dominates gives the one pair
/// (0, kv_len).
/// INVALID_ARGUMENT: kv_len over 2^31 - 1, an unknown target_mode, NaN as the ratio that is used. BUFFER_TOO_SMALL:
/// *n_pairs is what is needed; half the number of blocks plus one is always enough. Any thread.
mnnkv_status mnnkv_h2o_plan_reserve(const float *scores,
                                    size_t n_blocks,
                                    uint32_t kv_len,
                                    const struct mnnkv_h2o_config *config,
                                    int32_t *pairs,
                                    size_t pairs_cap,
                                    size_t *n_pairs,
                                    struct mnnkv_h2o_plan *plan);

/// Makes an empty store and starts its workers. abi_version: MNNKV_ABI_VERSION. out: the handle, to be given to
/// mnnkv_store_destroy. UNSUPPORTED: the library has another ABI. OUT_OF_MEMORY: also when the system refuses a thread.
/// Any thread.
mnnkv_status mnnkv_store_create(const struct mnnkv_store_config *config,
                                uint32_t abi_version,
                                struct mnnkv_store **out);

/// Frees a store and every blob in it: tokens that are released at that moment are gone, so restore first what is
/// still needed. NULL is ignored. Works on a handle that answers INTERNAL. No other call may be under way.
void mnnkv_store_destroy(struct mnnkv_store *store);

/// Copies tokens begin .. begin + count of a layer out of the cache, to be encoded by a worker, or in the call when
/// there are none. The cache is only read, and not needed once the call returns; the tokens stay raw until
/// mnnkv_store_commit finds them encoded.
///
/// ticket: the block's number, as messages name it. 64 to 256 tokens a block are a good choice. A block that would not
/// shrink is not kept and counted (no_gain_blocks): its tokens stay raw, which is not an error. Submitting the same
/// range with the same content again costs no encoding and returns the ticket it has. A block whose tokens were
/// rewritten since makes way for one that overlaps it and counts as stale (stale_blocks).
/// INVALID_ARGUMENT: count is 0, the range is not inside max_tokens, or it overlaps released tokens or a block of another
/// range that still equals the cache. BUSY: max_queue or pending_bytes is reached; try again in a later step (the call
/// never blocks). OUT_OF_MEMORY: the tokens stay raw, and what the store holds is as before.
mnnkv_status mnnkv_store_submit(struct mnnkv_store *store,
                                uint32_t layer,
                                const struct mnnkv_layout *layout,
                                const void *key,
                                const void *value,
                                uint32_t begin,
                                uint32_t count,
                                uint64_t *ticket);

/// Gives back the raw bytes of every block of the layer that still matches the cache. Safe to call every step.
///
/// The tokens of a released block read as zero until mnnkv_store_restore. A block whose tokens were rewritten since, or
/// that no longer fits the layout, is dropped and counted (stale_blocks): its tokens stay raw.
/// released_bytes: what went back to the system, as mnnkv_kv_release counts it.
mnnkv_status mnnkv_store_commit(struct mnnkv_store *store,
                                uint32_t layer,
                                const struct mnnkv_layout *layout,
                                void *key,
                                void *value,
                                uint64_t *released_bytes);

/// Asks the workers to decode the layer's released blocks, so that the next mnnkv_store_restore only copies them. Never
/// waits. Takes the memory of the layer's raw bytes until then. Without workers it does nothing; OK either way.
mnnkv_status mnnkv_store_prefetch(struct mnnkv_store *store,
                                  uint32_t layer);

/// Writes every released token of the layer back, bit for bit, and keeps the blobs of blocks that are still whole:
/// releasing those again costs no encoding. The blob of a block that an edit has cut is dropped with the restore.
///
/// The layout may have other packing, strides or max_tokens than at submit (a cache that has grown), but the same
/// heads, head_dim and element types. restored_bytes: raw bytes written; 0 when nothing was released.
/// STALE: the layout does not fit a block. CORRUPT: a blob no longer decodes to what was submitted. In both cases the
/// message names the block, it stays in the store, and its tokens in the cache are as before; blocks before it may be
/// restored.
mnnkv_status mnnkv_store_restore(struct mnnkv_store *store,
                                 uint32_t layer,
                                 const struct mnnkv_layout *layout,
                                 void *key,
                                 void *value,
                                 uint64_t *restored_bytes);

/// Says that the layer's tokens were renumbered: only the reserve pairs are left, side by side. Call it right after
/// mnnkv_kv_compact or the host's own move.
///
/// reserve_pairs: n_pairs times (offset, length) in token numbers before the move, counted from 0: after a compact with
/// a base, put (0, base) first and add base to the other offsets. Blocks follow their tokens; released ones lose the
/// tokens that are gone and no others.
/// INVALID_ARGUMENT: pairs that are negative, overlap or do not ascend. OUT_OF_MEMORY: there is no room to cut blocks;
/// call again before any other call for this layer. In both cases the store is as before.
mnnkv_status mnnkv_store_compacted(struct mnnkv_store *store,
                                   uint32_t layer,
                                   const int32_t *reserve_pairs,
                                   size_t n_pairs);

/// Says that the layer's tokens from kv_len on are gone (rollback, history edit; 0 = the cache was cleared).
mnnkv_status mnnkv_store_truncated(struct mnnkv_store *store, uint32_t layer, uint32_t kv_len);

/// Says that the host wrote over tokens begin .. begin + count in place (a K-shift, an edit of keys): blobs of these
/// tokens are void and never restored over them. Comes after the writes and before the layer's next call.
///
/// A K-shift reads what it rewrites, so it comes after mnnkv_store_restore. Tokens that are written without being read
/// need no restore: released blocks keep their other tokens. Blocks that lost tokens count as stale (stale_blocks).
/// INVALID_ARGUMENT: begin + count overflows. OUT_OF_MEMORY: the store is as before; call again before any other call for
/// this layer.
mnnkv_status mnnkv_store_rewritten(struct mnnkv_store *store,
                                   uint32_t layer,
                                   uint32_t begin,
                                   uint32_t count);

/// Reads the counters. Set statistics->struct_size first. May run beside any other call on the store; it waits for a
/// call under way.
mnnkv_status mnnkv_store_stats(const struct mnnkv_store *store,
                               struct mnnkv_store_statistics *statistics);

/// Makes a session. The texts are not retained. Any thread.
///
/// out: the handle; mnnkv_session_destroy frees it.
/// INVALID_ARGUMENT: if layers or lanes is out of range, a text is no JSON object, or a key has a wrong type or range; the
/// message names the key, after "defaults_json" where it is in the defaults. Unknown keys with these prefixes are no
/// error; see mnnkv_session_warnings. UNSUPPORTED: if abi_version is not the library's. OUT_OF_MEMORY: also when the
/// system refuses a thread.
mnnkv_status mnnkv_session_create(const struct mnnkv_session_options *options,
                                  struct mnnkv_session **out);

/// Frees a session, its blobs and its threads, after the job that each is at. Tokens that are compressed at that moment
/// are gone: destroy it with the caches, or right after a begin of each layer. NULL is ignored. Works on a handle that
/// answers INTERNAL. No other call may be under way.
void mnnkv_session_destroy(struct mnnkv_session *session);

/// What was odd about the config but no error, one sentence per line: unknown keys, settings without effect, the length
/// from which on tokens are evicted. A line is added when tokens that were due for eviction stay for want of scores.
///
/// text: room for cap bytes; the text is zero-terminated. len: its length with the zero; 1 when nothing was odd.
/// BUFFER_TOO_SMALL: *len is what is needed now. Threads as mnnkv_session_metrics.
mnnkv_status mnnkv_session_warnings(const struct mnnkv_session *session,
                                    char *text,
                                    size_t cap,
                                    size_t *len);

/// Opens a layer's step, before the host appends. cache->kv_len: the physical tokens that the cache has, as the last
/// end or keep left it; 0 at first and after a reset. With kv_len 0 the cache need not exist yet: layout, key and value may
/// be NULL, and end is the first call that needs them. Tokens that a cache has from elsewhere (a prefix from a file) are
/// told as a step: begin with kv_len 0, which touches no byte then, and end with their number.
///
/// Compressed tokens are back afterwards, bit for bit; the eviction planned at the last end is applied, which moves
/// tokens and gives the pages behind them back; cache->kv_len is the new length, and the host appends there.
/// Decoding of the next layer starts in the background.
/// INVALID_ARGUMENT: no such layer; it is open already; kv_len is another; heads, head_dim or an element type differ
/// from before. CORRUPT, OUT_OF_MEMORY: a token could not be restored; its blob is kept, the cache is not to be read,
/// and the call may be tried again. On any error the layer is not open and no token has moved.
mnnkv_status mnnkv_session_begin(struct mnnkv_session *session,
                                 uint32_t layer,
                                 struct mnnkv_cache *cache);

/// Closes a layer's step, after attention. cache->kv_len: physical tokens now; those past the length at begin are new.
///
/// heads: query heads (not KV heads) that scored, queries: rows of the step, as the model has them, however they came in
/// tiles. Either every head came in whole or none did, which leaves the scores as they were, whatever heads says. queries
/// 0 closes a step without attention: scores that came in are dropped, the layer's clock stands still, and the new tokens
/// up to kv_len stay. For a step that failed as a whole there is mnnkv_session_abort.
/// Cold tokens are copied and handed to the workers; tokens that are compressed leave memory. Trouble there is never an
/// error: the tokens stay raw and a metric counts it.
/// INVALID_ARGUMENT: no such layer; it is not open; kv_len is less than at begin or more than max_tokens; a head is
/// missing, incomplete, or scored tokens past kv_len. The layer is then still open, and nothing has changed.
mnnkv_status mnnkv_session_end(struct mnnkv_session *session,
                               uint32_t layer,
                               uint32_t heads,
                               uint32_t queries,
                               struct mnnkv_cache *cache);

/// Closes a layer's step that failed. cache->kv_len must be what begin left; what the host appended since is no part of the
/// cache, and may be overwritten by the next step. What begin did stays: evicted tokens are gone. Scores that came in are
/// dropped, and the step is not counted, neither by the layer's clock nor by its intervals. Tokens that are compressed
/// leave memory again, as at end. With kv_len 0 the cache need not exist, as for begin.
/// INVALID_ARGUMENT: no such layer; it is not open; kv_len is another; heads, head_dim or an element type differ from
/// before. The layer is then still open.
mnnkv_status mnnkv_session_abort(struct mnnkv_session *session,
                                 uint32_t layer,
                                 struct mnnkv_cache *cache);

/// Takes one softmax tile of an open layer. Layers and rows that are not scored cost next to nothing. Never blocks.
///
/// lane: a number below the session's lanes; one thread per lane at a time, and none while begin, end or reset runs. Tiles
/// of one head come in order in one lane: the first begins at any token, each later one where the one before ends. Which
/// lane has which heads makes no difference to any result. No pointer is retained.
/// A prompt is a step whose layer was empty at begin, or of more than 64 queries per head (the queries of end). In a
/// prompt only the last kv_h2o_prefill_queries rows of each head count; any other step counts all its rows. Memory: two
/// numbers per row and tile in each lane, never rows times tokens.
/// INVALID_ARGUMENT: no such layer or lane; the layer is not open; the tile is out of order, leaves a gap or overlaps the
/// one before, reaches past token 16,777,215 (whether it fits the cache is for end to say), or has a row_sum or
/// update_scale that cannot be; another thread is in this lane. The tile is not taken then, and the right one may follow.
/// Of a layer that is not scored only the struct is checked. A head whose last tile shows that its attention is no number
/// is dropped, and end will miss it. UNSUPPORTED: INT8 tiles.
mnnkv_status mnnkv_session_scores(struct mnnkv_session *session,
                                  uint32_t layer,
                                  uint32_t lane,
                                  const struct mnnkv_score_tile *tile);

/// Whether mnnkv_session_scores has any use for the tiles of a layer's step of so many queries (the queries of end): in the
/// open step, or in the next while the layer is closed. *wanted is 1, or 0 where they may be left out: of layers that
/// tokens are not evicted from, and of prompts while kv_h2o_prefill_queries is 0. Any thread; blocks while another call is
/// under way.
mnnkv_status mnnkv_session_wants_scores(const struct mnnkv_session *session,
                                        uint32_t layer,
                                        uint32_t queries,
                                        uint32_t *wanted);

/// A layer's cache was cleared (MNNKV_ALL_LAYERS: all of them, for a new chat): its tokens, blobs, scores, plan and
/// step clock are forgotten, whatever was under way. Metrics go on.
/// INVALID_ARGUMENT: no such layer; a thread is in mnnkv_session_scores (so, too, begin and end).
mnnkv_status mnnkv_session_reset(struct mnnkv_session *session,
                                 uint32_t layer);

/// Edits a layer's history: only the tokens at these logical positions stay (rollback, erase). Those that were evicted
/// before are gone already; the others move together, and cache->kv_len is the new physical length.
///
/// logical_pairs: n_pairs times (offset, length), ascending, disjoint, inside the logical length; none leaves nothing.
/// Logical positions are renumbered: the first of the first pair becomes 0, whether or not its token is still there,
/// and the logical length becomes the sum of all lengths (tokens keep the rotation they were cached with). Compressed
/// tokens stay compressed until the next begin. Scores go with their tokens; a plan that was waiting is made anew. Call
/// it between steps, for each layer that has a cache.
/// INVALID_ARGUMENT: no such layer; it is open; pairs or kv_len are wrong. Nothing has changed then.
mnnkv_status mnnkv_session_keep(struct mnnkv_session *session,
                                uint32_t layer,
                                const int32_t *logical_pairs,
                                size_t n_pairs,
                                struct mnnkv_cache *cache);

/// The host has written other contents to count tokens from begin on, by physical position, such as keys that it rotated
/// in place to shift positions (K-shift). Blobs of these tokens are void: what the cache has of them counts from now on,
/// and they may be compressed again. Tokens that share a blob with them stay as they are. Scores stay, too.
///
/// Call it right after writing, in an open step for preference: between begin and end every token is there. Between end
/// and the next begin tokens that are compressed read as zero, in K and in V, so a host must have written both in whole.
/// INVALID_ARGUMENT: no such layer; a token past the length that begin, end or keep left. OUT_OF_MEMORY: nothing has
/// changed; call again before anything else of the layer. Threads as begin.
mnnkv_status mnnkv_session_rewritten(struct mnnkv_session *session,
                                     uint32_t layer,
                                     uint32_t begin,
                                     uint32_t count);

/// How many tokens a layer has had since its reset, less those that keep removed (logical), and how many are in its
/// cache (physical); while it is open, as begin left them. Any thread.
mnnkv_status mnnkv_session_lengths(const struct mnnkv_session *session,
                                   uint32_t layer,
                                   uint32_t *logical,
                                   uint32_t *physical);

/// Which logical positions a layer's cache holds, in physical order: n_pairs times (offset, length), ascending, never
/// touching; while it is open, as begin left them. pairs: room for pairs_cap pairs. BUFFER_TOO_SMALL: *n_pairs is what
/// is needed. Any thread.
mnnkv_status mnnkv_session_positions(const struct mnnkv_session *session,
                                     uint32_t layer,
                                     int32_t *pairs,
                                     size_t pairs_cap,
                                     size_t *n_pairs);

/// Reads the metrics of all layers together. Set metrics->struct_size first. May run beside any other call; it waits
/// for one under way.
mnnkv_status mnnkv_session_metrics(const struct mnnkv_session *session,
                                   struct mnnkv_metrics *metrics);

/// As mnnkv_session_metrics, of one layer.
mnnkv_status mnnkv_session_layer_metrics(const struct mnnkv_session *session,
                                         uint32_t layer,
                                         struct mnnkv_metrics *metrics);

/// The metrics as JSON: {"h2o_lossy_ratio": 3.4, ..., "layers": [{"layer": 2, ...}, ...]}, with the names of
/// mnnkv_metrics. What was not measured is absent; layers that were never named are too ("layers" is [] at first).
///
/// text: room for cap bytes; the text is zero-terminated. len: its length with the zero. BUFFER_TOO_SMALL: *len is what
/// is needed now; it may have grown at the next call. Threads as mnnkv_session_metrics.
mnnkv_status mnnkv_session_metrics_json(const struct mnnkv_session *session,
                                        char *text,
                                        size_t cap,
                                        size_t *len);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* MNNKV_H */
