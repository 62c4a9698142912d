//! State: the state buffer of another engine, compressed bit for bit
//!
//! For engines whose cached prompts are byte buffers. The host describes the tensors inside of the buffer; all other bytes
//! are opaque, and without any description all bytes are. A blob decodes without the description. docs/state.md has its
//! bytes. No handle: the calls share nothing, may run on any threads, and keep no memory.
//!
//! mnnkv_state_encode and mnnkv_state_decode start threads that end with the call. Equal input makes equal blobs, whatever
//! the number of threads and the CPU.

use super::panic::{body, guard_or};
use super::pointer::{self, Out, Sized32};
use super::status::mnnkv_status;
use crate::dtype::Dtype;
use crate::gear::Effort;
use crate::state::{self, Form, Options, Tensor};
use crate::status::{Error, Result, bail};
use crate::sys::memory;
use std::ffi::c_void;

/// A row is words, such as those of one token; word i of every row is channel i.
pub const MNNKV_STATE_WORDS: u32 = 0;
/// A row is words of one channel, as in a V that lies [channel][token].
pub const MNNKV_STATE_CHANNELS: u32 = 1;
/// A row is blocks of block_bytes, each with words in its first scale_bytes and codes after them.
pub const MNNKV_STATE_BLOCKS: u32 = 2;

/// A tensor inside of a buffer. In an array each has its struct_size, all the same.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_state_tensor {
    pub struct_size: u32,
    /// MNNKV_DTYPE_F16, _BF16, _F32 or _INT8 (also any bytes): the words of a row, or of the scales of blocks.
    pub dtype: u32,
    /// MNNKV_STATE_*.
    pub layout: u32,
    /// MNNKV_STATE_BLOCKS: bytes of a block, below 65,536, such as 34 for one scale and 32 codes. Otherwise 0.
    pub block_bytes: u32,
    /// MNNKV_STATE_BLOCKS: bytes of the words that a block begins with. Otherwise 0.
    pub scale_bytes: u32,
    pub reserved: u32,
    /// Where the first row begins.
    pub offset: u64,
    /// At least 1.
    pub rows: u64,
    /// Bytes of a row: whole words, or whole blocks.
    pub row_bytes: u64,
    /// Bytes from a row to the next; 0 = row_bytes. Rows of two tensors may alternate only if stride and rows are
    /// equal, and the first rows of both lie within one stride.
    pub stride: u64,
}

// SAFETY: repr(C), begins with a u32, integers only.
unsafe impl Sized32 for mnnkv_state_tensor {
    const MIN: usize = 56;
}

/// How to encode, and on how many threads. NULL = all defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_state_options {
    pub struct_size: u32,
    /// 1 = fastest .. 9 = smallest; 0 = 3. Decoding does not read it.
    pub effort: i32,
    /// Threads, the calling one included; 0 = as many as cores.
    pub threads: u32,
    pub reserved: u32,
}

// SAFETY: repr(C), begins with a u32, integers only.
unsafe impl Sized32 for mnnkv_state_options {
    const MIN: usize = 16;
}

/// The effort of an encoder whose host is about to wait for it.
const DEFAULT_EFFORT: i32 = 3;

/// # Safety
/// As the exports.
unsafe fn given_options(options: *const mnnkv_state_options) -> Result<Options> {
    // SAFETY: passed on.
    let given = unsafe { pointer::options(options, "options") }?;
    let given = given.unwrap_or(mnnkv_state_options { struct_size: 0, effort: 0, threads: 0, reserved: 0 });
    pointer::reserved(&[given.reserved], "options")?;
    let effort = if given.effort == 0 { DEFAULT_EFFORT } else { given.effort };
    Ok(Options { effort: Effort::new(effort, "options->effort")?, threads: given.threads as usize })
}

/// # Safety
/// As the exports.
unsafe fn given_tensors(tensors: *const mnnkv_state_tensor, count: usize) -> Result<Vec<Tensor>> {
    let mut out = Vec::new();
    if count == 0 {
        return Ok(out);
    }
    // SAFETY: the first one has a struct_size, by the header.
    let first = unsafe { pointer::required(tensors, "tensors") }?;
    let distance = first.struct_size as usize;
    // SAFETY: `count` structs at this distance, by the header.
    let _ = unsafe { pointer::input_bytes(tensors.cast(), distance.saturating_mul(count), "tensors") }?;
    memory::reserve(&mut out, count)?;
    for at in 0..count {
        // SAFETY: one of the structs above.
        let given = unsafe { pointer::required(tensors.wrapping_byte_add(at * distance), "tensors") }
            .map_err(|error| error.within(format_args!("tensors[{at}]")))?;
        if given.struct_size != first.struct_size {
            bail!(InvalidArgument, "tensors[{at}].struct_size is {}; {distance} expected", given.struct_size);
        }
        memory::push(&mut out, tensor(&given).map_err(|error| error.within(format_args!("tensors[{at}]")))?)?;
    }
    Ok(out)
}

