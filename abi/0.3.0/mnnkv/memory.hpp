// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_MEMORY_HPP
#define MNNKV_MEMORY_HPP
#include "memory.h"
#include "session.hpp"
#endif
