// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_MODEL_C8_H
#define MNNKV_MODEL_C8_H
#include "base.h"
#ifdef __cplusplus
extern "C" {
#endif
#define MNNKV_ORDER_TOKEN_HEAD_DIM 1
#define MNNKV_ORDER_HEAD_TOKEN_DIM 2
#define MNNKV_C8_SYMMETRIC 1
#define MNNKV_C8_ASYMMETRIC 2
typedef struct mnnkv_c8_shape {
    uint32_t struct_size;
    uint32_t dtype;
    uint32_t order;
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t tokens;
    uint32_t reserved[2];
} mnnkv_c8_shape;
typedef struct mnnkv_c8_scales {
    uint32_t struct_size;
    uint32_t channels;
    const float *scale;
    const float *offset;
    uint32_t reserved[2];
} mnnkv_c8_scales;
typedef struct mnnkv_c8_figures {
    uint32_t struct_size;
    uint32_t worst_channel;
    uint64_t elements;
    uint64_t saturated;
    double max_abs_error;
    double rms_error;
    double relative_rms_error;
    double cosine_similarity;
    uint32_t reserved[2];
} mnnkv_c8_figures;
mnnkv_status mnnkv_c8_ranges_clear(size_t channels, float *min, float *max);
mnnkv_status mnnkv_c8_ranges_update(const mnnkv_c8_shape *shape,
                                    const void *values,
                                    size_t values_len,
                                    float *min,
                                    float *max);
mnnkv_status mnnkv_c8_parameters(const float *min,
                                 const float *max,
                                 size_t channels,
                                 uint32_t symmetry,
                                 uint32_t dtype,
                                 float *scale,
                                 float *offset);
mnnkv_status mnnkv_c8_quantize(const mnnkv_c8_shape *shape,
                               const void *values,
                               size_t values_len,
                               const mnnkv_c8_scales *scales,
                               int8_t *codes,
                               size_t codes_cap);
mnnkv_status mnnkv_c8_dequantize(const mnnkv_c8_shape *shape,
                                 const int8_t *codes,
                                 size_t codes_len,
                                 const mnnkv_c8_scales *scales,
                                 void *values,
                                 size_t values_cap);
mnnkv_status mnnkv_c8_measure(const mnnkv_c8_shape *shape,
                              const void *values,
                              size_t values_len,
                              const mnnkv_c8_scales *scales,
                              mnnkv_c8_figures *figures);
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
}
#endif
#endif
