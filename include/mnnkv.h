/*
 * mnn-kv: KV-cache compression for on-device LLM hosts.
 *
 * Generated from src/ffi by `make header`; do not edit. This file is the manual.
 *
 * What is here
 *   gear     lossless codec for fp16 and fp32 words
 *
 * Conventions
 *   - Every function that can fail returns mnnkv_status; mnnkv_last_error() then says what was given and what was
 *     allowed. Outputs are written only on success, except that BUFFER_TOO_SMALL writes the length that is needed.
 *   - NULL with length 0 is legal; any other NULL is INVALID_ARGUMENT. Pointers to integers, floats and structs are
 *     aligned as their types; byte buffers need no alignment.
 *   - Option structs begin with struct_size: zero the struct, set struct_size to its sizeof, then set what differs
 *     from the default. 0 in a field means its default where 0 makes no sense. A NULL options pointer means all
 *     defaults. Reserved fields must be 0.
 *   - Nothing that the library allocates has to be freed by the host, except handles by their _destroy function.
 *     _destroy(NULL) does nothing.
 *   - A function that takes a const handle may run on several threads at once with others that do; any other call
 *     needs its handle to itself. Functions without a handle run on any thread.
 *   - Nothing throws, and no function calls back. A panic inside the library is caught: the call answers INTERNAL.
 *   - After fork, the child must not use handles made before it.
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

/// Format v1 of gear blobs.
#define MNNKV_GEAR_FORMAT_V1 1

/// Try the lane as it is.
#define MNNKV_PREDICT_RAW 1

/// Try the difference of each byte to the one before it.
#define MNNKV_PREDICT_DELTA_SEQ 2

/// Try the exclusive or of each byte with the one before it.
#define MNNKV_PREDICT_XOR_SEQ 4

/// The outcome of a call: MNNKV_OK or one of the MNNKV_* failures. Numbers never change meaning.
typedef int32_t mnnkv_status;

/// How to encode. Zero every field, then set struct_size; a NULL pointer means the same as all zeros.
typedef struct mnnkv_gear_options {
    /// sizeof(mnnkv_gear_options)
    uint32_t struct_size;
    /// Wire format; 0 = MNNKV_GEAR_FORMAT_V1. This version of the library writes no other.
    uint32_t format;
    /// Which predictors to try, MNNKV_PREDICT_* or-ed together; 0 = all of the format. Fewer are faster.
    uint32_t predictors;
    /// 0 = default, 1 = fastest .. 9 = smallest. In this version every effort tries everything and gives the same
    /// bytes.
    int32_t effort;
    /// Elements per row (one token of one head), 0 = unknown. Format v1 has no use for it.
    uint32_t head_dim;
    /// Must be 0.
    uint32_t reserved[3];
} mnnkv_gear_options;

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
/// Empty when none failed. UTF-8, never NULL; valid until the next mnnkv call on this thread. A successful call
/// leaves it as it is, so look at the status first.
const char *mnnkv_last_error(void);

/// The version of the library that is loaded, as MNNKV_VERSION_NUMBER counts it. Any thread.
uint32_t mnnkv_version(void);

/// The ABI number of the library that is loaded. Any thread.
uint32_t mnnkv_abi_version(void);

/// The SIMD level in use: "portable" or "avx2". The environment variable MNNKV_CPU_LEVEL, read once, can lower it;
/// results never depend on it. The text is static. Any thread.
const char *mnnkv_cpu_level(void);

/// The capacity that is always enough to encode src_len bytes of dtype (MNNKV_DTYPE_F16 or F32) in any format:
/// a little over src_len. 0 when no such input can be encoded: length 0, not a whole number of words, or 2^32
/// words and more. Any thread.
size_t mnnkv_gear_bound(size_t src_len,
                        uint32_t dtype);

/// Encodes src_len bytes of fp16 words, bit-exactly whatever the bits are.
///
/// src: little-endian words, at least one; any order of elements works, [head][token][dim] compresses best.
/// dst: dst_cap bytes that do not overlap src; mnnkv_gear_bound is always enough. dst_len: bytes written.
/// INVALID_ARGUMENT: src_len is 0, odd or over the format's limit, or an option is out of range.
/// BUFFER_TOO_SMALL: *dst_len is what this input needs; dst is untouched.
/// The calling thread keeps about three times src_len of working memory for its next call (mnnkv_thread_trim gives
/// it back). Any thread.
mnnkv_status mnnkv_encode_fp16_gear(const void *src,
                                    size_t src_len,
                                    const struct mnnkv_gear_options *options,
                                    void *dst,
                                    size_t dst_cap,
                                    size_t *dst_len);

/// Decodes a blob that mnnkv_encode_fp16_gear made. The blob may come from anywhere: it is checked throughout.
///
/// dst: dst_cap bytes that do not overlap src. dst_len: bytes written. To ask for the size, pass dst NULL and
/// dst_cap 0: the answer is BUFFER_TOO_SMALL and *dst_len, from headers that agree with each other.
/// CORRUPT: the blob is malformed; dst is untouched. Format v1 has no checksum: a blob with flipped bits may decode
/// to other words of the right number.
/// The calling thread keeps as much working memory as the output for its next call. Any thread.
mnnkv_status mnnkv_decode_fp16_gear(const void *src,
                                    size_t src_len,
                                    void *dst,
                                    size_t dst_cap,
                                    size_t *dst_len);

/// As mnnkv_encode_fp16_gear, for 4-byte words.
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

/// Reads a predictor list as hosts' configs have it, such as "raw,delta_seq,xor_seq", into the bits of
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

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* MNNKV_H */
