// mnnkv/heads.hpp: mnnkv/heads.h, whose functions are methods of mnnkv::session.

#ifndef MNNKV_HEADS_HPP
#define MNNKV_HEADS_HPP

#include "heads.h"
#include "session.hpp"

#endif  // MNNKV_HEADS_HPP
