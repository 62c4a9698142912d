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

use crate::rows::{self, Plane, RowMask, Rows};
use mnnkv::arch::attend::rows::RowType;
use mnnkv::ffi::panic::{guard, guard_or};
use mnnkv::ffi::pointer::{self, Out, Sized32};
use mnnkv::ffi::status::mnnkv_status;
use mnnkv::status::{Result, bail};
use std::ffi::c_void;

/// Formats of rows. F16: IEEE 754 binary16. Q8_0: blocks of 32 elements, a scale in binary16 and 32 signed bytes. Q4_0: blocks of
/// 32, a scale in binary16 and 16 bytes; element i is the lower half of byte i less 8, element 16 + i the upper half less 8.
pub const MNNKV_ROWS_F16: u32 = 1;
pub const MNNKV_ROWS_Q8_0: u32 = 2;
pub const MNNKV_ROWS_Q4_0: u32 = 3;

/// Query rows, and the cache that they attend to.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_rows {
    /// sizeof(mnnkv_rows)
    pub struct_size: u32,
    /// Query heads, a multiple of kv_heads, at least 1: head h reads KV head h / (heads / kv_heads).
    pub heads: u32,
    /// Rows of each query head, at least 1; working memory is for each of them.
    pub rows: u32,
    /// Heads of the cache, at least 1.
    pub kv_heads: u32,
    /// Tokens of the cache, at least 1.
    pub tokens: u32,
    /// MNNKV_ROWS_* of K.
    pub key_type: u32,
    /// MNNKV_ROWS_* of V.
    pub value_type: u32,
    /// Elements of a row of K and of a query, a multiple of 32 up to 1024.
    pub key_dim: u32,
    /// Elements of a row of V and of the output, likewise.
    pub value_dim: u32,
    /// The factor of a logit.
    pub scale: f32,
    /// Logits x become soft_cap * tanh(x / soft_cap); 0 = none.
    pub soft_cap: f32,
    /// Must be 0.
    pub reserved: u32,
    /// The rows of K, without alignment.
    pub key: *const c_void,
    /// Bytes from a token to the next: a row or more, where there is more than one token.
    pub key_token_stride: u64,
    /// Bytes from a head to the next: a row or more, where there is more than one head.
    pub key_head_stride: u64,
    /// The rows of V, likewise.
    pub value: *const c_void,
    /// As key_token_stride.
    pub value_token_stride: u64,
    /// As key_head_stride.
    pub value_head_stride: u64,
    /// Queries in f32.
    pub queries: *const f32,
    /// Bytes from a head to the next, a multiple of 4.
    pub query_head_stride: u64,
    /// Bytes from a row to the next, a multiple of 4.
    pub query_row_stride: u64,
    /// f32, written only by the merge. The heads of a row must end before the next row begins, or the rows of a head before the
    /// next head. Zeros where a row attends to nothing.
    pub output: *mut f32,
    /// As query_head_stride.
    pub output_head_stride: u64,
    /// As query_row_stride.
    pub output_row_stride: u64,
    /// [rows][tokens] in f16, added to logits after the soft cap; finite, or -inf for a token that is hidden from the row,
    /// whatever the slope. A tile of 64 tokens that is hidden from a row costs that row nothing. NULL = none.
    pub mask: *const c_void,
    /// Elements from a row of the mask to the next, tokens or more.
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

/// Returns 1 where the CPU has vectors for these functions (AVX2, AVX-512, NEON), else 0: the host is faster then.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub extern "C" fn mnnkv_rows_supported() -> u32 {
    guard_or(0, || Ok(rows::has_vectors().into()))
}

