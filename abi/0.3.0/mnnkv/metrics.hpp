// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_METRICS_HPP
#define MNNKV_METRICS_HPP
#include "metrics.h"
#include "session.hpp"
#include <cstring>
namespace mnnkv {
inline bool measured(double metric) noexcept {
    std::uint64_t bits = 0;
    std::memcpy(&bits, &metric, sizeof bits);
    return (bits & 0x7fffffffffffffffu) <= 0x7ff0000000000000u;
}
}
#endif
