//! Store: edits of the cache by the host, to be declared before the next call of the layer

use super::handle::{mnnkv_store, with};
use crate::ffi::cache;
use crate::ffi::panic::body;
use crate::ffi::status::mnnkv_status;

/// Declares that only the tokens of the reserve pairs are left, moved together: call it right after mnnkv_kv_compact or
/// the host's own move. Blocks follow their tokens and lose those that are gone.
/// reserve_pairs: n_pairs times (offset, length) in positions before the move, ascending and disjoint. After a compact
/// with a base: (0, base) first, and base added to the other offsets. A truncation is one pair, (0, kv_len); no pair: all are
/// gone. A host that rewrites tokens from begin on restores them first, and passes (0, begin) here: later ones are submitted
/// anew.
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
