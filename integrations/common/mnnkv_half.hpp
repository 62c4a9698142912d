// Conversions of f16 for adapters, in portable code. C++11.

#ifndef MNNKV_HALF_HPP
#define MNNKV_HALF_HPP

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace mnnkv_host {

inline float float_of_half(std::uint16_t half) {
    const int power = half >> 10 & 31;
    const float part = static_cast<float>(half & 1023);
    const float size = power == 31  ? (part > 0 ? NAN : INFINITY)
                       : power == 0 ? std::ldexp(part, -24)
                                    : std::ldexp(part + 1024, power - 25);
    return (half & 0x8000) != 0 ? -size : size;
}

/// To the nearest f16, ties to even; what is beyond its range becomes its largest number.
inline std::uint16_t half_of_float(float number) {
    const std::uint16_t sign = std::signbit(number) ? 0x8000 : 0;
    const float size = std::min(std::fabs(number), 65504.0f);
    int power = -24;
    if (size > 0) {
        (void)std::frexp(size, &power);
    }
    const int least = std::max(power - 11, -24);  // of the last bit
    const std::uint32_t steps = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(size, -least)));
    // Steps above 1,024 carry into the power, and 2,048 of them into the next one.
    return static_cast<std::uint16_t>(sign | ((static_cast<std::uint32_t>(least + 24) << 10) + steps));
}

}  // namespace mnnkv_host

#endif  // MNNKV_HALF_HPP
