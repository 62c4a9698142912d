//! Heads: stored tokens restored where they are read
//!
//! A session made with mnnkv_session_options::restores_heads = 1 restores nothing in mnnkv_session_begin: stored tokens
//! still read as zero in the cache. Instead each attention thread calls mnnkv_session_head for a KV head just before it reads it,
//! and only the heads that are being read take memory:
//!
//!   mnnkv_session_head       returns where the head can be read: in the cache, or decoded in memory of the lane
//!   mnnkv_session_restore    decodes heads into the cache itself, for kernels that must read them there
//!   mnnkv_session_released   returns the memory of heads that mnnkv_session_restore filled, after they were read
//!
//! mnnkv_session_head is the faster one: its memory is used for head after head, so that no page is taken or returned.
//! A lane that has read a stored head keeps memory for K and V of one head of max_tokens until the session is destroyed;
//! pages that no token has reached stay free. Each lane decodes for itself, so that query heads of one KV head belong on
//! one thread.
//!
//! These three are called between begin and end, on any thread, one thread per lane. Different lanes may call them at the
//! same time, also with mnnkv_session_block_sums. No other call with a non-const session may run. They take no lock and
//! never block.
//!
//! A host that rewrites tokens (K-shift) must restore all heads first.
//!
//! begin restores quantised caches, and row-major ones whose heads share tokens, whatever the option says. begin also
//! restores a layer in the steps that evict from it, and after mnnkv_session_keep has cut a stored block. The calls are
//! allowed there, too, and find nothing to do.

use super::cache::mnnkv_cache;
use super::given;
use super::panic::body;
use super::pointer::{self, Out};
use super::session::mnnkv_session;
use super::status::mnnkv_status;
use crate::layout::{Head, HeadMut, Layout};
use crate::session::Session;
use crate::status::{Result, bail};
use std::ffi::c_void;
use std::ops::Range;

/// The bytes of a head in the buffers of a cache.
fn place(layout: &Layout, head: u32) -> Result<(Range<usize>, Range<usize>)> {
    match layout.head(head) {
        Some(place) => Ok(place),
        None => bail!(InvalidArgument, "head is {head}; the layout has {} KV heads", layout.rows().heads),
    }
}

/// The cache that is given, whose buffers are not NULL.
///
/// # Safety
/// `cache` is NULL or as the header says.
unsafe fn given_cache(cache: *const mnnkv_cache) -> Result<mnnkv_cache> {
    // SAFETY: passed on.
    let cache = unsafe { pointer::required(cache, "cache") }?;
    for (buffer, name) in [(cache.key, "key"), (cache.value, "value")] {
        if buffer.is_null() {
            bail!(InvalidArgument, "cache->{name} is NULL");
        }
    }
    Ok(cache)
}

