// mnnkv/model/msmodelslim.h: directories of weights that msmodelslim quantised.
//
// Generated from model/src/ffi by `make header`; do not edit. mnnkv.h has the conventions.

#ifndef MNNKV_MODEL_MSMODELSLIM_H
#define MNNKV_MODEL_MSMODELSLIM_H

#include "c8.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- msmodelslim: read directories of quantised weights. Check, dequantise, compute -----------------------------

/// mnnkv_msmodelslim_linear_info::tag: not quantised.
#define MNNKV_MSMODELSLIM_FLOAT 1
/// mnnkv_msmodelslim_linear_info::tag: 8-bit weights.
#define MNNKV_MSMODELSLIM_W8A16 2
/// mnnkv_msmodelslim_linear_info::tag: 8-bit weights and inputs, one scale for all inputs.
#define MNNKV_MSMODELSLIM_W8A8 3
/// mnnkv_msmodelslim_linear_info::tag: W8A8 with sparse weights.
#define MNNKV_MSMODELSLIM_W8A8S 4
/// mnnkv_msmodelslim_linear_info::tag: 8-bit weights, scales of inputs computed at run time.
#define MNNKV_MSMODELSLIM_W8A8_DYNAMIC 5
/// mnnkv_msmodelslim_linear_info::tag: the tensors of both W8A8 and W8A8_DYNAMIC.
#define MNNKV_MSMODELSLIM_W8A8_MIX 6
/// mnnkv_msmodelslim_linear_info::tag: another type of the format; listed, not read.
#define MNNKV_MSMODELSLIM_OTHER 7
/// mnnkv_msmodelslim_linear_info::granularity: not quantised.
#define MNNKV_SCALE_NONE 0
/// mnnkv_msmodelslim_linear_info::granularity: one scale for the whole weight.
#define MNNKV_SCALE_TENSOR 1
/// mnnkv_msmodelslim_linear_info::granularity: one scale for each row.
#define MNNKV_SCALE_CHANNEL 2
/// mnnkv_msmodelslim_linear_info::granularity: one scale for each group_size columns of a row.
#define MNNKV_SCALE_GROUP 3
/// mnnkv_msmodelslim_name: the linears.
#define MNNKV_MSMODELSLIM_LINEARS 1
/// mnnkv_msmodelslim_name: the norms.
#define MNNKV_MSMODELSLIM_NORMS 2
/// mnnkv_msmodelslim_name: the layers with KV scales.
#define MNNKV_MSMODELSLIM_KV_LAYERS 3

/// A directory of quantised weights as msmodelslim writes them, open for reading: a handle from mnnkv_msmodelslim_open.
/// Immutable; its functions may run on several threads at once.
///
/// The handle holds headers, not tensors, and one open file for each weight file. Tensors are read in pieces on demand and
/// never mapped; a file that shrinks is IO. Linears, norms and KV layers have numbers from 0 on: linears and norms in the
/// order of their names, KV layers in the order of their layers. mnnkv_msmodelslim_get_info returns their counts.
typedef struct mnnkv_msmodelslim mnnkv_msmodelslim;

/// A directory. Set struct_size before the call.
typedef struct mnnkv_msmodelslim_info {
    /// sizeof(mnnkv_msmodelslim_info)
    uint32_t struct_size;
    /// 1 if kv_cache_type or kv_quant_type declares KV scales.
    uint32_t kv_declared;
    /// Weights of two dimensions (`name.weight`), unquantised ones and embeddings included.
    uint64_t linears;
    /// Norms: float weights of one dimension (`name.weight`), with any tag.
    uint64_t norms;
    /// Layers with KV scales.
    uint64_t kv_layers;
    /// Weight files.
    uint64_t weight_files;
    /// Bytes of all tensors.
    uint64_t bytes;
    /// 0.
    uint32_t reserved[2];
} mnnkv_msmodelslim_info;

