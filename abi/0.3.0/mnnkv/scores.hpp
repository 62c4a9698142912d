// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_SCORES_HPP
#define MNNKV_SCORES_HPP
#include "scores.h"
#include "session.hpp"
#endif