fn tensor(given: &mnnkv_state_tensor) -> Result<Tensor> {
    if given.reserved != 0 {
        bail!(InvalidArgument, "reserved is {}; 0 expected", given.reserved);
    }
    let dtype = Dtype::from_code(given.dtype, "dtype")?;
    let form = match given.layout {
        MNNKV_STATE_BLOCKS => match (u16::try_from(given.block_bytes), u16::try_from(given.scale_bytes)) {
            (Ok(block), Ok(scale)) => Form::Blocks { dtype, block, scale },
            _ => bail!(
                InvalidArgument,
                "block_bytes is {} and scale_bytes {}; less than 65,536 expected",
                given.block_bytes,
                given.scale_bytes
            ),
        },
        layout @ (MNNKV_STATE_WORDS | MNNKV_STATE_CHANNELS) => {
            if (given.block_bytes, given.scale_bytes) != (0, 0) {
                bail!(
                    InvalidArgument,
                    "block_bytes is {} and scale_bytes {} with layout {layout}; 0 expected",
                    given.block_bytes,
                    given.scale_bytes
                );
            }
            if layout == MNNKV_STATE_WORDS { Form::Words(dtype) } else { Form::Channels(dtype) }
        }
        layout => bail!(InvalidArgument, "layout is {layout}; 0 to 2 expected"),
    };
    // A number beyond the address space is out of range of any buffer.
    let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    let stride = if given.stride == 0 { given.row_bytes } else { given.stride };
    Ok(Tensor {
        offset: size(given.offset),
        rows: size(given.rows),
        row_bytes: size(given.row_bytes),
        stride: size(stride),
        form,
    })
}

/// Reports the length that BUFFER_TOO_SMALL needs.
fn set_len(dst_len: &Out<usize>, result: Result<usize>) -> Result<()> {
    let len = result.as_ref().map_or_else(Error::needed, |len| Some(*len));
    len.into_iter().for_each(|len| dst_len.set(len));
    result.map(drop)
}

/// The largest blob of src_len bytes with these tensors: a little over src_len. 0 where mnnkv_state_encode would return
/// INVALID_ARGUMENT or UNSUPPORTED.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_state_bound(
    src_len: usize,
    tensors: *const mnnkv_state_tensor,
    n_tensors: usize,
) -> usize {
    guard_or(0, || {
        // SAFETY: passed on.
        let tensors = unsafe { given_tensors(tensors, n_tensors) }?;
        state::bound(src_len, &tensors)
    })
}

/// Encodes a buffer, bit for bit. src may have any length, also 0.
/// tensors: n_tensors descriptions in any order; no two share a byte.
/// dst: dst_cap bytes, at least mnnkv_state_bound. Bytes after *dst_len are undefined.
/// dst_len: bytes written.
/// INVALID_ARGUMENT: if a tensor is out of range, overlaps another, or has rows that are no whole words or blocks; the
/// text names its index
/// UNSUPPORTED: if a dtype is TQ3 or TQ4
/// BUFFER_TOO_SMALL: if dst_cap is below mnnkv_state_bound, which is then *dst_len
/// OUT_OF_MEMORY: if memory is refused
///
/// Working memory: per thread at most 9 MiB, or nine rows of a tensor if its rows are longer than 1 MiB. After a failure
/// the contents of dst are undefined.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_state_encode(
    src: *const c_void,
    src_len: usize,
    tensors: *const mnnkv_state_tensor,
    n_tensors: usize,
    options: *const mnnkv_state_options,
    dst: *mut c_void,
    dst_cap: usize,
    dst_len: *mut usize,
) -> mnnkv_status {
    body!({
        pointer::disjoint((src, src_len, "src"), (dst, dst_cap, "dst"))?;
        let src = pointer::input_bytes(src, src_len, "src")?;
        let options = given_options(options)?;
        let tensors = given_tensors(tensors, n_tensors)?;
        let dst = pointer::output_bytes(dst, dst_cap, "dst")?;
        let dst_len = Out::new(dst_len, "dst_len")?;
        set_len(&dst_len, state::encode(src, &tensors, options, dst))
    })
}

/// Returns the decoded length that a blob claims: limit it before allocating for a blob from elsewhere. All of the blob
/// but its sections is checked.
/// CORRUPT, UNSUPPORTED, OUT_OF_MEMORY: as mnnkv_state_decode
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_state_decoded_size(
    src: *const c_void,
    src_len: usize,
    size: *mut usize,
) -> mnnkv_status {
    body!({
        let src = pointer::input_bytes(src, src_len, "src")?;
        let size = Out::new(size, "size")?;
        size.set(state::decoded_len(src)?);
        Ok(())
    })
}

/// Decodes a blob. It is not trusted: every changed bit and every missing byte is CORRUPT.
/// options: only threads is read; NULL = all cores.
/// dst: dst_cap bytes. Contents are undefined after a failure; bytes after *dst_len are not written.
/// dst_len: bytes written.
/// CORRUPT: if the blob is malformed; the text has the section and its bytes in the blob
/// UNSUPPORTED: if the blob is of a later version
/// BUFFER_TOO_SMALL: if dst_cap is too small; *dst_len is the size needed
/// OUT_OF_MEMORY: if memory is refused
///
/// Working memory: per thread at most seven times the longest section, which is 1 MiB or one row, and 256 KiB.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_state_decode(
    src: *const c_void,
    src_len: usize,
    options: *const mnnkv_state_options,
    dst: *mut c_void,
    dst_cap: usize,
    dst_len: *mut usize,
) -> mnnkv_status {
    body!({
        pointer::disjoint((src, src_len, "src"), (dst, dst_cap, "dst"))?;
        let src = pointer::input_bytes(src, src_len, "src")?;
        let options = given_options(options)?;
        let dst = pointer::output_bytes(dst, dst_cap, "dst")?;
        let dst_len = Out::new(dst_len, "dst_len")?;
        set_len(&dst_len, state::decode(src, options.threads, dst))
    })
}
