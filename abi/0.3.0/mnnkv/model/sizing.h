// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_MODEL_SIZING_H
#define MNNKV_MODEL_SIZING_H
#include "base.h"
#ifdef __cplusplus
extern "C" {
#endif
#define MNNKV_DTYPE_FP8 7
#define MNNKV_DTYPE_INT4 8
#define MNNKV_LAYER_FULL 1
#define MNNKV_LAYER_SLIDING 2
#define MNNKV_LAYER_CHUNKED 3
#define MNNKV_LAYER_SHARED 4
#define MNNKV_LAYER_RECURRENT 5
#define MNNKV_SCOPE_FRONT_N 1
#define MNNKV_SCOPE_H2O_KEPT 2
#define MNNKV_SIZING_MAX_TOKENS 2147483647
typedef struct mnnkv_sizing mnnkv_sizing;
typedef struct mnnkv_sizing_options {
    uint32_t struct_size;
    uint32_t element;
    uint32_t ranks;
    uint32_t batch;
    double h2o_ratio;
    double lossless_ratio;
    uint32_t h2o_layer_start;
    int32_t h2o_layer_end;
    uint32_t h2o_protected_tokens;
    uint32_t h2o_trigger_tokens;
    uint32_t c8;
    uint32_t lossless_scope;
    uint32_t lossless_front_n;
    uint32_t lossless_hot_tokens;
    uint32_t reserved[4];
} mnnkv_sizing_options;
typedef struct mnnkv_sizing_info {
    uint32_t struct_size;
    uint32_t layers;
    uint32_t cache_layers;
    uint32_t element;
    uint64_t max_context;
} mnnkv_sizing_info;
typedef struct mnnkv_sizing_layer_info {
    uint32_t struct_size;
    uint32_t kind;
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t kv_lora_rank;
    uint32_t qk_rope_head_dim;
    uint32_t most_tokens;
    uint32_t reserved;
    uint64_t state_elements;
} mnnkv_sizing_layer_info;
typedef struct mnnkv_sizing_total {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t raw;
    uint64_t after_h2o;
    uint64_t after_c8;
    uint64_t after_lossless;
    uint64_t peak;
    uint64_t c8_scale_bytes;
} mnnkv_sizing_total;
void mnnkv_sizing_options_default(mnnkv_sizing_options *options);
mnnkv_status mnnkv_sizing_create(const char *config_json, size_t len, uint32_t abi_version, mnnkv_sizing **out);
void mnnkv_sizing_destroy(mnnkv_sizing *sizing);
mnnkv_status mnnkv_sizing_get_info(const mnnkv_sizing *sizing, mnnkv_sizing_info *info);
mnnkv_status mnnkv_sizing_get_layer_info(const mnnkv_sizing *sizing, uint32_t layer, mnnkv_sizing_layer_info *info);
mnnkv_status mnnkv_sizing_per_token(const mnnkv_sizing *sizing,
                                    const mnnkv_sizing_options *options,
                                    uint64_t *bytes_per_token,
                                    uint64_t *bytes_per_late_token);
mnnkv_status mnnkv_sizing_bytes(const mnnkv_sizing *sizing,
                                const mnnkv_sizing_options *options,
                                uint64_t tokens,
                                mnnkv_sizing_total *total);
mnnkv_status mnnkv_sizing_longest(const mnnkv_sizing *sizing,
                                  const mnnkv_sizing_options *options,
                                  uint64_t budget,
                                  uint64_t *tokens,
                                  uint64_t *bytes);
mnnkv_status mnnkv_sizing_notes(const mnnkv_sizing *sizing, char *text, size_t cap, size_t *len);
mnnkv_status mnnkv_sizing_report_json(const mnnkv_sizing *sizing,
                                      const mnnkv_sizing_options *options,
                                      const uint64_t *contexts,
                                      size_t n,
                                      uint64_t budget,
                                      char *text,
                                      size_t cap,
                                      size_t *len);
#ifdef __cplusplus
}
#endif
#endif