/// A linear. Set struct_size before the call.
typedef struct mnnkv_msmodelslim_linear_info {
    /// sizeof(mnnkv_msmodelslim_linear_info)
    uint32_t struct_size;
    /// MNNKV_MSMODELSLIM_FLOAT to MNNKV_MSMODELSLIM_OTHER.
    uint32_t tag;
    /// MNNKV_SCALE_*.
    uint32_t granularity;
    /// 1 if a float bias exists. quant_bias of W8A8, W8A8S and W8A8_MIX includes it.
    uint32_t bias;
    /// Rows: outputs.
    uint64_t n;
    /// Columns: inputs.
    uint64_t k;
    /// Columns per scale; 0 without groups.
    uint64_t group_size;
    /// Bytes of all its tensors.
    uint64_t bytes;
    /// 0.
    uint32_t reserved[2];
} mnnkv_msmodelslim_linear_info;

/// Checks the directory at path (UTF-8, zero-terminated) and writes all findings as JSON: {"errors": 1, "warnings": 0,
/// "findings": [{"severity": "error", "kind": "missing_tensor", "tensor": "...", "file": "...", "text": "..."}, ...]}.
/// An error makes the directory unusable or its numbers wrong. A warning marks content that other readers may refuse or
/// read differently. The words of kind are stable; docs/model-files.md lists them. The check covers files, names, types,
/// shapes, and every number of scales, offsets and codes; it reads tensors once, in pieces. A broken or missing directory
/// is a finding, not a failure of the call.
///
/// text: room for cap bytes. len: length of the text with its terminating zero. Any thread.
/// BUFFER_TOO_SMALL: if cap is below the length; *len is the length. The next call reads everything again: begin with
///   64 KiB.
mnnkv_status mnnkv_msmodelslim_check_json(const char *path,
                                          char *text,
                                          size_t cap,
                                          size_t *len);

/// Opens the directory at path (UTF-8, zero-terminated). abi_version: MNNKV_ABI_VERSION. out: the handle;
/// mnnkv_msmodelslim_destroy frees it. A broken layer fails only when it is used. Any thread.
/// NOT_FOUND: if the directory, its weights or its description does not exist.
/// INVALID_ARGUMENT: if path is not a directory, one of its files is not a regular file, or several files could be its
///   description or index.
/// CORRUPT: if a JSON document or the header of a file is malformed.
/// IO: if reading fails.
/// UNSUPPORTED: if the ABI differs.
mnnkv_status mnnkv_msmodelslim_open(const char *path, uint32_t abi_version, mnnkv_msmodelslim **out);

/// Frees the handle. NULL is ignored. No other call on the handle may run.
void mnnkv_msmodelslim_destroy(mnnkv_msmodelslim *model);

/// Writes the counts of linears, norms and KV layers. Set info->struct_size first.
mnnkv_status mnnkv_msmodelslim_get_info(const mnnkv_msmodelslim *model, mnnkv_msmodelslim_info *info);

/// Writes the contents of the directory as a JSON object: model_quant_type, version, group_size, kv_cache_type, bytes,
/// and the lists linears (name, tag, n, k, granularity, group_size, bias, bytes, error), norms (name, len, bias,
/// smoothed, error) and kv (prefix, layer, key_channels, value_channels, error). Unusable entries have a text in error.
///
/// text: room for cap bytes. len: length of the text with its terminating zero.
/// BUFFER_TOO_SMALL: if cap is below the length; *len is the length.
mnnkv_status mnnkv_msmodelslim_layers_json(const mnnkv_msmodelslim *model, char *text, size_t cap, size_t *len);

/// Writes a name. list: MNNKV_MSMODELSLIM_LINEARS or MNNKV_MSMODELSLIM_NORMS (names without ".weight"), or
/// MNNKV_MSMODELSLIM_KV_LAYERS (the attention module, or its merged linear). text, cap, len: as in
/// mnnkv_msmodelslim_layers_json.
/// NOT_FOUND: if index is not below the length of the list.
/// INVALID_ARGUMENT: if list is not one of these.
/// BUFFER_TOO_SMALL: if cap is below the length; *len is the length.
mnnkv_status mnnkv_msmodelslim_name(const mnnkv_msmodelslim *model,
                                    uint32_t list,
                                    uint64_t index,
                                    char *text,
                                    size_t cap,
                                    size_t *len);

