// mnnkv/llama.h: what only llama.cpp needs, of libmnnkv_llama: attention over its own cache, and its states as blobs.
//
// Generated from llama/src/ffi by `make header`; do not edit. mnnkv/session.h has the conventions.

#ifndef MNNKV_LLAMA_H
#define MNNKV_LLAMA_H

#include "../mnnkv.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- Errors ------------------------------------------------------------------------------------------------------------------
//
// These functions are in a library of their own, libmnnkv_llama, which does not need libmnnkv. The text of their failures is
// here, and not in mnnkv_last_error.

/// Returns one sentence about the calling thread's last failure in a function of this header: UTF-8, at most 1,023 bytes, never
/// NULL, "" before the first failure. Valid until the thread's next call of this library. A successful call does not clear it.
const char *mnnkv_llama_last_error(void);

// --- Rows of a host's own cache ----------------------------------------------------------------------------------------------
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

/// Formats of rows. F16: IEEE 754 binary16. Q8_0: blocks of 32 elements, a scale in binary16 and 32 signed bytes. Q4_0: blocks of
/// 32, a scale in binary16 and 16 bytes; element i is the lower half of byte i less 8, element 16 + i the upper half less 8.
#define MNNKV_ROWS_F16 1
#define MNNKV_ROWS_Q8_0 2
#define MNNKV_ROWS_Q4_0 3

/// Query rows, and the cache that they attend to.
typedef struct mnnkv_rows {
    uint32_t struct_size;         ///< sizeof(mnnkv_rows)
    /// Query heads, a multiple of kv_heads, at least 1: head h reads KV head h / (heads / kv_heads).
    uint32_t heads;
    uint32_t rows;                ///< Rows of each query head, at least 1; working memory is for each of them.
    uint32_t kv_heads;            ///< Heads of the cache, at least 1.
    uint32_t tokens;              ///< Tokens of the cache, at least 1.
    uint32_t key_type;            ///< MNNKV_ROWS_* of K.
    uint32_t value_type;          ///< MNNKV_ROWS_* of V.
    uint32_t key_dim;             ///< Elements of a row of K and of a query, a multiple of 32 up to 1024.
    uint32_t value_dim;           ///< Elements of a row of V and of the output, likewise.
    float scale;                  ///< The factor of a logit.
    float soft_cap;               ///< Logits x become soft_cap * tanh(x / soft_cap); 0 = none.
    uint32_t reserved;            ///< Must be 0.
    const void *key;              ///< The rows of K, without alignment.
    uint64_t key_token_stride;    ///< Bytes from a token to the next: a row or more, where there is more than one token.
    uint64_t key_head_stride;     ///< Bytes from a head to the next: a row or more, where there is more than one head.
    const void *value;            ///< The rows of V, likewise.
    uint64_t value_token_stride;  ///< As key_token_stride.
    uint64_t value_head_stride;   ///< As key_head_stride.
    const float *queries;         ///< Queries in f32.
    uint64_t query_head_stride;   ///< Bytes from a head to the next, a multiple of 4.
    uint64_t query_row_stride;    ///< Bytes from a row to the next, a multiple of 4.
    /// f32, written only by the merge. The heads of a row must end before the next row begins, or the rows of a head before the
    /// next head. Zeros where a row attends to nothing.
    float *output;
    uint64_t output_head_stride;  ///< As query_head_stride.
    uint64_t output_row_stride;   ///< As query_row_stride.
    /// [rows][tokens] in f16, added to logits after the soft cap; finite, or -inf for a token that is hidden from the row,
    /// whatever the slope. A tile of 64 tokens that is hidden from a row costs that row nothing. NULL = none.
    const void *mask;
    uint64_t mask_row_stride;     ///< Elements from a row of the mask to the next, tokens or more.
    const float *slopes;          ///< [heads]: the factor of the mask for each query head (ALiBi); finite. NULL = 1.
    const float *sinks;           ///< [heads]: a logit of the attention sink of each query head; finite. NULL = no sinks.
} mnnkv_rows;

/// Returns 1 where the CPU has vectors for these functions (AVX2, AVX-512, NEON), else 0: the host is faster then.
uint32_t mnnkv_rows_supported(void);

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
mnnkv_status mnnkv_rows_attend(const mnnkv_rows *rows, uint32_t part, uint32_t parts, void *scratch, uint64_t scratch_bytes);

