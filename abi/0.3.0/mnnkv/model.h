// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_MODEL_H
#define MNNKV_MODEL_H
#include "model/base.h"
#include "model/sizing.h"
#include "model/c8.h"
#include "model/msmodelslim.h"
#include "model/compressor.h"
#endif
