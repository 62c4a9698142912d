// mnnkv/model/compressor.h: learned compressors of K and V.
//
// Generated from model/src/ffi by `make header`; do not edit. mnnkv/session.h has the conventions.

#ifndef MNNKV_MODEL_COMPRESSOR_H
#define MNNKV_MODEL_COMPRESSOR_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- Compressor: learned compressors (.bin), which make groups of tokens one. Read a file, run it on caches ------------------

/// mnnkv_compressor_options::segments: the tokens after the image.
#define MNNKV_SEGMENT_TEXT 1
/// mnnkv_compressor_options::segments: the image at the start of the cache.
#define MNNKV_SEGMENT_IMAGE 2

/// A learned compressor of KV caches (FastCache, arXiv 2503.08461): a handle from mnnkv_compressor_open or _create.
/// Immutable; its functions may run on several threads at once, on different caches.
///
/// A file in InfiniLM's weights format, version 1, has small networks for every layer of a model. They turn the K, and
/// the V, of compression_factor neighbouring tokens of a head into those of one token. A host runs them once, after the
/// prompt. The cache becomes shorter and stays lossy; later tokens are appended as usual.
///
///   mnnkv_compressor* file = NULL;
///   uint32_t old_len = 0, new_len = 0;
///   if (mnnkv_compressor_open("compressor.bin", MNNKV_ABI_VERSION, &file) == MNNKV_OK &&
///       mnnkv_compressor_run_caches(file, 0, NULL, caches, layers, &old_len, &new_len) == MNNKV_OK) { ... }
///   mnnkv_compressor_destroy(file);
///
/// The prompt may begin with an image of image_kv_len tokens. With 12 blocks per layer the image has networks of its
/// own; with 6 it stays unchanged. Image and text are compressed separately: floor(length / factor) groups become as
/// many tokens, and the remaining tokens follow them unchanged. A segment of fewer groups than min_seq_len stays
/// unchanged. All layers have the same new length: mnnkv_compressor_new_len.
///
/// Positions: compressed keys are made of keys after RoPE and have no positions of their own. The position of the next
/// token depends on the training of the model: LLaVA's compressor continues at the new length, MiniCPM-V's at the
/// original length. Attention sees the new length in both cases.
typedef struct mnnkv_compressor mnnkv_compressor;

/// The header of a weights file. Set struct_size before the call.
typedef struct mnnkv_compressor_info {
    uint32_t struct_size;         ///< sizeof(mnnkv_compressor_info)
    /// MNNKV_DTYPE_F16, BF16 or F32: element type of the weights in the file. Caches may have another one.
    uint32_t dtype;
    uint32_t layers;              ///< Layers of the model.
    uint32_t blocks_per_layer;    ///< 12, or 6 without networks for images.
    uint32_t head_dim;            ///< Elements per head and token of the caches that it compresses.
    uint32_t compression_factor;  ///< Tokens that become one.
    uint32_t min_seq_len;         ///< Groups that a segment must have to be compressed.
    uint32_t num_heads;           ///< KV heads as the converter wrote them, mostly 0: the networks apply to any number.
} mnnkv_compressor_info;

/// Options of a compression. Zero every field, then set struct_size. NULL means all zeros.
typedef struct mnnkv_compressor_options {
    uint32_t struct_size;   ///< sizeof(mnnkv_compressor_options)
    /// Tokens that become one; 0 or 1 = the factor of the file. Any other factor is INVALID_ARGUMENT.
    uint32_t factor;
    uint32_t min_seq_len;   ///< Groups that a segment must have to be compressed; 0 = as the file.
    uint32_t image_kv_len;  ///< Image tokens at the start of the cache; values above the length mean all.
    uint32_t segments;      ///< Segments to compress: MNNKV_SEGMENT_TEXT, MNNKV_SEGMENT_IMAGE or both; 0 = both.
    uint32_t reserved[3];   ///< Must be 0.
} mnnkv_compressor_options;

/// Reads a weights file. path: UTF-8, zero-terminated; links are followed. The weights stay in memory in the type of
/// the file, and the file is closed. abi_version: MNNKV_ABI_VERSION. out: the handle; mnnkv_compressor_destroy frees
/// it. Messages have the offset and the field, and name blocks by layer, number and network (tk, tv, ik, iv: text or
/// image, K or V). Any thread.
/// CORRUPT: if the file has another format or is cut off, counts, shapes or flags contradict each other, or a weight is
///   not finite.
/// UNSUPPORTED: if the version or element type of the file is not supported, or the ABI differs.
/// NOT_FOUND: if no file has this name.
/// INVALID_ARGUMENT: if path is not a file.
/// IO: if reading fails.
mnnkv_status mnnkv_compressor_open(const char *path, uint32_t abi_version, mnnkv_compressor **out);

/// As mnnkv_compressor_open, of a file of len bytes in memory. bytes is not retained.
mnnkv_status mnnkv_compressor_create(const void *bytes, size_t len, uint32_t abi_version, mnnkv_compressor **out);

/// Frees the handle. NULL is ignored. No other call on the handle may run.
void mnnkv_compressor_destroy(mnnkv_compressor *compressor);

/// Writes the header of the file. Set info->struct_size first. Any thread.
mnnkv_status mnnkv_compressor_get_info(const mnnkv_compressor *compressor, mnnkv_compressor_info *info);

/// Writes the length of a cache of kv_len tokens after compression; kv_len itself if nothing is compressed. options:
/// NULL = the defaults of the file. Any thread.
/// INVALID_ARGUMENT: if options->factor is not that of the file, or options->segments has unknown bits.
mnnkv_status mnnkv_compressor_new_len(const mnnkv_compressor *compressor, const mnnkv_compressor_options *options,
                                      uint32_t kv_len, uint32_t *new_len);

// --- Compressor: run on packed caches in place -------------------------------------------------------------------------------

/// Compresses the packed caches of n_layers neighbouring layers in place: those of a model, or of one device.
///
/// caches: caches[i] belongs to layer first_layer + i. All have the same struct_size, which is their distance in bytes,
/// and the same kv_len. Layouts may differ in packing; head_dim is that of the file, and K and V of a cache have one
/// type: F16, BF16 or F32. options: NULL = the defaults of the file. old_len, new_len: tokens before and after; kv_len
/// of every cache becomes new_len. Bytes after it are not cleared: mnnkv_kv_release returns that memory.
///
/// All layers are computed before the first one is written: on failure no byte and no kv_len has changed. The call
/// allocates the compressed rows of all layers. One thread per cache. Stored tokens must be restored first, and their
/// blocks must be dropped afterwards (mnnkv_store_compacted without pairs, mnnkv_session_reset).
/// INVALID_ARGUMENT: if n_layers is 0, a layer does not exist in the file, kv_len differs between caches, buffers overlap, a
///   layout does not fit, or a result is not finite.
/// UNSUPPORTED: if a cache is quantised, K and V have different types, or a weight exceeds the range of the type.
/// OUT_OF_MEMORY: if the rows cannot be allocated.
mnnkv_status mnnkv_compressor_run_caches(const mnnkv_compressor *compressor, uint32_t first_layer,
                                         const mnnkv_compressor_options *options, mnnkv_cache *caches, uint32_t n_layers,
                                         uint32_t *old_len, uint32_t *new_len);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MNNKV_MODEL_COMPRESSOR_H
