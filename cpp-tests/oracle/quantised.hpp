// MNN's INT8 and TurboQuant caches from MNN's formulas: where each byte of a head is, how a token becomes one, and what
// it reads as. Independent of the library, which it judges.

#ifndef MNNKV_TESTS_ORACLE_QUANTISED_HPP
#define MNNKV_TESTS_ORACLE_QUANTISED_HPP

#include "packing.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace oracle {

/// MNN's KVQuantMode.
enum class quant : int { none, int8, tq3, tq4 };

/// K and V of an attention_mode.
struct quant_pair {
    quant key, value;
};

inline quant_pair quants_of(int attention_mode) {
    const quant_pair pairs[] = {{quant::none, quant::none}, {quant::int8, quant::none}, {quant::int8, quant::int8},
                                {quant::tq3, quant::none},  {quant::tq3, quant::tq3},   {quant::tq4, quant::none},
                                {quant::tq4, quant::tq4},   {quant::none, quant::none}};
    // Without flash attention MNN has no INT8 V.
    return attention_mode == 2 ? pairs[1] : pairs[attention_mode % 8];
}

inline float get_f32(const std::uint8_t* at) {
    float number = 0;
    std::memcpy(&number, at, sizeof number);
    return number;
}

inline void put_f32(std::uint8_t* at, float number) { std::memcpy(at, &number, sizeof number); }

inline float code_at(const std::uint8_t* at) { return static_cast<float>(static_cast<std::int8_t>(*at)); }

/// Halves away from 0. NaN becomes 0.
inline std::uint8_t to_code(float number) {
    const float code = std::min(std::max(std::round(number), -128.0f), 127.0f);
    return static_cast<std::uint8_t>(static_cast<std::int8_t>(number == number ? code : 0.0f));
}

/// A sum of code * scale + bias, each operation rounded.
inline float plus_value(float sum, float code, float scale, float bias) {
    const float product = code * scale;
    const float value = product + bias;
    return sum + value;
}

/// INT8 K of one head: blocks of h tokens, [D/l][h][l] codes, h scales, h biases.
class int8_keys {
public:
    int8_keys(std::size_t dims, std::size_t l_pack, std::size_t h_pack) : D(dims), l(l_pack), h(h_pack) {}

    std::size_t head_bytes(std::size_t max_tokens) const { return up(max_tokens, h) * block(); }

    std::size_t code(std::size_t t, std::size_t d) const {
        return (t / h) * block() + (d / l) * h * l + (t % h) * l + d % l;
    }

    /// The bias is 4 * h bytes behind.
    std::size_t scale(std::size_t t) const { return (t / h) * block() + round_up(D, l) * h + 4 * (t % h); }

    /// Codes a token less its centre, and returns its key sum.
    float write(std::uint8_t* head, std::size_t t, const float* centred) const {
        const float lo = *std::min_element(centred, centred + D), range = *std::max_element(centred, centred + D) - lo;
        const float scaled = range / 255.0f, bias = lo + 128.0f * range / 255.0f;
        float sum = 0;
        for (std::size_t d = 0; d < D; ++d) {
            head[code(t, d)] = to_code((centred[d] - lo) / range * 255.0f - 128.0f);
            sum = plus_value(sum, code_at(head + code(t, d)), scaled, bias);
        }
        put_f32(head + scale(t), scaled);
        put_f32(head + scale(t) + 4 * h, bias);
        return sum;
    }

    void read(const std::uint8_t* head, std::size_t t, float* row) const {
        const float scaled = get_f32(head + scale(t)), bias = get_f32(head + scale(t) + 4 * h);
        for (std::size_t d = 0; d < D; ++d) {
            row[d] = plus_value(0, code_at(head + code(t, d)), scaled, bias);
        }
    }

private:
    std::size_t block() const { return h * (round_up(D, l) + 8); }

    std::size_t D, l, h;
};

/// INT8 V of one head: blocks of F tokens, D/h groups of [F/l][h][l] codes, h scales, h biases. Value sums are
/// [block][RU(D,h)].
class int8_values {
public:
    /// F
    enum : std::size_t { block_tokens = 64 };

    int8_values(std::size_t dims, std::size_t l_pack, std::size_t h_pack)
        : D(dims), l(l_pack), h(h_pack), group(h * (round_up(block_tokens, l) + 8)) {}

    std::size_t blocks(std::size_t max_tokens) const { return up(max_tokens, block_tokens); }
    std::size_t head_bytes(std::size_t max_tokens) const { return blocks(max_tokens) * up(D, h) * group; }
    std::size_t sums_of_block() const { return round_up(D, h); }

