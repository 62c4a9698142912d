// mnnkv/h2o.h: eviction by attention: scores of blocks, plans, and the block sums of a session.
//
// Generated from src/ffi/h2o by `make header`; do not edit. mnnkv/session.h has the conventions.

#ifndef MNNKV_H2O_H
#define MNNKV_H2O_H

#include <string.h>
#include "session.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- H2O: settings and scores ------------------------------------------------------------------------------------------------
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

// --- H2O: plans --------------------------------------------------------------------------------------------------------------

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

// --- Scores: block sums ------------------------------------------------------------------------------------------------------
//
// A session with kv_h2o_enable evicts by the attention that the host sums in its own attention loop, where the softmax tiles are
// near. With a mnnkv_block_sums per thread it calls, where mnnkv_step::scored_rows of begin is above 0,
//
//   mnnkv_sum_tile             per softmax tile, on the attention threads: inline, without a call of the library
//   mnnkv_session_block_sums   per head, after its last tile
//
// Heads may come from any lane and thread. Before end all heads and rows that are scored must have come, or none: then scores do
// not change. Of a prompt, that is a step on an empty layer or of more than 64 rows, at most the last kv_h2o_prefill_queries rows
// are scored; of other steps all. A host that has sums by block already needs no mnnkv_sum_tile.
//
// Split rows. With flash decoding, threads attend to parts of a head's tokens, each with a maximum m and a sum l per
// row, and a reduction gives the maximum M and the sum L of whole rows. Each part has a mnnkv_block_sums of its own,
// whose flags say whether it has the first and the last tokens of the rows. Tiles are flagged as if the part were a
// head, without row_sum. After the reduction, multiply factors of the part by exp(m - M) / L and hand it over. Parts
// may come in any order and from any lane. Together they must have each token of the rows once.

/// mnnkv_score_tile::flags: the first and the last tile of a query head; both for its only tile.
#define MNNKV_TILE_FIRST 1
#define MNNKV_TILE_LAST 2
/// mnnkv_block_sums::state: what the last tile led to. Complete: the host may hand over; the others are errors of tiles,
/// except open.
#define MNNKV_SUMS_COMPLETE 0
#define MNNKV_SUMS_OPEN 1
#define MNNKV_SUMS_NO_FIRST 2
#define MNNKV_SUMS_BAD_TILE 3
#define MNNKV_SUMS_GAP 4
#define MNNKV_SUMS_NO_ROOM 5
#define MNNKV_SUMS_BAD_SCALE 6
/// No tile reaches past this token.
#define MNNKV_SUMS_MAX_TOKENS 16777216

/// Softmax values of one or more query heads, summed per block, in memory of the host.
///
/// A block has block_tokens tokens by physical position. The attention of row r to block i is sums[i][r] * factors[r].
/// Set struct_size, flags, heads, rows, block_tokens, blocks, sums and factors before the first tile; the struct may be
/// used again for the next head. A host that sums otherwise also sets token_begin and token_end, and no later field.
typedef struct mnnkv_block_sums {
    uint32_t struct_size;   ///< sizeof(mnnkv_block_sums)
    /// MNNKV_TILE_FIRST and MNNKV_TILE_LAST: the sums have the first and the last token of the rows. Both, except for
    /// parts of split rows.
    uint32_t flags;
    uint32_t heads;         ///< Query heads, at least 1.
    /// Rows that count, [heads][rows / heads]; the last of each head, as mnnkv_step::scored_rows says.
    uint32_t rows;
    uint32_t block_tokens;  ///< Tokens of a block, as mnnkv_step::block_tokens says.
    uint32_t blocks;        ///< Blocks that sums has room for. The memory may be moved and grow between tiles.
    double *sums;           ///< [blocks][rows]; the first block is that of token_begin.
    double *factors;        ///< [rows]; NULL = all 1, for hosts that sum otherwise.
    uint32_t token_begin;   ///< The first token. Written by mnnkv_sum_tile, as are all further fields.
    uint32_t token_end;     ///< The token after the last one.
    uint32_t state;         ///< MNNKV_SUMS_*.
    uint32_t queries;       ///< Rows of a tile.
    uint32_t used;          ///< Blocks with sums.
    uint32_t reserved;      ///< Must be 0.
} mnnkv_block_sums;

