//! Budget
//!
//! {"kv_memory_mb": 64} bounds the raw tokens in your buffers, blocks and working memory to 64 MB (10^6 bytes) after every step. A
//! layer that needs more than its share goes to the next of these states (docs/config.md, Budget):
//!
//!   raw         all tokens are in the cache, and you attend. They take at most half of the budget
//!   k8v4, k4v4  K has 8 bits and V 4, but for the first and the newest tokens; then both have 4, where attention is least
//!   file        blocks with the least attention are in kv_memory_file. A step reads those that an estimate ranks highest
//!   dropping    without a file, or once it is full, such blocks are dropped. No step attends to their tokens again
//!
//! - A step in which working memory grows may exceed the budget until the next one, and a step of more than 16 tokens by its raw
//!   tokens until the next begin of the layer: if you pause after a prompt, call begin and end without tokens.
//! - Pinned tokens, and blocks that k8v4 does not fit, may exceed it; a warning says so. First and newest ones stay.
//! - kv_memory_file is the chat file (below). It is not encrypted. A thread of the session writes it: no step waits for a disk.

use super::handle::mnnkv_session;
use crate::ffi::panic::body;
use crate::ffi::pointer::{self, Out};
use crate::ffi::status::mnnkv_status;

/// Sets the budget to `bytes` from now on, or to the least of the model if that is more, when the system is short of memory.
/// Blocks go to the file or are dropped until it holds. Open layers, and raw tokens that take more, follow in their next begin.
/// With more bytes, blocks of the file come back as they are used. Any thread. It waits for other calls, also for a
/// save, but not for attention, and writes the file: do not call it on a thread that must not wait.
/// in_use: bytes in use afterwards; may be NULL.
/// INVALID_ARGUMENT: if the config sets no budget
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_session_trim(session: *mut mnnkv_session, bytes: u64, in_use: *mut u64) -> mnnkv_status {
    body!({
        let session = &pointer::reference(session, "session")?.session;
        let in_use = Out::optional(in_use, "in_use")?;
        let left = session.trim(bytes)?;
        in_use.into_iter().for_each(|out| out.set(left));
        Ok(())
    })
}