/// Merges one of `parts` parts of the output, after mnnkv_rows_attend has returned for all `parts` parts, with the same rows and
/// scratch. Parts of the output may be merged on any threads, in any order and at the same time.
/// Parameters and failures as mnnkv_rows_attend; the scratch is only read. After a failure no output was written.
mnnkv_status mnnkv_rows_merge(const mnnkv_rows *rows, uint32_t part, uint32_t parts, const void *scratch, uint64_t scratch_bytes);

// --- State: a state buffer compressed bit for bit ----------------------------------------------------------------------------
//
// For cached prompts, which are byte buffers. The host describes the tensors inside of the buffer; all other bytes are opaque,
// and without any description all bytes are. A blob decodes without the description. integrations/llama.cpp/README.md has its
// bytes. No handle: the calls share nothing, may run on any threads, and keep no memory.
//
// mnnkv_state_encode and mnnkv_state_decode start threads that end with the call. Equal input makes equal blobs, whatever
// the number of threads and the CPU.

/// A tensor inside of a buffer: consecutive words, or consecutive blocks of a few words and then codes of single bytes.
typedef struct mnnkv_state_tensor {
    uint32_t dtype;        ///< MNNKV_DTYPE_F16, _BF16, _F32 or _INT8 (also any bytes) of the words.
    uint16_t block_bytes;  ///< Bytes of a block, such as 34 for one scale and 32 codes; 0: words all through.
    uint16_t scale_bytes;  ///< Bytes of the words that a block begins with; 0 without blocks.
    uint64_t offset;       ///< Where it begins.
    uint64_t bytes;        ///< At least 1: whole words, or whole blocks.
} mnnkv_state_tensor;

/// The largest blob of src_len bytes with these tensors: a little over src_len. 0 where mnnkv_state_encode would return
/// INVALID_ARGUMENT or UNSUPPORTED.
size_t mnnkv_state_bound(size_t src_len, const mnnkv_state_tensor *tensors, size_t n_tensors);

/// Encodes a buffer, bit for bit. src may have any length, also 0.
/// tensors: n_tensors descriptions in the order of their offsets; no two share a byte.
/// threads: the calling one included; 0 = as many as cores.
/// dst: dst_cap bytes, at least mnnkv_state_bound. Bytes after *dst_len are undefined.
/// dst_len: bytes written.
/// INVALID_ARGUMENT: if a tensor is out of range, begins before the end of the one before, or is no whole words or blocks; the
/// text names its index
/// UNSUPPORTED: if a dtype is TQ3 or TQ4
/// BUFFER_TOO_SMALL: if dst_cap is below mnnkv_state_bound, which is then *dst_len
/// OUT_OF_MEMORY: if memory is refused
///
/// Working memory: per thread at most 9 MiB. After a failure the contents of dst are undefined.
mnnkv_status mnnkv_state_encode(const void *src, size_t src_len, const mnnkv_state_tensor *tensors, size_t n_tensors,
                                uint32_t threads, void *dst, size_t dst_cap, size_t *dst_len);

/// Returns the decoded length that a blob claims: limit it before allocating for a blob from elsewhere. All of the blob
/// but its sections is checked.
/// CORRUPT, UNSUPPORTED, OUT_OF_MEMORY: as mnnkv_state_decode
mnnkv_status mnnkv_state_decoded_size(const void *src, size_t src_len, size_t *size);

/// Decodes a blob. It is not trusted: every changed bit and every missing byte is CORRUPT.
/// threads: as for mnnkv_state_encode.
/// dst: dst_cap bytes. Contents are undefined after a failure; bytes after *dst_len are not written.
/// dst_len: bytes written.
/// CORRUPT: if the blob is malformed; the text has the section and its bytes in the blob
/// UNSUPPORTED: if the blob is of a later version
/// BUFFER_TOO_SMALL: if dst_cap is too small; *dst_len is the size needed
/// OUT_OF_MEMORY: if memory is refused
///
/// Working memory: per thread at most seven times the longest section, which has about 1 MiB, and 256 KiB.
mnnkv_status mnnkv_state_decode(const void *src, size_t src_len, uint32_t threads, void *dst, size_t dst_cap, size_t *dst_len);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MNNKV_LLAMA_H
