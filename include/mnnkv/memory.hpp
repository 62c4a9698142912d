// mnnkv/memory.hpp: mnnkv/memory.h, whose functions are methods of mnnkv::session.

#ifndef MNNKV_MEMORY_HPP
#define MNNKV_MEMORY_HPP

#include "memory.h"
#include "session.hpp"

#endif  // MNNKV_MEMORY_HPP
