// mnnkv/layout.hpp: mnnkv/layout.h, whose functions need no wrapper: mnnkv::status holds what they return.

#ifndef MNNKV_LAYOUT_HPP
#define MNNKV_LAYOUT_HPP

#include "base.hpp"
#include "layout.h"

#endif  // MNNKV_LAYOUT_HPP
