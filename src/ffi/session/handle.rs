//! Session
//!
//! A session compresses the KV caches of one chat, as a JSON config says. docs/config.md lists the keys. The main ones are
//!
//!   {"kv_memory_mb": 64, "kv_memory_file": "chat.kv"}   the caches take at most 64 MB; what has no room goes to a file
//!   {"kv_quant": "k8v4"}                                every token stays, K in 8 bits and V in 4; "k4v4": both in 4
//!
//! Example: a step of one layer, with options.attends = 1. append and attention are your own code.
//!
//!   static mnnkv_status step(mnnkv_session* session, uint32_t layer, mnnkv_cache* cache, const mnnkv_attend* attend) {
//!       mnnkv_step step = {0};
//!       step.struct_size = sizeof step;
//!       mnnkv_status status = mnnkv_session_begin(session, layer, cache, &step);
//!       if (status != MNNKV_OK) return status;
//!       append(cache, attend->rows);  // writes K and V of the new tokens from cache->kv_len on
//!       cache->kv_len += attend->rows;
//!       status = step.attends ? mnnkv_session_attend(session, layer, 0, 1, cache, attend)  // with threads: a part on each
//!                             : attention(cache, attend);                                  // the cache has all tokens
//!       if (status == MNNKV_OK) status = mnnkv_session_end(session, layer, attend->heads, attend->rows, cache);
//!       if (status == MNNKV_OK) return MNNKV_OK;
//!       cache->kv_len = step.kv_len;
//!       mnnkv_session_abort(session, layer, cache);
//!       return status;
//!   }
//!
//! Conventions of all headers:
//! - A function that can fail returns a mnnkv_status, and lists its failures as `STATUS: if <condition>`. Any function may also
//!   return OUT_OF_MEMORY, INTERNAL and, for a breach of this list, INVALID_ARGUMENT. mnnkv_last_error has the text.
//! - Outputs are written only on success. But BUFFER_TOO_SMALL writes the size needed, and decoders and attend may write and fail.
//! - A pointer with length 0 may be NULL, others only where a comment says so. Structs must be aligned to 4 bytes and numbers to
//!   their size; bytes and words need no alignment. A buffer that a call writes must not overlap its other buffers.
//! - Structs begin with struct_size. Fill an input struct with zeros, set struct_size to its sizeof, then the fields that you
//!   need: 0 is the default where it would make no sense as a value. Set struct_size of output structs, too. Options may be NULL.
//! - Sizes are bytes where no unit is named. Arrays are dense and row-major: [head][token][dim] has dim innermost.
//! - Texts are UTF-8. Input texts end with a zero unless their length is passed. Output texts (text, cap, len) have a terminating
//!   zero, which *len counts. A call with NULL and 0 returns BUFFER_TOO_SMALL and the size.
//! - The library keeps no pointer after a call, never calls back and never throws.
//! - A function that makes a handle takes MNNKV_ABI_VERSION, returns UNSUPPORTED for another, and writes the handle to *out. Free
//!   it once with its _destroy function, which takes NULL, too, and works after INTERNAL. Nothing else must be freed.
//! - Calls with a const handle may overlap others with a const handle. A call with a non-const handle, _destroy included, must not
//!   overlap any call on the handle. Comments name exceptions. Functions without a handle run on any thread.
//! - Only a call that is passed a cache touches it, and may return its pages to the system. Between calls you may move or free it.
//! - mnnkv_session_create takes up to 256 KB of the stack, other functions 128 KB. After fork the child may only destroy handles.
//!
//! Rules of a session:
//! - Positions. The logical position of a token counts from the last reset of its layer: RoPE needs it, and you count it yourself.
//!   The physical position is its slot in the cache. Tokens that leave the cache make them differ, in each layer for itself. Take
//!   physical lengths from mnnkv_cache::kv_len.
//! - Cache. Between begin and end you may read tokens below kv_len and append new ones (V INT8: then call mnnkv_kv_appended).
//!   After writes to older tokens call mnnkv_session_rewritten before end. From end to the next begin or keep, stored
//!   tokens read as zero, and only mnnkv_session_rewritten allows writes. You may copy the whole cache elsewhere at any time; the
//!   copy takes memory for stored tokens until the next end. Only private anonymous memory (malloc's) returns to the system.
//! - Threads. Several layers may be open at once. mnnkv_session_trim may overlap any call but destroy; h2o.h has another
//!   exception. Functions with a const session wait while another call runs, but mnnkv_session_attend does not.
//!   Calls that would change or close an open step return BUSY while a thread attends, abort too: join your threads first.

