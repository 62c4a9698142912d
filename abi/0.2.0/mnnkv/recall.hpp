// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_RECALL_HPP
#define MNNKV_RECALL_HPP
#include "recall.h"
#include "session.hpp"
#endif