/// Softmax values of one or more query heads for consecutive tokens, before the product with V.
/// data holds exp(x - m), with m the maximum of the row so far (flash attention), or finished probabilities. The
/// attention is computed exactly: value * product of the later update_scale of its row / row_sum.
typedef struct mnnkv_score_tile {
    uint32_t struct_size;  ///< sizeof(mnnkv_score_tile)
    uint32_t dtype;        ///< MNNKV_DTYPE_F16, BF16 or F32.
    /// 0 = rows [queries][tokens]. Else [UP(tokens, pack)][queries][pack], where elements past the last token are not
    /// read; 4, 8 or 16 in MNN.
    uint32_t pack;
    /// Rows, at least 1: all rows of the step, the same number in every tile of a head. Rows of several heads may be
    /// one tile, which saves calls. With pack >= tokens, pack is the row stride.
    uint32_t queries;
    uint32_t tokens;       ///< Tokens, at least 1.
    uint32_t token_begin;  ///< The physical position of the first token.
    uint32_t flags;        ///< MNNKV_TILE_*.
    uint32_t reserved;     ///< Must be 0.
    const void *data;      ///< The values, all >= 0 (0 for masked tokens), at any alignment.
    /// [queries], or NULL for all 1: scales what the head has gathered in earlier tiles, exp(old m - new m). Not read
    /// in first tiles.
    const float *update_scale;
    const float *row_sum;  ///< [queries], or NULL for all 1: sum of each row over all tokens, in last tiles only.
} mnnkv_score_tile;

/// Adds block sums to an open layer. Never blocks. The memory may be reused after the call.
/// lane: below the `lanes` of create; one thread at a time. Results do not depend on which lane has which head. Threads with a
/// lane each may call at once, but not while another call with a non-const session runs.
///
/// Heads and rows are counted by end. Layers that are not scored only check the fields.
/// INVALID_ARGUMENT: if layer or lane is out of range, the layer is not open, or the lane is in use
/// INVALID_ARGUMENT: if state is not MNNKV_SUMS_COMPLETE: a tile did not fit, which the text names, or is missing
/// INVALID_ARGUMENT: if a field is out of range, or block_tokens is not that of mnnkv_step
/// INVALID_ARGUMENT: if the attention of all rows to a block is NaN, infinite, negative or above 2^32
///
/// After a failure nothing is added. end returns INVALID_ARGUMENT if split rows lack a part or have one twice.
mnnkv_status mnnkv_session_block_sums(mnnkv_session *session, uint32_t layer, uint32_t lane, const mnnkv_block_sums *sums);

// Words of 4 bytes that are added at once, values of F32 or pairs of F16 or BF16: vectors where the compiler has them.
#if defined(__GNUC__) || defined(__clang__)
typedef float mnnkv_floats __attribute__((vector_size(16)));
typedef uint32_t mnnkv_words __attribute__((vector_size(16)));
typedef int32_t mnnkv_signs __attribute__((vector_size(16)));
#else
typedef float mnnkv_floats;
typedef uint32_t mnnkv_words;
typedef int32_t mnnkv_signs;
#endif

/// Adds F16 values, which are the high halves of the words, as 2^112 times themselves.
static inline void mnnkv_add_f16(const mnnkv_words *words, mnnkv_floats *sum) {
    const float normal = 3.1691265e29f;  // 2^112 times the least number that is not a denormal
    mnnkv_words bits = ((*words & 0x7fff0000u) >> 3) + (224u << 23), fix;  // infinity becomes infinity
    mnnkv_floats value, below;
    mnnkv_signs sign;
    memcpy(&value, &bits, sizeof value);
    // A denormal has got a hidden bit, which makes it normal / 2 and half of what it should be. The value is twice that
    // less normal, computed without denormals of F32, which a host may flush.
    below = value - normal;
    memcpy(&sign, &below, sizeof sign);
    memcpy(&fix, &below, sizeof fix);
    sign = sign >> 31;
    memcpy(&bits, &sign, sizeof bits);
    fix = fix & bits;
    memcpy(&below, &fix, sizeof below);
    value += below;
    memcpy(&bits, &value, sizeof bits);
    bits = bits | (*words & 0x80000000u);
    memcpy(&value, &bits, sizeof value);
    *sum += value;
}

/// Adds the values of words to two sums.
static inline void mnnkv_add_words(uint32_t dtype, const mnnkv_words *words, mnnkv_floats *a, mnnkv_floats *b) {
    mnnkv_words half = *words << 16;
    mnnkv_floats value;
    if (dtype == MNNKV_DTYPE_F16) {
        mnnkv_add_f16(words, a);
        mnnkv_add_f16(&half, b);
    } else if (dtype == MNNKV_DTYPE_BF16) {
        memcpy(&value, &half, sizeof value);
        *a += value;
        half = *words & 0xffff0000u;
        memcpy(&value, &half, sizeof value);
        *b += value;
    } else {
        memcpy(&value, words, sizeof value);
        *a += value;
    }
}

