// mnnkv/policy.hpp: mnnkv/policy.h, whose functions are methods of mnnkv::session.

#ifndef MNNKV_POLICY_HPP
#define MNNKV_POLICY_HPP

#include "policy.h"
#include "session.hpp"

#endif  // MNNKV_POLICY_HPP
