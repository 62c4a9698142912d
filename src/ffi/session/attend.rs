//! Attention
//!
//! With a budget or kv_quant, tokens leave the cache in begin, in blocks of 64 with K in 8 bits and V in 4. The first
//! kv_quant_sink_tokens and the newest 25 to 95 stay raw in the cache. mnnkv_session_attend reads both, in place of your
//! attention. docs/config.md (Fewer bits) has the rounding, and which blocks stay raw.
//!
//! - After begin your buffers need room for kv_quant_sink_tokens (16), 95, the tokens of the step, and blocks that stay raw.
//! - K of a raw token that a row attends to must be finite, or the call is refused. V of all raw tokens must be finite, also of
//!   those that a row does not attend to, or its output may be NaN.
//! - Slopes (ALiBi), and a V of another width than K, are not supported.

use super::handle::{mnnkv_session, with};
use super::history::layer_or_all;
use crate::attend::{Mask, Queries, Step};
use crate::dtype::convert::{Endian, narrow};
use crate::ffi::cache::mnnkv_cache;
use crate::ffi::given;
use crate::ffi::panic::body;
use crate::ffi::pointer::{self, Sized32};
use crate::ffi::status::mnnkv_status;
use crate::status::bail;
use std::ffi::c_void;

/// The attention of a step of a layer.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_attend {
    /// sizeof(mnnkv_attend)
    pub struct_size: u32,
    /// MNNKV_DTYPE_F16, BF16 or F32: of queries and output.
    pub dtype: u32,
    /// Query heads, a multiple of the KV heads: head h reads KV head h / (heads / kv_heads).
    pub heads: u32,
    /// Rows of each head, of the last `rows` tokens: row r is of the (rows - r)th from the end.
    pub rows: u32,
    /// Elements of a row, as the layout's; layers stay raw where it is no multiple of 8 up to 512.
    pub head_dim: u32,
    /// The factor of a logit, not negative; 0 = 1 / sqrt(head_dim).
    pub scale: f32,
    /// Queries after their rotation (RoPE). Keys must be cached after theirs, too.
    pub queries: *const c_void,
    /// Bytes from a head to the next. Both strides 0 = [rows][heads][head_dim].
    pub query_head_stride: u64,
    /// Bytes from a row to the next.
    pub query_row_stride: u64,
    /// Written; a row that attends to nothing is 0. Rows must not overlap.
    pub output: *mut c_void,
    /// As query_head_stride.
    pub output_head_stride: u64,
    /// As query_row_stride.
    pub output_row_stride: u64,
    /// 1 = a row attends up to its own token (if rows > 1, these tokens must be raw); 0 = to all.
    pub causal: u32,
    /// A row does not attend to tokens that are `window` or more before its own; 0 = no bound but mnnkv_session_window's.
    pub window: u32,
    /// Logits x become soft_cap * tanh(x / soft_cap); 0 = none.
    pub soft_cap: f32,
    /// Columns of mask: the newest tokens of the chat, at most all. Older ones have the addend 0.
    pub mask_tokens: u32,
    /// [rows][mask_tokens], added to logits after the soft cap; finite or -inf. NULL = none.
    pub mask: *const f32,
    /// Floats from a row of the mask to the next; 0 = mask_tokens.
    pub mask_row_stride: u64,
    /// [heads]: attention sinks, finite logits that join the softmax without a V. NULL = none.
    pub sinks: *const f32,
}

// SAFETY: repr(C), begins with a u32, integers, floats and raw pointers only.
unsafe impl Sized32 for mnnkv_attend {
    const MIN: usize = size_of::<mnnkv_attend>();
}

/// Says how far rows of a layer attend, or of all layers with MNNKV_ALL_LAYERS (sliding windows): from the next begin on tokens
/// leave that no later row attends to, 64 at a time, pinned ones as well. Attention is the same; with k8v4 to the bit, but after
/// an edit in the middle or of the first tokens, and where 8 and 4 bits do not hold a block. A reset keeps the window, but not
/// one that an opened chat has brought. h2o evicts nothing of a layer with one.
/// window: tokens that a row attends to, its own included; 0 = all. mnnkv_session_attend applies it beside mnnkv_attend::window.
/// If you attend yourself, the cache has the newest tokens: count from its last one.
/// rollback: tokens that you may take back (mnnkv_session_keep) from the longest begin so far, such as drafts. As many more stay.
/// INVALID_ARGUMENT: if layer is out of range or open, window + rollback is above 2^31 - 1, or tokens have gone that rows would
/// attend to; nothing has changed
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_session_window(
    session: *mut mnnkv_session,
    layer: u32,
    window: u32,
    rollback: u32,
) -> mnnkv_status {
    body!(with(session, |session| session.set_window(layer_or_all(layer), window, rollback)))
}