use crate::ffi::cache::mnnkv_cache;
use crate::ffi::given;
use crate::ffi::handle;
use crate::ffi::panic::body;
use crate::ffi::pointer::{self, Out, Sized32};
use crate::ffi::status::mnnkv_status;
use crate::layout::Cache;
use crate::session::{Host, Session};
use crate::status::{Result, bail};
use std::ffi::{c_char, c_void};

/// The caches of one chat (one sequence) of one model. A batch needs a session for each.
pub struct mnnkv_session {
    pub(in crate::ffi) session: Session,
}

/// Runs the body of an export that edits a layer's cache, and writes the length that it returns.
///
/// # Safety
/// Pointers are NULL or as the header says.
pub(super) unsafe fn with_cache(
    session: *const mnnkv_session,
    cache: *mut mnnkv_cache,
    body: impl FnOnce(&Session, Cache<'_>, u32) -> Result<u32>,
) -> Result<()> {
    let body = |session: &Session, cache: Option<Cache<'_>>, kv_len| match cache {
        Some(cache) => body(session, cache, kv_len),
        None => bail!(Internal, "no cache is given"),
    };
    // SAFETY: passed on.
    unsafe { with_cache_or_none(session, cache, false, body) }
}

/// As [`with_cache`]. `lazily`: a cache without tokens may have no layout and no buffers.
///
/// # Safety
/// As [`with_cache`].
pub(in crate::ffi) unsafe fn with_cache_or_none(
    session: *const mnnkv_session,
    cache: *mut mnnkv_cache,
    lazily: bool,
    body: impl FnOnce(&Session, Option<Cache<'_>>, u32) -> Result<u32>,
) -> Result<()> {
    // SAFETY: passed on.
    unsafe {
        let session = &pointer::reference(session, "session")?.session;
        let given = pointer::required(cache, "cache")?;
        let is_missing = given.layout.is_null() || given.key.is_null() || given.value.is_null();
        let kv_len = if lazily && given.kv_len == 0 && is_missing {
            body(session, None, 0)?
        } else {
            let layout = given::checked(given.layout)?;
            body(session, Some(layout.cache(given.key, given.value)?), given.kv_len)?
        };
        // Read above through the same pointer, which is not const.
        (&raw mut (*cache).kv_len).write(kv_len);
    }
    Ok(())
}

/// Runs the body of an export on a session.
///
/// # Safety
/// `session` is NULL or live.
pub(super) unsafe fn with(session: *const mnnkv_session, body: impl FnOnce(&Session) -> Result<()>) -> Result<()> {
    // SAFETY: passed on.
    body(unsafe { &pointer::reference(session, "session")?.session })
}

/// Runs the body of an export that writes a text: its buffer, the capacity, and the length to write.
///
/// # Safety
/// Pointers are NULL or as the header says.
pub(super) unsafe fn with_text(
    session: *const mnnkv_session,
    (text, cap, len): (*mut c_char, usize, *mut usize),
    body: impl FnOnce(&Session) -> Result<String>,
) -> Result<()> {
    // SAFETY: passed on.
    unsafe {
        with(session, |session| {
            let (out, len) = (pointer::output(text.cast::<u8>(), cap, "text")?, Out::new(len, "len")?);
            pointer::put_text(&body(session)?, out, &len)
        })
    }
}

/// The arguments of mnnkv_session_create.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_session_options {
    /// sizeof(mnnkv_session_options)
    pub struct_size: u32,
    /// MNNKV_ABI_VERSION
    pub abi_version: u32,
    /// Layers with a cache of their own, 1 to 4,096; others are never passed.
    pub layers: u32,
    /// Threads of your attention, up to 1,024 (lanes of h2o.h; workers leave them cores); 0 = 1.
    pub lanes: u32,
    /// A JSON object; NULL = {}. docs/config.md lists the keys.
    pub config_json: *const c_char,
    /// Bytes of config_json, which needs no terminating zero.
    pub config_len: usize,
    /// Your defaults for keys that config_json lacks; NULL = {}. They cause no warnings.
    pub defaults_json: *const c_char,
    /// Bytes of defaults_json, likewise.
    pub defaults_len: usize,
    /// 1 = you call mnnkv_session_attend where a step says so. 0 = no kv_quant and no budget.
    pub attends: u32,
    /// Must be 0.
    pub reserved: u32,
    /// The model, its rotation and whatever else a chat file must be of; compared byte by byte. NULL = none.
    pub fingerprint: *const c_void,
    /// Bytes of fingerprint, at most 64 KiB.
    pub fingerprint_len: usize,
}