    std::size_t code(std::size_t t, std::size_t d) const {
        const std::size_t u = t % block_tokens;
        return (t / block_tokens * up(D, h) + d / h) * group + (u / l) * h * l + (d % h) * l + u % l;
    }

    /// The bias is 4 * h bytes behind.
    std::size_t scale(std::size_t block, std::size_t d) const {
        return (block * up(D, h) + d / h) * group + round_up(block_tokens, l) * h + 4 * (d % h);
    }

    /// The scales of the first block, from the first append: [token][dim], rows `stride` apart.
    void set_scales(std::uint8_t* head, const float* rows, std::size_t tokens, std::size_t stride) const {
        for (std::size_t d = 0; d < D; ++d) {
            float lo = rows[d], hi = rows[d];
            for (std::size_t t = 1; t < tokens; ++t) {
                lo = std::min(lo, rows[t * stride + d]);
                hi = std::max(hi, rows[t * stride + d]);
            }
            const bool constant = hi - lo < 1e-6f;
            put_f32(head + scale(0, d), constant ? 0 : (hi - lo) / 255.0f);
            put_f32(head + scale(0, d) + 4 * h, constant ? hi : (hi - lo) / 255.0f * 128.0f + lo);
        }
    }

    void copy_scales(std::uint8_t* head, std::size_t block) const {
        for (std::size_t d = 0; d < D; ++d) {
            put_f32(head + scale(block, d), get_f32(head + scale(0, d)));
            put_f32(head + scale(block, d) + 4 * h, get_f32(head + scale(0, d) + 4 * h));
        }
    }

    /// Codes a token by the first block's scales, and adds it to its block's sums.
    void write(std::uint8_t* head, std::size_t t, const float* row, float* head_sums) const {
        float* const sums = head_sums + t / block_tokens * sums_of_block();
        for (std::size_t d = 0; d < D; ++d) {
            const float scaled = get_f32(head + scale(0, d)), bias = get_f32(head + scale(0, d) + 4 * h);
            head[code(t, d)] = scaled < 1e-6f ? 0 : to_code(row[d] * (1.0f / scaled) + -bias / scaled);
            sums[d] = plus_value(sums[d], code_at(head + code(t, d)), scaled, bias);
        }
    }

    /// A token by the scales of a block: its own, or the first one, by which it was coded.
    void read(const std::uint8_t* head, std::size_t t, std::size_t block, float* row) const {
        for (std::size_t d = 0; d < D; ++d) {
            const float scaled = get_f32(head + scale(block, d)), bias = get_f32(head + scale(block, d) + 4 * h);
            row[d] = plus_value(0, code_at(head + code(t, d)), scaled, bias);
        }
    }

    /// The sum of the first tokens of a block in one dim.
    float sum(const std::uint8_t* head, std::size_t block, std::size_t d, std::size_t tokens) const {
        const float scaled = get_f32(head + scale(0, d)), bias = get_f32(head + scale(0, d) + 4 * h);
        float sum = 0;
        for (std::size_t u = 0; u < tokens; ++u) {
            sum = plus_value(sum, code_at(head + code(block * block_tokens + u, d)), scaled, bias);
        }
        return sum;
    }

    /// The product of a block with probabilities, as plain C and Arm kernels make it: 8-bit codes from -128 on, also at
    /// the `padded` positions, and the block's sums for the -128. Adds to `out`.
    void multiply(const std::uint8_t* head, std::size_t block, const float* probabilities, std::size_t tokens,
                  std::size_t padded, const float* sums, float* out) const {
        float total = 0;
        for (std::size_t u = 0; u < tokens; ++u) {
            total += std::round(probabilities[u] * 255.0f) - 128.0f;
        }
        for (std::size_t d = 0; d < D; ++d) {
            float products = 0;  // whole numbers below 2^24
            for (std::size_t u = 0; u < padded; ++u) {
                const float p = u < tokens ? std::round(probabilities[u] * 255.0f) - 128.0f : -128.0f;
                products += p * code_at(head + code(block * block_tokens + u, d));
            }
            const float scaled = get_f32(head + scale(block, d)), bias = get_f32(head + scale(block, d) + 4 * h);
            out[d] += (products * scaled + total * bias + 128.0f * sums[block * sums_of_block() + d]) / 255.0f;
        }
    }

private:
    std::size_t D, l, h, group;
};

/// TQ3 and TQ4: a token is D/32 records of an f16 scale and 32 indices, lowest bit first.
class turbo {
public:
    turbo(quant kind, std::size_t dims) : bits(kind == quant::tq3 ? 3 : 4), records(dims / 32) {}

