// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_ROWS_HPP
#define MNNKV_ROWS_HPP
#include "base.hpp"
#include "rows.h"
#endif
