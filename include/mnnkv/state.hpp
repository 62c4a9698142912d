// mnnkv/state.hpp: mnnkv/state.h, whose functions need no wrapper: mnnkv::status holds what they return.

#ifndef MNNKV_STATE_HPP
#define MNNKV_STATE_HPP

#include "base.hpp"
#include "state.h"

#endif  // MNNKV_STATE_HPP
