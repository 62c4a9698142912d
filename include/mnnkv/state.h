// mnnkv/state.h: state buffers of other engines, by a description of their tensors.
//
// Generated from src/ffi by `make header`; do not edit. mnnkv.h has the conventions.

#ifndef MNNKV_STATE_H
#define MNNKV_STATE_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- State: the state buffer of another engine, compressed bit for bit ------------------------------------------
//
// For engines whose cached prompts are byte buffers. The host describes the tensors inside of the buffer; all other bytes
// are opaque, and without any description all bytes are. A blob decodes without the description. docs/state.md has its
// bytes. No handle: the calls share nothing, may run on any threads, and keep no memory.
//
// mnnkv_state_encode and mnnkv_state_decode start threads that end with the call. Equal input makes equal blobs, whatever
// the number of threads and the CPU.

/// A row is words, such as those of one token; word i of every row is channel i.
#define MNNKV_STATE_WORDS 0
/// A row is words of one channel, as in a V that lies [channel][token].
#define MNNKV_STATE_CHANNELS 1
/// A row is blocks of block_bytes, each with words in its first scale_bytes and codes after them.
#define MNNKV_STATE_BLOCKS 2

/// A tensor inside of a buffer. In an array each has its struct_size, all the same.
typedef struct mnnkv_state_tensor {
    uint32_t struct_size;
    /// MNNKV_DTYPE_F16, _BF16, _F32 or _INT8 (also any bytes): the words of a row, or of the scales of blocks.
    uint32_t dtype;
    /// MNNKV_STATE_*.
    uint32_t layout;
    /// MNNKV_STATE_BLOCKS: bytes of a block, below 65,536, such as 34 for one scale and 32 codes. Otherwise 0.
    uint32_t block_bytes;
    /// MNNKV_STATE_BLOCKS: bytes of the words that a block begins with. Otherwise 0.
    uint32_t scale_bytes;
    uint32_t reserved;
    /// Where the first row begins.
    uint64_t offset;
    /// At least 1.
    uint64_t rows;
    /// Bytes of a row: whole words, or whole blocks.
    uint64_t row_bytes;
    /// Bytes from a row to the next; 0 = row_bytes. Rows of two tensors may alternate only if stride and rows are
    /// equal, and the first rows of both lie within one stride.
    uint64_t stride;
} mnnkv_state_tensor;

/// How to encode, and on how many threads. NULL = all defaults.
typedef struct mnnkv_state_options {
    uint32_t struct_size;
    /// 1 = fastest .. 9 = smallest; 0 = 3. Decoding does not read it.
    int32_t effort;
    /// Threads, the calling one included; 0 = as many as cores.
    uint32_t threads;
    uint32_t reserved;
} mnnkv_state_options;

/// The largest blob of src_len bytes with these tensors: a little over src_len. 0 where mnnkv_state_encode would return
/// INVALID_ARGUMENT or UNSUPPORTED.
size_t mnnkv_state_bound(size_t src_len, const mnnkv_state_tensor *tensors, size_t n_tensors);

/// Encodes a buffer, bit for bit. src may have any length, also 0.
/// tensors: n_tensors descriptions in any order; no two share a byte.
/// dst: dst_cap bytes, at least mnnkv_state_bound. Bytes after *dst_len are undefined.
/// dst_len: bytes written.
/// INVALID_ARGUMENT: if a tensor is out of range, overlaps another, or has rows that are no whole words or blocks; the
/// text names its index
/// UNSUPPORTED: if a dtype is TQ3 or TQ4
/// BUFFER_TOO_SMALL: if dst_cap is below mnnkv_state_bound, which is then *dst_len
/// OUT_OF_MEMORY: if memory is refused
///
/// Working memory: per thread at most 9 MiB, or nine rows of a tensor if its rows are longer than 1 MiB. After a failure
/// the contents of dst are undefined.
mnnkv_status mnnkv_state_encode(const void *src,
                                size_t src_len,
                                const mnnkv_state_tensor *tensors,
                                size_t n_tensors,
                                const mnnkv_state_options *options,
                                void *dst,
                                size_t dst_cap,
                                size_t *dst_len);

/// Returns the decoded length that a blob claims: limit it before allocating for a blob from elsewhere. All of the blob
/// but its sections is checked.
/// CORRUPT, UNSUPPORTED, OUT_OF_MEMORY: as mnnkv_state_decode
mnnkv_status mnnkv_state_decoded_size(const void *src, size_t src_len, size_t *size);

/// Decodes a blob. It is not trusted: every changed bit and every missing byte is CORRUPT.
/// options: only threads is read; NULL = all cores.
/// dst: dst_cap bytes. Contents are undefined after a failure; bytes after *dst_len are not written.
/// dst_len: bytes written.
/// CORRUPT: if the blob is malformed; the text has the section and its bytes in the blob
/// UNSUPPORTED: if the blob is of a later version
/// BUFFER_TOO_SMALL: if dst_cap is too small; *dst_len is the size needed
/// OUT_OF_MEMORY: if memory is refused
///
/// Working memory: per thread at most seven times the longest section, which is 1 MiB or one row, and 256 KiB.
mnnkv_status mnnkv_state_decode(const void *src,
                                size_t src_len,
                                const mnnkv_state_options *options,
                                void *dst,
                                size_t dst_cap,
                                size_t *dst_len);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MNNKV_STATE_H
