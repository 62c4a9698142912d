// mnnkv/scores.hpp: block sums in C++; mnnkv::session hands them over.

#ifndef MNNKV_SCORES_HPP
#define MNNKV_SCORES_HPP

#include "scores.h"
#include "session.hpp"

#endif  // MNNKV_SCORES_HPP
