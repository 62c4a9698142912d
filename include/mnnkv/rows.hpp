// mnnkv/rows.hpp: mnnkv/rows.h, whose functions need no wrapper: mnnkv::status holds what they return.

#ifndef MNNKV_ROWS_HPP
#define MNNKV_ROWS_HPP

#include "base.hpp"
#include "rows.h"

#endif  // MNNKV_ROWS_HPP
