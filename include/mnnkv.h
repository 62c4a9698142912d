// mnnkv.h: status codes, versions, element types, layouts of caches.
//
//   mnnkv/session.h   all that a host needs: a model's KV caches, compressed as a JSON config says
//   mnnkv/layout.h    cache memory in place: gather, move, compact, release; MNN's quantised caches
//   mnnkv/h2o.h       eviction by attention: scores of blocks, plans, and the block sums of a session
//   mnnkv/store.h     cold tokens as blobs, their memory returned to the system
//   mnnkv/gear.h      the lossless codec of fp16, bf16, fp32 and int8 words
//   mnnkv/llama.h     what only llama.cpp needs, of libmnnkv_llama: attention over its own cache, and its states as blobs
//   mnnkv/load.h      the functions of these headers, of a library that is loaded at run time
//   mnnkv/model.h     files that come with a model, of libmnnkv_model
//   mnnkv.hpp         C++ wrappers; mnnkv/model.hpp has those of model.h
//
// Generated from src/ffi by `make header`; do not edit. mnnkv/session.h has the conventions.

#ifndef MNNKV_H
#define MNNKV_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// --- Status ------------------------------------------------------------------------------------------------------------------
//
// Numbers never change meaning.

/// The outcome of a call: MNNKV_OK or a failure below.
typedef int32_t mnnkv_status;

/// Success.
#define MNNKV_OK 0
/// An argument is outside of what the function accepts.
#define MNNKV_INVALID_ARGUMENT 1
/// An output buffer is too small. The length output of the call holds the size that is needed.
#define MNNKV_BUFFER_TOO_SMALL 2
/// Encoded input is malformed.
#define MNNKV_CORRUPT 3
/// Valid, but not supported by this version of the library.
#define MNNKV_UNSUPPORTED 4
/// A file, a name or what a number names does not exist.
#define MNNKV_NOT_FOUND 5
/// A queue is full, a file is in use, or a thread still attends. Nothing was done; the call may be repeated later.
#define MNNKV_BUSY 6
/// A block or plan does not fit the cache, or a file is of another model.
#define MNNKV_STALE 7
/// The system refused a read or write.
#define MNNKV_IO 8
/// The system refused memory. Nothing was changed; the call may be repeated.
#define MNNKV_OUT_OF_MEMORY 9
/// A bug in the library. Every later call on the handle but its _destroy returns INTERNAL; after mnnkv_session_attend only the
/// open step is lost: abort it.
#define MNNKV_INTERNAL 100

/// Returns the name of a status without its prefix, such as "CORRUPT"; "UNKNOWN" for other numbers. Static text.
const char *mnnkv_status_name(mnnkv_status status);

/// Returns one sentence about the calling thread's last failure: what was given, and what is allowed.
/// Where memory is short it may say no more than that. UTF-8, at most 1,023 bytes (of a longer text the middle is left out),
/// never NULL, "" before the first failure. Valid until the thread's next call of this library. A successful call does not
/// clear it.
const char *mnnkv_last_error(void);

// --- Version -----------------------------------------------------------------------------------------------------------------

/// Version of this header.
#define MNNKV_VERSION_MAJOR 0
#define MNNKV_VERSION_MINOR 4
#define MNNKV_VERSION_PATCH 0
/// major * 10000 + minor * 100 + patch
#define MNNKV_VERSION_NUMBER 400
/// The abi_version argument of every function that makes a handle. It changes when older programs can no longer run.
#define MNNKV_ABI_VERSION 1

/// Returns the version of the loaded library, as MNNKV_VERSION_NUMBER.
uint32_t mnnkv_version(void);

/// Returns the ABI version of the loaded library.
uint32_t mnnkv_abi_version(void);

/// Returns the SIMD level in use: "portable", "sse2", "avx2", "avx512" or "neon". Static text.
/// The environment variable MNNKV_CPU_LEVEL, one of these names, may lower the level; it is read once. Results do not
/// depend on the level.
const char *mnnkv_cpu_level(void);

// --- Caches ------------------------------------------------------------------------------------------------------------------
//
// A layer's KV cache is two buffers of the host.

/// Element types: IEEE 754 binary16, bfloat16, IEEE 754 binary32.
#define MNNKV_DTYPE_F16 1
#define MNNKV_DTYPE_BF16 2
#define MNNKV_DTYPE_F32 3
/// MNN's quantised caches (layout.h): 8, 3 and 4 bits.
#define MNNKV_DTYPE_INT8 4
#define MNNKV_DTYPE_TQ3 5
#define MNNKV_DTYPE_TQ4 6

