// mnnkv/gear.hpp: mnnkv/gear.h, whose functions need no wrapper: mnnkv::status holds what they return.

#ifndef MNNKV_GEAR_HPP
#define MNNKV_GEAR_HPP

#include "base.hpp"
#include "gear.h"

#endif  // MNNKV_GEAR_HPP
