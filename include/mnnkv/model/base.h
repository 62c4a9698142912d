// mnnkv/model/base.h: failures of libmnnkv_model, the library of mnnkv/model.h.
//
// Generated from model/src/ffi by `make header`; do not edit. mnnkv/session.h has the conventions.

#ifndef MNNKV_MODEL_BASE_H
#define MNNKV_MODEL_BASE_H

#include "../../mnnkv.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- Errors ------------------------------------------------------------------------------------------------------------------
//
// The functions of mnnkv/model.h are in a library of their own, libmnnkv_model, which does not need libmnnkv. Each
// library has the text of its own failures: that of a function of mnnkv/model/*.h is here, and mnnkv_last_error does not
// have it. mnnkv::status::message() of the C++ wrappers returns the text of the library that made the call.

/// Returns one sentence about the calling thread's last failure in a function of mnnkv/model/*.h, as mnnkv_last_error
/// does for the others: UTF-8, at most 1,023 bytes, never NULL, "" before the first failure. Valid until the thread's
/// next call of this library. A successful call does not clear it.
const char *mnnkv_model_last_error(void);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MNNKV_MODEL_BASE_H
