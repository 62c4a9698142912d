//! Store: edits of the cache by the host, to be declared before the next call of the layer
//!
//! MNNKV_EXPERIMENTAL

use super::handle::{mnnkv_store, with};
use crate::ffi::cache;
use crate::ffi::panic::body;
use crate::ffi::status::mnnkv_status;
use crate::status::bail;

/// Declares that only the tokens of the reserve pairs are left, moved together: call it right after mnnkv_kv_compact or
/// the host's own move. Blocks follow their tokens and lose those that are gone.
/// reserve_pairs: n_pairs times (offset, length) in positions before the move, ascending and disjoint. After a compact
/// with a base: (0, base) first, and base added to the other offsets. A truncation is one pair, (0, kv_len); no pair: all are gone.
/// INVALID_ARGUMENT: if a number is negative, or pairs overlap or descend; the store is as before
/// OUT_OF_MEMORY: if memory is refused; repeat the call before any other call of the layer
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_store_compacted(
    store: *mut mnnkv_store,
    layer: u32,
    reserve_pairs: *const i32,
    n_pairs: usize,
) -> mnnkv_status {
    body!(with(store, |store| store.compacted(layer, cache::pairs(reserve_pairs, n_pairs, "reserve_pairs")?)))
}

/// Declares that the host has written tokens begin .. begin + count in place. Discards their blobs, and counts the
/// blocks as stale (stale_blocks). Other tokens of these blocks stay stored. A host that reads what it rewrites
/// (K-shift) calls mnnkv_store_restore first.
/// INVALID_ARGUMENT: if begin + count overflows
/// OUT_OF_MEMORY: if memory is refused; repeat the call before any other call of the layer
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_store_rewritten(
    store: *mut mnnkv_store,
    layer: u32,
    begin: u32,
    count: u32,
) -> mnnkv_status {
    body!(with(store, |store| {
        let Some(end) = begin.checked_add(count) else {
            bail!(InvalidArgument, "{count} tokens from {begin} on; fewer than 2^32 expected");
        };
        store.rewritten(layer, begin..end)
    }))
}
