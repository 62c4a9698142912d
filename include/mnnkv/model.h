// mnnkv/model.h: files that come with a model; absent from a library built with MNNKV_MODEL=OFF. mnnkv.h has the
// conventions.
//
//   mnnkv/model/sizing.h       bytes of the KV cache of a model, from its config.json
//   mnnkv/model/c8.h           8-bit codes with a scale and an offset per channel
//   mnnkv/model/msmodelslim.h  directories of weights that msmodelslim quantised
//   mnnkv/model/compressor.h   learned compressors of K and V

#ifndef MNNKV_MODEL_H
#define MNNKV_MODEL_H

#include "model/sizing.h"
#include "model/c8.h"
#include "model/msmodelslim.h"
#include "model/compressor.h"

#endif  // MNNKV_MODEL_H