/// Writes the number of the linear with this name (zero-terminated, without ".weight").
/// NOT_FOUND: if no linear has this name.
mnnkv_status mnnkv_msmodelslim_find(const mnnkv_msmodelslim *model, const char *name, uint64_t *linear);

/// Writes one linear. Set info->struct_size first.
/// NOT_FOUND: if the linear does not exist.
mnnkv_status mnnkv_msmodelslim_get_linear_info(const mnnkv_msmodelslim *model,
                                               uint64_t linear,
                                               mnnkv_msmodelslim_linear_info *info);

/// Converts codes 0 .. 255 to the signed codes of this format: code - 128. Subtract 128 from their offset; their scale
/// stays. codes, signed_codes: n each, not overlapping. n 0 is legal. Any thread.
mnnkv_status mnnkv_msmodelslim_signed(const uint8_t *codes, size_t n, int8_t *signed_codes);

/// Writes rows row_begin .. row_begin + rows of a linear's weight as rows * k numbers of dtype (MNNKV_DTYPE_F16, BF16
/// or F32), row-major, rounded to nearest even from fp32.
///
/// W8A16, W8A8_DYNAMIC, W8A8_MIX: (code - weight_offset) * weight_scale. W8A8, W8A8S: code * weight_scale if the file
/// has that, else code * (deq_scale / input_scale). FLOAT: the numbers themselves. The call allocates the bytes of these
/// rows in the file, their scales and offsets, and a row of floats: convert some rows at a time.
/// out: room for out_bytes bytes, in native byte order, of any alignment. rows 0 is legal.
/// INVALID_ARGUMENT: if the rows or dtype do not exist.
/// BUFFER_TOO_SMALL: if out_bytes is too small; mnnkv_model_last_error has the required bytes.
/// NOT_FOUND: if the linear does not exist.
/// UNSUPPORTED: if dtype is INT8, TQ3 or TQ4, or the type of quantisation is not supported.
/// CORRUPT: if its tensors contradict each other, or a scale is not positive; the message names the tensor.
/// IO: if a file cannot be read or became shorter.
mnnkv_status mnnkv_msmodelslim_dequantize(const mnnkv_msmodelslim *model,
                                          uint64_t linear,
                                          uint64_t row_begin,
                                          uint64_t rows,
                                          uint32_t dtype,
                                          void *out,
                                          size_t out_bytes);

/// Computes outputs of a linear of type W8A8, W8A8S or W8A8_MIX as the hardware does: y = (sum of x code * weight code,
/// plus quant_bias) * deq_scale, with quantised inputs and integer sums. The sum is rounded to f32 before the product.
/// quant_bias includes a float bias.
///
/// x: tokens rows of k floats. y: tokens rows of rows floats, for the outputs row_begin .. row_begin + rows; room for
/// y_cap floats. Inputs are divided by the scale; hardware that multiplies by the reciprocal may round a tie
/// differently. Infinite inputs saturate.
/// INVALID_ARGUMENT: if the rows do not exist, or x contains NaN.
/// BUFFER_TOO_SMALL: if y_cap is too small; mnnkv_model_last_error has the required floats.
/// NOT_FOUND: if the linear does not exist.
/// UNSUPPORTED: if the type of quantisation is not supported.
/// CORRUPT: if its tensors contradict each other, or a scale is not positive; the message names the tensor.
/// IO: if a file cannot be read or became shorter.
mnnkv_status mnnkv_msmodelslim_linear_w8a8(const mnnkv_msmodelslim *model,
                                           uint64_t linear,
                                           uint64_t row_begin,
                                           uint64_t rows,
                                           const float *x,
                                           size_t tokens,
                                           float *y,
                                           size_t y_cap);

/// Writes weight and bias of a norm as fp32. quantized: 1 = the pair for quantised linears (".module" in its name, if
/// present), 0 = the plain pair for float linears. bias is zeros if the files have none.
///
/// weight, bias: room for cap floats each. len: floats of each.
/// BUFFER_TOO_SMALL: if cap is below the length; *len is the length.
/// NOT_FOUND: if the norm or its plain pair does not exist.
/// CORRUPT: if its tensors contradict each other.
/// IO: if a file cannot be read or became shorter.
mnnkv_status mnnkv_msmodelslim_norm(const mnnkv_msmodelslim *model,
                                    uint64_t norm,
                                    uint32_t quantized,
                                    float *weight,
                                    float *bias,
                                    size_t cap,
                                    size_t *len);

