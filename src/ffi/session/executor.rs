//! Executor: threads of the host
//!
//! A session encodes and decodes blocks as jobs, on workers of the library, or on threads of the host through an executor
//! (mnnkv_session_options::executor). A job is one block; it holds no lock and waits for no other job.
//!
//! submit is called inside mnnkv_session_begin, mnnkv_session_park and mnnkv_snapshot_append, and in kv_lossless_runtime_mode
//! "probe" and "full" inside mnnkv_session_end, on the thread of the call: for cold tokens to encode and, unless restores_heads
//! is set, for stored tokens to decode, of this layer and ahead of the next. It must return without waiting, must not throw,
//! and must not call the session or the snapshot. Returning 0 promises that run(job) will be called once. Any other value
//! refuses the job: its tokens stay raw (h2o_lossless_backpressure_skip_count), or begin decodes them.
//!
//! run may be called on any thread, by several at once, and inside submit. It takes the most urgent job of the session
//! that waits, not always the one that it was submitted for. It does nothing if no job waits: begin decodes what has not
//! begun, and jobs of tokens that are evicted or reset are dropped. A call may come at any time, even after
//! mnnkv_session_destroy, while the library is loaded. A call that never comes leaves a block raw, and keeps its part of
//! kv_lossless_pending_bytes; when that is used up, nothing more is stored. begin and destroy wait for jobs that have
//! begun, and for no others.
//!
//! At most kv_lossless_max_queue jobs and those of the blocks of two layers are outstanding at a time. Each thread keeps
//! working memory of four times the raw bytes of the largest block, until it ends or calls mnnkv_thread_trim.

use crate::ffi::panic::guard_or;
use crate::ffi::pointer::{self, Sized32};
use crate::status::{Result, bail};
use crate::store::{self, Executor};
use crate::sys::memory;
use std::ffi::c_void;

/// A pool of threads. Copied by mnnkv_session_create; user must stay valid until mnnkv_session_destroy returns.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_executor {
    pub struct_size: u32,
    pub reserved: u32,
    /// user: as given here. run(job): the call to make. job must not be dereferenced.
    pub submit: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            run: Option<unsafe extern "C" fn(job: *mut c_void)>,
            job: *mut c_void,
        ) -> i32,
    >,
    pub user: *mut c_void,
}

// SAFETY: repr(C), begins with a u32, an integer, a function pointer that may be NULL, and a raw pointer.
unsafe impl Sized32 for mnnkv_executor {
    const MIN: usize = size_of::<mnnkv_executor>();
}

/// The submit of a host.
struct Submit(
    unsafe extern "C" fn(*mut c_void, Option<unsafe extern "C" fn(*mut c_void)>, *mut c_void) -> i32,
    *mut c_void,
);

// SAFETY: the header lets any thread that calls the session call it.
unsafe impl Send for Submit {}

impl Submit {
    fn submit(&self, number: usize) -> bool {
        // SAFETY: the header is the contract.
        unsafe { (self.0)(self.1, Some(run), number as *mut c_void) == 0 }
    }
}

unsafe extern "C" fn run(job: *mut c_void) {
    guard_or((), || {
        store::run_one(job as usize);
        Ok(())
    });
}

/// The executor of a host, `None` for NULL.
///
/// # Safety
/// A non-NULL `executor` is as the header says.
pub(super) unsafe fn executor(executor: *const mnnkv_executor) -> Result<Option<Executor>> {
    // SAFETY: passed on.
    let Some(given) = unsafe { pointer::options(executor, "executor") }? else { return Ok(None) };
    pointer::reserved(&[given.reserved], "executor")?;
    let Some(submit) = given.submit else { bail!(InvalidArgument, "executor->submit is NULL") };
    let submit = Submit(submit, given.user);
    Ok(Some(memory::boxed(move |number| submit.submit(number))?))
}
