// mnnkv/metrics.hpp: mnnkv/metrics.h, whose functions are methods of mnnkv::session.

#ifndef MNNKV_METRICS_HPP
#define MNNKV_METRICS_HPP

#include "metrics.h"
#include "session.hpp"

#include <cstring>

namespace mnnkv {

/// Whether a field of mnnkv_metrics was measured, that is not NaN. Compares bits, so that it works with -ffast-math.
inline bool measured(double metric) noexcept {
    std::uint64_t bits = 0;
    std::memcpy(&bits, &metric, sizeof bits);
    return (bits & 0x7fffffffffffffffu) <= 0x7ff0000000000000u;
}

}  // namespace mnnkv

#endif  // MNNKV_METRICS_HPP
