// mnnkv/quantised.h: MNN's quantised caches: description, appends, truncation, values for tools.
//
// Generated from src/ffi by `make header`; do not edit. mnnkv.h has the conventions.

#ifndef MNNKV_QUANTISED_H
#define MNNKV_QUANTISED_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- Quantised: MNN's INT8 and TurboQuant caches ----------------------------------------------------------------
//
// attention_mode 9 is K INT8 with a floating-point V, 10 INT8 both; 11 and 12 the same with TQ3, 13 and 14 with TQ4. All
// functions of layout.h, stores and sessions take such caches. MNN's modes 4 and 6 (TQ without flash attention) are
// refused: MNN overruns their buffer of V. With D = head_dim, F = 64, l and h the packs of mnnkv_int8, a head is
//
//   K INT8  blocks of h tokens: codes [UP(D,l)][h][l], h f32 scales, h f32 biases
//   V INT8  blocks of F tokens: UP(D,h) times codes [F/l][h][l], h f32 scales, h f32 biases, which are the dims'
//   TQ3/4   per token D/32 records: f16 scale, 32 indices of 3 or 4 bits; D is a multiple of 32
//
// V is valid on every CPU only if block 0's scales are in all blocks of tokens, codes behind the last token are 0, and
// value_sum is the sum of the tokens. Functions that shorten a cache (mnnkv_kv_compact, sessions) see to that. A host calls
//
//   mnnkv_kv_appended    after each append of its own, before attention
//   mnnkv_kv_changed     after mnnkv_kv_scatter, _move, _zero, and after a truncation of its own
//
// An INT8 layer must not be left without tokens before an append of one token, whose scales MNN then keeps for ever.

/// Packing of an INT8 cache, and the arrays that MNN (CPUKVCacheManager) has beside it. Lengths are in bytes. MNN replaces
/// the arrays when a cache grows: fetch them for every call. Only l_pack and h_pack are read where no buffers are given.
typedef struct mnnkv_int8 {
    uint32_t struct_size;
    /// MNN's lP8 and hP8: 16 and 4 (x86 SSE, plain C, old Arm), 4 and 8 (AVX2, Arm sdot), 4 and 64 (AVX-512), 8 and 8 (Arm
    /// i8mm), 4 and 32 (SME2). mnnkv_layout::l_pack and h_pack are those of a floating-point V.
    uint32_t l_pack;
    uint32_t h_pack;
    /// MNNKV_DTYPE_F16, _BF16 or _F32 of key_center.
    uint32_t key_center_dtype;
    /// f32 [head][UP(max_tokens,h) * h] (mKeySum).
    float *key_sum;
    uint64_t key_sum_bytes;
    /// V INT8: f32 [head][UP(max_tokens,F)][UP(D,h) * h] (mValueSum).
    float *value_sum;
    uint64_t value_sum_bytes;
    /// [head][D] (mKeyMax), or NULL. Only mnnkv_kv_dequantize reads it.
    const void *key_center;
    uint64_t key_center_bytes;
} mnnkv_int8;

/// Declares that the host (MNN) has appended tokens begin .. begin + count, after each append and before attention reads V.
/// V INT8: gives the flash blocks that they touch the scales of the first one, which MNN copies only if begin % 64 is 0.
/// Other caches stay as they are.
/// INVALID_ARGUMENT: if the range exceeds max_tokens
mnnkv_status mnnkv_kv_appended(const mnnkv_layout *layout,
                               void *key,
                               void *value,
                               uint32_t begin,
                               uint32_t count);

/// Declares that tokens begin .. begin + count were written, moved or removed other than by mnnkv_kv_compact or a session,
/// and that the cache has kv_len tokens now. Plain truncation from 100 to 80 tokens: begin 80, count 20, kv_len 80.
/// V INT8: sets codes behind kv_len to zero and sums the values of the blocks anew; MNN's kernels for Arm and plain C read
/// both. Other caches stay as they are.
/// INVALID_ARGUMENT: if the range or kv_len exceeds max_tokens
mnnkv_status mnnkv_kv_changed(const mnnkv_layout *layout,
                              void *key,
                              void *value,
                              uint32_t begin,
                              uint32_t count,
                              uint32_t kv_len);

/// As mnnkv_kv_gather, to elements of one floating-point type, for tools. A quantised value is that of its code. K INT8 is
/// without the centre that MNN has subtracted, which attention does not see, unless mnnkv_int8::key_center is given: the
/// centre of the newest tokens.
/// dtype: MNNKV_DTYPE_F16, _BF16 or _F32.
/// key_out, value_out: kv_heads * count * head_dim elements [head][token][dim] each.
/// cap_each: capacity of each in bytes.
/// INVALID_ARGUMENT: as mnnkv_kv_gather; if key_center_bytes is wrong
/// BUFFER_TOO_SMALL: if cap_each is too small; mnnkv_last_error has the size needed
mnnkv_status mnnkv_kv_dequantize(const mnnkv_layout *layout,
                                 const void *key,
                                 const void *value,
                                 uint32_t begin,
                                 uint32_t count,
                                 uint32_t dtype,
                                 void *key_out,
                                 void *value_out,
                                 size_t cap_each);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MNNKV_QUANTISED_H
