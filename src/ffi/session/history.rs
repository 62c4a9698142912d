//! Session: history and positions

use super::handle::{mnnkv_session, with, with_cache_or_none};
use crate::ffi::cache::{self, mnnkv_cache};
use crate::ffi::given;
use crate::ffi::panic::body;
use crate::ffi::pointer::{self, Out, PairsOut};
use crate::ffi::status::mnnkv_status;

/// Every layer, where a function takes one or all.
pub const MNNKV_ALL_LAYERS: u32 = u32::MAX;

/// The layer that an argument names; `None` for all.
pub(in crate::ffi) fn layer_or_all(layer: u32) -> Option<u32> {
    (layer != MNNKV_ALL_LAYERS).then_some(layer)
}

/// Forgets the tokens, blobs, scores, plan and clock of a layer, or of all with MNNKV_ALL_LAYERS, open or not: its
/// cache was cleared. Metrics continue.
/// INVALID_ARGUMENT: if layer is out of range
/// BUSY: if a thread attends, or hands over sums
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_session_reset(session: *mut mnnkv_session, layer: u32) -> mnnkv_status {
    body!({
        let session = &pointer::reference(session, "session")?.session;
        session.reset(layer_or_all(layer))
    })
}

/// Keeps only the tokens at the given logical positions, between steps (rollback, erase). The remaining tokens move
/// together, and cache->kv_len becomes the new physical length. Call it for each layer that has tokens.
/// logical_pairs: n_pairs times (offset, length), ascending, disjoint, within the logical length; none keeps nothing.
/// Logical positions are renumbered from 0, evicted tokens included; the logical length becomes the sum of all lengths.
/// Tokens keep the rotation that they were cached with, scores follow their tokens, stored tokens stay stored, and a
/// pending eviction is planned anew. With kv_len 0 layout, key and value may be NULL: a layer whose tokens are all quantised
/// (attend.h) may have no buffers. K INT8: a chat that has tokens must not be left without one in its cache.
/// INVALID_ARGUMENT: if layer is out of range or open, or pairs, kv_len or cache do not fit it; nothing has changed
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

/// Declares that the host has written tokens begin .. begin + count in place, by physical position (K-shift). Discards
/// their blobs. Scores stay, as do other tokens of the same blobs. Call it right after the writes, between begin and
/// end. Between end and begin stored tokens read as zero, so that the host must have written K and V completely.
/// INVALID_ARGUMENT: if layer is out of range, a token is past the length that begin, end or keep left, or the layer has quantised
/// tokens
/// OUT_OF_MEMORY: if memory is refused; repeat the call before any other call of the layer
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_session_rewritten(
    session: *mut mnnkv_session,
    layer: u32,
    begin: u32,
    count: u32,
) -> mnnkv_status {
    body!(with(session, |session| session.rewritten(layer, begin, count)))
}

/// Returns the logical and the physical length of a layer; of an open layer, those that begin left.
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

/// Returns the logical positions of the tokens in a layer's cache, in physical order; of an open layer, as begin left
/// them. Quantised tokens (attend.h) are not in it; stored ones are.
/// pairs: room for pairs_cap pairs (offset, length), merged where they touch; ascending.
/// INVALID_ARGUMENT: if layer is out of range
/// BUFFER_TOO_SMALL: if pairs_cap is too small; *n_pairs is the number needed
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_session_positions(
    session: *const mnnkv_session,
    layer: u32,
    pairs: *mut i32,
    pairs_cap: usize,
    n_pairs: *mut usize,
) -> mnnkv_status {
    body!(with(session, |session| {
        let out = PairsOut::new(pairs, pairs_cap, n_pairs)?;
        out.set(&session.positions(layer, None)?)
    }))
}
