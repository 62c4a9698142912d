// Frozen by `make abi`, without comments; see docs/abi.md.
#ifndef MNNKV_MODEL_BASE_H
#define MNNKV_MODEL_BASE_H
#include "../base.h"
#ifdef __cplusplus
extern "C" {
#endif
const char *mnnkv_model_last_error(void);
#ifdef __cplusplus
}
#endif
#endif
