// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_PARK_HPP
#define MNNKV_PARK_HPP
#include "park.h"
#include "session.hpp"
#endif
