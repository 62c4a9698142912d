//! Errors
//!
//! These functions are in a library of their own, libmnnkv_llama, which does not need libmnnkv. The text of their failures is
//! here, and not in mnnkv_last_error.

use std::ffi::c_char;

/// Returns one sentence about the calling thread's last failure in a function of this header: UTF-8, at most 1,023 bytes, never
/// NULL, "" before the first failure. Valid until the thread's next call of this library. A successful call does not clear it.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub extern "C" fn mnnkv_llama_last_error() -> *const c_char {
    // The core that is linked into this library, and not libmnnkv.
    mnnkv::ffi::status::mnnkv_last_error()
}
