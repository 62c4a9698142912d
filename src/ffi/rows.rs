//! Rows of a host's own cache
//!
//! The attention of a few query rows over K and V that stay where the host has them, in the block formats of ggml. There is no
//! session, and nothing is kept between calls. Threads of the host share a step, with memory of the host:
//!
//!   mnnkv_rows_scratch(&rows, parts, &bytes);                  // once for the same heads, rows, value_dim and parts
//!   mnnkv_rows_attend(&rows, part, parts, scratch, bytes);     // on each of `parts` threads
//!   ...                                                        // a barrier
//!   mnnkv_rows_merge(&rows, part, parts, scratch, bytes);      // on each thread; the output is complete after all
//!
//! Every row of the cache is read once for all query heads. Numbers are f32; sums are of fused products, and exponentials have a
//! relative error below 2^-18. With the same number of parts results are equal to the bit on every CPU, except for the
//! system's exp in the merge. K, V and queries must be finite, logits finite in f32, and the mask finite or -inf.
//! Otherwise the output is undefined, but no memory outside of the buffers is accessed.

use super::cache::MNNKV_DTYPE_F32;
use crate::arch::attend::rows::RowType;
use crate::attend::Queries;
use crate::attend::rows::{Plane, RowMask, Rows};
use crate::ffi::given;
use crate::ffi::panic::body;
use crate::ffi::pointer::{self, Out, Sized32};
use crate::ffi::status::mnnkv_status;
use crate::status::{Result, bail};
use std::ffi::c_void;

/// Formats of rows. F16: IEEE 754 binary16. Q8_0: blocks of 32 elements, a scale in binary16 and 32 signed bytes. Q4_0: blocks of 32,
/// a scale in binary16 and 16 bytes; element i is the lower half of byte i less 8, element 16 + i the upper half less 8.
pub const MNNKV_ROWS_F16: u32 = 1;
pub const MNNKV_ROWS_Q8_0: u32 = 2;
pub const MNNKV_ROWS_Q4_0: u32 = 3;

/// Query rows, and the cache that they attend to.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_rows {
    pub struct_size: u32,
    /// Query heads, a multiple of kv_heads, at least 1: head h reads KV head h / (heads / kv_heads).
    pub heads: u32,
    /// Rows of each query head, at least 1; working memory is for each of them.
    pub rows: u32,
    /// Heads of the cache, at least 1.
    pub kv_heads: u32,
    /// Tokens of the cache, at least 1.
    pub tokens: u32,
    /// MNNKV_ROWS_*.
    pub key_type: u32,
    pub value_type: u32,
    /// Elements of a row, multiples of 32 up to 1024.
    pub key_dim: u32,
    pub value_dim: u32,
    /// The factor of a logit; 0 = 1 / sqrt(key_dim).
    pub scale: f32,
    /// Logits x become soft_cap * tanh(x / soft_cap); 0 = none.
    pub soft_cap: f32,
    pub reserved: u32,
    /// Bytes from a token to the next and from a head to the next: a row or more, where there is more than one token or more
    /// than one head. No alignment.
    pub key: *const c_void,
    pub key_token_stride: u64,
    pub key_head_stride: u64,
    pub value: *const c_void,
    pub value_token_stride: u64,
    pub value_head_stride: u64,
    /// f32. Bytes from a head to the next, and from a row to the next, multiples of 4; both 0: [rows][heads][key_dim].
    pub queries: *const f32,
    pub query_head_stride: u64,
    pub query_row_stride: u64,
    /// f32, written only by the merge. Strides as for queries: the heads of a row must end before the next row begins, or the
    /// rows of a head before the next head. Zeros where a row attends to nothing.
    pub output: *mut f32,
    pub output_head_stride: u64,
    pub output_row_stride: u64,
    /// [rows][tokens] in f16, added to logits after the soft cap; finite, or -inf for a token that is hidden from the row, whatever
    /// the slope. A tile of 64 tokens that is hidden from a row costs that row nothing. Elements from a row to the next, tokens or
    /// more; 0 = tokens. NULL = none.
    pub mask: *const c_void,
    pub mask_row_stride: u64,
    /// [heads]: the factor of the mask for each query head (ALiBi); finite. NULL = 1.
    pub slopes: *const f32,
    /// [heads]: a logit of the attention sink of each query head; finite. NULL = no sinks.
    pub sinks: *const f32,
}

// SAFETY: repr(C), begins with a u32, integers, floats and raw pointers only.
unsafe impl Sized32 for mnnkv_rows {
    const MIN: usize = size_of::<mnnkv_rows>();
}

/// The bytes of scratch that a step in `parts` parts needs.
/// parts: 1 to 64.
/// INVALID_ARGUMENT: if a field does not fit
/// UNSUPPORTED: if a type is unknown
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_rows_scratch(rows: *const mnnkv_rows, parts: u32, bytes: *mut u64) -> mnnkv_status {
    body!({
        let given = pointer::required(rows, "rows")?;
        let out = Out::new(bytes, "bytes")?;
        let rows = described(&given, (0, parts))?.rows;
        out.set((rows.part_len()? * parts as usize * size_of::<f32>()) as u64);
        Ok(())
    })
}

