//! Store: blocks

use super::handle::{mnnkv_store, with};
use crate::ffi::cache::mnnkv_layout;
use crate::ffi::given::checked;
use crate::ffi::panic::body;
use crate::ffi::pointer::Out;
use crate::ffi::status::mnnkv_status;
use crate::store::{Purpose, Writes};
use std::ffi::c_void;

/// Copies tokens begin .. begin + count of a layer, to be encoded by a worker, or within the call without workers.
/// Never blocks. Pointers are not retained, and the cache is only read. The tokens stay raw until commit. 64 to 256
/// tokens are a good block.
/// ticket: the number of the block in error texts. Submitting an unchanged range again returns its ticket and encodes
/// nothing. A block that does not shrink is dropped and counted (no_gain_blocks), which is not an error. A block whose
/// tokens were rewritten is dropped for one that overlaps it (stale_blocks).
/// INVALID_ARGUMENT: if count is 0, the range exceeds max_tokens, or it overlaps released tokens or another range whose
/// block is unchanged
/// BUSY: if max_queue or pending_bytes is reached
/// OUT_OF_MEMORY: if memory is refused; the store is as before
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_store_submit(
    store: *mut mnnkv_store,
    layer: u32,
    layout: *const mnnkv_layout,
    key: *const c_void,
    value: *const c_void,
    begin: u32,
    count: u32,
    ticket: *mut u64,
) -> mnnkv_status {
    body!(with(store, |store| {
        let given = checked(layout)?;
        let cache = given.cache_ref(key, value)?;
        let ticket = Out::new(ticket, "ticket")?;
        let range = cache.layout.range(begin, count)?;
        ticket.set(store.submit(layer, &cache, range, Purpose::Keep)?.ticket()?);
        Ok(())
    }))
}

/// Releases the raw bytes of every encoded block that still equals the cache; its tokens read as zero until restore.
/// Blocks that were rewritten or do not fit the layout are dropped and counted (stale_blocks). May be called every
/// step.
/// released_bytes: bytes returned to the system, as in mnnkv_kv_release.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_store_commit(
    store: *mut mnnkv_store,
    layer: u32,
    layout: *const mnnkv_layout,
    key: *mut c_void,
    value: *mut c_void,
    released_bytes: *mut u64,
) -> mnnkv_status {
    body!(with(store, |store| {
        let given = checked(layout)?;
        let cache = given.cache(key, value)?;
        let released_bytes = Out::new(released_bytes, "released_bytes")?;
        released_bytes.set(store.commit(layer, cache, Writes::Possible)?.released_bytes);
        Ok(())
    }))
}

/// Writes every released token of a layer back, bit for bit. Blobs of complete blocks are kept, so that the next commit
/// needs no encoding; blobs that an edit has cut are dropped.
///
/// Packing, strides and max_tokens may differ from submit; heads, head_dim and dtypes must not.
/// V INT8: the sums of V (layout.h) lack tokens that were released while mnnkv_store_compacted told an edit. Call
/// mnnkv_kv_changed, and mnnkv_kv_appended, from the first token of that edit on. Sessions see to it.
/// restored_bytes: raw bytes written.
/// STALE: if the layout does not fit a block
/// CORRUPT: if a blob does not decode to the submitted words
///
/// After a failure that block stays in the store, and its tokens are as before. Other blocks may be restored.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_store_restore(
    store: *mut mnnkv_store,
    layer: u32,
    layout: *const mnnkv_layout,
    key: *mut c_void,
    value: *mut c_void,
    restored_bytes: *mut u64,
) -> mnnkv_status {
    body!(with(store, |store| {
        let given = checked(layout)?;
        let cache = given.cache(key, value)?;
        let restored_bytes = Out::new(restored_bytes, "restored_bytes")?;
        restored_bytes.set(store.restore(layer, cache)?.bytes);
        Ok(())
    }))
}
