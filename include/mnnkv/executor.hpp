// mnnkv/executor.hpp: mnnkv/executor.h, which has no functions.

#ifndef MNNKV_EXECUTOR_HPP
#define MNNKV_EXECUTOR_HPP

#include "base.hpp"
#include "executor.h"

#endif  // MNNKV_EXECUTOR_HPP
