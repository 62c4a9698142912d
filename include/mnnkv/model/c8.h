// mnnkv/model/c8.h: 8-bit codes with a scale and an offset per channel.
//
// Generated from model/src/ffi by `make header`; do not edit. mnnkv.h has the conventions.

#ifndef MNNKV_MODEL_C8_H
#define MNNKV_MODEL_C8_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- C8: K and V as int8 codes with a scale per channel. Calibrate, quantise, restore, measure ------------------

/// mnnkv_c8_shape::order: [token][head][dim], the order of a projection.
#define MNNKV_ORDER_TOKEN_HEAD_DIM 1
/// mnnkv_c8_shape::order: [head][token][dim], the order of mnnkv_kv_gather.
#define MNNKV_ORDER_HEAD_TOKEN_DIM 2
/// mnnkv_c8_parameters: equal steps below and above 0, and every offset 0. The default of exporters, and the only form
/// that all runtimes read correctly.
#define MNNKV_C8_SYMMETRIC 1
/// mnnkv_c8_parameters: 255 steps from the least to the greatest number (or 0).
#define MNNKV_C8_ASYMMETRIC 2

/// The shape of the values of K or of V: kv_heads * head_dim * tokens dense elements in native byte order, of any
/// alignment. Their codes are int8, one each, in the same order. Lengths beside a shape must equal those of the shape:
/// values in bytes, codes in codes.
///
/// A channel is a dimension of a KV head, number kv_head * head_dim + dim; there are kv_heads * head_dim of them.
typedef struct mnnkv_c8_shape {
    /// sizeof(mnnkv_c8_shape)
    uint32_t struct_size;
    /// MNNKV_DTYPE_F16, _BF16 or _F32.
    uint32_t dtype;
    /// MNNKV_ORDER_*.
    uint32_t order;
    /// KV heads (not query heads), at least 1.
    uint32_t kv_heads;
    /// Elements per head and token, at least 1.
    uint32_t head_dim;
    /// Tokens; 0 is legal.
    uint32_t tokens;
    /// Must be 0.
    uint32_t reserved[2];
} mnnkv_c8_shape;

/// A scale and an offset for each channel of K or of V.
///
///   code  = clamp(rint(value / scale + offset), -128, 127)
///   value = (code - offset) * scale
///
/// in f32, rounded to nearest with ties to even. Scales are finite and at least 2^-100. Offsets are integers from -128
/// to 127, and 0 in symmetric files. Other values are INVALID_ARGUMENT, and the message names the channel. Repeat a
/// scale that a file has once for all channels.
typedef struct mnnkv_c8_scales {
    /// sizeof(mnnkv_c8_scales)
    uint32_t struct_size;
    /// Length of both arrays: kv_heads * head_dim.
    uint32_t channels;
    /// A scale for each channel.
    const float *scale;
    /// An offset for each channel.
    const float *offset;
    /// Must be 0.
    uint32_t reserved[2];
} mnnkv_c8_scales;

/// Errors of values that became codes and values again. Set struct_size before the call.
typedef struct mnnkv_c8_figures {
    /// sizeof(mnnkv_c8_figures)
    uint32_t struct_size;
    /// The channel with the largest root mean square error; the first of equals.
    uint32_t worst_channel;
    /// Values compared.
    uint64_t elements;
    /// Values outside the range of codes; their error is unbounded. The error of all others is at most half a scale and
    /// the rounding to the element type.
    uint64_t saturated;
    /// The largest absolute difference.
    double max_abs_error;
    /// The root mean square difference.
    double rms_error;
    /// rms_error over the root mean square value; 0 if nothing differs, infinite if all values are 0 and a restored one
    /// is not.
    double relative_rms_error;
    /// The cosine between values and restored values; 1 if nothing differs, 0 if one side is all zeros or infinite.
    double cosine_similarity;
    /// Written as 0.
    uint32_t reserved[2];
} mnnkv_c8_figures;

/// Writes empty ranges, +inf and -inf, to begin a calibration. min, max: one number per channel. Any thread.
mnnkv_status mnnkv_c8_ranges_clear(size_t channels, float *min, float *max);

/// Widens the ranges of all channels by a batch of K or of V as it enters the cache (K after RoPE).
///
/// values: values_len bytes. min, max: kv_heads * head_dim numbers each, changed in place. The result does not depend
/// on the order or the size of batches. Ranges of several threads merge by the lesser min and the greater max of each
/// channel. Nothing has changed on failure. Any thread.
/// INVALID_ARGUMENT: if a value is NaN or infinite (the message names token and channel), values_len is not that of the
///   shape, or a range is neither empty nor finite.
mnnkv_status mnnkv_c8_ranges_update(const mnnkv_c8_shape *shape,
                                    const void *values,
                                    size_t values_len,
                                    float *min,
                                    float *max);

