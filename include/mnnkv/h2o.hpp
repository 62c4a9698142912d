// mnnkv/h2o.hpp: the defaults of mnnkv/h2o.h.

#ifndef MNNKV_H2O_HPP
#define MNNKV_H2O_HPP

#include "base.hpp"
#include "h2o.h"

namespace mnnkv {

/// mnnkv_h2o_config_default
inline mnnkv_h2o_config h2o_defaults() noexcept {
    mnnkv_h2o_config config = mnnkv_h2o_config();
    mnnkv_h2o_config_default(&config);
    return config;
}

}  // namespace mnnkv

#endif  // MNNKV_H2O_HPP
