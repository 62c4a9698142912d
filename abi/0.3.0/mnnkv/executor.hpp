// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_EXECUTOR_HPP
#define MNNKV_EXECUTOR_HPP
#include "base.hpp"
#include "executor.h"
#endif