/// The sum of consecutive values, at any alignment.
static inline float mnnkv_sum_values(uint32_t dtype, const char *data, size_t bytes) {
    const size_t step = sizeof(mnnkv_words);
    // Sums that do not depend on one another.
    mnnkv_floats a, b, c, d, value;
    mnnkv_words words;
    float parts[sizeof(mnnkv_floats) / sizeof(float)], sum = 0;
    size_t i;
    memset(&a, 0, sizeof a);
    b = c = d = a;
    // By itself, since it is what most hosts have: 64 tokens of one row.
    for (; dtype == MNNKV_DTYPE_F32 && bytes >= 4 * step; bytes -= 4 * step, data += 4 * step) {
        memcpy(&value, data, step);
        a += value;
        memcpy(&value, data + step, step);
        b += value;
        memcpy(&value, data + 2 * step, step);
        c += value;
        memcpy(&value, data + 3 * step, step);
        d += value;
    }
    for (; bytes >= 2 * step; bytes -= 2 * step, data += 2 * step) {
        memcpy(&words, data, step);
        mnnkv_add_words(dtype, &words, &a, &b);
        memcpy(&words, data + step, step);
        mnnkv_add_words(dtype, &words, &c, &d);
    }
    for (; bytes >= step; bytes -= step, data += step) {
        memcpy(&words, data, step);
        mnnkv_add_words(dtype, &words, &a, &b);
    }
    if (bytes > 0) {
        memset(&words, 0, step);
        memcpy(&words, data, bytes);
        mnnkv_add_words(dtype, &words, &a, &b);
    }
    a = (a + b) + (c + d);
    memcpy(parts, &a, sizeof parts);
    for (i = 0; i < sizeof parts / sizeof *parts; ++i) {
        sum += parts[i];
    }
    return dtype == MNNKV_DTYPE_F16 ? sum * 1.9259299e-34f : sum;  // 2^-112
}

/// The sum of a tile's columns begin .. end in a row.
static inline float mnnkv_sum_columns(const mnnkv_score_tile *tile, uint32_t row, uint32_t begin, uint32_t end) {
    const size_t size = tile->dtype == MNNKV_DTYPE_F32 ? 4 : 2;
    // The columns of a row that lie side by side.
    const uint32_t width = tile->pack == 0 || tile->queries == 1 ? tile->tokens : tile->pack;
    float sum = 0;
    if (width >= tile->tokens) {
        const size_t at = (size_t)row * width + begin;
        return mnnkv_sum_values(tile->dtype, (const char *)tile->data + at * size, (end - begin) * size);
    }
    while (begin < end) {
        const uint32_t group = begin / width;
        const uint32_t place = begin - group * width;
        const uint32_t count = width - place < end - begin ? width - place : end - begin;
        const size_t at = ((size_t)group * tile->queries + row) * width + place;
        sum += mnnkv_sum_values(tile->dtype, (const char *)tile->data + at * size, count * size);
        begin += count;
    }
    return sum;
}

/// The row of the tiles that is row `row` of the sums.
static inline uint32_t mnnkv_summed_row(const mnnkv_block_sums *sums, uint32_t row) {
    const uint32_t omitted = sums->queries - sums->rows;
    if (sums->heads == 1 || omitted == 0) {
        return omitted + row;
    }
    return row + (row / (sums->rows / sums->heads) + 1) * (omitted / sums->heads);
}

/// Scales what a row has gathered. Its factor takes the scale, or its sums where the factor would leave the numbers
/// whose reciprocal is exact enough.
static inline void mnnkv_scale_row(mnnkv_block_sums *sums, uint32_t row, float scale) {
    const double factor = sums->factors[row] * (double)scale;
    uint32_t block;
    if (factor >= 1e-120 && factor <= 1e120) {
        sums->factors[row] = factor;
        return;
    }
    for (block = 0; block < sums->used; ++block) {
        sums->sums[(size_t)block * sums->rows + row] *= (double)scale;
    }
}

