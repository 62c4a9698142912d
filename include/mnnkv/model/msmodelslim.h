// mnnkv/model/msmodelslim.h: directories of weights that msmodelslim quantised.
//
// Generated from model/src/ffi by `make header`; do not edit. mnnkv/session.h has the conventions.

#ifndef MNNKV_MODEL_MSMODELSLIM_H
#define MNNKV_MODEL_MSMODELSLIM_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- msmodelslim: read directories of quantised weights. Check, dequantise, compute ------------------------------------------

/// A directory of quantised weights as msmodelslim writes them, open for reading: a handle from mnnkv_msmodelslim_open.
/// Immutable; its functions may run on several threads at once.
///
/// The handle holds headers, not tensors, and one open file for each weight file. Tensors are read in pieces on demand and
/// never mapped; a file that shrinks is IO. Linears and norms have the names of their weights in the model, without
/// ".weight"; KV scales have the name of their attention module.
typedef struct mnnkv_msmodelslim mnnkv_msmodelslim;

/// A linear. Set struct_size before the call.
typedef struct mnnkv_msmodelslim_linear_info {
    uint32_t struct_size;  ///< sizeof(mnnkv_msmodelslim_linear_info)
    uint32_t int8_inputs;  ///< 1: mnnkv_msmodelslim_linear_w8a8 computes it (W8A8, W8A8S, W8A8_MIX). 0: it does not.
    uint64_t n;            ///< Rows: outputs.
    uint64_t k;            ///< Columns: inputs.
} mnnkv_msmodelslim_linear_info;

/// Checks the directory at path (UTF-8, zero-terminated) and writes all findings as JSON: {"errors": 1, "warnings": 0,
/// "findings": [{"severity": "error", "kind": "missing_tensor", "tensor": "...", "file": "...", "text": "..."}, ...]}.
/// An error makes the directory unusable or its numbers wrong. A warning marks content that other readers may refuse or
/// read differently. The words of kind are stable; docs/tools.md lists them. The check covers files, names, types,
/// shapes, and every number of scales, offsets and codes; it reads tensors once, in pieces. A broken or missing directory
/// is a finding, not a failure of the call.
///
/// text: room for cap bytes. len: length of the text with its terminating zero. Any thread.
/// BUFFER_TOO_SMALL: if cap is below the length; *len is the length. The next call reads everything again: begin with
///   64 KiB.
mnnkv_status mnnkv_msmodelslim_check_json(const char *path, char *text, size_t cap, size_t *len);

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

/// Writes the size of a linear by its name. Set info->struct_size first.
/// NOT_FOUND: if the linear does not exist.
mnnkv_status mnnkv_msmodelslim_get_linear_info(const mnnkv_msmodelslim *model, const char *linear,
                                               mnnkv_msmodelslim_linear_info *info);

/// Writes rows row_begin .. row_begin + rows of a linear's weight as rows * k numbers of dtype (MNNKV_DTYPE_F16, BF16
/// or F32), row-major, rounded to nearest even from fp32.
///
/// W8A16, W8A8_DYNAMIC, W8A8_MIX: (code - weight_offset) * weight_scale. W8A8, W8A8S: code * weight_scale if the file
/// has that, else code * (deq_scale / input_scale). FLOAT: the numbers themselves. The call allocates the bytes of these
/// rows in the file, their scales and offsets, and a row of floats: convert some rows at a time.
/// out: room for out_bytes bytes, little-endian, of any alignment. rows 0 is legal.
/// INVALID_ARGUMENT: if the rows or dtype do not exist.
/// BUFFER_TOO_SMALL: if out_bytes is too small; mnnkv_model_last_error has the required bytes.
/// NOT_FOUND: if the linear does not exist.
/// UNSUPPORTED: if dtype is INT8, TQ3 or TQ4, or the type of quantisation is not supported.
/// CORRUPT: if its tensors contradict each other, or a scale is not positive; the message names the tensor.
/// IO: if a file cannot be read or became shorter.
mnnkv_status mnnkv_msmodelslim_dequantize(const mnnkv_msmodelslim *model, const char *linear, uint64_t row_begin, uint64_t rows,
                                          uint32_t dtype, void *out, size_t out_bytes);

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
mnnkv_status mnnkv_msmodelslim_linear_w8a8(const mnnkv_msmodelslim *model, const char *linear, uint64_t row_begin, uint64_t rows,
                                           const float *x, size_t tokens, float *y, size_t y_cap);

/// Writes weight and bias of a norm as fp32. quantized: 1 = the pair for quantised linears (".module" in its name, if
/// present), 0 = the plain pair for float linears. bias is zeros if the files have none.
///
/// weight, bias: room for cap floats each. len: floats of each.
/// BUFFER_TOO_SMALL: if cap is below the length; *len is the length.
/// NOT_FOUND: if the norm or its plain pair does not exist.
/// CORRUPT: if its tensors contradict each other.
/// IO: if a file cannot be read or became shorter.
mnnkv_status mnnkv_msmodelslim_norm(const mnnkv_msmodelslim *model, const char *norm, uint32_t quantized, float *weight,
                                    float *bias, size_t cap, size_t *len);

/// Writes the KV scales and offsets of a layer as fp32, for mnnkv_c8_dequantize, which refuses scales below 2^-100 and
/// offsets that are not integers from -128 to 127: errors of mnnkv_msmodelslim_check_json. module: the attention module, or
/// its merged linear, such as "model.layers.3.self_attn". values: 0 = keys, 1 = values. Offsets are zeros if the files have
/// none.
///
/// scale, offset: room for cap floats each. len: floats of each: one per channel, or 1 for all channels.
/// BUFFER_TOO_SMALL: if cap is below the length; *len is the length.
/// NOT_FOUND: if the layer does not exist.
/// CORRUPT: if its tensors contradict each other, or a scale is not positive.
/// IO: if a file cannot be read or became shorter.
mnnkv_status mnnkv_msmodelslim_kv_scales(const mnnkv_msmodelslim *model, const char *module, uint32_t values, float *scale,
                                         float *offset, size_t cap, size_t *len);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MNNKV_MODEL_MSMODELSLIM_H