// SAFETY: repr(C), begins with a u32, integers and raw pointers only.
unsafe impl Sized32 for mnnkv_session_options {
    const MIN: usize = std::mem::offset_of!(mnnkv_session_options, attends);
}

/// Makes a session.
/// INVALID_ARGUMENT: if a field or value is out of range, or a text no JSON object. kv_memory_base: as mnnkv_session_open, too
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_session_create(
    options: *const mnnkv_session_options,
    out: *mut *mut mnnkv_session,
) -> mnnkv_status {
    body!({
        let options = pointer::required(options, "options")?;
        handle::create(options.abi_version, out, || {
            let config = pointer::input_bytes(options.config_json.cast(), options.config_len, "config_json")?;
            let defaults = pointer::input_bytes(options.defaults_json.cast(), options.defaults_len, "defaults_json")?;
            if options.attends > 1 {
                bail!(InvalidArgument, "options->attends is {}; 0 or 1 expected", options.attends);
            }
            pointer::reserved(&[options.reserved], "options")?;
            let host = Host { attends: options.attends == 1 };
            let model = pointer::input_bytes(options.fingerprint, options.fingerprint_len, "fingerprint")?;
            let session = Session::for_model(config, defaults, options.layers, options.lanes.max(1), host, model)?;
            Ok(mnnkv_session { session })
        })
    })
}

/// Frees a session, and all tokens that are not in a cache. Waits for jobs of its workers that have begun; idle ones sleep.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_session_destroy(session: *mut mnnkv_session) {
    // SAFETY: the header is the contract.
    unsafe { handle::destroy(session) }
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use super::*;
    use crate::ffi::panic::guard;
    use crate::ffi::status::{MNNKV_INTERNAL, MNNKV_INVALID_ARGUMENT, MNNKV_OK, MNNKV_UNSUPPORTED};
    use crate::ffi::version::MNNKV_ABI_VERSION;
    use std::ptr::{null, null_mut};

    /// Options without keys.
    fn options(layers: u32, lanes: u32, abi_version: u32) -> mnnkv_session_options {
        let struct_size = size_of::<mnnkv_session_options>() as u32;
        let (config_json, defaults_json) = (null(), null());
        let (config_len, defaults_len) = (0, 0);
        mnnkv_session_options {
            struct_size,
            abi_version,
            layers,
            lanes,
            config_json,
            config_len,
            defaults_json,
            defaults_len,
            attends: 0,
            reserved: 0,
            fingerprint: null(),
            fingerprint_len: 0,
        }
    }

    #[test]
    fn after_a_caught_panic_every_call_returns_internal_and_destroy_works() {
        let mut session = null_mut();
        let (mut logical, mut physical) = (7, 7);
        // SAFETY: the handle is live until destroy; other pointers are NULL or live.
        unsafe {
            assert_eq!(mnnkv_session_create(&options(2, 1, MNNKV_ABI_VERSION), &mut session), MNNKV_OK);
            assert_eq!(mnnkv_session_lengths(session, 1, &mut logical, &mut physical), MNNKV_OK);
            assert_eq!(guard(|| with(session, |session| session.panic_inside())), MNNKV_INTERNAL);
            assert_eq!(mnnkv_session_lengths(session, 1, &mut logical, &mut physical), MNNKV_INTERNAL);
            assert_eq!(mnnkv_session_reset(session, 0), MNNKV_INTERNAL);
            assert_eq!(mnnkv_session_report(session, null_mut(), 0, &mut 0), MNNKV_INTERNAL);
            mnnkv_session_destroy(session);
        }
        assert_eq!((logical, physical), (0, 0));
    }

    #[test]
    fn another_abi_or_no_layers_get_no_session() {
        let mut session = null_mut();
        // SAFETY: pointers are NULL or live.
        unsafe {
            let create = |layers, lanes, abi, out| mnnkv_session_create(&options(layers, lanes, abi), out);
            assert_eq!(create(2, 1, MNNKV_ABI_VERSION + 1, &mut session), MNNKV_UNSUPPORTED);
            assert_eq!(create(0, 1, MNNKV_ABI_VERSION, &mut session), MNNKV_INVALID_ARGUMENT);
            assert_eq!(create(1, 1025, MNNKV_ABI_VERSION, &mut session), MNNKV_INVALID_ARGUMENT);
            assert_eq!(create(u32::MAX, 1, MNNKV_ABI_VERSION, &mut session), MNNKV_INVALID_ARGUMENT);
        }
        assert!(session.is_null());
    }
}
