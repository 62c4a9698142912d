// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_POLICY_HPP
#define MNNKV_POLICY_HPP
#include "policy.h"
#include "session.hpp"
#endif
