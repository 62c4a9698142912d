// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_LAYOUT_HPP
#define MNNKV_LAYOUT_HPP
#include "base.hpp"
#include "layout.h"
#endif
