// Flash attention of one new token over a packed f16 cache, tile by tile with a running maximum and sum. Plain loops
// that compilers vectorise, compiled again for AVX2 and AVX-512 where the CPU may have them. An engine has this in assembly.

#ifndef MNNKV_DEMO_ATTENTION_HPP
#define MNNKV_DEMO_ATTENTION_HPP

#include "packed_cache.hpp"

#include <cmath>
#include <cstring>
#include <vector>

#if defined(__GNUC__) || defined(__clang__)
#define DEMO_INLINE inline __attribute__((always_inline))
#else
#define DEMO_INLINE inline
#endif

namespace demo {

/// The query heads of one KV head and their state between tiles.
struct HeadGroup {
    std::uint32_t count, dims;
    const float* queries;                         // [head][dim], 1 / sqrt(dims) included
    float* out;                                   // [head][dim]
    std::vector<float> tile;                      // [head][flash_block]: exp(score - maximum so far)
    std::vector<float> maximum, sum, update_scale;  // [head]
    std::vector<float> lanes;                     // unpacked K or V

    /// Begins a token's attention.
    void start(std::uint32_t heads, std::uint32_t head_dims, const float* query, float* output) {
        count = heads, dims = head_dims, queries = query, out = output;
        tile.resize(std::size_t(heads) * flash_block);
        maximum.assign(heads, -1e30f);
        sum.assign(heads, 0.0f);
        update_scale.assign(heads, 0.0f);
        std::memset(output, 0, std::size_t(heads) * head_dims * sizeof(float));
    }
};

namespace kernel {

/// Any finite binary16 as a float: exponent and fraction are shifted, then a product corrects the exponent's bias.
DEMO_INLINE float widen(half h) {
    const std::uint32_t bits = (std::uint32_t(h & 0x8000u) << 16) | (std::uint32_t(h & 0x7fffu) << 13);
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value * 5.192296858534828e33f;  // 2^112
}

/// The nearest binary16 of a float below 65,504.
inline half narrow(float value) {
    const float scaled = std::fabs(value) * 1.925929944387236e-34f;  // 2^-112
    std::uint32_t bits;
    std::memcpy(&bits, &scaled, sizeof bits);
    bits += 0x0fffu + (bits >> 13 & 1u);
    return static_cast<half>((std::signbit(value) ? 0x8000u : 0u) | bits >> 13);
}

/// e^x for x <= 0, to about 1e-6.
DEMO_INLINE float exponential(float x) {
    x = x < -87.0f ? -87.0f : x;
    const float shifted = x * 1.442695041f + 12582912.0f;  // the nearest whole number, in the lowest bits
    std::uint32_t bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    const float r = x - (shifted - 12582912.0f) * 0.6931471806f;
    bits = (bits << 23) + 0x3f800000u;
    float power;
    std::memcpy(&power, &bits, sizeof power);
    return power * (1 + r * (1 + r * (0.5f + r * (0.16666667f + r * (0.041666667f + r * 0.0083333333f)))));
}

/// As floats, which loops read several times.
DEMO_INLINE void widen(const half* from, std::uint32_t count, float* to) {
    for (std::uint32_t i = 0; i < count; ++i) {
        to[i] = widen(from[i]);
    }
}

/// sums[i] += weights[r] * rows[r][i], over all rows.
DEMO_INLINE void add_rows(const float* weights, const float* rows, std::uint32_t count, float* sums) {
    std::uint32_t r = 0;
    for (; r + 8 <= count; r += 8) {
        const float* w = weights + r;
        const float* x = rows + std::size_t(r) * pack;
        for (int i = 0; i < pack; ++i) {
            const float a = w[0] * x[i] + w[1] * x[pack + i], b = w[2] * x[2 * pack + i] + w[3] * x[3 * pack + i];
            const float c = w[4] * x[4 * pack + i] + w[5] * x[5 * pack + i];
            const float d = w[6] * x[6 * pack + i] + w[7] * x[7 * pack + i];
            sums[i] += (a + b) + (c + d);
        }
    }
    for (; r < count; ++r) {
        for (int i = 0; i < pack; ++i) {
            sums[i] += weights[r] * rows[std::size_t(r) * pack + i];
        }
    }
}

/// Softmax of one head's tile: exp(score - maximum so far); earlier sums are scaled to the new maximum.
DEMO_INLINE void softmax(float* tile, std::uint32_t tokens, float& maximum, float& sum, float& scale) {
    float best[8], part[8] = {};
    for (int j = 0; j < 8; ++j) {
        best[j] = maximum;
    }
    for (std::uint32_t i = tokens; i < flash_block; ++i) {
        tile[i] = -1e30f;
    }
    for (std::uint32_t i = 0; i < flash_block; i += 8) {
        for (int j = 0; j < 8; ++j) {
            best[j] = tile[i + j] > best[j] ? tile[i + j] : best[j];
        }
    }
    float top = best[0];
    for (int j = 1; j < 8; ++j) {
        top = best[j] > top ? best[j] : top;
    }
    for (std::uint32_t i = 0; i < flash_block; ++i) {
        tile[i] = exponential(tile[i] - top);
    }
    for (std::uint32_t i = tokens; i < flash_block; ++i) {
        tile[i] = 0;
    }
    for (std::uint32_t i = 0; i < flash_block; i += 8) {
        for (int j = 0; j < 8; ++j) {
            part[j] += tile[i + j];
        }
    }
    scale = exponential(maximum - top);
    maximum = top;
    sum = sum * scale + ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
}

/// One tile of all heads of the group: Q K^T, softmax, P V.
DEMO_INLINE void tile(HeadGroup& group, const half* key, const half* value, std::uint32_t tokens) {
    const std::uint32_t dims = group.dims;
    group.lanes.resize(std::size_t(pack) * (dims > flash_block ? dims : flash_block));
    float* lanes = group.lanes.data();
    std::memset(group.tile.data(), 0, group.tile.size() * sizeof(float));
    for (std::uint32_t t = 0; t < tokens; t += pack) {
        widen(key + std::size_t(t) * dims, dims * pack, lanes);
        for (std::uint32_t h = 0; h < group.count; ++h) {
            add_rows(group.queries + h * dims, lanes, dims, &group.tile[h * flash_block + t]);
        }
    }
    for (std::uint32_t h = 0; h < group.count; ++h) {
        softmax(&group.tile[h * flash_block], tokens, group.maximum[h], group.sum[h], group.update_scale[h]);
        for (std::uint32_t d = 0; d < dims; ++d) {
            group.out[h * dims + d] *= group.update_scale[h];
        }
    }
    for (std::uint32_t d = 0; d < dims; d += pack) {
        widen(value + std::size_t(d) * flash_block, tokens * pack, lanes);
        for (std::uint32_t h = 0; h < group.count; ++h) {
            add_rows(&group.tile[h * flash_block], lanes, tokens, group.out + h * dims + d);
        }
    }
}

inline void any_cpu(HeadGroup& group, const half* key, const half* value, std::uint32_t tokens) {
    tile(group, key, value, tokens);
}

using Function = void (*)(HeadGroup&, const half*, const half*, std::uint32_t);

#if defined(__GNUC__) && defined(__x86_64__)
__attribute__((target("avx2,fma"))) inline void avx2(HeadGroup& group, const half* key, const half* value,
                                                     std::uint32_t tokens) {
    tile(group, key, value, tokens);
}
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma"))) inline void avx512(
    HeadGroup& group, const half* key, const half* value, std::uint32_t tokens) {
    tile(group, key, value, tokens);
}
inline Function best() {
    const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return has_avx2 ? has_avx512 ? avx512 : avx2 : any_cpu;
}
#else
inline Function best() { return any_cpu; }
#endif

}  // namespace kernel

