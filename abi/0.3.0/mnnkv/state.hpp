// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_STATE_HPP
#define MNNKV_STATE_HPP
#include "base.hpp"
#include "state.h"
#endif
