// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_H2O_H
#define MNNKV_H2O_H
#include "base.h"
#ifdef __cplusplus
extern "C" {
#endif
#define MNNKV_TARGET_STATIC 1
#define MNNKV_TARGET_ADAPTIVE 2
typedef struct mnnkv_h2o_config {
    uint32_t struct_size;
    uint32_t block_tokens;
    uint32_t sink_tokens;
    uint32_t recent_tokens;
    uint32_t target_mode;
    float target_keep_ratio;
    float target_lossy_ratio;
    float ema_alpha;
    uint32_t trigger_min_tokens;
    uint32_t update_interval;
    int32_t layer_start;
    int32_t layer_end;
    uint32_t target_tokens;
    uint32_t reserved[3];
} mnnkv_h2o_config;
void mnnkv_h2o_config_default(mnnkv_h2o_config *config);
mnnkv_status mnnkv_h2o_update_scores(float *scores, size_t n_blocks, const float *block_acc, float alpha, float norm);
typedef struct mnnkv_h2o_plan {
    uint32_t struct_size;
    uint32_t kept_tokens;
    uint32_t evicted_tokens;
    uint32_t floor_dominates;
    float floor_keep;
    float target_keep_effective;
    float block_quantized_keep;
    float lossy_ratio;
} mnnkv_h2o_plan;
mnnkv_status mnnkv_h2o_plan_reserve(const float *scores,
                                    size_t n_blocks,
                                    uint32_t kv_len,
                                    const mnnkv_h2o_config *config,
                                    int32_t *pairs,
                                    size_t pairs_cap,
                                    size_t *n_pairs,
                                    mnnkv_h2o_plan *plan);
#ifdef __cplusplus
}
#endif
#endif