/// Runs `body` for each head of a range, with the head's bytes in the cache.
///
/// # Safety
/// Pointers are NULL or as the header says.
unsafe fn for_each_head(
    session: *const mnnkv_session,
    (layer, lane): (u32, u32),
    cache: *const mnnkv_cache,
    (head_begin, head_count): (u32, u32),
    mut body: impl FnMut(&Session, u32, HeadMut<'_>) -> Result<()>,
) -> Result<()> {
    // SAFETY: passed on.
    unsafe {
        let session = &pointer::reference(session, "session")?.session;
        let cache = given_cache(cache)?;
        let given = given::checked(cache.layout)?;
        let layout = &given.layout;
        let heads = layout.rows().heads as u32;
        if head_begin.checked_add(head_count).is_none_or(|end| end > heads) {
            bail!(
                InvalidArgument,
                "head_begin is {head_begin} and head_count {head_count}; the layout has {heads} KV heads"
            );
        }
        if !layout.has_heads_apart() {
            // Begin has restored such a cache, unless it was another one then.
            if session.has_stored(layer, lane)? {
                bail!(
                    Stale,
                    "layer {layer} has stored tokens, and the layout, whose heads lie in each other, is not that of begin"
                );
            }
            return Ok(());
        }
        let (all_key, all_value) = (layout.key_bytes(), layout.value_bytes());
        pointer::disjoint((cache.key, all_key, "key"), (cache.value, all_value, "value"))?;
        for head in head_begin..head_begin + head_count {
            let (key, value) = place(layout, head)?;
            let (key_at, value_at) = (key.start, value.start);
            // Other threads use other heads of the same buffers: no slice here has more than this one.
            let key = pointer::output_bytes(cache.key.wrapping_byte_add(key_at), key.len(), "cache->key")?;
            let value = pointer::output_bytes(cache.value.wrapping_byte_add(value_at), value.len(), "cache->value")?;
            body(session, head, HeadMut { layout, key, value })?;
        }
        Ok(())
    }
}

/// Returns the addresses of K and V of one KV head, complete with all cache->kv_len tokens and with the packing of the
/// cache: index 0 is the head's first element. The addresses are in the cache if nothing of the layer is stored, else in
/// memory of the lane, also after mnnkv_session_restore. They are valid until the lane's next call of this function, or
/// the end of the step. Asking for the same head again with the same kv_len costs nothing. The head must not be written.
/// Call it after the append: memory of the lane has nothing that is written later.
/// lane: below the `lanes` of create; one thread at a time.
/// head: KV head (not query head).
/// cache->kv_len: physical tokens now, those appended since begin included.
/// INVALID_ARGUMENT: if layer, lane or head is out of range, the layer is not open, or the lane is in use
/// INVALID_ARGUMENT: if kv_len exceeds max_tokens, or stored tokens lie after it
/// STALE: if the layout has other heads, head_dim or dtypes than the stored tokens
/// CORRUPT: if a blob does not decode to the stored tokens; the blob is kept
/// OUT_OF_MEMORY: if memory for the lane is refused
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_session_head(
    session: *mut mnnkv_session,
    layer: u32,
    lane: u32,
    head: u32,
    cache: *const mnnkv_cache,
    key: *mut *const c_void,
    value: *mut *const c_void,
) -> mnnkv_status {
    body!({
        let session = &pointer::reference(session, "session")?.session;
        let cache = given_cache(cache)?;
        let (key_out, value_out) = (Out::new(key, "key")?, Out::new(value, "value")?);
        let given = given::checked(cache.layout)?;
        let layout = &given.layout;
        let (key, value) = place(layout, head)?;
        if cache.kv_len as usize > layout.max_tokens() {
            bail!(InvalidArgument, "cache->kv_len is {}; max_tokens is {}", cache.kv_len, layout.max_tokens());
        }
        let from = Head {
            layout,
            key: pointer::input_bytes(cache.key.wrapping_byte_add(key.start), key.len(), "cache->key")?,
            value: pointer::input_bytes(cache.value.wrapping_byte_add(value.start), value.len(), "cache->value")?,
        };
        let addresses = |key: &[u8], value: &[u8]| [key.as_ptr(), value.as_ptr()];
        let [key, value] = session.head((layer, lane, head), &from, cache.kv_len, addresses)?;
        key_out.set(key.cast());
        value_out.set(value.cast());
        Ok(())
    })
}

/// Writes the stored tokens of KV heads head_begin .. head_begin + head_count to the cache, bit for bit. Heads that are
/// there already cost nothing. The memory goes back with mnnkv_session_released, else at the end of the step.
/// INVALID_ARGUMENT: if layer, lane or a head is out of range, the layer is not open, or the lane is in use
/// INVALID_ARGUMENT: if another lane restores or releases one of the heads now
/// STALE, CORRUPT: as mnnkv_session_head; heads before the one that failed are restored
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_session_restore(
    session: *mut mnnkv_session,
    layer: u32,
    lane: u32,
    head_begin: u32,
    head_count: u32,
    cache: *const mnnkv_cache,
) -> mnnkv_status {
    body!(for_each_head(session, (layer, lane), cache, (head_begin, head_count), |session, head, to| {
        session.restore(layer, lane, head, to)
    }))
}

/// Declares that these heads were read: the memory of their stored tokens returns to the system, and they read as zero.
/// Heads that were not restored stay as they are.
/// INVALID_ARGUMENT: as mnnkv_session_restore
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_session_released(
    session: *mut mnnkv_session,
    layer: u32,
    lane: u32,
    head_begin: u32,
    head_count: u32,
    cache: *const mnnkv_cache,
) -> mnnkv_status {
    body!(for_each_head(session, (layer, lane), cache, (head_begin, head_count), |session, head, from| {
        session.released(layer, lane, head, from).map(drop)
    }))
}

/// Checks that attention may read KV heads head_begin .. head_begin + head_count of an open layer in the cache: for tests
/// of a host. Heads that are read through mnnkv_session_head need no check. Blocks while another call with a non-const
/// session runs that is not one of the three above.
/// NOT_FOUND: if stored tokens of a head were not restored in the cache in this step, or were released again
/// INVALID_ARGUMENT: if layer is out of range or not open, or a head with stored tokens is out of range
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_session_check_heads(
    session: *const mnnkv_session,
    layer: u32,
    head_begin: u32,
    head_count: u32,
) -> mnnkv_status {
    body!({
        let session = &pointer::reference(session, "session")?.session;
        session.check_heads(layer, head_begin..head_begin.saturating_add(head_count))
    })
}
