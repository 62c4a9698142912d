// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_H2O_HPP
#define MNNKV_H2O_HPP
#include "base.hpp"
#include "h2o.h"
namespace mnnkv {
inline mnnkv_h2o_config h2o_defaults() noexcept {
    mnnkv_h2o_config config = mnnkv_h2o_config();
    mnnkv_h2o_config_default(&config);
    return config;
}
}
#endif
