// Conversions of f16 for adapters, in portable code. C++11.

#ifndef MNNKV_HALF_HPP
#define MNNKV_HALF_HPP

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace mnnkv_host {

inline float float_of_half(std::uint16_t half) {
    const std::uint32_t size = half & 0x7fffu, sign = (half & 0x8000u) << 16;
    float number = static_cast<float>(size) * (1.0f / 16777216);  // below 2^-14: steps of 2^-24
    if (size >= 0x400) {
        // The power moves from a bias of 15 to one of 127; that of infinity and NaN is the largest of either.
        const std::uint32_t bits = (size << 13) + ((size < 0x7c00 ? 112u : 224u) << 23);
        std::memcpy(&number, &bits, sizeof number);
    }
    return sign != 0 ? -number : number;
}

/// To the nearest f16, ties to even; what is beyond its range becomes its largest number.
inline std::uint16_t half_of_float(float number) {
    const float size = std::min(std::fabs(number), 65504.0f), above = size + 0.5f;
    std::uint32_t bits, sum;
    std::memcpy(&bits, &size, sizeof bits);
    std::memcpy(&sum, &above, sizeof sum);
    // Below 2^-14 the sum has steps of 2^-24, as f16 has; else 13 bits go, rounded.
    const std::uint32_t half = size < 1.0f / 16384 ? sum - 0x3f000000 : (bits - (112u << 23) + 0xfff + (bits >> 13 & 1)) >> 13;
    return static_cast<std::uint16_t>((std::signbit(number) ? 0x8000u : 0u) | half);
}

}  // namespace mnnkv_host

#endif  // MNNKV_HALF_HPP
