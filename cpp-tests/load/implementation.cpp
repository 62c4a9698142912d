// The functions of the library, which it is loaded for. Compiled as MNN compiles CPUAttention.cpp.

#define MNNKV_LOAD_IMPLEMENTATION
#include <mnnkv/load.h>
