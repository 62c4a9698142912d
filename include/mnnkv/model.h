// mnnkv/model.h: files that come with a model. The functions are those of libmnnkv_model, a library beside libmnnkv: CMake's
// target mnnkv::model, pkg-config's mnnkv_model; a build with MNNKV_MODEL=OFF has none. session.h has the conventions.
// Neither library needs the other; mnnkv_model_last_error has the text of a failure here.
//
//   mnnkv/model/base.h         mnnkv_model_last_error
//   mnnkv/model/sizing.h       bytes of the KV cache of a model, from its config.json
//   mnnkv/model/c8.h           8-bit codes with a scale and an offset per channel
//   mnnkv/model/msmodelslim.h  directories of weights that msmodelslim quantised
//   mnnkv/model/compressor.h   learned compressors of K and V

#ifndef MNNKV_MODEL_H
#define MNNKV_MODEL_H

#include "model/base.h"
#include "model/sizing.h"
#include "model/c8.h"
#include "model/msmodelslim.h"
#include "model/compressor.h"

#endif  // MNNKV_MODEL_H