/// The state that a tile leads to.
static inline uint32_t mnnkv_sums_state(const mnnkv_block_sums *sums, const mnnkv_score_tile *tile) {
    if (sums->state != MNNKV_SUMS_OPEN) {
        return sums->state == MNNKV_SUMS_COMPLETE ? MNNKV_SUMS_NO_FIRST : sums->state;
    }
    if (tile->queries != sums->queries || tile->tokens == 0 || (tile->row_sum && !(tile->flags & MNNKV_TILE_LAST)) ||
        tile->dtype < MNNKV_DTYPE_F16 || tile->dtype > MNNKV_DTYPE_F32 || !tile->data) {
        return MNNKV_SUMS_BAD_TILE;
    }
    if (tile->token_begin != sums->token_end || tile->tokens > MNNKV_SUMS_MAX_TOKENS - sums->token_end) {
        return MNNKV_SUMS_GAP;
    }
    return MNNKV_SUMS_OPEN;
}

/// Begins with a first tile; returns the state.
static inline uint32_t mnnkv_sums_start(mnnkv_block_sums *sums, const mnnkv_score_tile *tile) {
    uint32_t row;
    sums->queries = tile->queries;
    sums->token_begin = sums->token_end = tile->token_begin;
    sums->used = 0;
    if (sums->block_tokens == 0 || sums->heads == 0 || sums->rows < sums->heads || sums->rows % sums->heads != 0 ||
        sums->queries < sums->rows || sums->queries % sums->heads != 0 || !sums->sums || !sums->factors) {
        return MNNKV_SUMS_BAD_TILE;
    }
    if (tile->token_begin > MNNKV_SUMS_MAX_TOKENS) {
        return MNNKV_SUMS_GAP;
    }
    for (row = 0; row < sums->rows; ++row) {
        sums->factors[row] = 1;
    }
    return MNNKV_SUMS_OPEN;
}

/// Adds a tile to the sums of its blocks, in the host's own attention loop. Neither allocates nor calls the library.
///
/// Tiles of a head come in order: the first begins at any token, each other one where its predecessor ends. A tile
/// with MNNKV_TILE_FIRST begins anew, whatever was before; after one with MNNKV_TILE_LAST sums and factors are
/// finished. Only rows that count are read.
///
/// Errors are kept: a tile that does not fit changes sums->state, later tiles of the head are ignored, and
/// mnnkv_session_block_sums returns the error.
static inline void mnnkv_sum_tile(mnnkv_block_sums *sums, const mnnkv_score_tile *tile) {
    const uint32_t is_first = tile->flags & MNNKV_TILE_FIRST;
    uint32_t begin = 0, end, row;
    if (is_first) {
        sums->state = mnnkv_sums_start(sums, tile);
    }
    sums->state = mnnkv_sums_state(sums, tile);
    if (sums->state != MNNKV_SUMS_OPEN) {
        return;
    }
    for (row = 0; tile->update_scale && !is_first && row < sums->rows; ++row) {
        const float scale = tile->update_scale[mnnkv_summed_row(sums, row)];
        if (scale < 0) {
            sums->state = MNNKV_SUMS_BAD_SCALE;
            return;
        }
        if (scale != 1) {
            mnnkv_scale_row(sums, row, scale);
        }
    }
    for (; begin < tile->tokens; begin = end) {
        const uint32_t offset = sums->token_end % sums->block_tokens;
        const uint32_t left = sums->block_tokens - offset;
        const uint32_t is_new = offset == 0 || sums->used == 0;
        double *block;
        if (is_new && sums->used++ >= sums->blocks) {
            sums->state = MNNKV_SUMS_NO_ROOM;
            return;
        }
        end = left < tile->tokens - begin ? begin + left : tile->tokens;
        block = sums->sums + (size_t)(sums->used - 1) * sums->rows;
        for (row = 0; row < sums->rows; ++row) {
            const float sum = mnnkv_sum_columns(tile, mnnkv_summed_row(sums, row), begin, end);
            const double value = (double)sum / sums->factors[row];
            block[row] = is_new ? value : block[row] + value;
        }
        sums->token_end += end - begin;
    }
    if (tile->flags & MNNKV_TILE_LAST) {
        sums->state = MNNKV_SUMS_COMPLETE;
        for (row = 0; tile->row_sum && row < sums->rows; ++row) {
            const float sum = tile->row_sum[mnnkv_summed_row(sums, row)];
            if (!(sum > 0 && sum <= 3.4028235e38f)) {
                sums->state = MNNKV_SUMS_BAD_SCALE;
            }
            sums->factors[row] /= (double)sum;
        }
    }
}

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MNNKV_H2O_H
