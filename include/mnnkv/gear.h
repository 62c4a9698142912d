// mnnkv/gear.h: the lossless codec of fp16, bf16, fp32 and int8 words.
//
// Generated from src/ffi/gear by `make header`; do not edit. mnnkv.h has the conventions.

#ifndef MNNKV_GEAR_H
#define MNNKV_GEAR_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- Gear: options ----------------------------------------------------------------------------------------------
//
// Lossless compression of the words of a cache, bit for bit, in the formats of docs/format.md. No handle: each thread
// keeps working memory for its next call, which mnnkv_thread_trim frees.

/// Format v1, that of the reference system: F16 and F32, without checksums.
#define MNNKV_GEAR_FORMAT_V1 1
/// Format v2: all types, with checksums. Uses rows and channels; smaller, most from effort 7 on, and slower.
#define MNNKV_GEAR_FORMAT_V2 2
/// Format lanes: all types, with a checksum. As large as V1 at effort 1, and about three times as fast to decode with
/// AVX-512. effort and the fields of V2 are not used, but must be in their ranges.
#define MNNKV_GEAR_FORMAT_LANES 3
/// Predictors of V1: the bytes as they are, the difference to the byte before, the exclusive or with it.
#define MNNKV_PREDICT_RAW 1
#define MNNKV_PREDICT_DELTA_SEQ 2
#define MNNKV_PREDICT_XOR_SEQ 4

/// How to encode. NULL = all defaults. Decoding needs no options.
typedef struct mnnkv_gear_options {
    uint32_t struct_size;
    /// MNNKV_GEAR_FORMAT_*; 0 = V1 for F16 and F32, V2 for BF16 and INT8.
    uint32_t format;
    /// V1: the predictors to try, MNNKV_PREDICT_* or-ed together; 0 = all. V2 and LANES: must be 0.
    uint32_t predictors;
    /// 1 = fastest .. 9 = smallest; 0 = 5. More effort may cost 1% of size where words are mostly noise.
    int32_t effort;
    /// V2: elements per row (one token of one head). 0 = unknown, as is a value larger than src, and rows of more
    /// than 4,096 bytes where there are fewer than 64. Without a rotation hint src may end within a row.
    uint32_t head_dim;
    uint32_t reserved[3];
    /// V2, for K: the rotation hint, MNNKV_ROPE_*; 0 = none, fields below are not read. V1 and LANES do not use it: they refuse a
    /// pairing that is unknown, rope_reserved that is not 0 and rope_positions without rope_tokens, and check no other range.
    /// Equal tokens at different positions then compress as equal, most in the first layer, and encoding takes about three
    /// times as long. Lossless for any arithmetic of the host. src must be [head][token][dim], with head_dim set.
    uint32_t rope_pairing;
    /// Rotated channels, the first of each row: even, at most head_dim; 0 = head_dim.
    uint32_t rope_dims;
    /// Tokens per head; divides the rows of src. 0 = all rows are one head. Required with rope_positions.
    uint32_t rope_tokens;
    /// Position of the first token of each head; others count on. Not read with rope_positions.
    uint32_t rope_first_position;
    /// Pair i at position p is rotated by p * rope_theta^(-2 i / rope_dims) radians: 1 to 1e30, 0 = 10000. Not read
    /// with rope_inv_freq.
    float rope_theta;
    uint32_t rope_reserved;
    /// [rope_dims / 2] radians per position, 0 to 1e6, for scaled variants; NULL = from rope_theta. F32 keys gain most
    /// from the numbers that the host itself uses.
    const float *rope_inv_freq;
    /// [rope_tokens] positions; NULL = counting from rope_first_position.
    const uint32_t *rope_positions;
} mnnkv_gear_options;

// --- Gear: the rotation hint ------------------------------------------------------------------------------------
//
// MNNKV_EXPERIMENTAL: the hint does not cover all variants of RoPE yet. Without it, rope_pairing must be 0.

#ifdef MNNKV_EXPERIMENTAL

/// mnnkv_gear_options::rope_pairing: channels d and d + rope_dims / 2 rotate together (Llama, rotate_half), or 2 d and
/// 2 d + 1 (GPT-J).
#define MNNKV_ROPE_HALF 1
#define MNNKV_ROPE_ADJACENT 2

