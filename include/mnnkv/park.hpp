// mnnkv/park.hpp: mnnkv/park.h, whose functions are methods of mnnkv::session.

#ifndef MNNKV_PARK_HPP
#define MNNKV_PARK_HPP

#include "park.h"
#include "session.hpp"

#endif  // MNNKV_PARK_HPP