    std::size_t head_bytes(std::size_t max_tokens) const { return max_tokens * token_bytes(); }

    void write(std::uint8_t* head, std::size_t t, const float* row) const {
        std::uint8_t* token = head + t * token_bytes();
        std::memset(token, 0, token_bytes());
        for (std::size_t r = 0; r < records; ++r, token += record(), row += 32) {
            float squares = 0, y[32];
            for (int i = 0; i < 32; ++i) {
                squares += row[i] * row[i];
            }
            const float rms = std::max(std::sqrt(squares / 32.0f), 1e-10f), inverse = 1.0f / rms;
            for (int i = 0; i < 32; ++i) {
                y[i] = flipped(i, row[i] * inverse);
            }
            rotate(y);
            const std::uint16_t half = cut(rms);
            std::memcpy(token, &half, 2);
            for (int i = 0; i < 32; ++i) {
                unsigned index = 0;
                for (int e = -half_edges(); e <= half_edges(); ++e) {
                    index += edge(e) < y[i] ? 1 : 0;
                }
                for (int bit = 0; bit < bits; ++bit) {
                    const int at = i * bits + bit;
                    token[2 + at / 8] = static_cast<std::uint8_t>(token[2 + at / 8] | (index >> bit & 1) << at % 8);
                }
            }
        }
    }

    void read(const std::uint8_t* head, std::size_t t, float* row) const {
        const std::uint8_t* token = head + t * token_bytes();
        for (std::size_t r = 0; r < records; ++r, token += record(), row += 32) {
            std::uint16_t half = 0;
            std::memcpy(&half, token, 2);
            const float scale = half == 0 ? 0 : std::ldexp(1.0f + (half & 0x3FF) / 1024.0f, (half >> 10) - 15);
            float y[32];
            for (int i = 0; i < 32; ++i) {
                int index = 0;
                for (int bit = 0; bit < bits; ++bit) {
                    const int at = i * bits + bit;
                    index |= (token[2 + at / 8] >> at % 8 & 1) << bit;
                }
                const int positive = index - (half_edges() + 1);
                y[i] = scale * (positive < 0 ? -book(-positive - 1) : book(positive));
            }
            rotate(y);
            for (int i = 0; i < 32; ++i) {
                row[i] = flipped(i, y[i]);
            }
        }
    }

private:
    std::size_t record() const { return static_cast<std::size_t>(2 + 4 * bits); }
    std::size_t token_bytes() const { return records * record(); }
    int half_edges() const { return bits == 3 ? 3 : 7; }

    float edge(int e) const {
        static const float of_3[] = {0, .5005f, 1.05f, 1.7479f};
        static const float of_4[] = {0, .2582f, .5224f, .7995f, 1.0993f, 1.4371f, 1.8435f, 2.4008f};
        const float magnitude = (bits == 3 ? of_3 : of_4)[e < 0 ? -e : e];
        return e < 0 ? -magnitude : magnitude;
    }

    float book(int i) const {
        static const float of_3[] = {.2451f, .756f, 1.3439f, 2.1519f};
        static const float of_4[] = {.1284f, .388f, .6568f, .9423f, 1.2562f, 1.618f, 2.069f, 2.7326f};
        return (bits == 3 ? of_3 : of_4)[i];
    }

    static float flipped(int dim, float x) { return 0x696B4B4Au >> dim & 1 ? -x : x; }

    /// The Hadamard transform in natural order, over sqrt(32): its own inverse.
    static void rotate(float* x) {
        for (int half = 1; half < 32; half *= 2) {
            for (int i = 0; i < 32; ++i) {
                if ((i & half) == 0) {
                    const float a = x[i], b = x[i + half];
                    x[i] = a + b;
                    x[i + half] = a - b;
                }
            }
        }
        for (int i = 0; i < 32; ++i) {
            x[i] /= std::sqrt(32.0f);
        }
    }

    /// To f16 without rounding; 0 below its normal numbers.
    static std::uint16_t cut(float x) {
        std::uint32_t word = 0;
        std::memcpy(&word, &x, sizeof word);
        const int exponent = static_cast<int>(word >> 23) - 127 + 15;
        return static_cast<std::uint16_t>(exponent < 1 ? 0 : exponent << 10 | static_cast<int>(word >> 13 & 0x3FF));
    }

    int bits;
    std::size_t records;
};

}  // namespace oracle

#endif  // MNNKV_TESTS_ORACLE_QUANTISED_HPP
