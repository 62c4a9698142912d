//! Session: the handle
//!
//! A session quantises tokens (attend.h), evicts them (H2O), or stores them without loss. Per layer and step a host calls
//!
//!   mnnkv_session_begin     restores stored tokens, applies the planned eviction, updates cache->kv_len
//!   ...                     the host appends K and V at kv_len (V INT8: mnnkv_kv_appended), and runs attention
//!   ...                     only with kv_h2o_enable: sums its softmax values by block, and hands them over (scores.h)
//!   mnnkv_session_end       scores the tokens, plans the next eviction, stores cold tokens
//!
//! Positions. The logical position of a token counts from the last reset of its layer; positional encodings need it. The
//! physical position is the slot in the cache. Evictions make them differ, in each layer for itself. The host counts
//! logical tokens as without a session, and takes physical lengths from mnnkv_cache::kv_len.
//!
//! Cache memory. Between begin and end, tokens below kv_len may be read and new tokens appended; writes to older tokens
//! need mnnkv_session_rewritten before end. From end to the next begin or keep stored tokens read
//! as zero, and the cache must not be written except as mnnkv_session_rewritten states. A host may copy the whole cache
//! to another buffer at any time; the copy takes memory for stored tokens until the next end. Memory returns to the
//! system if it is private and anonymous, such as malloc's. Layers without a cache of their own are never
//! passed, and options.layers should not count them: a budget keeps a share for each layer that it counts.
//!
//! Threads. Several layers may be open at once, but calls with a non-const session must not overlap, except
//! mnnkv_session_trim (memory.h), and mnnkv_session_block_sums: one thread per lane, and none while another non-const
//! call runs.
//! Functions with a const session run on any thread; they block while another call runs, but mnnkv_session_attend and
//! _interrupt do not. Workers, which the sessions of a process share, sleep when idle. Only destroy waits for them, and begin when
//! a token that it must restore is being decoded.

use crate::ffi::cache::mnnkv_cache;
use crate::ffi::given;
use crate::ffi::handle;
use crate::ffi::panic::body;
use crate::ffi::pointer::{self, Out, Sized32};
use crate::ffi::status::mnnkv_status;
use crate::layout::Cache;
use crate::session::{Host, Session};
use crate::status::{Result, bail};
use std::ffi::c_char;

/// The caches of one chat (one sequence) of one model, and the state of their compression. A batch needs a session for each.
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
    /// Threads that call mnnkv_session_block_sums (h2o.h), 1 to 1,024; 1 if none does.
    pub lanes: u32,
    /// A JSON object; NULL = {}. docs/config.md lists the keys.
    pub config_json: *const c_char,
    /// Bytes of config_json, which needs no terminating zero.
    pub config_len: usize,
    /// Your defaults for keys that config_json lacks; NULL = {}. They cause no warnings.
    pub defaults_json: *const c_char,
    /// Bytes of defaults_json, likewise.
    pub defaults_len: usize,
    /// 1 = you call mnnkv_session_attend where mnnkv_step::attends is 1. With 0, kv_quant and a budget have no effect, and a
    /// warning says so.
    pub attends: u32,
    /// Must be 0.
    pub reserved: u32,
}

// SAFETY: repr(C), begins with a u32, integers and raw pointers only.
unsafe impl Sized32 for mnnkv_session_options {
    const MIN: usize = std::mem::offset_of!(mnnkv_session_options, attends);
}

/// Makes a session. The JSON texts need no terminating zero.
/// INVALID_ARGUMENT: if layers or lanes is out of range, a text is no JSON object, or a value has a wrong type or range
/// OUT_OF_MEMORY: if memory is refused, or a thread for compression cannot be started
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
            let session = Session::with_host(config, defaults, options.layers, options.lanes, host)?;
            Ok(mnnkv_session { session })
        })
    })
}

/// Frees a session and its blobs. Blocks until its jobs that have begun are done. Stored tokens are lost.
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
            assert_eq!(create(1, 0, MNNKV_ABI_VERSION, &mut session), MNNKV_INVALID_ARGUMENT);
            assert_eq!(create(u32::MAX, 1, MNNKV_ABI_VERSION, &mut session), MNNKV_INVALID_ARGUMENT);
        }
        assert!(session.is_null());
    }
}
