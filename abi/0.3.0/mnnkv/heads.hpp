// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_HEADS_HPP
#define MNNKV_HEADS_HPP
#include "heads.h"
#include "session.hpp"
#endif
