//! Exports of the session room: what a host does to a cache between steps, and where its tokens are.

use super::handle::{mnnkv_session, with, with_cache};
use crate::ffi::cache::{self, mnnkv_cache};
use crate::ffi::panic::guard;
use crate::ffi::pointer::{self, Out};
use crate::ffi::status::mnnkv_status;
use crate::status::Error;

/// Names every layer at once in mnnkv_session_reset.
pub const MNNKV_ALL_LAYERS: u32 = u32::MAX;

/// A layer's cache was cleared (MNNKV_ALL_LAYERS: all of them, for a new chat): its tokens, blobs, scores, plan and
/// step clock are forgotten, whatever was under way. Metrics go on.
/// INVALID_ARGUMENT: no such layer; a thread is in mnnkv_session_scores (so, too, begin and end).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_session_reset(session: *mut mnnkv_session, layer: u32) -> mnnkv_status {
    guard(|| {
        // SAFETY: the caller vouches for its pointers.
        unsafe {
            let session = &pointer::reference(session, "session")?.session;
            session.reset((layer != MNNKV_ALL_LAYERS).then_some(layer))
        }
    })
}

/// Edits a layer's history: only the tokens at these logical positions stay (rollback, erase). Those that were evicted
/// before are gone already; the others move together, and cache->kv_len is the new physical length.
///
/// logical_pairs: n_pairs times (offset, length), ascending, disjoint, inside the logical length; none leaves nothing.
/// Logical positions are renumbered: the first of the first pair becomes 0, whether or not its token is still there,
/// and the logical length becomes the sum of all lengths (tokens keep the rotation they were cached with). Compressed
/// tokens stay compressed until the next begin. Scores go with their tokens; a plan that was waiting is made anew. Call
/// it between steps, for each layer that has a cache.
/// INVALID_ARGUMENT: no such layer; it is open; pairs or kv_len are wrong. Nothing has changed then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_session_keep(
    session: *mut mnnkv_session,
    layer: u32,
    logical_pairs: *const i32,
    n_pairs: usize,
    cache: *mut mnnkv_cache,
) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers.
    unsafe {
        with_cache(session, cache, |session, cache, kv_len| {
            session.keep(layer, cache::pairs(logical_pairs, n_pairs, "logical_pairs")?, cache, kv_len)
        })
    }
}

/// The host has written other contents to count tokens from begin on, by physical position, such as keys that it rotated
/// in place to shift positions (K-shift). Blobs of these tokens are void: what the cache has of them counts from now on,
/// and they may be compressed again. Tokens that share a blob with them stay as they are. Scores stay, too.
///
/// Call it right after writing, in an open step for preference: between begin and end every token is there. Between end
/// and the next begin tokens that are compressed read as zero, in K and in V, so a host must have written both in whole.
/// INVALID_ARGUMENT: no such layer; a token past the length that begin, end or keep left. OUT_OF_MEMORY: nothing has
/// changed; call again before anything else of the layer. Threads as begin.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_session_rewritten(
    session: *mut mnnkv_session,
    layer: u32,
    begin: u32,
    count: u32,
) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers.
    unsafe { with(session, |session| session.rewritten(layer, begin, count)) }
}

/// How many tokens a layer has had since its reset, less those that keep removed (logical), and how many are in its
/// cache (physical); while it is open, as begin left them. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_session_lengths(
    session: *const mnnkv_session,
    layer: u32,
    logical: *mut u32,
    physical: *mut u32,
) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers.
    unsafe {
        with(session, |session| {
            let (logical, physical) = (Out::new(logical, "logical")?, Out::new(physical, "physical")?);
            let lengths = session.lengths(layer)?;
            logical.set(lengths.logical);
            physical.set(lengths.physical);
            Ok(())
        })
    }
}

/// Which logical positions a layer's cache holds, in physical order: n_pairs times (offset, length), ascending, never
/// touching; while it is open, as begin left them. pairs: room for pairs_cap pairs. BUFFER_TOO_SMALL: *n_pairs is what
/// is needed. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_session_positions(
    session: *const mnnkv_session,
    layer: u32,
    pairs: *mut i32,
    pairs_cap: usize,
    n_pairs: *mut usize,
) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers; a pair is two neighbouring numbers.
    unsafe {
        with(session, |session| {
            let out = pointer::output(pairs.cast::<[i32; 2]>(), pairs_cap, "pairs")?;
            let n_pairs = Out::new(n_pairs, "n_pairs")?;
            let positions = session.positions(layer)?;
            n_pairs.set(positions.len());
            let Some(target) = out.get_mut(..positions.len()) else {
                return Err(Error::too_small("pairs_cap (pairs)", pairs_cap, positions.len()));
            };
            target.copy_from_slice(&positions);
            Ok(())
        })
    }
}
