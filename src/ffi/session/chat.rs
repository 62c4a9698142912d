//! Chat file
//!
//! A chat is saved to a file, and opened again: later, in another process, in caches of another packing.
//!
//!   mnnkv_session_put(session, "tokens", ids, bytes);             // your own: token ids, sampler, recurrent state
//!   mnnkv_session_save(session, NULL, caches, layers, NULL);      // after a turn
//!
//!   mnnkv_session_open(session, NULL);                            // of a new session; NOT_FOUND: no chat was saved yet
//!   mnnkv_session_lengths(session, layer, &logical, &cache.kv_len);  // then mnnkv_session_begin as always
//!
//! - The file is kv_memory_file, if the config names one. A save writes what is not there yet, and commits it: a kill leaves the
//!   last save or the new one. Open reads an index, and what was in memory; other blocks come as they are asked for.
//! - Before the first save the file goes with the session; later it is cut back to the last one. One session has it open (BUSY).
//! - To free the buffers while you wait for the user, save, open, and free them.

use super::handle::{mnnkv_session, with};
use crate::ffi::cache::mnnkv_cache;
use crate::ffi::given::{self, Given};
use crate::ffi::panic::body;
use crate::ffi::pointer::{self, Out};
use crate::ffi::status::mnnkv_status;
use crate::session::LayerCache;
use crate::status::{Result, bail};
use crate::sys::memory;
use std::ffi::{c_char, c_void};

/// Gives the bytes of a section, which the next save writes. Sections stay until they are given anew.
/// name: 1 to 255 bytes.
/// INVALID_ARGUMENT: if the name is empty or too long
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_session_put(
    session: *mut mnnkv_session,
    name: *const c_char,
    bytes: *const c_void,
    len: usize,
) -> mnnkv_status {
    body!(with(session, |session| {
        session.put(pointer::text(name, "name")?, pointer::input_bytes(bytes, len, "bytes")?)
    }))
}

/// Writes the bytes of a section, as they were given or saved last, and their number to *len.
/// NOT_FOUND: if the chat has no such section
/// CORRUPT: if its bytes are damaged. IO: if the file cannot be read
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_session_get(
    session: *const mnnkv_session,
    name: *const c_char,
    out: *mut c_void,
    cap: usize,
    len: *mut usize,
) -> mnnkv_status {
    body!(with(session, |session| {
        let (out, len) = (pointer::output_bytes(out, cap, "out")?, Out::new(len, "len")?);
        len.set_len(pointer::copied(&session.section(pointer::text(name, "name")?)?, out, "cap (bytes)"))
    }))
}

/// Saves the chat, durably: what is new, or all of it where more than half of the file is free.
/// path: the chat's file, or a new one, which it then is; the one before stays as it was saved. NULL = the chat's file:
/// kv_memory_file, in which a chat that was not opened is replaced, or the one that was opened or saved to last.
/// caches: of all layers of the session, with kv_len. Layout and buffers of one may be NULL if it has no tokens, or was opened
/// and has not begun since.
/// written: bytes written; may be NULL.
/// INVALID_ARGUMENT: if a layer is open, layers, kv_len or a cache does not fit, there is no path, or another file has taken it
/// IO: if the system cannot write, or another file is at path. NOT_FOUND: if its folder is missing. BUSY, STALE: as for open
/// CORRUPT: if blocks that only the file had are damaged there. They are dropped and counted ("lost", docs/report.md), and a
/// repeated call saves the rest
/// After a failure the last save stands, and the chat goes on.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_session_save(
    session: *mut mnnkv_session,
    path: *const c_char,
    caches: *const mnnkv_cache,
    layers: u32,
    written: *mut u64,
) -> mnnkv_status {
    body!({
        let written = if written.is_null() { None } else { Some(Out::new(written, "written")?) };
        let path = optional(path)?;
        let mut given = Vec::new();
        let first = pointer::required(caches, "caches")?;
        for layer in 0..layers as usize {
            // Callers of other versions have structs of another size.
            let at = caches.wrapping_byte_add(layer * first.struct_size as usize);
            let cache = pointer::required(at, "caches")?;
            let has_cache = !cache.layout.is_null() || !cache.key.is_null() || !cache.value.is_null();
            let layout = has_cache.then(|| given::checked(cache.layout));
            let layout: Option<Given> = layout.transpose().map_err(|e| e.within(format_args!("caches[{layer}]")))?;
            memory::push(&mut given, (cache, layout))?;
        }
        with(session, |session| {
            let mut list: Vec<LayerCache<'_>> = Vec::new();
            for (layer, (cache, layout)) in given.iter().enumerate() {
                let own = layout.as_ref().map(|layout| layout.cache(cache.key, cache.value));
                let own = own.transpose().map_err(|e| e.within(format_args!("caches[{layer}]")))?;
                memory::push(&mut list, (own, cache.kv_len))?;
            }
            let bytes = session.save(path, &mut list)?;
            written.iter().for_each(|written| written.set(bytes));
            Ok(())
        })
    })
}

/// Goes on with a saved chat, with the same config as if it had never stopped: its tokens, positions, scores, plan, windows and
/// sections take the place of the session's; windows of the session stay. Layers that it has not are reset.
/// path: the file, which is the chat's from now on. NULL = as for mnnkv_session_save.
/// NOT_FOUND: if there is no file, or no chat was saved in it. IO: if the system cannot read it
/// STALE: if it has another fingerprint than the session's options
/// BUSY: if it is open, in this process or another
/// INVALID_ARGUMENT: if a layer is open, the chat has more layers, the budget is too small for it, a window of the session shows
/// tokens that the chat has left behind (mnnkv_session_window), or there is no path
/// UNSUPPORTED: if it needs a later version, or has quantised tokens of a layer that the session keeps raw
/// CORRUPT: if it is damaged: the text has the part and its offset. Blocks that only the file has are checked as they are read
/// After a failure nothing has changed.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_session_open(session: *mut mnnkv_session, path: *const c_char) -> mnnkv_status {
    body!(with(session, |session| session.open(optional(path)?)))
}

/// A text that may be NULL.
///
/// # Safety
/// `text` is NULL or ends with a zero.
unsafe fn optional<'a>(text: *const c_char) -> Result<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: passed on.
    match unsafe { pointer::text(text, "path") }? {
        "" => bail!(InvalidArgument, "path is empty"),
        path => Ok(Some(path)),
    }
}
