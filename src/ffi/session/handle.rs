//! Exports of the session room: the handle.

use crate::ffi::cache::{self, mnnkv_cache};
use crate::ffi::lanes::Lanes;
use crate::ffi::panic::guard;
use crate::ffi::pointer::{self, Out};
use crate::ffi::status::mnnkv_status;
use crate::ffi::version;
use crate::session::{Lane, Session};
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
    pub(super) lanes: Lanes,
}

/// Runs the body of an export that edits a layer's cache, and writes the length that it answers.
///
/// # Safety
/// Pointers are NULL or as the header says.
pub(super) unsafe fn with_cache(
    session: *const mnnkv_session,
    cache: *mut mnnkv_cache,
    body: impl FnOnce(&Session, &mut [&mut Lane], Cache<'_>, u32) -> Result<u32>,
) -> mnnkv_status {
    let body = |session: &Session, lanes: &mut [&mut Lane], cache: Option<Cache<'_>>, kv_len| match cache {
        Some(cache) => body(session, lanes, cache, kv_len),
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
    body: impl FnOnce(&Session, &mut [&mut Lane], Option<Cache<'_>>, u32) -> Result<u32>,
) -> mnnkv_status {
    guard(|| {
        // SAFETY: the caller vouches for its pointers.
        unsafe {
            let mnnkv_session { session, lanes } = pointer::reference(session, "session")?;
            let given = pointer::required(cache, "cache")?;
            let is_missing = given.layout.is_null() || given.key.is_null() || given.value.is_null();
            let kv_len = if lazily && given.kv_len == 0 && is_missing {
                lanes.all(|lanes| body(session, lanes, None, 0))?
            } else {
                let (layout, key, value) = cache::checked_cache(given.layout, given.key, given.value)?;
                lanes.all(|lanes| body(session, lanes, Some(Cache { layout: &layout, key, value }), given.kv_len))?
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

/// Makes a session for a model of layers (1 to 4,096) layers, whose attention runs on up to lanes (1 to 1,024) threads.
///
/// config_json: a JSON object of len bytes (no terminating zero needed), such as the host's own config: keys that begin
/// with kv_h2o_ or kv_lossless_ are read, others ignored; len 0 means no keys. docs/config.md lists them with types,
/// defaults and ranges. Unless kv_h2o_enable is true nothing is ever evicted; unless kv_lossless_enable and
/// kv_lossless_runtime_enable are true nothing is compressed. abi_version: MNNKV_ABI_VERSION. out: the handle, to be
/// given to mnnkv_session_destroy.
/// INVALID_ARGUMENT: not a JSON object; or a key with a wrong type or range, which the message names. Unknown keys with
/// our prefixes are no error: mnnkv_session_warnings. UNSUPPORTED: another ABI. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_session_create(
    config_json: *const c_char,
    len: usize,
    layers: u32,
    lanes: u32,
    abi_version: u32,
    out: *mut *mut mnnkv_session,
) -> mnnkv_status {
    guard(|| {
        version::check_abi(abi_version)?;
        // SAFETY: the caller vouches for its pointers.
        let config = unsafe { pointer::input_bytes(config_json.cast(), len, "config_json") }?;
        // SAFETY: as above.
        let out = unsafe { Out::new(out, "out") }?;
        let made =
            mnnkv_session { session: Session::new(config, b"", layers)?, lanes: Lanes::new(Session::lanes(lanes)?)? };
        out.set(Box::into_raw(memory::boxed(made)?));
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

    #[test]
    fn after_a_caught_panic_every_call_answers_internal_and_destroy_works() {
        let mut session = null_mut();
        let (mut logical, mut physical) = (7, 7);
        // SAFETY: the handle is live until destroy; other pointers are NULL or live.
        unsafe {
            assert_eq!(mnnkv_session_create(null(), 0, 2, 1, MNNKV_ABI_VERSION, &mut session), MNNKV_OK);
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
            let create = |layers, lanes, abi, out| mnnkv_session_create(null(), 0, layers, lanes, abi, out);
            assert_eq!(create(2, 1, MNNKV_ABI_VERSION + 1, &mut session), MNNKV_UNSUPPORTED);
            assert_eq!(create(0, 1, MNNKV_ABI_VERSION, &mut session), MNNKV_INVALID_ARGUMENT);
            assert_eq!(create(1, 0, MNNKV_ABI_VERSION, &mut session), MNNKV_INVALID_ARGUMENT);
            assert_eq!(create(u32::MAX, 1, MNNKV_ABI_VERSION, &mut session), MNNKV_INVALID_ARGUMENT);
        }
        assert!(session.is_null());
    }
}
