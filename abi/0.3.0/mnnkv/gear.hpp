// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_GEAR_HPP
#define MNNKV_GEAR_HPP
#include "base.hpp"
#include "gear.h"
#endif
