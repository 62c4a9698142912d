//! Attend
//!
//! With a budget (memory.h) or kv_quant "k8v4" tokens of a layer are kept in 8 bits (K) and 4 bits (V): a fifth of f32. The first
//! kv_quant_sink_tokens and the newest 25 to 95 stay raw in the host's cache (after an edit those of the first that are before
//! the first quantised token). The others leave it in begin, 64 at a time. The attention of this header reads their
//! codes, and takes the place of the host's:
//!
//!   options.attends = 1;                                   // in mnnkv_session_create: the host calls the below
//!   mnnkv_session_begin(session, layer, &cache, &step);    // kv_len becomes the number of raw tokens
//!   ...                                                    // the host appends K and V at kv_len, as ever
//!   cache.kv_len += rows;
//!   if (step.attends)                                      // else the host attends itself
//!     mnnkv_session_attend(session, layer, part, parts, &cache, &attend);   // on each of `parts` threads
//!   mnnkv_session_end(session, layer, 0, rows, &cache);    // INVALID_ARGUMENT where not all rows have attended
//!
//! With kv_quant every token is attended to; with a budget see memory.h. No scores are needed.
//!
//! - Room: after begin the buffers need room for kv_quant_sink_tokens, 95 and the step's tokens, and for blocks that stay raw:
//!   a chat of 32,768 tokens needs no buffers of 32,768. A block keeps its bytes until its last token goes.
//! - Edits: mnnkv_session_keep counts all tokens, wherever they are; _rewritten refuses such a layer, since keys keep their
//!   rotation. Layers with a window keep every token unless the host removes them.
//! - Repeated runs: results are the same to the bit on every CPU, for any number of parts and in any order, but where blocks
//!   of kv_memory_file come late. Which blocks a budget drops depends on working memory, too, and so on how many parts run at
//!   once.
//! - Not here: slopes (ALiBi), and a V of another width than K.
//! - K of a raw token that a row attends to must be finite, or the call is refused. V of all raw tokens must be finite, also of
//!   those that a row does not attend to: else its output may be NaN.
//! - Rounding: sums are f32. A query times the scales of K is rounded to 13 bits of its largest channel. A softmax weight times
//!   its scale of V is rounded to 14 bits of the largest in its block; to 7 where the largest weight of the block is at most
//!   1/8 of the sum of those before it in its run of blocks, and its own. V of blocks with less than 2^-14 of the weights each,
//!   and 2^-10 together, is not read. docs/quality.md has what the rounding of K and V costs models.
//! - A round is a call of each part. A step has one, or several with some of its rows each.

use super::handle::mnnkv_session;
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
    /// Rows of each head, at most one for each token that was appended: row r is that of the (rows - r)th token from the end.
    /// The rows of all rounds of a step add up to `queries` of end.
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
    /// Written; a row that attends to nothing is 0. Rows must not overlap. Parts write different bytes.
    pub output: *mut c_void,
    /// As query_head_stride.
    pub output_head_stride: u64,
    /// As query_row_stride.
    pub output_row_stride: u64,
    /// 1 = row r attends to tokens up to its own, 0 = to all tokens. With more than one causal row the tokens of these rows
    /// must be raw, as those are that the step appended.
    pub causal: u32,
    /// A row does not attend to tokens that are `window` or more before its own; 0 = no bound.
    pub window: u32,
    /// Logits x become soft_cap * tanh(x / soft_cap); 0 = none.
    pub soft_cap: f32,
    /// Columns of mask: the newest tokens of the chat, at most all. Older ones have the addend 0.
    pub mask_tokens: u32,
    /// [rows][mask_tokens], added to logits after the soft cap; finite or -inf. NULL = none.
    pub mask: *const f32,
    /// Floats from a row of the mask to the next; 0 = mask_tokens.
    pub mask_row_stride: u64,
    /// [heads]: a finite logit that joins the softmax of each query head without a value (attention sinks of a model, not the
    /// sink tokens of a config). NULL = none.
    pub sinks: *const f32,
}

// SAFETY: repr(C), begins with a u32, integers, floats and raw pointers only.
unsafe impl Sized32 for mnnkv_attend {
    const MIN: usize = size_of::<mnnkv_attend>();
}

/// Runs one of `parts` parts of the attention of an open layer's step, over its quantised and raw tokens. Each part is called
/// once, on any thread and in any order; the output is complete when all have returned. None waits for another. With steps of
/// up to 16 rows parts are ranges of tokens, so that any number of threads has work; else they are rows. Once all parts have
/// returned, the host may append further tokens of the step, and call all parts again, for the rows of these.
/// Rounds of up to 16 rows multiply codes, with the rounding above; rounds of more rows decode blocks to f32 first, without it. 64
/// rows of a prompt in 4 rounds of 16 took 0.64 to 0.75 of the time of one round of 64 on an x86-64 CPU with AVX-512 VNNI; other CPUs
/// may differ. With kv_memory_file rounds of more rows read all blocks, rounds of fewer only some.
/// part: below parts, which are 1 to 64. A part that is given twice is refused until all have returned; then it is one of the
/// next round, and end finds too many rows.
/// cache->kv_len: raw tokens now, those of the step included, which are the last. Its buffers are only read.
/// INVALID_ARGUMENT: if layer is out of range, not open, or does not attend; kv_len is below the length that begin left, or
/// above max_tokens; heads, head_dim or a dtype is not that of begin; a field or stride does not fit; mask or sinks overlap
/// the output; the token of one of several causal rows is quantised; an element of the queries is not finite, or above 1e26
/// times scale; a logit overflows, or K of its raw token is not finite; an element of the mask is NaN or +inf; or a part is given
/// twice or with other parts, rows, heads or kv_len than the first. Other fields must be equal in all parts, too, and are not
/// compared
/// UNSUPPORTED: if the cache is quantised by the host, or dtype is none of the three
/// OUT_OF_MEMORY: if working memory is refused; where begin was short of it, which the text says, abort the step
/// After another failure the part may be given again. The cache is never written.
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
