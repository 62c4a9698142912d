//! History

use super::handle::{mnnkv_session, with, with_cache_or_none};
use crate::ffi::cache::{self, mnnkv_cache};
use crate::ffi::given;
use crate::ffi::panic::body;
use crate::ffi::pointer::{self, Out, PairsOut};
use crate::ffi::status::mnnkv_status;
use crate::status::bail;

/// Every layer, where a function takes one or all; and the cache, where it takes a KV head.
pub const MNNKV_ALL_LAYERS: u32 = u32::MAX;
pub const MNNKV_IN_CACHE: u32 = u32::MAX;

/// The layer that an argument names; `None` for all.
pub(in crate::ffi) fn layer_or_all(layer: u32) -> Option<u32> {
    (layer != MNNKV_ALL_LAYERS).then_some(layer)
}

/// Forgets the tokens and pins of a layer, or of all with MNNKV_ALL_LAYERS, open or not: you have cleared the cache.
/// INVALID_ARGUMENT: if layer is out of range
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_session_reset(session: *mut mnnkv_session, layer: u32) -> mnnkv_status {
    body!({
        let session = &pointer::reference(session, "session")?.session;
        session.reset(layer_or_all(layer))
    })
}

/// Keeps only the tokens at given logical positions, between steps (rollback, erase). Call it for each layer with tokens. They
/// move together, and cache->kv_len becomes the new length. Positions count anew from 0, evicted tokens included. Rotations stay.
/// logical_pairs: n_pairs times (offset, length), ascending, disjoint, within the logical length; none keeps nothing.
/// cache: with kv_len 0, layout, key and value may be NULL. K INT8: a chat that has tokens must keep one in its cache.
/// INVALID_ARGUMENT: if layer is out of range or open, pairs, kv_len or cache do not fit it, or the window of a layer as long has
/// left tokens behind that the next row would attend to; nothing has changed
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_session_keep(
    session: *mut mnnkv_session,
    layer: u32,
    logical_pairs: *const i32,
    n_pairs: usize,
    cache: *mut mnnkv_cache,
) -> mnnkv_status {
    body!(with_cache_or_none(session, cache, true, |session, cache, kv_len| {
        if let Some(cache) = &cache {
            given::apart(cache, logical_pairs, n_pairs.saturating_mul(2), "logical_pairs")?;
        }
        session.keep(layer, cache::pairs(logical_pairs, n_pairs, "logical_pairs")?, cache, kv_len)
    }))
}

/// Says that you have written tokens begin .. begin + count of the cache in place (K-shift), by physical position. Call it right
/// after the writes. Between end and begin you must have written K and V completely, since stored tokens read as zero.
/// INVALID_ARGUMENT: if layer is out of range, a token is past the length that begin, end or keep left, or the layer has
/// quantised tokens, whose keys keep their rotation
/// OUT_OF_MEMORY: if memory is refused. Repeat the call before any other call of the layer
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_session_rewritten(
    session: *mut mnnkv_session,
    layer: u32,
    begin: u32,
    count: u32,
) -> mnnkv_status {
    body!(with(session, |session| session.rewritten(layer, begin, count)))
}

/// Returns the logical and the physical length of a layer; of an open layer those that begin left.
/// INVALID_ARGUMENT: if layer is out of range
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_session_lengths(
    session: *const mnnkv_session,
    layer: u32,
    logical: *mut u32,
    physical: *mut u32,
) -> mnnkv_status {
    body!(with(session, |session| {
        let (logical, physical) = (Out::new(logical, "logical")?, Out::new(physical, "physical")?);
        let lengths = session.lengths(layer)?;
        logical.set(lengths.logical);
        physical.set(lengths.physical);
        Ok(())
    }))
}

/// Returns the logical positions of the tokens that a KV head can still attend to, anywhere; of an open layer as of begin.
/// kv_head: MNNKV_IN_CACHE = those in the cache, in physical order: stored ones, too, but not quantised ones.
/// pairs: room for pairs_cap pairs (offset, length), ascending, merged where they touch.
/// INVALID_ARGUMENT: if layer or kv_head is out of range
/// BUFFER_TOO_SMALL: if pairs_cap is too small; *n_pairs is the number needed
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_session_positions(
    session: *const mnnkv_session,
    layer: u32,
    kv_head: u32,
    pairs: *mut i32,
    pairs_cap: usize,
    n_pairs: *mut usize,
) -> mnnkv_status {
    body!(with(session, |session| {
        let out = PairsOut::new(pairs, pairs_cap, n_pairs)?;
        out.set(&session.positions(layer, (kv_head != MNNKV_IN_CACHE).then_some(kv_head))?)
    }))
}

/// Pins (on = 1) or unpins (0) the tokens at logical positions first .. first + count, also future ones, in all layers, open or
/// not. They and their blocks are never evicted or dropped. Pins follow their tokens through keep and chat files.
/// INVALID_ARGUMENT: if first + count is above 2^31 - 1, or on is not 0 or 1; nothing has changed
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_session_pin(
    session: *mut mnnkv_session,
    first: u32,
    count: u32,
    on: u32,
) -> mnnkv_status {
    body!({
        let session = &pointer::reference(session, "session")?.session;
        if on > 1 {
            bail!(InvalidArgument, "on is {on}; 0 or 1 expected");
        }
        session.pin(first, count, on == 1)
    })
}
