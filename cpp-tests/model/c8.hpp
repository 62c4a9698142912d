// K and V as C8, element by element in double: the judge of what the library makes of caches.

#ifndef MNNKV_TESTS_C8_HPP
#define MNNKV_TESTS_C8_HPP

#include "model_files.hpp"
#include "packed_model.hpp"

#include <cmath>

namespace support {

using codes = std::vector<std::int8_t>;
using floats = std::vector<float>;

inline mnnkv_c8_shape c8_shape(std::uint32_t dtype, std::uint32_t order, std::uint32_t kv_heads,
                                      std::uint32_t head_dim, std::uint32_t tokens) {
    mnnkv_c8_shape shape = mnnkv::make<mnnkv_c8_shape>();
    shape.dtype = dtype;
    shape.order = order;
    shape.kv_heads = kv_heads;
    shape.head_dim = head_dim;
    shape.tokens = tokens;
    return shape;
}

/// Scales and offsets that live as long as this.
struct c8_scales {
    floats scale, offset;

    mnnkv_c8_scales c() const {
        mnnkv_c8_scales given = mnnkv::make<mnnkv_c8_scales>();
        given.channels = static_cast<std::uint32_t>(scale.size());
        given.scale = scale.data();
        given.offset = offset.data();
        return given;
    }
};

inline c8_scales random_scales(std::size_t channels, dice& random) {
    c8_scales out;
    for (std::size_t i = 0; i < channels; ++i) {
        out.scale.push_back(std::ldexp(0.5f + random.unit(), static_cast<int>(random.below(12)) - 8));
        out.offset.push_back(random.one_in(2) ? 0.0f : static_cast<float>(random.below(256)) - 128.0f);
    }
    return out;
}

/// The number in element i of a row of values.
inline double number_at(std::uint32_t dtype, const std::uint8_t* values, std::size_t i) {
    if (dtype == MNNKV_DTYPE_F16) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, values + 2 * i, 2);
        const int exponent = bits >> 10 & 31, fraction = bits & 1023;
        const double size = exponent == 31  ? (fraction != 0 ? NAN : INFINITY)
                            : exponent == 0 ? std::ldexp(fraction, -24)
                                            : std::ldexp(1024 + fraction, exponent - 25);
        return (bits & 0x8000) != 0 ? -size : size;
    }
    std::uint32_t bits = 0;
    if (dtype == MNNKV_DTYPE_BF16) {
        std::uint16_t upper = 0;
        std::memcpy(&upper, values + 2 * i, 2);
        bits = std::uint32_t{upper} << 16;
    } else {
        std::memcpy(&bits, values + 4 * i, 4);
    }
    float number = 0;
    std::memcpy(&number, &bits, 4);
    return number;
}

/// The code of a number. Rounding a quotient or a sum of floats to double and then to float is rounding once.
inline std::int8_t code_of(double number, float scale, float offset) {
    const float steps = std::isnan(number) ? 0.0f : static_cast<float>(number / scale);
    const float sum = static_cast<float>(static_cast<double>(steps) + offset);
    return static_cast<std::int8_t>(std::nearbyint(std::min(127.0f, std::max(-128.0f, sum))));
}

/// Codes of values [head][token][dim].
inline codes codes_of(std::uint32_t dtype, const bytes& values, std::size_t heads, std::size_t dims,
                      const c8_scales& scales) {
    const std::size_t elements = values.size() / (dtype == MNNKV_DTYPE_F32 ? 4 : 2);
    codes out(elements);
    for (std::size_t i = 0; i < elements; ++i) {
        const std::size_t channel = i / (elements / heads) * dims + i % dims;
        out[i] = code_of(number_at(dtype, values.data(), i), scales.scale[channel], scales.offset[channel]);
    }
    return out;
}

inline testing::AssertionResult same_codes(const std::int8_t* ours, const codes& theirs) {
    return same(reinterpret_cast<const std::uint8_t*>(ours), theirs.size(),
                reinterpret_cast<const std::uint8_t*>(theirs.data()), theirs.size());
}

}  // namespace support

#endif  // MNNKV_TESTS_C8_HPP