#endif  // MNNKV_EXPERIMENTAL

// --- Gear: encode -----------------------------------------------------------------------------------------------

/// Returns a capacity that suffices to encode src_len bytes of dtype (F16, BF16, F32 or INT8) in any format, a little
/// over src_len; 0 if src_len is 0, no whole number of words, or larger than memory.
size_t mnnkv_gear_bound(size_t src_len, uint32_t dtype);

/// Encodes src_len bytes of little-endian words of dtype (F16, BF16, F32 or INT8), bit for bit.
/// src: at least one word. V1 takes any order; V2 compresses [head][token][dim] best.
/// dst: dst_cap bytes; mnnkv_gear_bound always suffices.
/// dst_len: bytes written.
/// INVALID_ARGUMENT: if dtype is another; if src_len is 0 or no whole number of words (with a rotation hint: of rows), or
/// exceeds 4,261,672,974 words in V1; if an option is out of range or does not fit src_len; if a rotation hint comes with
/// INT8 in V2
/// UNSUPPORTED: if format is V1 with BF16 or INT8; if dtype is TQ3 or TQ4
/// BUFFER_TOO_SMALL: if dst_cap is too small; *dst_len is the size needed
///
/// dst is written only on success. Working memory: at most 6 * src_len + 2 MiB. The thread keeps it, beside that of
/// decoding.
mnnkv_status mnnkv_encode_gear(const void *src,
                               size_t src_len,
                               uint32_t dtype,
                               const mnnkv_gear_options *options,
                               void *dst,
                               size_t dst_cap,
                               size_t *dst_len);

/// mnnkv_encode_gear of F16.
mnnkv_status mnnkv_encode_fp16_gear(const void *src,
                                    size_t src_len,
                                    const mnnkv_gear_options *options,
                                    void *dst,
                                    size_t dst_cap,
                                    size_t *dst_len);

/// Frees the working memory that the calling thread keeps for encoding and decoding.
void mnnkv_thread_trim(void);

// --- Gear: decode -----------------------------------------------------------------------------------------------

/// How to decode. NULL = all defaults.
typedef struct mnnkv_decode_options {
    uint32_t struct_size;
    uint32_t reserved;
    /// Limit of the working memory of the call, the memory that the thread keeps included; may exceed the default. 0 =
    /// 3 * (src_len + decoded length) + 256 KiB.
    uint64_t max_working_bytes;
} mnnkv_decode_options;

/// Decodes a blob of any format that encoding words of the same dtype (F16, BF16, F32 or INT8) made. BF16 also decodes V1
/// blobs of bf16 words that were encoded as F16. The blob is not trusted.
/// dst: dst_cap bytes.
/// dst_len: bytes written. With dst NULL and dst_cap 0 the call returns BUFFER_TOO_SMALL and the size that the blob
/// claims: limit it before allocating for a blob from elsewhere.
/// CORRUPT: if the blob is malformed. V2 and LANES detect by checksum what changes a word; V1 has none, and flipped bits
/// may decode to other words
/// INVALID_ARGUMENT: if dtype is another, or a V2 or LANES blob holds another type
/// UNSUPPORTED: if a blob is of a later version, or dtype is TQ3 or TQ4
/// BUFFER_TOO_SMALL: if dst_cap is too small; *dst_len is the size needed
/// OUT_OF_MEMORY: if memory is refused, or the blob needs more than max_working_bytes, whose default suffices for every
/// encoder of this library
///
/// After CORRUPT, UNSUPPORTED or OUT_OF_MEMORY the contents of dst are undefined. The thread keeps the working memory,
/// beside that of encoding.
mnnkv_status mnnkv_decode_gear(const void *src,
                               size_t src_len,
                               uint32_t dtype,
                               const mnnkv_decode_options *options,
                               void *dst,
                               size_t dst_cap,
                               size_t *dst_len);

/// mnnkv_decode_gear of F16, with all defaults.
mnnkv_status mnnkv_decode_fp16_gear(const void *src, size_t src_len, void *dst, size_t dst_cap, size_t *dst_len);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MNNKV_GEAR_H
