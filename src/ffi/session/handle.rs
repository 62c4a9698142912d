//! Exports of the session room: the handle.

use crate::ffi::cache::{self, mnnkv_cache};
use crate::ffi::panic::guard;
use crate::ffi::pointer::{self, Out, Sized32};
use crate::ffi::status::mnnkv_status;
use crate::ffi::version;
use crate::session::Session;
use crate::status::{Result, bail};
use crate::store::Cache;
use crate::sys::memory;
use std::ffi::c_char;

/// The compression of one model's KV caches, run as a JSON config says: a handle from mnnkv_session_create.
///
/// A host calls, per layer and step:
///
///   mnnkv_session_begin     before it appends: the eviction planned last step is applied, compressed tokens are back
///   ... append K and V of the new tokens at the physical end, attention; its threads call
///   mnnkv_session_scores    for each softmax tile (only needed with kv_h2o_enable)
///   mnnkv_session_end       after attention: scores are folded in, the next eviction is planned, cold tokens are
///                           handed to the workers, and those that are compressed leave memory again
///
/// mnnkv_session_abort in place of end when a step failed, mnnkv_session_keep when it edits the chat's history,
/// mnnkv_session_reset when it clears a cache, and mnnkv_session_rewritten when it has written to tokens in place.
///
/// Logical positions are the chat's: a token's number since the layer was reset, which positional encodings need.
/// Physical positions are the cache's: where the token lies now. They part when tokens are evicted, per layer. The
/// session knows both; the host keeps its own count of logical tokens as ever, and takes physical lengths from
/// mnnkv_cache::kv_len.
///
/// Between begin and end the host may read every token below kv_len and append behind it; when it writes older ones, it
/// says so by mnnkv_session_rewritten before end.
/// From end to the next begin (keep, reset) it leaves the cache as it is: tokens that are compressed read as zero. It
/// may copy the whole cache to a larger buffer at any time and hand that in from then on (between end and begin such a
/// copy takes memory for compressed tokens, too, until the next end). Layers without a cache, and layers that read
/// another layer's, are never named.
///
/// Several layers may be open at once. One thread at a time, except: mnnkv_session_scores may run on several threads at
/// once, each with its own lane, but not beside begin, end, keep, reset or destroy, of whatever layer; functions with a
/// const session may run at any time (they wait for a call under way). Workers
/// (kv_lossless_async_threads, with kv_lossless_runtime_enable) sleep when idle; the host never waits for one except in
/// begin, for tokens that it would have to decode itself otherwise.
pub struct mnnkv_session {
    pub(super) session: Session,
}

