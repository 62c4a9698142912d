// mnnkv/recall.hpp: mnnkv/recall.h, whose functions are methods of mnnkv::session.

#ifndef MNNKV_RECALL_HPP
#define MNNKV_RECALL_HPP

#include "recall.h"
#include "session.hpp"

#endif  // MNNKV_RECALL_HPP
