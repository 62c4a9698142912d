// mnnkv/executor.h: threads of the host that encode and decode for a session.
//
// Generated from src/ffi/session by `make header`; do not edit. mnnkv.h has the conventions.

#ifndef MNNKV_EXECUTOR_H
#define MNNKV_EXECUTOR_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// --- Executor: threads of the host ------------------------------------------------------------------------------
//
// A session encodes and decodes blocks as jobs, on workers of the library, or on threads of the host through an executor
// (mnnkv_session_options::executor). A job is one block; it holds no lock and waits for no other job.
//
// submit is called inside mnnkv_session_begin, mnnkv_session_park and mnnkv_snapshot_append, and in kv_lossless_runtime_mode
// "probe" and "full" inside mnnkv_session_end, on the thread of the call: for cold tokens to encode and, unless restores_heads
// is set, for stored tokens to decode, of this layer and ahead of the next. It must return without waiting, must not throw,
// and must not call the session or the snapshot. Returning 0 promises that run(job) will be called once. Any other value
// refuses the job: its tokens stay raw (h2o_lossless_backpressure_skip_count), or begin decodes them.
//
// run may be called on any thread, by several at once, and inside submit. It takes the most urgent job of the session
// that waits, not always the one that it was submitted for. It does nothing if no job waits: begin decodes what has not
// begun, and jobs of tokens that are evicted or reset are dropped. A call may come at any time, even after
// mnnkv_session_destroy, while the library is loaded. A call that never comes leaves a block raw, and keeps its part of
// kv_lossless_pending_bytes; when that is used up, nothing more is stored. begin and destroy wait for jobs that have
// begun, and for no others.
//
// At most kv_lossless_max_queue jobs and those of the blocks of two layers are outstanding at a time. Each thread keeps
// working memory of four times the raw bytes of the largest block, until it ends or calls mnnkv_thread_trim.

/// A pool of threads. Copied by mnnkv_session_create; user must stay valid until mnnkv_session_destroy returns.
typedef struct mnnkv_executor {
    uint32_t struct_size;
    uint32_t reserved;
    /// user: as given here. run(job): the call to make. job must not be dereferenced.
    int32_t (*submit)(void *user, void (*run)(void *job), void *job);
    void *user;
} mnnkv_executor;

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MNNKV_EXECUTOR_H