/// Runs the body of an export that edits a layer's cache, and writes the length that it answers.
///
/// # Safety
/// Pointers are NULL or as the header says.
pub(super) unsafe fn with_cache(
    session: *const mnnkv_session,
    cache: *mut mnnkv_cache,
    body: impl FnOnce(&Session, Cache<'_>, u32) -> Result<u32>,
) -> mnnkv_status {
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
pub(super) unsafe fn with_cache_or_none(
    session: *const mnnkv_session,
    cache: *mut mnnkv_cache,
    lazily: bool,
    body: impl FnOnce(&Session, Option<Cache<'_>>, u32) -> Result<u32>,
) -> mnnkv_status {
    guard(|| {
        // SAFETY: the caller vouches for its pointers.
        unsafe {
            let mnnkv_session { session } = pointer::reference(session, "session")?;
            let given = pointer::required(cache, "cache")?;
            let is_missing = given.layout.is_null() || given.key.is_null() || given.value.is_null();
            let kv_len = if lazily && given.kv_len == 0 && is_missing {
                body(session, None, 0)?
            } else {
                let (layout, key, value) = cache::checked_cache(given.layout, given.key, given.value)?;
                body(session, Some(Cache { layout: &layout, key, value }), given.kv_len)?
            };
            // Read above through the same pointer, which is not const.
            (&raw mut (*cache).kv_len).write(kv_len);
        }
        Ok(())
    })
}

/// # Safety
/// `session` is NULL or live.
pub(super) unsafe fn with(session: *const mnnkv_session, body: impl FnOnce(&Session) -> Result<()>) -> mnnkv_status {
    guard(|| {
        // SAFETY: passed on.
        body(unsafe { &pointer::reference(session, "session")?.session })
    })
}

/// The arguments of mnnkv_session_create. Zero every field, then set those that are needed.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_session_options {
    /// sizeof(mnnkv_session_options)
    pub struct_size: u32,
    /// MNNKV_ABI_VERSION
    pub abi_version: u32,
    /// Layers of the model, 1 to 4,096.
    pub layers: u32,
    /// Attention threads that may call mnnkv_session_scores at once, 1 to 1,024.
    pub lanes: u32,
    /// A JSON object, such as the host's own config: keys that begin with kv_h2o_ or kv_lossless_ are read, others are
    /// ignored. docs/config.md lists them with types, ranges and defaults. Unless kv_h2o_enable is true no token is
    /// evicted; unless kv_lossless_enable and kv_lossless_runtime_enable are true no token is compressed. NULL = no keys.
    pub config_json: *const c_char,
    /// Bytes of config_json; no terminating zero needed.
    pub config_len: usize,
    /// A JSON object of the defaults that the host recommends: its keys hold where config_json has none. They are checked
    /// alike; a key without effect is no warning. NULL = those of docs/config.md.
    pub defaults_json: *const c_char,
    /// Bytes of defaults_json.
    pub defaults_len: usize,
}

// SAFETY: repr(C), begins with a u32, integers and raw pointers only.
unsafe impl Sized32 for mnnkv_session_options {
    const MIN: usize = size_of::<mnnkv_session_options>();
}

/// Makes a session. The texts are not retained. Any thread.
///
/// out: the handle; mnnkv_session_destroy frees it.
/// INVALID_ARGUMENT: if layers or lanes is out of range, a text is no JSON object, or a key has a wrong type or range; the
/// message names the key, after "defaults_json" where it is in the defaults. Unknown keys with these prefixes are no
/// error; see mnnkv_session_warnings. UNSUPPORTED: if abi_version is not the library's. OUT_OF_MEMORY: also when the
/// system refuses a thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_session_create(
    options: *const mnnkv_session_options,
    out: *mut *mut mnnkv_session,
) -> mnnkv_status {
    guard(|| {
        // SAFETY: the caller vouches for its pointers.
        unsafe {
            let options = pointer::required(options, "options")?;
            version::check_abi(options.abi_version)?;
            let config = pointer::input_bytes(options.config_json.cast(), options.config_len, "config_json")?;
            let defaults = pointer::input_bytes(options.defaults_json.cast(), options.defaults_len, "defaults_json")?;
            let out = Out::new(out, "out")?;
            let session = Session::new(config, defaults, options.layers, options.lanes)?;
            out.set(Box::into_raw(memory::boxed(mnnkv_session { session })?));
        }
        Ok(())
    })
}

/// Frees a session, its blobs and its threads, after the job that each is at. Tokens that are compressed at that moment
/// are gone: destroy it with the caches, or right after a begin of each layer. NULL is ignored. Works on a handle that
/// answers INTERNAL. No other call may be under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_session_destroy(session: *mut mnnkv_session) {
    if session.is_null() {
        return;
    }
    guard(|| {
        // SAFETY: the caller says the handle is from create and not destroyed yet.
        drop(unsafe { Box::from_raw(session) });
        Ok(())
    });
}

/// What was odd about the config but no error, one sentence per line: unknown keys, settings without effect, the length
/// from which on tokens are evicted. A line is added when tokens that were due for eviction stay for want of scores.
///
/// text: room for cap bytes; the text is zero-terminated. len: its length with the zero; 1 when nothing was odd.
/// BUFFER_TOO_SMALL: *len is what is needed now. Threads as mnnkv_session_metrics.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_session_warnings(
    session: *const mnnkv_session,
    text: *mut c_char,
    cap: usize,
    len: *mut usize,
) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers.
    unsafe {
        with(session, |session| {
            let (out, len) = (pointer::output(text.cast::<u8>(), cap, "text")?, Out::new(len, "len")?);
            pointer::put_text(&session.warnings()?, out, &len)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use super::*;
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
        }
    }

    #[test]
    fn after_a_caught_panic_every_call_answers_internal_and_destroy_works() {
        let mut session = null_mut();
        let (mut logical, mut physical) = (7, 7);
        // SAFETY: the handle is live until destroy; other pointers are NULL or live.
        unsafe {
            assert_eq!(mnnkv_session_create(&options(2, 1, MNNKV_ABI_VERSION), &mut session), MNNKV_OK);
            assert_eq!(mnnkv_session_lengths(session, 1, &mut logical, &mut physical), MNNKV_OK);
            assert_eq!(with(session, |session| session.panic_inside()), MNNKV_INTERNAL);
            assert_eq!(mnnkv_session_lengths(session, 1, &mut logical, &mut physical), MNNKV_INTERNAL);
            assert_eq!(mnnkv_session_reset(session, 0), MNNKV_INTERNAL);
            assert_eq!(mnnkv_session_metrics_json(session, null_mut(), 0, &mut 0), MNNKV_INTERNAL);
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