/// Computes scales and offsets from ranges.
///
///   lo = min(min, 0), hi = max(max, 0), in f32
///   MNNKV_C8_SYMMETRIC    scale = max(-lo, hi) / 127      offset = 0
///   MNNKV_C8_ASYMMETRIC   scale = (hi - lo) / 255         offset = rint(-lo / scale) - 128
///
/// The least scale is 2^-23. dtype: element type of the statistics, MNNKV_DTYPE_F16, _BF16 or _F32. Scales are rounded
/// to it, as files of that type hold them, and written as f32. The offset is computed from the scale before that rounding.
/// min, max, scale, offset: channels numbers each. Nothing is written on failure. Any thread.
/// INVALID_ARGUMENT: if symmetry or dtype is not supported, a range is empty, or a scale overflows dtype; the message
///   names the channel.
mnnkv_status mnnkv_c8_parameters(const float *min,
                                 const float *max,
                                 size_t channels,
                                 uint32_t symmetry,
                                 uint32_t dtype,
                                 float *scale,
                                 float *offset);

/// Converts values to codes.
///
/// values: values_len bytes. codes: room for codes_cap codes; kv_heads * head_dim * tokens are written. Values outside
/// the range of codes saturate, infinities included; NaN becomes the code of 0. Codes do not depend on the CPU. Any
/// thread.
/// INVALID_ARGUMENT: if values_len is not that of the shape, or a scale is invalid.
/// BUFFER_TOO_SMALL: if codes_cap is too small; mnnkv_model_last_error has the required codes.
mnnkv_status mnnkv_c8_quantize(const mnnkv_c8_shape *shape,
                               const void *values,
                               size_t values_len,
                               const mnnkv_c8_scales *scales,
                               int8_t *codes,
                               size_t codes_cap);

/// Converts codes to values.
///
/// codes: codes_len codes. values: room for values_cap bytes; those of the shape are written, rounded to its dtype.
/// Products above the range of dtype become infinite: |code - offset| is at most 255, so this needs a scale above 256 in F16,
/// and above 1.3e36 in BF16 and F32. Values do not depend on the CPU. Any thread.
/// INVALID_ARGUMENT: if codes_len is not that of the shape, or a scale is invalid.
/// BUFFER_TOO_SMALL: if values_cap is too small; mnnkv_model_last_error has the required bytes.
mnnkv_status mnnkv_c8_dequantize(const mnnkv_c8_shape *shape,
                                 const int8_t *codes,
                                 size_t codes_len,
                                 const mnnkv_c8_scales *scales,
                                 void *values,
                                 size_t values_cap);

/// Converts values to codes and back and measures the error. values: values_len bytes. Set figures->struct_size first.
/// Any thread.
/// INVALID_ARGUMENT: if a value is NaN or infinite (the message names token and channel), values_len is not that of the
///   shape, or a scale is invalid.
mnnkv_status mnnkv_c8_measure(const mnnkv_c8_shape *shape,
                              const void *values,
                              size_t values_len,
                              const mnnkv_c8_scales *scales,
                              mnnkv_c8_figures *figures);

/// Copies tokens begin .. begin + count of a packed cache as codes: mnnkv_kv_gather, then mnnkv_c8_quantize.
///
/// key, value: the buffers of the layout. key_scales, value_scales: of kv_heads * head_dim channels each. key_codes,
/// value_codes: [head][token][dim], kv_heads * count * head_dim codes each; cap_each is the capacity of each. The call
/// allocates the values of the range. Any thread, also several on one cache without a writer.
/// INVALID_ARGUMENT: if the range exceeds max_tokens, or a scale is invalid.
/// UNSUPPORTED: if K or V of the layout is quantised.
/// BUFFER_TOO_SMALL: if cap_each is too small; mnnkv_model_last_error has the required codes.
/// OUT_OF_MEMORY: if the values of the range cannot be allocated.
mnnkv_status mnnkv_c8_gather(const mnnkv_layout *layout,
                             const void *key,
                             const void *value,
                             uint32_t begin,
                             uint32_t count,
                             const mnnkv_c8_scales *key_scales,
                             const mnnkv_c8_scales *value_scales,
                             int8_t *key_codes,
                             int8_t *value_codes,
                             size_t cap_each);

/// Writes codes as values into tokens begin .. begin + count of a packed cache: mnnkv_c8_dequantize, then
/// mnnkv_kv_scatter.
///
/// key_codes, value_codes: [head][token][dim], len_each codes each, exactly those of the range. key_scales,
/// value_scales: of kv_heads * head_dim channels each. Padding and other tokens stay unchanged. The call allocates the
/// values of the range. The cache is unchanged on failure. One thread per cache.
/// INVALID_ARGUMENT: if the range exceeds max_tokens, len_each is not that of the range, or a scale is invalid.
/// UNSUPPORTED: if K or V of the layout is quantised.
/// OUT_OF_MEMORY: if the values of the range cannot be allocated.
mnnkv_status mnnkv_c8_scatter(const mnnkv_layout *layout,
                              const int8_t *key_codes,
                              const int8_t *value_codes,
                              size_t len_each,
                              const mnnkv_c8_scales *key_scales,
                              const mnnkv_c8_scales *value_scales,
                              uint32_t begin,
                              uint32_t count,
                              void *key,
                              void *value);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MNNKV_MODEL_C8_H
