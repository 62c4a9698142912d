//! Exports of the session room: the steps of a layer.

use super::handle::{mnnkv_session, with_cache, with_cache_or_none};
use crate::ffi::cache::mnnkv_cache;
use crate::ffi::status::mnnkv_status;

/// Opens a layer's step, before the host appends. cache->kv_len: the physical tokens that the cache has, as the last
/// end or keep left it; 0 at first and after a reset. With kv_len 0 the cache need not exist yet: layout, key and value may
/// be NULL, and end is the first call that needs them. Tokens that a cache has from elsewhere (a prefix from a file) are
/// told as a step: begin with kv_len 0, which touches no byte then, and end with their number.
///
/// Compressed tokens are back afterwards, bit for bit; the eviction planned at the last end is applied, which moves
/// tokens and gives the pages behind them back; cache->kv_len is the new length, and the host appends there.
/// Decoding of the next layer starts in the background.
/// INVALID_ARGUMENT: no such layer; it is open already; kv_len is another; heads, head_dim or an element type differ
/// from before. CORRUPT, OUT_OF_MEMORY: a token could not be restored; its blob is kept, the cache is not to be read,
/// and the call may be tried again. On any error the layer is not open and no token has moved.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_session_begin(
    session: *mut mnnkv_session,
    layer: u32,
    cache: *mut mnnkv_cache,
) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers.
    unsafe { with_cache_or_none(session, cache, true, |session, cache, kv_len| session.begin(layer, cache, kv_len)) }
}

/// Closes a layer's step, after attention. cache->kv_len: physical tokens now; those past the length at begin are new.
///
/// heads: query heads (not KV heads) that scored, queries: rows of the step, as the model has them, however they came in
/// tiles. Either every head came in whole or none did, which leaves the scores as they were, whatever heads says. queries
/// 0 closes a step without attention: scores that came in are dropped, the layer's clock stands still, and the new tokens
/// up to kv_len stay. For a step that failed as a whole there is mnnkv_session_abort.
/// Cold tokens are copied and handed to the workers; tokens that are compressed leave memory. Trouble there is never an
/// error: the tokens stay raw and a metric counts it.
/// INVALID_ARGUMENT: no such layer; it is not open; kv_len is less than at begin or more than max_tokens; a head is
/// missing, incomplete, or scored tokens past kv_len. The layer is then still open, and nothing has changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_session_end(
    session: *mut mnnkv_session,
    layer: u32,
    heads: u32,
    queries: u32,
    cache: *mut mnnkv_cache,
) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers.
    unsafe {
        with_cache(session, cache, |session, cache, kv_len| {
            session.end(layer, heads, queries, cache, kv_len)?;
            Ok(kv_len)
        })
    }
}

/// Closes a layer's step that failed. cache->kv_len must be what begin left; what the host appended since is no part of the
/// cache, and may be overwritten by the next step. What begin did stays: evicted tokens are gone. Scores that came in are
/// dropped, and the step is not counted, neither by the layer's clock nor by its intervals. Tokens that are compressed
/// leave memory again, as at end. With kv_len 0 the cache need not exist, as for begin.
/// INVALID_ARGUMENT: no such layer; it is not open; kv_len is another; heads, head_dim or an element type differ from
/// before. The layer is then still open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_session_abort(
    session: *mut mnnkv_session,
    layer: u32,
    cache: *mut mnnkv_cache,
) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers.
    unsafe {
        with_cache_or_none(session, cache, true, |session, cache, kv_len| {
            session.abort(layer, cache, kv_len)?;
            Ok(kv_len)
        })
    }
}
