// mnnkv/h2o.h: scores of blocks, and plans of the tokens to keep.
//
// Generated from src/ffi/h2o by `make header`; do not edit. mnnkv.h has the conventions.

#ifndef MNNKV_H2O_H
#define MNNKV_H2O_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- H2O: settings and scores -----------------------------------------------------------------------------------
//
// Heavy-hitter eviction (H2O, Zhang et al. 2023) by whole blocks of tokens, which are really removed. No handle: the
// host keeps one score per block.

/// mnnkv_h2o_config::target_mode: keep target_keep_ratio of the tokens, or one token in target_lossy_ratio.
#define MNNKV_TARGET_STATIC 1
#define MNNKV_TARGET_ADAPTIVE 2

/// Settings of eviction. Start from mnnkv_h2o_config_default; NULL = its values. Plans read the fields up to
/// target_lossy_ratio and target_tokens; the others are for hosts that schedule plans.
typedef struct mnnkv_h2o_config {
    uint32_t struct_size;         ///< sizeof(mnnkv_h2o_config)
    uint32_t block_tokens;        ///< Tokens per block, the unit of scores and of eviction; 0 = 64.
    uint32_t sink_tokens;         ///< The first tokens, which stay with every block that they touch; default 32, 0 = none.
    uint32_t recent_tokens;       ///< The last tokens, likewise; default 256, 0 = none. An incomplete last block always stays.
    uint32_t target_mode;         ///< MNNKV_TARGET_*; 0 = adaptive.
    /// Static: share of the cache to keep, clamped to 0 .. 1; default 0.5. At least one token stays, with 0, too.
    float target_keep_ratio;
    /// Adaptive: cache length over kept tokens; below 1 counts as 1, 0 = 3.5. The target in tokens is ceil(f32(1 / ratio) *
    /// f32(kv_len)), as in the reference: rounding may add a token to kv_len / ratio, and with it a block.
    float target_lossy_ratio;
    float ema_alpha;              ///< For mnnkv_h2o_update_scores: weight of the old score, 0 .. 1; default 0.9.
    uint32_t trigger_min_tokens;  ///< Length from which on to evict; 0 = 512.
    uint32_t update_interval;     ///< Steps between plans; 0 = 16.
    int32_t layer_start;          ///< First layer to evict from; default 2.
    int32_t layer_end;            ///< Last layer to evict from; default -1, the last one of the model.
    uint32_t target_tokens;       ///< Tokens to keep in either mode, whose ratio is not read then; 0 = by the ratio.
    uint32_t reserved[3];         ///< Must be 0.
} mnnkv_h2o_config;

/// Writes all defaults, struct_size included. NULL is ignored.
void mnnkv_h2o_config_default(mnnkv_h2o_config *config);

/// Adds a step to the scores in place: score = alpha * score + (1 - alpha) * block_acc / norm.
/// scores: [n_blocks], 0 for new blocks.
/// block_acc: [n_blocks], the softmax values of each block, summed over query heads and rows.
/// norm: heads * rows.
/// INVALID_ARGUMENT: if alpha is outside of 0 .. 1, norm is not positive and finite, block_acc or block_acc / norm is
/// not finite, or the arrays overlap; no score has changed
mnnkv_status mnnkv_h2o_update_scores(float *scores, size_t n_blocks, const float *block_acc, float alpha, float norm);

// --- H2O: plans -------------------------------------------------------------------------------------------------

/// The effect of a plan.
typedef struct mnnkv_h2o_plan {
    uint32_t struct_size;         ///< sizeof(mnnkv_h2o_plan)
    uint32_t kept_tokens;         ///< Tokens kept.
    uint32_t evicted_tokens;      ///< Tokens removed.
    uint32_t floor_dominates;     ///< 1 = protected blocks alone reach the target; the plan removes nothing.
    float floor_keep;             ///< Share of the cache in protected blocks.
    float target_keep_effective;  ///< Share to keep: the target in whole tokens over kv_len, or floor_keep if that is more.
    float block_quantized_keep;   ///< target_keep_effective rounded up to whole blocks.
    float lossy_ratio;            ///< Cache length over kept tokens; 1 for an empty cache.
} mnnkv_h2o_plan;

/// Plans which tokens of a cache of kv_len tokens to keep: the blocks of sink and recent tokens, then blocks by
/// descending score until the target, rounded up to blocks, is reached. The target is in whole tokens, at least 1.
/// scores: [n_blocks]; block i starts at token i * block_tokens. Missing scores count as 0, NaN as the lowest, surplus
/// ones are ignored; of equal scores the lower block stays.
/// pairs: room for pairs_cap pairs (offset, length), ascending, with gaps between them, as mnnkv_kv_compact takes them
/// with base 0; (blocks + 1) / 2 pairs always suffice.
/// n_pairs: pairs written. An empty cache has none; with floor_dominates there is one, (0, kv_len).
/// INVALID_ARGUMENT: if kv_len exceeds 2^31 - 1, target_mode is unknown, or target_tokens is 0 and the ratio of the
/// mode is NaN
/// BUFFER_TOO_SMALL: if pairs_cap is too small; *n_pairs is the number needed
mnnkv_status mnnkv_h2o_plan_reserve(const float *scores, size_t n_blocks, uint32_t kv_len, const mnnkv_h2o_config *config,
                                    int32_t *pairs, size_t pairs_cap, size_t *n_pairs, mnnkv_h2o_plan *plan);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MNNKV_H2O_H