/// The arrangement of a cache: one buffer for K and one for V, in each one region per KV head.
///
/// With D = head_dim, lP = l_pack, hP = h_pack, F = flash_block and UP(a, b) = a / b rounded up, the element of token t
/// and dimension d has this index within its head:
///
///   K  (t/hP)*UP(D,lP)*lP*hP + (d/lP)*hP*lP + (t%hP)*lP + d%lP
///   V  (t/F)*UP(D,hP)*s + (d/hP)*s + (u/lP)*hP*lP + (d%hP)*lP + u%lP    with u = t%F, s = UP(F,lP)*lP*hP
///
/// This is the cache of MNN 3.6 (CPUKVCacheManager). Its l_pack/h_pack: Arm64 f16 1/16, f32 1/8; Arm32 f32 1/4; Arm
/// bf16 1/8, with ARMv8.6 4/8; SME2 f16 2/64, f32 1/64; x86 f32 1/4, with AVX-512 1/8; x86 bf16 8/4. Elements that only
/// complete a pack are padding. Only mnnkv_kv_release writes padding.
///
/// A row-major cache (llama.cpp) has l_pack = h_pack = 1. With N = kv_heads * head_dim * bytes per element:
///
///   K, V [head][token][dim] both strides 0, flash_block 1
///   K [token][head][dim]    key_token_stride N
///   V [token][head][dim]    value_token_stride N, flash_block 1
///   V [head][dim][token]    value_token_stride 0, flash_block max_tokens (transposed V)
///
/// K and V are two buffers that do not overlap: K and V of a token in one interleaved buffer have no layout.
typedef struct mnnkv_layout {
    uint32_t struct_size;         ///< sizeof(mnnkv_layout)
    uint32_t key_dtype;           ///< MNNKV_DTYPE_* of K.
    uint32_t value_dtype;         ///< MNNKV_DTYPE_* of V.
    uint32_t kv_heads;            ///< KV heads (not query heads), at least 1.
    uint32_t head_dim;            ///< Elements per head and token, at least 1.
    uint32_t e_pack;              ///< MNN's eP, which packs queries; not read.
    uint32_t l_pack;              ///< MNN's lP of floating-point K and V, at least 1.
    uint32_t h_pack;              ///< MNN's hP of floating-point K and V, at least 1.
    uint32_t flash_block;         ///< Tokens per flash block of V, at least 1: 64 with flash attention, max_tokens without.
    uint32_t max_tokens;          ///< Tokens that the buffers have room for, at least 1.
    /// Bytes from one head of K to the next, a multiple of the element size (INT8: 4, TQ: 2). 0 = side by side. A head stride is
    /// at least the size of a head, or all heads of a token fit into its token stride.
    uint64_t key_head_stride;
    uint64_t value_head_stride;   ///< The same of V.
    /// Bytes from one token of K to the next of the same head, a multiple of the element size; only with h_pack 1, and 0 where
    /// quantised. 0 = side by side. With a token stride, head stride 0 means that heads of a token lie side by side in it.
    uint64_t key_token_stride;
    uint64_t value_token_stride;  ///< The same of V; only with flash_block 1.
    const struct mnnkv_int8 *int8;       ///< K INT8: its packing and the arrays beside it (layout.h). Not read otherwise.
} mnnkv_layout;

/// A layer's cache at the time of a call.
typedef struct mnnkv_cache {
    uint32_t struct_size;  ///< sizeof(mnnkv_cache)
    /// Packing, strides and max_tokens may change between calls (a larger buffer); heads, head_dim and dtypes not.
    const mnnkv_layout *layout;
    void *key;             ///< The buffer of K, of the size that mnnkv_layout_check returns.
    void *value;           ///< The buffer of V, likewise.
    uint32_t kv_len;       ///< In: physical tokens in the cache. Out, on success of begin and keep: the new number.
} mnnkv_cache;

/// Checks a layout, and returns the bytes of each buffer: all heads, to the end of the last one.
/// INVALID_ARGUMENT: if a field is out of range, or a buffer would not fit in memory
/// UNSUPPORTED: if a quantised cache is none of MNN's
mnnkv_status mnnkv_layout_check(const mnnkv_layout *layout, uint64_t *key_bytes, uint64_t *value_bytes);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MNNKV_H
