//! Moving the tokens that stay together, and returning the pages behind them.

use crate::layout::{self, Cache, Pair};
use crate::status::Result;
use crate::store::Store;
use crate::sys::pages;

/// Leaves only the tokens at these physical positions of a cache of `before` tokens, side by side, in the store, too.
/// Returns the bytes returned to the system. On an error nothing has changed.
pub(super) fn compact(
    layer: u32,
    cache: &mut Cache<'_>,
    store: &mut Store,
    before: u32,
    pairs: &[Pair],
) -> Result<u64> {
    // All that can fail comes before the first byte moves.
    let after = layout::check_pairs(pairs, before)?;
    let behind = cache.layout.range(after, before - after)?;
    // MNN's appends have written to all of the tail of INT8 V.
    let values = if cache.layout.value_sum_bytes() > 0 { cache.layout.tail(after)? } else { behind };
    store.compacted(layer, pairs)?;
    layout::compact(cache, 0, pairs, before)?;
    Ok(layout::release_apart(cache, behind, values, &mut pages::give_back))
}
