// Softmax tiles of an attention kernel: packed, in pieces, unnormalised with running scales.

#ifndef MNNKV_TESTS_SCORE_TILES_HPP
#define MNNKV_TESTS_SCORE_TILES_HPP

#include "support.hpp"

#include <cmath>
#include <functional>

namespace support {

/// The attention to the token at a logical position. Not normalised; small whole numbers are exact in every type.
using weights = std::function<float(std::int32_t logical)>;

/// All tokens alike, except a range with eight times as much.
inline weights favouring(std::int32_t begin, std::int32_t end) {
    return [=](std::int32_t at) { return begin <= at && at < end ? 8.0f : 1.0f; };
}

/// How a head's row is cut into tiles.
struct tiling {
    std::uint32_t dtype = MNNKV_DTYPE_F32;
    std::uint32_t pack = 4;
    std::uint32_t tokens = 64;
    /// As flash attention: values that later tiles scale down, and row sums with the last.
    bool flash = true;
};

/// A number as f16, bf16 or f32. Positive and not a denormal of f16, or 0; rounds towards 0.
inline bytes as_word(float number, std::uint32_t dtype) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &number, 4);
    if (dtype == MNNKV_DTYPE_BF16) {
        bits >>= 16;
    } else if (dtype == MNNKV_DTYPE_F16) {
        bits = number == 0.0f ? 0 : (bits >> 13) - ((127u - 15u) << 10);
    }
    bytes word(dtype == MNNKV_DTYPE_F32 ? 4 : 2);
    std::memcpy(word.data(), &bits, word.size());
    return word;
}

/// The tiles of one head, whose query rows all attend with these weights. Every row is scaled by a factor of its own,
/// which its sum cancels. Stops at the first call that fails.
template <class Call>
mnnkv_status each_tile(const std::vector<float>& row, std::uint32_t queries, const tiling& how, Call call) {
    const std::uint32_t length = static_cast<std::uint32_t>(row.size());
    const std::uint32_t count = (length + how.tokens - 1) / how.tokens;
    float sum = 0;
    for (float weight : row) {
        sum += weight;
    }
    const std::vector<float> half(queries, 0.5f);
    std::vector<float> sums;
    for (std::uint32_t q = 0; q < queries; ++q) {
        sums.push_back(sum * std::ldexp(1.0f, static_cast<int>(q % 3)) / (how.flash ? std::ldexp(1.0f, 8) : 1.0f));
    }
    for (std::uint32_t i = 0; i < count; ++i) {
        const std::uint32_t begin = i * how.tokens, tokens = std::min(how.tokens, length - begin);
        const std::uint32_t padded = how.pack == 0 ? tokens : (tokens + how.pack - 1) / how.pack * how.pack;
        const std::size_t width = how.dtype == MNNKV_DTYPE_F32 ? 4 : 2;
        bytes data(std::size_t{padded} * queries * width + 1, 0xFF);  // padding is NaN; the address is odd
        // Tile i of `count` is halved count - 1 - i times more.
        const int shift = how.flash ? static_cast<int>(count - 1 - i) - 8 : 0;
        for (std::uint32_t t = 0; t < tokens; ++t) {
            for (std::uint32_t q = 0; q < queries; ++q) {
                const std::size_t at = how.pack == 0
                                           ? std::size_t{q} * tokens + t
                                           : (std::size_t{t / how.pack} * queries + q) * how.pack + t % how.pack;
                const float exact = row[begin + t] * std::ldexp(1.0f, shift + static_cast<int>(q % 3));
                const bytes word = as_word(how.flash ? exact : exact / sums[q], how.dtype);
                std::copy(word.begin(), word.end(), data.begin() + 1 + static_cast<std::ptrdiff_t>(at * width));
            }
        }
        mnnkv_score_tile tile = mnnkv::make<mnnkv_score_tile>();
        tile.dtype = how.dtype;
        tile.pack = how.pack;
        tile.queries = queries;
        tile.tokens = tokens;
        tile.token_begin = begin;
        tile.flags = (i == 0 ? MNNKV_TILE_FIRST : 0) | (i + 1 == count ? MNNKV_TILE_LAST : 0);
        tile.data = data.data() + 1;
        tile.update_scale = how.flash && i > 0 ? half.data() : nullptr;
        tile.row_sum = how.flash && i + 1 == count ? sums.data() : nullptr;
        const mnnkv_status status = call(tile);
        if (status != MNNKV_OK) {
            return status;
        }
    }
    return MNNKV_OK;
}

/// The rows of a step, and those that are scored: the last of each head.
struct row_counts {
    std::uint32_t heads, queries, counted;
};

/// Block sums with their memory.
struct summed_part {
    mnnkv_block_sums given = mnnkv::make<mnnkv_block_sums>();
    std::vector<double> sums, factors;
};

/// The sums that mnnkv_sum_tile makes of tokens begin .. end of each_tile's rows: all of them, or a part of split rows.
inline summed_part sum_part(const std::vector<float>& row, std::uint32_t begin, std::uint32_t end,
                            const row_counts& rows, std::uint32_t block_tokens, const tiling& how) {
    const std::uint32_t length = static_cast<std::uint32_t>(row.size()), count = rows.heads * rows.counted;
    summed_part part;
    part.sums.assign(std::size_t{(end - begin) / block_tokens + 2} * count, std::nan(""));
    part.factors.assign(count, std::nan(""));
    part.given.flags = (begin == 0 ? MNNKV_TILE_FIRST : 0) | (end == length ? MNNKV_TILE_LAST : 0);
    part.given.heads = rows.heads;
    part.given.rows = count;
    part.given.block_tokens = block_tokens;
    part.given.blocks = static_cast<std::uint32_t>(part.sums.size() / count);
    part.given.sums = part.sums.data();
    part.given.factors = part.factors.data();
    const std::vector<float> own(row.begin() + begin, row.begin() + end);
    const bool is_whole = end - begin == length;
    (void)each_tile(own, rows.heads * rows.queries, how, [&](mnnkv_score_tile tile) {
        tile.token_begin += begin;
        tile.row_sum = is_whole ? tile.row_sum : nullptr;
        mnnkv_sum_tile(&part.given, &tile);
        return MNNKV_OK;
    });
    if (is_whole) {
        return part;
    }
    float total = 0, own_total = 0;
    for (float weight : row) {
        total += weight;
    }
    for (float weight : own) {
        own_total += weight;
    }
    for (std::uint32_t i = 0; i < count; ++i) {
        const std::uint32_t q = (i / rows.counted + 1) * rows.queries - rows.counted + i % rows.counted;
        part.factors[i] *= how.flash ? std::ldexp(1.0, 8 - static_cast<int>(q % 3)) / total : own_total / total;
    }
    return part;
}

/// Hands over one head of an open step, whose query rows all attend with these weights, where rows are scored.
inline mnnkv_status hand_over(mnnkv::session& session, std::uint32_t layer, std::uint32_t lane,
                              const std::vector<float>& row, const mnnkv_step& step, const tiling& how = tiling()) {
    if (step.scored_rows == 0) {
        return MNNKV_OK;
    }
    const summed_part head = sum_part(row, 0, static_cast<std::uint32_t>(row.size()), {1, step.rows, step.scored_rows},
                                      step.block_tokens, how);
    return session.block_sums(layer, lane, head.given).code();
}

}  // namespace support

#endif  // MNNKV_TESTS_SCORE_TILES_HPP
