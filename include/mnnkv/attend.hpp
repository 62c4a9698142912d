// mnnkv/attend.hpp: mnnkv/attend.h, whose functions are methods of mnnkv::session.

#ifndef MNNKV_ATTEND_HPP
#define MNNKV_ATTEND_HPP

#include "attend.h"
#include "session.hpp"

#endif  // MNNKV_ATTEND_HPP
