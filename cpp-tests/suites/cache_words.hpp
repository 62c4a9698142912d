// Words like those of caches, in every type: channels with a level and a width of their own, repeated tokens, and keys
// rotated by their positions.

#ifndef MNNKV_TESTS_CACHE_WORDS_HPP
#define MNNKV_TESTS_CACHE_WORDS_HPP

#include "codec.hpp"

#include <cmath>

namespace support {

/// fp16 bits of a number, rounded to the nearest; below the normal range 0.
inline std::uint32_t half_bits(double number) {
    const std::uint32_t sign = number < 0 ? 0x8000 : 0;
    int exponent = 0;
    const double fraction = std::frexp(std::fabs(number), &exponent);
    if (fraction == 0 || exponent < -13) {
        return sign;
    }
    // A fraction that rounds up to 1 carries into the exponent.
    const std::uint32_t mantissa = static_cast<std::uint32_t>(std::lround(std::ldexp(fraction, 11)));
    return sign | ((static_cast<std::uint32_t>(exponent + 13) << 10) + mantissa);
}

inline std::uint32_t float_bits(double number) {
    const float rounded = static_cast<float>(number);
    std::uint32_t bits = 0;
    std::memcpy(&bits, &rounded, sizeof bits);
    return bits;
}

/// Appends a number as a word of the codec's type.
inline void push_word(bytes& to, const word_codec& codec, double number) {
    std::uint32_t word = 0;
    switch (codec.dtype) {
        case MNNKV_DTYPE_F16: word = half_bits(number); break;
        case MNNKV_DTYPE_BF16: word = (float_bits(number) + 0x8000) >> 16; break;
        case MNNKV_DTYPE_F32: word = float_bits(number); break;
        default: word = static_cast<std::uint32_t>(std::lround(std::max(-127.0, std::min(127.0, 30 * number)))); break;
    }
    for (std::size_t i = 0; i < codec.width; ++i) {
        to.push_back(static_cast<std::uint8_t>(word >> 8 * i));
    }
}

/// Keys by token and dim before any rotation: each kind of token has one row, in the order of a text. With as many
/// kinds as tokens no token repeats.
class token_rows {
public:
    token_rows(dice& random, std::size_t tokens, std::size_t dim, std::size_t kinds) : dim_(dim) {
        std::vector<double> level(dim), width(dim);
        for (std::size_t d = 0; d < dim; ++d) {
            level[d] = 2 * random.unit() - 1;
            width[d] = 0.02 + random.unit();
        }
        for (std::size_t i = 0; i < kinds * dim; ++i) {
            const double bell = random.unit() + random.unit() + random.unit() + random.unit() - 2;
            rows_.push_back(level[i % dim] + width[i % dim] * bell);
        }
        for (std::size_t t = 0; t < tokens; ++t) {
            kinds_.push_back(kinds == tokens ? t : random.below(static_cast<std::uint32_t>(kinds)));
        }
    }

    std::size_t tokens() const { return kinds_.size(); }
    std::size_t dim() const { return dim_; }
    double at(std::size_t token, std::size_t d) const { return rows_[kinds_[token] * dim_ + d]; }

private:
    std::size_t dim_;
    std::vector<double> rows_;
    std::vector<std::size_t> kinds_;
};

/// [head][token][dim].
inline bytes cache_words(dice& random, const word_codec& codec, std::size_t heads, std::size_t tokens,
                         std::size_t dim, std::size_t kinds) {
    bytes out;
    for (std::size_t head = 0; head < heads; ++head) {
        const token_rows rows(random, tokens, dim, kinds);
        for (std::size_t i = 0; i < tokens * dim; ++i) {
            push_word(out, codec, rows.at(i / dim, i % dim));
        }
    }
    return out;
}

/// A host's rotation of its keys.
struct turning {
    std::uint32_t pairing;
    /// Angle per position, one per rotated pair.
    std::vector<float> frequencies;
    /// One per token.
    std::vector<std::uint32_t> positions;
};

inline std::vector<float> frequencies_of(double theta, std::size_t rope_dims) {
    std::vector<float> out;
    for (std::size_t i = 0; i < rope_dims / 2; ++i) {
        out.push_back(static_cast<float>(std::pow(theta, -2.0 * static_cast<double>(i) /
                                                             static_cast<double>(rope_dims))));
    }
    return out;
}

inline std::vector<std::uint32_t> positions_from(std::uint32_t first, std::size_t tokens) {
    std::vector<std::uint32_t> out;
    for (std::size_t t = 0; t < tokens; ++t) {
        out.push_back(first + static_cast<std::uint32_t>(t));
    }
    return out;
}

/// [head][token][dim], the first channels of every row rotated.
inline bytes turned_keys(dice& random, const word_codec& codec, std::size_t heads, std::size_t dim,
                         std::size_t kinds, const turning& how) {
    bytes out;
    const std::size_t pairs = how.frequencies.size();
    for (std::size_t head = 0; head < heads; ++head) {
        const token_rows rows(random, how.positions.size(), dim, kinds);
        for (std::size_t t = 0; t < rows.tokens(); ++t) {
            std::vector<double> row(dim);
            for (std::size_t d = 0; d < dim; ++d) {
                row[d] = rows.at(t, d);
            }
            for (std::size_t i = 0; i < pairs; ++i) {
                const bool half = how.pairing == MNNKV_ROPE_HALF;
                double &a = row[half ? i : 2 * i], &b = row[half ? pairs + i : 2 * i + 1];
                const double angle = static_cast<double>(how.positions[t]) * static_cast<double>(how.frequencies[i]);
                const double x = a, y = b;
                a = x * std::cos(angle) - y * std::sin(angle);
                b = y * std::cos(angle) + x * std::sin(angle);
            }
            for (const double number : row) {
                push_word(out, codec, number);
            }
        }
    }
    return out;
}

/// Options for V2 with a rotation hint, all further fields 0.
inline mnnkv_gear_options turned_by(std::uint32_t pairing, std::uint32_t head_dim, std::uint32_t tokens) {
    mnnkv_gear_options options = in_v2(head_dim);
    options.rope_pairing = pairing;
    options.rope_tokens = tokens;
    return options;
}

/// Encodes from and to odd addresses and decodes, checks all bytes and both buffers. Returns the blob.
inline bytes round_trip(const word_codec& codec, const bytes& words, const mnnkv_gear_options* options) {
    guarded src(words, 1), blob(mnnkv_gear_bound(words.size(), codec.dtype), 3), out(words.size(), 1);
    std::size_t length = 0, out_length = 0;
    EXPECT_TRUE(ok(codec.encode(src.data(), src.size(), options, blob.data(), blob.size(), &length)));
    EXPECT_LE(length, blob.size());
    bytes made = blob.contents(), expected = made;
    made.resize(std::min(length, made.size()));
    std::fill(expected.begin() + static_cast<std::ptrdiff_t>(made.size()), expected.end(), std::uint8_t{0xC7});
    EXPECT_TRUE(blob.holds(expected)) << "bytes past the blob";
    EXPECT_TRUE(src.untouched());
    EXPECT_TRUE(ok(codec.decode(made.data(), made.size(), out.data(), out.size(), &out_length)));
    EXPECT_EQ(out_length, words.size());
    EXPECT_TRUE(out.holds(words));
    return made;
}

}  // namespace support

#endif  // MNNKV_TESTS_CACHE_WORDS_HPP
