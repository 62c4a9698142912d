// mnnkv/layout.h: cache memory in place: gather, move, compact, release; MNN's quantised caches.
//
// Generated from src/ffi/layout by `make header`; do not edit. mnnkv/session.h has the conventions.

#ifndef MNNKV_LAYOUT_H
#define MNNKV_LAYOUT_H

#include "../mnnkv.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- Layout: caches in place -------------------------------------------------------------------------------------------------
//
// Functions on the memory of one cache, without a handle. key and value are the buffers of the layout. Calls that
// write a cache must not overlap other calls on it.

/// Copies tokens begin .. begin + count of a cache to dense rows [head][token], which have the same bytes for every
/// packing. May run on several threads for one cache.
/// key_out, value_out: kv_heads * count rows each. A row is head_dim elements; TQ: its records; K INT8: head_dim codes,
/// then f32 scale, bias and key sum; V INT8: head_dim codes, and after all rows the f32 scales [head][2][head_dim]
/// that they share, scales before biases.
/// cap_each: capacity of each in bytes, at least the larger size of both: with INT8 K and V that is K's, kv_heads * count *
/// (head_dim + 12), or V's, kv_heads * (count + 8) * head_dim.
/// INVALID_ARGUMENT: if the range exceeds max_tokens, or an output overlaps another buffer
/// BUFFER_TOO_SMALL: if cap_each is too small; mnnkv_last_error has the size needed
mnnkv_status mnnkv_kv_gather(const mnnkv_layout *layout, const void *key, const void *value, uint32_t begin, uint32_t count,
                             void *key_out, void *value_out, size_t cap_each);

/// Copies dense rows to tokens begin .. begin + count of a cache, the inverse of gather; the packing may be another.
/// Padding and other tokens are not written. V INT8: mnnkv_kv_changed must follow. With begin 0 the cache takes the scales
/// of value_in: if they are others, all of its tokens must be written, or lose their values. With another begin the cache
/// must have the same.
/// len_each: bytes of key_in and of value_in, exactly those of the range; of the larger one where K and V differ.
/// INVALID_ARGUMENT: if the range exceeds max_tokens, len_each differs from that of the range, a buffer overlaps the
/// cache, or V has other scales
mnnkv_status mnnkv_kv_scatter(const mnnkv_layout *layout, const void *key_in, const void *value_in, size_t len_each,
                              uint32_t begin, uint32_t count, void *key, void *value);

/// Moves count tokens from src to dst, as memmove. Tokens of src outside of dst keep their contents. V INT8:
/// mnnkv_kv_changed must follow.
/// INVALID_ARGUMENT: if a range exceeds max_tokens
mnnkv_status mnnkv_kv_move(const mnnkv_layout *layout, void *key, void *value, uint32_t src, uint32_t dst, uint32_t count);

/// Keeps the tokens below base and those of the reserve pairs, and closes the gaps (eviction, truncation).
/// reserve_pairs: n_pairs times (offset, length), offsets relative to base as in MNN's KVMeta, ascending and disjoint,
/// within kv_len - base; none keeps only the tokens below base.
/// kv_len: tokens in the cache.
/// new_len: base plus all lengths; contents of later tokens are undefined. V INT8 needs no mnnkv_kv_changed.
/// INVALID_ARGUMENT: if a pair, base or kv_len is out of range; no byte has moved
mnnkv_status mnnkv_kv_compact(const mnnkv_layout *layout, void *key, void *value, uint32_t base, const int32_t *reserve_pairs,
                              size_t n_pairs, uint32_t kv_len, uint32_t *new_len);

/// Sets tokens begin .. begin + count to zero. Padding and other tokens are not written. V INT8: mnnkv_kv_changed must
/// follow if the cache has tokens among them.
/// INVALID_ARGUMENT: if the range exceeds max_tokens
mnnkv_status mnnkv_kv_zero(const mnnkv_layout *layout, void *key, void *value, uint32_t begin, uint32_t count);

/// Sets tokens begin .. begin + count and their padding to zero, and returns the whole pages within them to the system.
/// Addresses stay valid; writing takes memory again. K is released in groups of h_pack tokens, V in flash blocks. V
/// INT8: the first flash block keeps its scales; others lose theirs until mnnkv_kv_appended. Key and value sums stay.
/// bytes: bytes that left memory; pages that were not resident do not count. Linux and Android drop private anonymous
/// memory (madvise MADV_DONTNEED); shared, file-backed, locked and hugetlbfs memory is only set to zero. macOS uses
/// MADV_FREE_REUSABLE, Windows trims the working set. Other systems release nothing.
/// INVALID_ARGUMENT: if the range exceeds max_tokens
mnnkv_status mnnkv_kv_release(const mnnkv_layout *layout, void *key, void *value, uint32_t begin, uint32_t count,
                              uint64_t *bytes);