/// Writes the KV scales and offsets of a layer as fp32, for mnnkv_c8_scales, which refuses scales below 2^-100 and offsets
/// that are not integers from -128 to 127: errors of mnnkv_msmodelslim_check_json. kv_layer: a number in
/// MNNKV_MSMODELSLIM_KV_LAYERS; equal to the layer's own number only if all layers have scales. values: 0 = keys, 1 =
/// values. Offsets are zeros if the files have none.
///
/// scale, offset: room for cap floats each. len: floats of each: one per channel, or 1 for all channels.
/// BUFFER_TOO_SMALL: if cap is below the length; *len is the length.
/// NOT_FOUND: if the layer does not exist.
/// CORRUPT: if its tensors contradict each other, or a scale is not positive.
/// IO: if a file cannot be read or became shorter.
mnnkv_status mnnkv_msmodelslim_kv_scales(const mnnkv_msmodelslim *model,
                                         uint64_t kv_layer,
                                         uint32_t values,
                                         float *scale,
                                         float *offset,
                                         size_t cap,
                                         size_t *len);

// --- msmodelslim: write a directory -----------------------------------------------------------------------------

/// A new directory of quantised weights: a handle from mnnkv_msmodelslim_writer_create. One thread at a time.
///
/// Declare everything with its shape, then append the contents in the same order:
///
///   mnnkv_msmodelslim_writer_tensor, _linear, _kv              once for each
///   mnnkv_msmodelslim_writer_append, _append_rows, _append_kv  one by one; a tensor or linear in pieces
///   mnnkv_msmodelslim_writer_finish                            the directory is complete
///
/// The files are quant_model_weights.safetensors, or its parts and their index, and quant_model_description.json. The
/// description is written last and marks a complete directory. Tensors are contiguous in the order of declaration. An
/// int8 weight whose size is not a multiple of 4 leaves later tensors unaligned, which some readers refuse: declare it
/// last. INVALID_ARGUMENT before finish, and OUT_OF_MEMORY, change nothing; the call may be repeated.
typedef struct mnnkv_msmodelslim_writer mnnkv_msmodelslim_writer;

/// Options of a writer. Zero every field, then set struct_size. NULL means all zeros.
typedef struct mnnkv_msmodelslim_writer_options {
    /// sizeof(mnnkv_msmodelslim_writer_options)
    uint32_t struct_size;
    /// 1 = weights have offsets, which runtimes read differently. 0 = offsets are zero.
    uint32_t asymmetric;
    /// Columns per scale, a divisor of every linear's k; 0 = one scale per row.
    uint64_t group_size;
    /// Bytes of tensors after which a part ends; 0 = one file without an index.
    uint64_t part_bytes;
    /// Must be 0.
    uint32_t reserved[2];
} mnnkv_msmodelslim_writer_options;

/// Prepares a directory at path (UTF-8, zero-terminated). An existing one must have no quantised weights or
/// description; otherwise its parent must exist. Nothing is written before the first contents. abi_version:
/// MNNKV_ABI_VERSION. out: the handle; mnnkv_msmodelslim_writer_destroy frees it. options: NULL = one file, a scale per
/// row, no offsets. A relative path stays valid when the working directory changes. Any thread.
/// INVALID_ARGUMENT: if path is not a directory or has weights, or an option is out of range.
/// IO: if path cannot be examined.
/// UNSUPPORTED: if the ABI differs.
mnnkv_status mnnkv_msmodelslim_writer_create(const char *path,
                                             const mnnkv_msmodelslim_writer_options *options,
                                             uint32_t abi_version,
                                             mnnkv_msmodelslim_writer **out);

/// Frees a writer and removes its files unless it finished. NULL is ignored. Accepts a handle that returns INTERNAL. No
/// other call on the handle may run.
void mnnkv_msmodelslim_writer_destroy(mnnkv_msmodelslim_writer *writer);

