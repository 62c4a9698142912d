// mnnkv/quantised.hpp: mnnkv/quantised.h, whose functions need no wrapper: mnnkv::status holds what they return.

#ifndef MNNKV_QUANTISED_HPP
#define MNNKV_QUANTISED_HPP

#include "base.hpp"
#include "quantised.h"

#endif  // MNNKV_QUANTISED_HPP
