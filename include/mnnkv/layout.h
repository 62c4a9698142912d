// mnnkv/layout.h: cache memory in place: index, gather, scatter, move, compact, zero, release.
//
// Generated from src/ffi/layout by `make header`; do not edit. mnnkv.h has the conventions.

#ifndef MNNKV_LAYOUT_H
#define MNNKV_LAYOUT_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- Layout: caches in place ------------------------------------------------------------------------------------
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

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MNNKV_LAYOUT_H