/// Attention of a KV head's query heads over all tokens of the cache, whose K and V of that head are at `key` and
/// `value`. Calls see(tile) after each tile with the softmax values of all heads, as rows. Head dims must be whole packs.
template <class See>
void attend(const PackedCache& cache, const half* key, const half* value, HeadGroup& group, See&& see) {
    static const kernel::Function kernel = kernel::best();
    const std::uint32_t length = cache.length();
    for (std::uint32_t begin = 0; begin < length; begin += flash_block) {
        const std::uint32_t tokens = length - begin < flash_block ? length - begin : flash_block;
        const std::size_t at = std::size_t(begin) * group.dims;
        kernel(group, key + at, value + at, tokens);
        mnnkv_score_tile tile = mnnkv::make<mnnkv_score_tile>();
        tile.dtype = MNNKV_DTYPE_F32;
        tile.pack = flash_block;  // rows are as far apart, also in the last tile
        tile.queries = group.count;
        tile.tokens = tokens;
        tile.token_begin = begin;
        tile.flags = (begin == 0 ? MNNKV_TILE_FIRST : 0u) | (begin + tokens == length ? MNNKV_TILE_LAST : 0u);
        tile.data = group.tile.data();
        tile.update_scale = group.update_scale.data();
        tile.row_sum = tile.flags & MNNKV_TILE_LAST ? group.sum.data() : nullptr;
        see(tile);
    }
    for (std::uint32_t h = 0; h < group.count; ++h) {
        for (std::uint32_t d = 0; d < group.dims; ++d) {
            group.out[h * group.dims + d] /= group.sum[h];
        }
    }
}

}  // namespace demo

#endif
