// mnn-kv for C++11 and later: owners of handles, and statuses that a compiler checks.
//
// Header-only over the C headers, which are the manual; needs neither exceptions nor RTTI. Not included:
// mnnkv/model.hpp.

#ifndef MNNKV_HPP
#define MNNKV_HPP

#include "mnnkv.h"

#include "mnnkv/base.hpp"
#include "mnnkv/session.hpp"
#include "mnnkv/attend.hpp"
#include "mnnkv/memory.hpp"
#include "mnnkv/report.hpp"
#include "mnnkv/scores.hpp"
#include "mnnkv/park.hpp"
#include "mnnkv/policy.hpp"
#include "mnnkv/snapshot.hpp"
#include "mnnkv/store.hpp"
#include "mnnkv/layout.hpp"
#include "mnnkv/quantised.hpp"
#include "mnnkv/h2o.hpp"
#include "mnnkv/gear.hpp"

#endif  // MNNKV_HPP
