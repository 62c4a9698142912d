// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_ATTEND_HPP
#define MNNKV_ATTEND_HPP
#include "attend.h"
#include "session.hpp"
#endif
