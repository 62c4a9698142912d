//! Moving the tokens that stay together, and returning the pages behind them.

use crate::layout::{self, Pair};
use crate::status::Result;
use crate::store::{Cache, Store};
use crate::sys::pages;

/// Leaves only the tokens at these physical positions of a cache of `before` tokens, side by side, in the store, too.
/// Returns the bytes returned to the system. On an error nothing has changed.
pub(super) fn compact(
    layer: u32,
    cache: &mut Cache<'_>,
    store: Option<&mut Store>,
    before: u32,
    pairs: &[Pair],
) -> Result<u64> {
    let layout = cache.layout;
    // All that can fail comes before the first byte moves. To move no token checks the buffers.
    let after = layout::check_pairs(pairs, before)?;
    layout::compact(layout, cache.key, cache.value, before, &[], before)?;
    let behind = layout.range(after, before - after)?;
    if let Some(store) = store {
        store.compacted(layer, pairs)?;
    }
    layout::compact(layout, cache.key, cache.value, 0, pairs, before)?;
    layout::release(layout, cache.key, cache.value, behind, &mut pages::give_back)
}
