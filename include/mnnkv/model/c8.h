// mnnkv/model/c8.h: 8-bit codes with a scale and an offset per channel.
//
// Generated from model/src/ffi by `make header`; do not edit. mnnkv/session.h has the conventions.

#ifndef MNNKV_MODEL_C8_H
#define MNNKV_MODEL_C8_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- C8: K and V as int8 codes with a scale per channel, as msmodelslim has them ---------------------------------------------

/// mnnkv_c8_shape::order: [token][head][dim], the order of a projection.
#define MNNKV_ORDER_TOKEN_HEAD_DIM 1
/// mnnkv_c8_shape::order: [head][token][dim], the order of mnnkv_kv_gather and mnnkv_kv_scatter.
#define MNNKV_ORDER_HEAD_TOKEN_DIM 2

/// The shape of the values of K or of V: kv_heads * head_dim * tokens dense elements in native byte order, of any
/// alignment. Their codes are int8, one each, in the same order.
///
/// A channel is a dimension of a KV head, number kv_head * head_dim + dim; there are kv_heads * head_dim of them.
typedef struct mnnkv_c8_shape {
    uint32_t struct_size;  ///< sizeof(mnnkv_c8_shape)
    uint32_t dtype;        ///< MNNKV_DTYPE_F16, _BF16 or _F32.
    uint32_t order;        ///< MNNKV_ORDER_*.
    uint32_t kv_heads;     ///< KV heads (not query heads), at least 1.
    uint32_t head_dim;     ///< Elements per head and token, at least 1.
    uint32_t tokens;       ///< Tokens; 0 is legal.
    uint32_t reserved[2];  ///< Must be 0.
} mnnkv_c8_shape;

/// Converts codes to values.
///
///   value = (code - offset) * scale
///
/// in f32, rounded to the dtype of the shape, to nearest with ties to even. codes: kv_heads * head_dim * tokens. scale,
/// offset: one for each channel; mnnkv_msmodelslim_kv_scales reads them, and a scale that a file has once for all
/// channels is to be repeated. values: room for values_cap bytes; those of the shape are written. Products above the
/// range of dtype become infinite: |code - offset| is at most 255, so this needs a scale above 256 in F16, and above
/// 1.3e36 in BF16 and F32. Values do not depend on the CPU. Any thread.
/// INVALID_ARGUMENT: if a scale is not finite or below 2^-100, or an offset is no integer from -128 to 127; the message
///   names the channel.
/// BUFFER_TOO_SMALL: if values_cap is too small; mnnkv_model_last_error has the required bytes.
mnnkv_status mnnkv_c8_dequantize(const mnnkv_c8_shape *shape, const int8_t *codes, const float *scale, const float *offset,
                                 void *values, size_t values_cap);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MNNKV_MODEL_C8_H
