// mnn-kv: KV-cache compression for on-device LLM engines. The headers are the manual.
//
//   mnnkv/base.h      status codes, versions, element types, cache layouts
//   mnnkv/session.h   all of a model's KV caches, compressed as a JSON config says: hosts start here
//   mnnkv/attend.h    attention over tokens in 8 and 4 bits
//   mnnkv/scores.h    scores from sums that a host makes in its own attention loop
//   mnnkv/memory.h    a budget in bytes for all of a session's caches: the main way to use mnn-kv
//   mnnkv/report.h    what a session does, warns of and has counted
//   mnnkv/park.h      a layer compressed as a whole, and its memory returned, while no step is due
//   mnnkv/policy.h    tokens that are never evicted
//   mnnkv/snapshot.h  the file of a chat, saved step by step
//   mnnkv/store.h     cold tokens as blobs, their memory returned to the system
//   mnnkv/layout.h    cache memory in place: index, gather, scatter, move, compact, zero, release
//   mnnkv/quantised.h MNN's quantised caches: description, appends, truncation, values for tools
//   mnnkv/h2o.h       scores of blocks, and plans of the tokens to keep
//   mnnkv/gear.h      the lossless codec of fp16, bf16, fp32 and int8 words
//   mnnkv/load.h      the functions of a library that is loaded at run time; not included here
//   mnnkv/model.h     files that come with a model; not included here, and of a library of its own: libmnnkv_model
//   mnnkv/llama.h     what only llama.cpp needs; likewise, of libmnnkv_llama
//
// A host that patches its attention needs base.h, session.h and attend.h, and quantised.h for INT8 caches. C++ wrappers:
// mnnkv.hpp. docs/adopt.md makes an example engine a host, step by step.
//
// Without the calls that attend.h shows, neither kv_quant nor a budget has an effect.
//
// Example
//
//   // Tokens of one layer and step, of a host that attends itself (options.attends = 0). append writes K and V at kv_len.
//   static mnnkv_status step(mnnkv_session* session, uint32_t layer, mnnkv_cache* cache, uint32_t heads, uint32_t tokens) {
//       mnnkv_status status = mnnkv_session_begin(session, layer, cache, NULL);
//       if (status != MNNKV_OK) {
//           return status;
//       }
//       append(cache, tokens);
//       attention(cache, tokens);
//       cache->kv_len += tokens;
//       return mnnkv_session_end(session, layer, heads, tokens, cache);
//   }
//
// Conventions
//
// - Functions that can fail return mnnkv_status. Each documents its own failures as `STATUS: if <condition>`; the
//   failures of these conventions may come from any function. mnnkv_last_error has the text; mnnkv_model_last_error
//   that of a function of mnnkv/model.h.
// - Outputs are written only on success. Exceptions: BUFFER_TOO_SMALL writes the size that is needed, and decoding
//   leaves the words undefined after a failure that comes late.
// - NULL with length 0 is valid. Other NULLs, misaligned pointers to numbers, pointers to structs that are not aligned to 4
//   bytes, and buffers of a call that overlap a buffer that it writes are INVALID_ARGUMENT. Buffers of bytes and words need
//   no alignment.
// - Structs begin with struct_size. Zero an input struct, set struct_size to its sizeof, then the fields that
//   differ from the default: in a field where 0 would make no sense, 0 stands for the default, and a NULL options
//   pointer is all defaults.
//   Set struct_size of output structs as well. Fields named reserved must be 0.
// - Sizes are bytes where nothing else is said. Arrays are dense and row-major: [head][token][dim] has dim innermost.
// - Text outputs (text, cap, len) are UTF-8 with a terminating zero, which *len counts. A call with NULL and 0
//   returns BUFFER_TOO_SMALL and the size. Input texts are UTF-8, zero-terminated unless a length is passed.
// - Pointers are not retained after the call, and no function calls back or throws;
//   mnnkv_snapshot_io is the exception.
// - Handles are made by functions that take MNNKV_ABI_VERSION as abi_version, return UNSUPPORTED for another, and write
//   the handle to *out. They are freed by their _destroy function, which ignores NULL, works after INTERNAL, and must
//   not overlap other calls. A handle is destroyed once and not used after that. Nothing else must be freed.
// - Functions with a const handle may overlap others with a const handle. Calls with a non-const handle must not
//   overlap any other call on it. Exceptions are documented. Functions without a handle run on any thread.
// - Only a call that is passed a cache touches its memory. It may return whole pages of tokens to the system. Threads
//   of the library never touch a cache, so that it may be moved or freed between two calls.
// - OUT_OF_MEMORY, if memory is refused: nothing was changed, and the call may be repeated. attend.h has one exception.
// - INTERNAL, if the library has a bug: panics are caught. Every later call on the handle but its _destroy returns INTERNAL;
//   after mnnkv_session_attend only the open step is lost: abort it.
// - mnnkv_session_create takes up to 256 KB of the thread's stack, other functions up to 128 KB.
// - After fork, the child must not use handles of the parent, except to destroy them.

#ifndef MNNKV_H
#define MNNKV_H

#include "mnnkv/base.h"
#include "mnnkv/session.h"
#include "mnnkv/attend.h"
#include "mnnkv/memory.h"
#include "mnnkv/report.h"
#include "mnnkv/scores.h"
#include "mnnkv/park.h"
#include "mnnkv/policy.h"
#include "mnnkv/snapshot.h"
#include "mnnkv/store.h"
#include "mnnkv/layout.h"
#include "mnnkv/quantised.h"
#include "mnnkv/h2o.h"
#include "mnnkv/gear.h"

#endif  // MNNKV_H
