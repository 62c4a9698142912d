//! Steps of a layer

use super::handle::{mnnkv_session, with_cache, with_cache_or_none};
use crate::ffi::cache::mnnkv_cache;
use crate::ffi::panic::body;
use crate::ffi::pointer::{self, Sized32, SizedOut};
use crate::ffi::status::mnnkv_status;

/// The step of a layer that mnnkv_session_begin has opened.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct mnnkv_step {
    /// sizeof(mnnkv_step)
    pub struct_size: u32,
    /// In: rows that each query head attends with; 0 if you do not know. The other fields are out.
    pub rows: u32,
    /// Tokens in the cache, as cache->kv_len: append after them.
    pub kv_len: u32,
    /// 1 = call mnnkv_session_attend. 0 = attend yourself: the cache has all tokens.
    pub attends: u32,
    /// The last rows of each query head whose attention you sum and hand over (h2o.h); 0 = none.
    pub scored_rows: u32,
    /// Tokens of a block of these sums; 0 where no step of the layer is scored.
    pub block_tokens: u32,
    /// Changes with a new warning: read mnnkv_session_report then, and at the first begin.
    pub warnings: u32,
}

// SAFETY: repr(C), begins with a u32, integers only.
unsafe impl Sized32 for mnnkv_step {
    const MIN: usize = size_of::<mnnkv_step>();
}

/// Opens a step, before you append. Restores stored tokens bit for bit, and takes out of the cache what is quantised or evicted.
/// The tokens that stay move together, and the pages after them return to the system.
/// cache->kv_len: in, what the last end or keep left; 0 after create and reset. Out, the new length. With 0, layout, key and
/// value may be NULL. A prefix from elsewhere is a step of its own: begin with 0, fill the cache, end with queries 0.
/// step: NULL if you always attend yourself, and hand over no sums; then you need a config without a budget and kv_quant.
/// INVALID_ARGUMENT: if layer is out of range or open, kv_len differs, heads, head_dim or a dtype changed, or the budget is too
/// small for the model: the text has the least for layers like this one
/// CORRUPT, IO: if a stored token does not decode, or its file cannot be read
/// After a failure the layer is not open, and stored tokens must not be read. You may repeat the call.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_session_begin(
    session: *mut mnnkv_session,
    layer: u32,
    cache: *mut mnnkv_cache,
    step: *mut mnnkv_step,
) -> mnnkv_status {
    body!({
        let given = pointer::options(step.cast_const(), "step")?;
        let out = given.map(|given| Ok((given, SizedOut::new(step, "step")?))).transpose()?;
        with_cache_or_none(session, cache, true, |session, cache, kv_len| {
            let begun = session.begin(layer, cache, kv_len)?;
            if let Some((given, out)) = out {
                let scored = begun.scored_rows(given.rows);
                out.set(&mnnkv_step {
                    kv_len: begun.kv_len,
                    attends: begun.attends.into(),
                    scored_rows: scored.rows,
                    block_tokens: scored.block_tokens,
                    warnings: begun.warnings,
                    ..given
                });
            }
            Ok(begun.kv_len)
        })
    })
}

/// Closes a step, after attention. Plans the next eviction, and stores cold tokens; where that fails they stay raw.
/// heads: query heads, not KV heads; read only where rows are scored (h2o.h).
/// queries: rows of the step in each head. 0 closes a step without attention, which drops block sums and is not counted.
/// cache->kv_len: tokens in the cache now; those after the length of begin are new. Layout and buffers are required.
/// INVALID_ARGUMENT: if layer is out of range or not open; heads, head_dim or a dtype of the cache changed; kv_len is below that
/// of begin, above max_tokens, or not that of the attention; other than `queries` rows have attended; or sums are missing (h2o.h)
/// After a failure the layer is open and unchanged: correct the call, or abort.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_session_end(
    session: *mut mnnkv_session,
    layer: u32,
    heads: u32,
    queries: u32,
    cache: *mut mnnkv_cache,
) -> mnnkv_status {
    body!(with_cache(session, cache, |session, cache, kv_len| {
        session.end(layer, heads, queries, cache, kv_len)?;
        Ok(kv_len)
    }))
}

/// Closes a step that failed, in place of end. Drops the tokens appended since begin, and block sums; what begin did stays.
/// cache->kv_len: the length that begin left. With 0, layout, key and value may be NULL.
/// INVALID_ARGUMENT: if layer is out of range or not open, kv_len differs, or heads, head_dim or a dtype changed
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_session_abort(
    session: *mut mnnkv_session,
    layer: u32,
    cache: *mut mnnkv_cache,
) -> mnnkv_status {
    body!(with_cache_or_none(session, cache, true, |session, cache, kv_len| {
        session.abort(layer, cache, kv_len)?;
        Ok(kv_len)
    }))
}
