// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_MODEL_MSMODELSLIM_H
#define MNNKV_MODEL_MSMODELSLIM_H
#include "c8.h"
#ifdef __cplusplus
extern "C" {
#endif
#define MNNKV_MSMODELSLIM_FLOAT 1
#define MNNKV_MSMODELSLIM_W8A16 2
#define MNNKV_MSMODELSLIM_W8A8 3
#define MNNKV_MSMODELSLIM_W8A8S 4
#define MNNKV_MSMODELSLIM_W8A8_DYNAMIC 5
#define MNNKV_MSMODELSLIM_W8A8_MIX 6
#define MNNKV_MSMODELSLIM_OTHER 7
#define MNNKV_SCALE_NONE 0
#define MNNKV_SCALE_TENSOR 1
#define MNNKV_SCALE_CHANNEL 2
#define MNNKV_SCALE_GROUP 3
#define MNNKV_MSMODELSLIM_LINEARS 1
#define MNNKV_MSMODELSLIM_NORMS 2
#define MNNKV_MSMODELSLIM_KV_LAYERS 3
typedef struct mnnkv_msmodelslim mnnkv_msmodelslim;
typedef struct mnnkv_msmodelslim_info {
    uint32_t struct_size;
    uint32_t kv_declared;
    uint64_t linears;
    uint64_t norms;
    uint64_t kv_layers;
    uint64_t weight_files;
    uint64_t bytes;
    uint32_t reserved[2];
} mnnkv_msmodelslim_info;
typedef struct mnnkv_msmodelslim_linear_info {
    uint32_t struct_size;
    uint32_t tag;
    uint32_t granularity;
    uint32_t bias;
    uint64_t n;
    uint64_t k;
    uint64_t group_size;
    uint64_t bytes;
    uint32_t reserved[2];
} mnnkv_msmodelslim_linear_info;
mnnkv_status mnnkv_msmodelslim_check_json(const char *path,
                                          char *text,
                                          size_t cap,
                                          size_t *len);
mnnkv_status mnnkv_msmodelslim_open(const char *path, uint32_t abi_version, mnnkv_msmodelslim **out);
void mnnkv_msmodelslim_destroy(mnnkv_msmodelslim *model);
mnnkv_status mnnkv_msmodelslim_get_info(const mnnkv_msmodelslim *model, mnnkv_msmodelslim_info *info);
mnnkv_status mnnkv_msmodelslim_layers_json(const mnnkv_msmodelslim *model, char *text, size_t cap, size_t *len);
mnnkv_status mnnkv_msmodelslim_name(const mnnkv_msmodelslim *model,
                                    uint32_t list,
                                    uint64_t index,
                                    char *text,
                                    size_t cap,
                                    size_t *len);
mnnkv_status mnnkv_msmodelslim_find(const mnnkv_msmodelslim *model, const char *name, uint64_t *linear);
mnnkv_status mnnkv_msmodelslim_get_linear_info(const mnnkv_msmodelslim *model,
                                               uint64_t linear,
                                               mnnkv_msmodelslim_linear_info *info);
mnnkv_status mnnkv_msmodelslim_signed(const uint8_t *codes, size_t n, int8_t *signed_codes);
mnnkv_status mnnkv_msmodelslim_dequantize(const mnnkv_msmodelslim *model,
                                          uint64_t linear,
                                          uint64_t row_begin,
                                          uint64_t rows,
                                          uint32_t dtype,
                                          void *out,
                                          size_t out_bytes);
mnnkv_status mnnkv_msmodelslim_linear_w8a8(const mnnkv_msmodelslim *model,
                                           uint64_t linear,
                                           uint64_t row_begin,
                                           uint64_t rows,
                                           const float *x,
                                           size_t tokens,
                                           float *y,
                                           size_t y_cap);
mnnkv_status mnnkv_msmodelslim_norm(const mnnkv_msmodelslim *model,
                                    uint64_t norm,
                                    uint32_t quantized,
                                    float *weight,
                                    float *bias,
                                    size_t cap,
                                    size_t *len);
mnnkv_status mnnkv_msmodelslim_kv_scales(const mnnkv_msmodelslim *model,
                                         uint64_t kv_layer,
                                         uint32_t values,
                                         float *scale,
                                         float *offset,
                                         size_t cap,
                                         size_t *len);
typedef struct mnnkv_msmodelslim_writer mnnkv_msmodelslim_writer;
typedef struct mnnkv_msmodelslim_writer_options {
    uint32_t struct_size;
    uint32_t asymmetric;
    uint64_t group_size;
    uint64_t part_bytes;
    uint32_t reserved[2];
} mnnkv_msmodelslim_writer_options;
mnnkv_status mnnkv_msmodelslim_writer_create(const char *path,
                                             const mnnkv_msmodelslim_writer_options *options,
                                             uint32_t abi_version,
                                             mnnkv_msmodelslim_writer **out);
void mnnkv_msmodelslim_writer_destroy(mnnkv_msmodelslim_writer *writer);
mnnkv_status mnnkv_msmodelslim_writer_tensor(mnnkv_msmodelslim_writer *writer,
                                             const char *name,
                                             const char *tag,
                                             const char *dtype,
                                             const uint64_t *shape,
                                             size_t rank);
mnnkv_status mnnkv_msmodelslim_writer_linear(mnnkv_msmodelslim_writer *writer, const char *name, size_t n, size_t k);
mnnkv_status mnnkv_msmodelslim_writer_kv(mnnkv_msmodelslim_writer *writer, const char *prefix, size_t channels);
mnnkv_status mnnkv_msmodelslim_writer_append(mnnkv_msmodelslim_writer *writer,
                                             const char *name,
                                             const void *data,
                                             size_t len);
mnnkv_status mnnkv_msmodelslim_writer_append_rows(mnnkv_msmodelslim_writer *writer,
                                                  const char *name,
                                                  const float *weights,
                                                  size_t count);
mnnkv_status mnnkv_msmodelslim_writer_append_kv(mnnkv_msmodelslim_writer *writer,
                                                const char *prefix,
                                                const float *key_scale,
                                                const float *key_offset,
                                                const float *value_scale,
                                                const float *value_offset,
                                                size_t channels);
mnnkv_status mnnkv_msmodelslim_writer_finish(mnnkv_msmodelslim_writer *writer);
#ifdef __cplusplus
}
#endif
#endif
