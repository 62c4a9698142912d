// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_QUANTISED_HPP
#define MNNKV_QUANTISED_HPP
#include "base.hpp"
#include "quantised.h"
#endif