/// Runs part `part` of the `parts` (1 to 64) of the attention of an open step. Call each part once, on any thread and in any
/// order; none waits for another. The output is complete when all have returned. Then you may append further tokens of the step,
/// and call all parts again for their rows. The rows of all such rounds add up to `queries` of end.
/// A layer that reads K and V of another one passes that one's number after its end: rows attend to what end has left. All parts
/// of one such layer come before those of the next; until then a trim leaves the layer alone. These calls wait for others.
/// cache->kv_len: raw tokens now; those of the step are the last. The buffers are only read.
/// INVALID_ARGUMENT: if layer is out of range, has not begun, or does not attend; kv_len is below the length of begin or above
/// max_tokens; heads, head_dim or a dtype is not that of begin; a field or stride does not fit; mask or sinks overlap the output;
/// the token of one of several causal rows is quantised; a query is not finite, or above 1e26 times scale; a logit overflows; K
/// of a raw token is not finite; the mask has a NaN or +inf; or a part comes twice, or differs from the first in parts, rows,
/// heads or kv_len (other fields must be the same, too)
/// UNSUPPORTED: if you quantise the cache yourself, or dtype is none of the three
/// After a failure you may call the part again.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_session_attend(
    session: *const mnnkv_session,
    layer: u32,
    part: u32,
    parts: u32,
    cache: *const mnnkv_cache,
    attend: *const mnnkv_attend,
) -> mnnkv_status {
    body!({
        let session = &pointer::reference(session, "session")?.session;
        let cache = pointer::required(cache, "cache")?;
        let layout = given::checked_float(cache.layout)?;
        let from = layout.cache_ref(cache.key, cache.value)?;
        let given = pointer::required(attend, "attend")?;
        let shape = (given.heads, given.rows, given.head_dim);
        let of = |strides| given::query_rows((given.dtype, "attend->dtype"), shape, strides, given.scale);
        let queries = of((given.query_head_stride, given.query_row_stride))?;
        let output = of((given.output_head_stride, given.output_row_stride))?;
        let Queries { dtype, heads, rows, dims, .. } = queries;
        let (query_bytes, output_bytes) =
            (queries.bytes().map_err(|e| e.within("queries"))?, output.bytes().map_err(|e| e.within("output"))?);
        given::apart_rows(&output, "attend->output")?;
        let data = pointer::input_bytes(given.queries, query_bytes, "attend->queries")?;
        // Never a slice of all: other threads write other rows.
        if given.output.is_null() {
            bail!(InvalidArgument, "attend->output is NULL");
        }
        pointer::disjoint((given.queries, query_bytes, "queries"), (given.output, output_bytes, "output"))?;
        layout.apart(cache.key, cache.value, (given.output, output_bytes, "output"))?;
        let mask = match given.mask.is_null() {
            true => None,
            false => {
                let tokens = given.mask_tokens as usize;
                let (stride, len) = given::mask_rows(given.mask_row_stride, tokens, rows, "attend->mask_row_stride")?;
                let data = pointer::input(given.mask, len, "attend->mask")?;
                pointer::disjoint(
                    (given.mask.cast(), size_of_val(data), "mask"),
                    (given.output, output_bytes, "output"),
                )?;
                Some(Mask { data, stride, tokens: given.mask_tokens })
            }
        };
        let step = Step {
            queries: Queries { data, ..queries },
            is_causal: match given.causal {
                0 | 1 => given.causal == 1,
                other => bail!(InvalidArgument, "attend->causal is {other}; 0 or 1 expected"),
            },
            window: Some(given.window).filter(|window| *window > 0),
            soft_cap: Some(given.soft_cap).filter(|cap| *cap != 0.0),
            sinks: match given.sinks.is_null() {
                true => None,
                false => {
                    let sinks = pointer::input(given.sinks, heads, "attend->sinks")?;
                    let read = (given.sinks.cast(), size_of_val(sinks), "sinks");
                    pointer::disjoint(read, (given.output, output_bytes, "output"))?;
                    Some(sinks)
                }
            },
            mask,
        };
        let mut write = |row: usize, head: usize, numbers: &[f32]| {
            let at = row * output.row_stride + head * output.head_stride;
            let bytes = dims * dtype.bytes();
            // SAFETY: the caller has `output_bytes` there, of which rows and heads are parts; parts write other rows or heads.
            let to = std::slice::from_raw_parts_mut(given.output.cast::<u8>().add(at), bytes);
            narrow(dtype, Endian::Native, numbers, to);
        };
        session.attend(layer, (&from, cache.kv_len), &step, (part, parts), &mut write)
    })
}