// --- Quantised: MNN's INT8 and TurboQuant caches -----------------------------------------------------------------------------
//
//   attention_mode   1, 2, 9   10     3, 11   12    5, 13   14
//   key_dtype        INT8      INT8   TQ3     TQ3   TQ4     TQ4
//   value_dtype      float     INT8   float   TQ3   float   TQ4
//
// flash_block is 64 from mode 8 on, max_tokens below. MNN's modes 4 and 6 (12 and 14 without flash attention) are
// refused: MNN overruns its buffer of softmax weights. All functions of this header, stores and sessions take these caches.
// Codes, scales, biases and key sums are moved as they are, never computed again. With D = head_dim, F = 64, l and h the
// packs of mnnkv_int8 and UP(a, b) = a / b rounded up, a head is
//
//   K INT8   UP(max_tokens,h) blocks: codes [UP(D,l)][h][l], h f32 scales, h f32 biases
//   V INT8   UP(max_tokens,F) blocks of UP(D,h) groups: codes [F/l][h][l], h f32 scales, h f32 biases (of dims)
//   TQ3/4    max_tokens tokens of D/32 records: f16 scale, 32 indices of 3 or 4 bits
//
// The flash blocks of an INT8 V share the scales of the first one. MNN's kernels read V right only if each block has
// them, codes after the last token are 0, and value_sum is the sum of the tokens; those of x86 do without the last
// two. mnnkv_kv_compact and sessions keep V so (mnnkv_session_abort clears what was appended); they do not mend scales. A host
// of an INT8 V calls
//
//   mnnkv_kv_appended    after each append, before attention; with a session, too
//   mnnkv_kv_changed     after mnnkv_kv_scatter, _move and _zero, after writing tokens in place, after a truncation of
//                        its own (with a session mnnkv_session_keep truncates), and with kv_len 0 and all tokens before
//                        it uses the memory of a cleared cache again; with a session only between begin and end, since
//                        stored tokens read as zero otherwise
//   mnnkv_kv_release     without a session, for a tail that was released, again after an append that began at a
//                        multiple of 64: MNN has written scales to all blocks
//
// An INT8 layer without tokens must not get an append of one token: MNN would keep its scales for all later tokens.

/// Packing of an INT8 cache, and the arrays that MNN (CPUKVCacheManager) has beside it. Lengths are in bytes. No call
/// retains them, and MNN replaces the arrays when a cache grows: fetch them for each call. mnnkv_layout_check and other
/// calls without buffers read only l_pack and h_pack.
typedef struct mnnkv_int8 {
    uint32_t struct_size;      ///< sizeof(mnnkv_int8)
    /// MNN's lP8. lP8 and hP8 are 16 and 4 (x86 SSE, plain C, old Arm), 4 and 8 (AVX2, Arm sdot), 4 and 64 (AVX-512), 8 and 8
    /// (Arm i8mm), 4 and 32 (SME2). mnnkv_layout's l_pack and h_pack are those of a floating-point V.
    uint32_t l_pack;
    uint32_t h_pack;           ///< MNN's hP8.
    uint32_t reserved;         ///< Must be 0.
    float *key_sum;            ///< f32 [head][UP(max_tokens,h) * h] (mKeySum), moved with the tokens.
    uint64_t key_sum_bytes;    ///< Bytes of key_sum.
    /// V INT8: f32 [head][UP(max_tokens,F)][UP(D,h) * h] (mValueSum), summed anew where tokens change. Not read
    /// otherwise.
    float *value_sum;
    uint64_t value_sum_bytes;  ///< Bytes of value_sum.
} mnnkv_int8;

/// Declares that the host (MNN) has appended tokens begin .. begin + count. V INT8: gives the flash blocks that they
/// touch the scales of the first one, which MNN itself copies only if begin % 64 is 0; a block that came with growth,
/// or was released, has none. Sums stay: MNN has added the tokens. Other caches stay as they are.
/// INVALID_ARGUMENT: if the range exceeds max_tokens
mnnkv_status mnnkv_kv_appended(const mnnkv_layout *layout, void *key, void *value, uint32_t begin, uint32_t count);

/// Declares that tokens begin .. begin + count were written, moved or removed other than by mnnkv_kv_compact or a
/// session, and that the cache has kv_len tokens now. Plain truncation from 100 to 80 tokens: begin 80, count 20,
/// kv_len 80. The range of a truncation must reach to the old length. V INT8: sets codes of the range from kv_len on to
/// zero, sums the values of its flash blocks anew, and sets all later sums to 0. Other caches stay as they are.
/// INVALID_ARGUMENT: if the range or kv_len exceeds max_tokens
mnnkv_status mnnkv_kv_changed(const mnnkv_layout *layout, void *key, void *value, uint32_t begin, uint32_t count,
                              uint32_t kv_len);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MNNKV_LAYOUT_H