/// Runs one of `parts` parts of a step. Parts may run on any threads, in any order and at the same time.
/// part: below parts, which are 1 to 64.
/// scratch: bytes of mnnkv_rows_scratch for the same rows and parts or more, aligned to 4; a part writes a range of its own.
/// INVALID_ARGUMENT: if a field, a stride or the scratch does not fit, or a slope or a sink is not finite
/// UNSUPPORTED: if a type is unknown
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_rows_attend(
    rows: *const mnnkv_rows,
    part: u32,
    parts: u32,
    scratch: *mut c_void,
    scratch_bytes: u64,
) -> mnnkv_status {
    body!({
        let given = pointer::required(rows, "rows")?;
        let step = with_data(&given, (part, parts))?;
        let rows = &step.rows;
        let len = scratch_len(rows, parts, scratch_bytes)?;
        step.apart(&given, (scratch.cast_const(), len * parts as usize * size_of::<f32>(), "scratch"))?;
        // Never a slice of all: other threads write other parts.
        pointer::input(scratch.cast_const().cast::<f32>(), 1, "scratch")?;
        let memory = pointer::output(scratch.cast::<f32>().add(part as usize * len), len, "scratch")?;
        rows.attend((part, parts), memory);
        Ok(())
    })
}

/// Merges one of `parts` parts of the output, after mnnkv_rows_attend has returned for all `parts` parts, with the same rows and
/// scratch. Parts of the output may be merged on any threads, in any order and at the same time.
/// Parameters and failures as mnnkv_rows_attend; the scratch is only read. After a failure no output was written.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_rows_merge(
    rows: *const mnnkv_rows,
    part: u32,
    parts: u32,
    scratch: *const c_void,
    scratch_bytes: u64,
) -> mnnkv_status {
    body!({
        let given = pointer::required(rows, "rows")?;
        let step = with_data(&given, (part, parts))?;
        let (rows, (head_stride, row_stride)) = (&step.rows, step.output_strides);
        let len = scratch_len(rows, parts, scratch_bytes)?;
        step.apart(&given, (scratch, len * parts as usize * size_of::<f32>(), "scratch"))?;
        let memory = pointer::input(scratch.cast::<f32>(), len * parts as usize, "scratch")?;
        for vector in rows.merges((part, parts)) {
            let (row, head) = (vector / rows.heads, vector % rows.heads);
            // SAFETY: the caller has the output there, of which this is a row; parts write other rows. Aligned: `described`.
            let to = std::slice::from_raw_parts_mut(
                given.output.byte_add(row * row_stride + head * head_stride),
                given.value_dim as usize,
            );
            rows.merge(row, head, memory, to)?;
        }
        Ok(())
    })
}

fn row_type(code: u32, name: &str) -> Result<RowType> {
    match code {
        MNNKV_ROWS_F16 => Ok(RowType::F16),
        MNNKV_ROWS_Q8_0 => Ok(RowType::Q8_0),
        MNNKV_ROWS_Q4_0 => Ok(RowType::Q4_0),
        other => bail!(Unsupported, "{name} is {other}; F16 (1), Q8_0 (2) or Q4_0 (3) expected"),
    }
}

/// Query or output rows, with their strides in bytes, and the bytes from the first to the last.
fn strides(given: &mnnkv_rows, name: &str, dim: u32, strides: (u64, u64)) -> Result<(Queries<'static>, usize)> {
    let rows = given::query_rows((MNNKV_DTYPE_F32, name), (given.heads, given.rows, dim), strides, 1.0)?;
    let bytes = rows.bytes().map_err(|e| e.within(name))?;
    if rows.head_stride % 4 != 0 || rows.row_stride % 4 != 0 {
        bail!(
            InvalidArgument,
            "{name} strides are {} and {}; multiples of 4 expected",
            rows.head_stride,
            rows.row_stride
        );
    }
    Ok((rows, bytes))
}

/// A checked step, and what its pointers must have.
struct Described<'a> {
    rows: Rows<'a>,
    key_bytes: usize,
    value_bytes: usize,
    query_bytes: usize,
    output_bytes: usize,
    /// Bytes from a head of the output to the next, and from a row to the next.
    output_strides: (usize, usize),
}

impl Described<'_> {
    /// INVALID_ARGUMENT: if memory that is written overlaps what a step reads, or its output.
    fn apart(&self, given: &mnnkv_rows, written: (*const c_void, usize, &str)) -> Result<()> {
        let floats = |numbers: Option<&[f32]>| numbers.map_or(0, size_of_val);
        let mask = self.rows.mask.as_ref();
        for (read, bytes, name) in [
            (given.key, self.key_bytes, "rows->key"),
            (given.value, self.value_bytes, "rows->value"),
            (given.queries.cast(), self.query_bytes, "rows->queries"),
            (given.mask.cast(), mask.map_or(0, |mask| size_of_val(mask.data)), "rows->mask"),
            (given.slopes.cast(), floats(mask.and_then(|mask| mask.slopes)), "rows->slopes"),
            (given.sinks.cast(), floats(self.rows.sinks), "rows->sinks"),
            (given.output.cast_const().cast(), self.output_bytes, "rows->output"),
        ] {
            if name != written.2 {
                pointer::disjoint((read, bytes, name), written)?;
            }
        }
        Ok(())
    }
}