/// The bytes of scratch that a step in `parts` parts needs.
/// parts: 1 to 64.
/// INVALID_ARGUMENT: if a field does not fit
/// UNSUPPORTED: if a type is unknown
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_rows_scratch(rows: *const mnnkv_rows, parts: u32, bytes: *mut u64) -> mnnkv_status {
    guard(|| {
        // SAFETY: an export is unsafe; the header is its contract, and that of the functions it calls.
        let (given, out) = unsafe { (pointer::required(rows, "rows")?, Out::new(bytes, "bytes")?) };
        let rows = described(&given, (0, parts))?.rows;
        out.set((rows.part_len() * parts as usize * size_of::<f32>()) as u64);
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
    guard(|| {
        // SAFETY: as above. Never a slice of all of the scratch: other threads write other parts.
        unsafe {
            let step = Step::new(pointer::required(rows, "rows")?, (part, parts))?;
            let len = step.scratch_len(parts, (scratch.cast_const(), scratch_bytes))?;
            let memory = pointer::output(scratch.cast::<f32>().add(part as usize * len), len, "scratch")?;
            step.rows.attend((part, parts), memory);
        }
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
    guard(|| {
        // SAFETY: as above.
        unsafe {
            let step = Step::new(pointer::required(rows, "rows")?, (part, parts))?;
            let len = step.scratch_len(parts, (scratch, scratch_bytes))?;
            let memory = pointer::input(scratch.cast::<f32>(), len * parts as usize, "scratch")?;
            let Step { given, rows, .. } = &step;
            for vector in rows.merges((part, parts)) {
                let (row, head) = (vector / rows.heads, vector % rows.heads);
                let at = row * given.output_row_stride as usize + head * given.output_head_stride as usize;
                // SAFETY: the output has this row, by `described`; other parts write other rows.
                let to = std::slice::from_raw_parts_mut(given.output.byte_add(at), rows.value.dims);
                rows.merge(row, head, memory, to);
            }
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

/// A number beyond the address space is too much for any buffer.
fn size(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// The bytes of query or output rows.
fn vectors(rows: &Rows<'_>, name: &str, dim: u32, (head, row): (u64, u64)) -> Result<usize> {
    let bytes = dim as usize * size_of::<f32>();
    let end = rows::extent(name, bytes, &[("head", size(head), rows.heads), ("row", size(row), rows.rows)])?;
    if head % 4 != 0 || row % 4 != 0 {
        bail!(InvalidArgument, "{name} strides are {head} and {row}; multiples of 4 expected");
    }
    Ok(end)
}

/// A checked step without its data, and the bytes of its buffers.
struct Described<'a> {
    rows: Rows<'a>,
    key: usize,
    value: usize,
    queries: usize,
    output: usize,
    /// Elements.
    mask: usize,
}

fn described<'a>(given: &mnnkv_rows, part: (u32, u32)) -> Result<Described<'a>> {
    pointer::reserved(&[given.reserved], "rows")?;
    let plane = |kind, dims: u32, (token_stride, head_stride)| Plane {
        kind,
        dims: dims as usize,
        token_stride: size(token_stride),
        head_stride: size(head_stride),
        data: &[],
    };
    let key_type = row_type(given.key_type, "rows->key_type")?;
    let value_type = row_type(given.value_type, "rows->value_type")?;
    let rows = Rows {
        key: plane(key_type, given.key_dim, (given.key_token_stride, given.key_head_stride)),
        value: plane(value_type, given.value_dim, (given.value_token_stride, given.value_head_stride)),
        tokens: given.tokens as usize,
        kv_heads: given.kv_heads as usize,
        heads: given.heads as usize,
        rows: given.rows as usize,
        queries: &[],
        query_head_stride: size(given.query_head_stride) / 4,
        query_row_stride: size(given.query_row_stride) / 4,
        scale: given.scale,
        soft_cap: Some(given.soft_cap).filter(|cap| *cap != 0.0),
        mask: None,
        sinks: None,
    };
    rows.check(part)?;
    let (heads, tokens) = (rows.kv_heads, rows.tokens);
    let (head, row) = (given.output_head_stride, given.output_row_stride);
    let mask_stride = if given.mask.is_null() { tokens } else { size(given.mask_row_stride) };
    let described = Described {
        key: rows.key.bytes("rows->key", heads, tokens)?,
        value: rows.value.bytes("rows->value", heads, tokens)?,
        queries: vectors(&rows, "rows->query", given.key_dim, (given.query_head_stride, given.query_row_stride))?,
        output: vectors(&rows, "rows->output", given.value_dim, (head, row))?,
        mask: rows::extent("rows->mask", tokens, &[("row", mask_stride, rows.rows)])?,
        rows,
    };
    let end = |stride: u64, count: usize| size(stride) * (count - 1) + rows.value.dims * size_of::<f32>();
    let (of_heads, of_rows) = (end(head, rows.heads), end(row, rows.rows));
    if rows.heads > 1 && rows.rows > 1 && size(row) < of_heads && size(head) < of_rows {
        bail!(
            InvalidArgument,
            "rows->output_head_stride is {head} and rows->output_row_stride {row}, with which rows overlap; a row stride of \
             {of_heads} or more, or a head stride of {of_rows} or more expected"
        );
    }
    Ok(described)
}

/// A checked step.
struct Step<'a> {
    given: mnnkv_rows,
    rows: Rows<'a>,
    /// Memory that the step reads, and its output, which is the last.
    buffers: [(*const c_void, usize, &'static str); 7],
}

impl Step<'_> {
    /// # Safety
    /// Non-NULL pointers of `given` are readable, and its output writable, as the fields say.
    unsafe fn new(given: mnnkv_rows, part: (u32, u32)) -> Result<Self> {
        let Described { mut rows, key, value, queries, output, mask } = described(&given, part)?;
        // SAFETY: the caller's, for the lengths that the fields give.
        unsafe {
            // Checked alone: never a slice of all.
            Out::new(given.output, "rows->output")?;
            rows.key.data = pointer::input_bytes(given.key, key, "rows->key")?;
            rows.value.data = pointer::input_bytes(given.value, value, "rows->value")?;
            rows.queries = pointer::input(given.queries, queries / size_of::<f32>(), "rows->queries")?;
            let slopes = finite(given.slopes, rows.heads, "rows->slopes")?;
            rows.sinks = finite(given.sinks, rows.heads, "rows->sinks")?;
            if !given.mask.is_null() {
                let data = pointer::input(given.mask.cast(), mask, "rows->mask")?;
                rows.mask = Some(RowMask { data, stride: size(given.mask_row_stride), slopes });
            }
        }
        let floats = rows.heads * size_of::<f32>();
        let optional = |from: *const c_void, bytes| if from.is_null() { 0 } else { bytes };
        let buffers = [
            (given.key, key, "rows->key"),
            (given.value, value, "rows->value"),
            (given.queries.cast(), queries, "rows->queries"),
            (given.mask, optional(given.mask, 2 * mask), "rows->mask"),
            (given.slopes.cast(), optional(given.slopes.cast(), floats), "rows->slopes"),
            (given.sinks.cast(), optional(given.sinks.cast(), floats), "rows->sinks"),
            (given.output.cast_const().cast(), output, "rows->output"),
        ];
        buffers[..6].iter().try_for_each(|buffer| pointer::disjoint(*buffer, buffers[6]))?;
        Ok(Step { given, rows, buffers })
    }

    /// Floats of a part of the scratch. INVALID_ARGUMENT: if there is not as much, or it overlaps a buffer.
    fn scratch_len(&self, parts: u32, (scratch, given): (*const c_void, u64)) -> Result<usize> {
        let len = self.rows.part_len();
        let bytes = len * parts as usize * size_of::<f32>();
        if size(given) < bytes {
            bail!(InvalidArgument, "scratch_bytes is {given}; {bytes} expected for {parts} parts");
        }
        if scratch.is_null() || !scratch.cast::<f32>().is_aligned() {
            bail!(InvalidArgument, "scratch is {scratch:?}; memory that is aligned to 4 expected");
        }
        self.buffers.iter().try_for_each(|buffer| pointer::disjoint(*buffer, (scratch, bytes, "scratch")))?;
        Ok(len)
    }
}

/// A number for each query head; `None` for NULL. INVALID_ARGUMENT: if one is not finite.
///
/// # Safety
/// A non-NULL `from` is readable for `heads` numbers for `'a`.
unsafe fn finite<'a>(from: *const f32, heads: usize, name: &str) -> Result<Option<&'a [f32]>> {
    if from.is_null() {
        return Ok(None);
    }
    // SAFETY: passed on.
    let numbers = unsafe { pointer::input(from, heads, name) }?;
    match numbers.iter().position(|x| !x.is_finite()) {
        Some(at) => bail!(InvalidArgument, "{name}[{at}] is {}; a finite number expected", numbers[at]),
        None => Ok(Some(numbers)),
    }
}