/// Declares a tensor that is copied unchanged. tag: the word for the description, such as "FLOAT" or the type of its
/// layer. dtype: a name of safetensors, such as "F16", "BF16", "F32", "I8". Texts are zero-terminated. shape: rank
/// dimensions, outermost first; rank 0 is a single number.
/// INVALID_ARGUMENT: if the name is declared already or has no dot, a word is unknown, the size overflows, or contents
///   have begun.
mnnkv_status mnnkv_msmodelslim_writer_tensor(mnnkv_msmodelslim_writer *writer,
                                             const char *name,
                                             const char *tag,
                                             const char *dtype,
                                             const uint64_t *shape,
                                             size_t rank);

/// Declares a linear's weight of n rows by k columns that comes as floats and is quantised to W8A16: name.weight,
/// name.weight_scale and name.weight_offset. name: zero-terminated. A bias is a tensor of its own.
/// INVALID_ARGUMENT: if the name is declared already, n or k is 0, group_size does not divide k, or contents have
///   begun.
mnnkv_status mnnkv_msmodelslim_writer_linear(mnnkv_msmodelslim_writer *writer, const char *name, size_t n, size_t k);

/// Declares the KV scales of a layer (C8). prefix: the name of its attention module, zero-terminated. channels: KV
/// heads times head_dim.
/// INVALID_ARGUMENT: if the name is declared already, channels is 0, or contents have begun.
mnnkv_status mnnkv_msmodelslim_writer_kv(mnnkv_msmodelslim_writer *writer, const char *prefix, size_t channels);

/// Appends len bytes, little-endian, to a declared tensor. After NOT_FOUND or IO only destroy is legal.
/// INVALID_ARGUMENT: if another tensor is next, len exceeds the rest, or these are the first contents and the directory has
///   got weights or a description.
/// NOT_FOUND: if the parent of the directory does not exist, or the directory was removed or renamed.
/// IO: if writing fails, or another program has created a file of the same name; that file stays.
mnnkv_status mnnkv_msmodelslim_writer_append(mnnkv_msmodelslim_writer *writer,
                                             const char *name,
                                             const void *data,
                                             size_t len);

/// Appends count floats, whole rows, to a declared linear. INVALID_ARGUMENT writes nothing.
/// INVALID_ARGUMENT: if another is next, count is not a multiple of k or exceeds the rest, a number is not finite, or,
///   with asymmetric, the range of numbers overflows f32.
/// NOT_FOUND: if the parent of the directory does not exist, or the directory was removed or renamed.
/// IO: if writing fails, or another program has created a file of the same name; that file stays.
mnnkv_status mnnkv_msmodelslim_writer_append_rows(mnnkv_msmodelslim_writer *writer,
                                                  const char *name,
                                                  const float *weights,
                                                  size_t count);

/// Appends the KV scales of a declared layer, channels floats each. key_offset, value_offset: integers from -128 to
/// 127, or NULL for zeros, which all runtimes read alike.
/// INVALID_ARGUMENT: if another one is next, channels differs, a scale is not finite or below 2^-100, or an offset is not a
///   code.
/// NOT_FOUND: if the parent of the directory does not exist, or the directory was removed or renamed.
/// IO: if writing fails, or another program has created a file of the same name; that file stays.
mnnkv_status mnnkv_msmodelslim_writer_append_kv(mnnkv_msmodelslim_writer *writer,
                                                const char *prefix,
                                                const float *key_scale,
                                                const float *key_offset,
                                                const float *value_scale,
                                                const float *value_offset,
                                                size_t channels);

/// Completes the directory. Afterwards only destroy is legal, except after OUT_OF_MEMORY. Any other failure
/// removes the files.
/// INVALID_ARGUMENT: if contents are missing, or nothing was declared.
/// NOT_FOUND: if the directory was removed or renamed.
/// IO: if writing fails, or another program has created a file of the same name; that file stays.
/// OUT_OF_MEMORY: if memory was refused; nothing has changed, and the call may be repeated.
mnnkv_status mnnkv_msmodelslim_writer_finish(mnnkv_msmodelslim_writer *writer);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MNNKV_MODEL_MSMODELSLIM_H