/// A step without its data.
fn described<'a>(given: &mnnkv_rows, part: (u32, u32)) -> Result<Described<'a>> {
    pointer::reserved(&[given.reserved], "rows")?;
    let size = |x: u64| usize::try_from(x).unwrap_or(usize::MAX);
    let plane = |kind, dims: u32, (token_stride, head_stride)| Plane {
        kind,
        dims: dims as usize,
        token_stride: size(token_stride),
        head_stride: size(head_stride),
        data: &[],
    };
    let mut rows = Rows {
        key: plane(
            row_type(given.key_type, "rows->key_type")?,
            given.key_dim,
            (given.key_token_stride, given.key_head_stride),
        ),
        value: plane(
            row_type(given.value_type, "rows->value_type")?,
            given.value_dim,
            (given.value_token_stride, given.value_head_stride),
        ),
        tokens: given.tokens as usize,
        kv_heads: given.kv_heads as usize,
        heads: given.heads as usize,
        rows: given.rows as usize,
        queries: &[],
        query_head_stride: 0,
        query_row_stride: 0,
        scale: if given.scale == 0.0 { 1.0 / (given.key_dim.max(1) as f32).sqrt() } else { given.scale },
        soft_cap: Some(given.soft_cap).filter(|cap| *cap != 0.0),
        mask: None,
        sinks: None,
    };
    rows.check(part)?;
    let key_bytes = rows.key.bytes("rows->key", rows.kv_heads, rows.tokens)?;
    let value_bytes = rows.value.bytes("rows->value", rows.kv_heads, rows.tokens)?;
    let (queries, query_bytes) =
        strides(given, "rows->queries", given.key_dim, (given.query_head_stride, given.query_row_stride))?;
    (rows.query_head_stride, rows.query_row_stride) = (queries.head_stride / 4, queries.row_stride / 4);
    let (output, output_bytes) =
        strides(given, "rows->output", given.value_dim, (given.output_head_stride, given.output_row_stride))?;
    given::apart_rows(&output, "rows->output")?;
    Ok(Described {
        rows,
        key_bytes,
        value_bytes,
        query_bytes,
        output_bytes,
        output_strides: (output.head_stride, output.row_stride),
    })
}

/// [`described`], and the data.
///
/// # Safety
/// Non-NULL pointers of `given` are readable, and its output writable, as the fields say.
unsafe fn with_data<'a>(given: &mnnkv_rows, part: (u32, u32)) -> Result<Described<'a>> {
    let mut step = described(given, part)?;
    let Described { key_bytes, value_bytes, query_bytes, output_bytes, .. } = step;
    let rows = &mut step.rows;
    rows.key.check_strides("rows->key", rows.kv_heads, rows.tokens)?;
    rows.value.check_strides("rows->value", rows.kv_heads, rows.tokens)?;
    let (stride, mask_len) = given::mask_rows(given.mask_row_stride, rows.tokens, rows.rows, "rows->mask_row_stride")?;
    // SAFETY: the caller's, for the lengths that the fields give.
    unsafe {
        // Checked alone: never a slice of all.
        Out::new(given.output, "rows->output")?;
        rows.key.data = pointer::input_bytes(given.key, key_bytes, "rows->key")?;
        rows.value.data = pointer::input_bytes(given.value, value_bytes, "rows->value")?;
        rows.queries = pointer::input(given.queries, query_bytes / size_of::<f32>(), "rows->queries")?;
        let optional = |from: *const f32, name| match from.is_null() {
            true => Ok(None),
            false => finite(pointer::input(from, rows.heads, name)?, name).map(Some),
        };
        let slopes = optional(given.slopes, "rows->slopes")?;
        rows.sinks = optional(given.sinks, "rows->sinks")?;
        if !given.mask.is_null() {
            rows.mask =
                Some(RowMask { data: pointer::input(given.mask.cast(), mask_len, "rows->mask")?, stride, slopes });
        }
    }
    step.apart(given, (given.output.cast_const().cast(), output_bytes, "rows->output"))?;
    Ok(step)
}

/// INVALID_ARGUMENT: if a number is not finite.
fn finite<'a>(numbers: &'a [f32], name: &str) -> Result<&'a [f32]> {
    match numbers.iter().position(|x| !x.is_finite()) {
        Some(at) => bail!(InvalidArgument, "{name}[{at}] is {}; a finite number expected", numbers[at]),
        None => Ok(numbers),
    }
}

/// Floats of a part. INVALID_ARGUMENT: if there is not as much scratch.
fn scratch_len(rows: &Rows<'_>, parts: u32, bytes: u64) -> Result<usize> {
    let len = rows.part_len()?;
    let needed = (len * parts as usize * size_of::<f32>()) as u64;
    if bytes < needed {
        bail!(InvalidArgument, "scratch_bytes is {bytes}; {needed} expected for {parts} parts");
    }
    Ok(len)
}
