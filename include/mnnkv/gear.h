// mnnkv/gear.h: the lossless codec of fp16, bf16, fp32 and int8 words.
//
// Generated from src/ffi/gear by `make header`; do not edit. mnnkv/session.h has the conventions.

#ifndef MNNKV_GEAR_H
#define MNNKV_GEAR_H

#include "../mnnkv.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- Gear: options -----------------------------------------------------------------------------------------------------------
//
// Lossless compression of the words of a cache, bit for bit, in the formats of docs/format.md. No handle: each thread
// keeps working memory for its next call, which mnnkv_thread_trim frees.

/// The format of the reference system, without a checksum. The reference reads F16 and F32.
#define MNNKV_GEAR_FORMAT_V1 1
/// The same behind a header with a checksum of the words, 26 bytes longer.
#define MNNKV_GEAR_FORMAT_CHECKED 2
/// Predictors: the bytes as they are, the difference to the byte before, the exclusive or with it.
#define MNNKV_PREDICT_RAW 1
#define MNNKV_PREDICT_DELTA_SEQ 2
#define MNNKV_PREDICT_XOR_SEQ 4

/// How to encode. NULL = all defaults. Decoding needs no options.
typedef struct mnnkv_gear_options {
    uint32_t struct_size;  ///< sizeof(mnnkv_gear_options)
    uint32_t format;       ///< MNNKV_GEAR_FORMAT_*; 0 = V1 for F16 and F32, CHECKED for BF16 and INT8.
    uint32_t predictors;   ///< The predictors to try, MNNKV_PREDICT_* or-ed together; 0 = all.
    /// 1 = fastest .. 9 = smallest; 0 = 5. More effort may cost 1% of size where words are mostly noise.
    int32_t effort;
} mnnkv_gear_options;

// --- Gear: encode ------------------------------------------------------------------------------------------------------------

/// Returns a capacity that suffices to encode src_len bytes of dtype (F16, BF16, F32 or INT8) in either format, a little
/// over src_len; 0 if src_len is 0, no whole number of words, or larger than memory.
size_t mnnkv_gear_bound(size_t src_len, uint32_t dtype);

/// Encodes src_len bytes of little-endian words of dtype (F16, BF16, F32 or INT8), bit for bit.
/// src: at least one word, in any order; [head][token][dim] of one head at a time compresses best.
/// dst: dst_cap bytes; mnnkv_gear_bound always suffices.
/// dst_len: bytes written.
/// INVALID_ARGUMENT: if dtype is another; if src_len is 0, no whole number of words, or exceeds 4,261,672,974 words; if
/// an option is out of range
/// UNSUPPORTED: if dtype is TQ3 or TQ4
/// BUFFER_TOO_SMALL: if dst_cap is too small; *dst_len is the size needed
///
/// dst is written only on success. Working memory: at most 6 * src_len + 2 MiB. The thread keeps it, beside that of
/// decoding.
mnnkv_status mnnkv_encode_gear(const void *src, size_t src_len, uint32_t dtype, const mnnkv_gear_options *options, void *dst,
                               size_t dst_cap, size_t *dst_len);

/// mnnkv_encode_gear of F16.
mnnkv_status mnnkv_encode_fp16_gear(const void *src, size_t src_len, const mnnkv_gear_options *options, void *dst, size_t dst_cap,
                                    size_t *dst_len);

/// Frees the working memory that the calling thread keeps for encoding and decoding.
void mnnkv_thread_trim(void);

// --- Gear: decode ------------------------------------------------------------------------------------------------------------

/// How to decode. NULL = all defaults.
typedef struct mnnkv_decode_options {
    uint32_t struct_size;  ///< sizeof(mnnkv_decode_options)
    uint32_t reserved;     ///< Must be 0.
    /// Limit of the working memory of the call, the memory that the thread keeps included; may exceed the default. 0 =
    /// 3 * (src_len + decoded length) + 256 KiB.
    uint64_t max_working_bytes;
} mnnkv_decode_options;

/// Decodes a blob of either format that encoding words of the same dtype (F16, BF16, F32 or INT8) made. V1 blobs do not
/// name their type: bf16 words that were encoded as F16 decode as either. The blob is not trusted.
/// dst: dst_cap bytes.
/// dst_len: bytes written. With dst NULL and dst_cap 0 the call returns BUFFER_TOO_SMALL and the size that the blob
/// claims: limit it before allocating for a blob from elsewhere.
/// CORRUPT: if the blob is malformed. CHECKED detects by its checksum what changes a word; V1 has none, and flipped bits
/// may decode to other words
/// INVALID_ARGUMENT: if dtype is another, or a CHECKED blob holds another type
/// UNSUPPORTED: if a blob is of a later version, or dtype is TQ3 or TQ4
/// BUFFER_TOO_SMALL: if dst_cap is too small; *dst_len is the size needed
/// OUT_OF_MEMORY: if memory is refused, or the blob needs more than max_working_bytes, whose default suffices for every
/// encoder of this library
///
/// After CORRUPT, UNSUPPORTED or OUT_OF_MEMORY the contents of dst are undefined. The thread keeps the working memory,
/// beside that of encoding.
mnnkv_status mnnkv_decode_gear(const void *src, size_t src_len, uint32_t dtype, const mnnkv_decode_options *options, void *dst,
                               size_t dst_cap, size_t *dst_len);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MNNKV_GEAR_H
