// mnnkv/rows.h: attention over a cache that stays where the host has it, without a session.
//
// Generated from src/ffi by `make header`; do not edit. mnnkv.h has the conventions.

#ifndef MNNKV_ROWS_H
#define MNNKV_ROWS_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- Rows of a host's own cache ---------------------------------------------------------------------------------
//
// The attention of a few query rows over K and V that stay where the host has them, in the block formats of ggml. There is no
// session, and nothing is kept between calls. Threads of the host share a step, with memory of the host:
//
//   mnnkv_rows_scratch(&rows, parts, &bytes);                  // once for the same heads, rows, value_dim and parts
//   mnnkv_rows_attend(&rows, part, parts, scratch, bytes);     // on each of `parts` threads
//   ...                                                        // a barrier
//   mnnkv_rows_merge(&rows, part, parts, scratch, bytes);      // on each thread; the output is complete after all
//
// Every row of the cache is read once for all query heads. Numbers are f32; sums are of fused products, and exponentials have a
// relative error below 2^-18. With the same number of parts results are equal to the bit on every CPU, except for the
// system's exp in the merge. K, V and queries must be finite, logits finite in f32, and the mask finite or -inf.
// Otherwise the output is undefined, but no memory outside of the buffers is accessed.

/// Formats of rows. F16: IEEE 754 binary16. Q8_0: blocks of 32 elements, a scale in binary16 and 32 signed bytes. Q4_0: blocks of 32,
/// a scale in binary16 and 16 bytes; element i is the lower half of byte i less 8, element 16 + i the upper half less 8.
#define MNNKV_ROWS_F16 1
#define MNNKV_ROWS_Q8_0 2
#define MNNKV_ROWS_Q4_0 3

/// Query rows, and the cache that they attend to.
typedef struct mnnkv_rows {
    uint32_t struct_size;
    /// Query heads, a multiple of kv_heads, at least 1: head h reads KV head h / (heads / kv_heads).
    uint32_t heads;
    /// Rows of each query head, at least 1; working memory is for each of them.
    uint32_t rows;
    /// Heads of the cache, at least 1.
    uint32_t kv_heads;
    /// Tokens of the cache, at least 1.
    uint32_t tokens;
    /// MNNKV_ROWS_*.
    uint32_t key_type;
    uint32_t value_type;
    /// Elements of a row, multiples of 32 up to 1024.
    uint32_t key_dim;
    uint32_t value_dim;
    /// The factor of a logit; 0 = 1 / sqrt(key_dim).
    float scale;
    /// Logits x become soft_cap * tanh(x / soft_cap); 0 = none.
    float soft_cap;
    uint32_t reserved;
    /// Bytes from a token to the next and from a head to the next: a row or more, where there is more than one token or more
    /// than one head. No alignment.
    const void *key;
    uint64_t key_token_stride;
    uint64_t key_head_stride;
    const void *value;
    uint64_t value_token_stride;
    uint64_t value_head_stride;
    /// f32. Bytes from a head to the next, and from a row to the next, multiples of 4; both 0: [rows][heads][key_dim].
    const float *queries;
    uint64_t query_head_stride;
    uint64_t query_row_stride;
    /// f32, written only by the merge. Strides as for queries: the heads of a row must end before the next row begins, or the
    /// rows of a head before the next head. Zeros where a row attends to nothing.
    float *output;
    uint64_t output_head_stride;
    uint64_t output_row_stride;
    /// [rows][tokens] in f16, added to logits after the soft cap; finite, or -inf for a token that is hidden from the row, whatever
    /// the slope. A tile of 64 tokens that is hidden from a row costs that row nothing. Elements from a row to the next, tokens or
    /// more; 0 = tokens. NULL = none.
    const void *mask;
    uint64_t mask_row_stride;
    /// [heads]: the factor of the mask for each query head (ALiBi); finite. NULL = 1.
    const float *slopes;
    /// [heads]: a logit of the attention sink of each query head; finite. NULL = no sinks.
    const float *sinks;
} mnnkv_rows;

/// The bytes of scratch that a step in `parts` parts needs.
/// parts: 1 to 64.
/// INVALID_ARGUMENT: if a field does not fit
/// UNSUPPORTED: if a type is unknown
mnnkv_status mnnkv_rows_scratch(const mnnkv_rows *rows, uint32_t parts, uint64_t *bytes);

/// Runs one of `parts` parts of a step. Parts may run on any threads, in any order and at the same time.
/// part: below parts, which are 1 to 64.
/// scratch: bytes of mnnkv_rows_scratch for the same rows and parts or more, aligned to 4; a part writes a range of its own.
/// INVALID_ARGUMENT: if a field, a stride or the scratch does not fit, or a slope or a sink is not finite
/// UNSUPPORTED: if a type is unknown
mnnkv_status mnnkv_rows_attend(const mnnkv_rows *rows,
                               uint32_t part,
                               uint32_t parts,
                               void *scratch,
                               uint64_t scratch_bytes);

/// Merges one of `parts` parts of the output, after mnnkv_rows_attend has returned for all `parts` parts, with the same rows and
/// scratch. Parts of the output may be merged on any threads, in any order and at the same time.
/// Parameters and failures as mnnkv_rows_attend; the scratch is only read. After a failure no output was written.
mnnkv_status mnnkv_rows_merge(const mnnkv_rows *rows,
                              uint32_t part,
                              uint32_t parts,
                              const void *scratch,
                              uint64_t scratch_bytes);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MNNKV_ROWS_H
