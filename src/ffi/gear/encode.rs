//! Gear: encode

use super::options::{mnnkv_gear_options, read_options};
use super::{DECODER, ENCODER, with_local};
use crate::dtype::Dtype;
use crate::ffi::panic::{body, guard_or};
use crate::ffi::pointer;
use crate::ffi::status::mnnkv_status;
use crate::gear;
use crate::status::Result;
use std::ffi::c_void;

/// # Safety
/// As the exports.
unsafe fn encode(
    dtype: Dtype,
    src: (*const c_void, usize),
    options: *const mnnkv_gear_options,
    dst: (*mut c_void, usize),
    dst_len: *mut usize,
) -> Result<()> {
    // SAFETY: passed on.
    let (src, dst, dst_len) = unsafe { pointer::buffers(src, dst, dst_len)? };
    // SAFETY: passed on.
    let options = unsafe { read_options(options, dtype)? };
    dst_len.set_len(with_local(&ENCODER, |encoder| {
        pointer::copied(encoder.encode(src, dtype, &options)?, dst, "dst_cap (bytes)")
    }))
}

/// Returns a capacity that suffices to encode src_len bytes of dtype (F16, BF16, F32 or INT8) in either format, a little
/// over src_len; 0 if src_len is 0, no whole number of words, or larger than memory.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub extern "C" fn mnnkv_gear_bound(src_len: usize, dtype: u32) -> usize {
    guard_or(0, || Ok(gear::bound(src_len, Dtype::from_code(dtype, "dtype")?).unwrap_or(0)))
}

/// Encodes src_len bytes of little-endian words of dtype (F16, BF16, F32 or INT8), bit for bit.
/// src: at least one word, in any order; [head][token][dim] of one head at a time compresses best.
/// dst: dst_cap bytes; mnnkv_gear_bound always suffices.
/// dst_len: bytes written.
/// INVALID_ARGUMENT: if dtype is another; if src_len is 0, no whole number of words, or exceeds 4,261,672,974 words; if
/// an option is out of range
/// UNSUPPORTED: if dtype is TQ3 or TQ4
/// BUFFER_TOO_SMALL: if dst_cap is too small; *dst_len is the size needed
///
/// dst is written only on success. Working memory: at most 6 * src_len + 2 MiB. The thread keeps it, beside that of
/// decoding.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_encode_gear(
    src: *const c_void,
    src_len: usize,
    dtype: u32,
    options: *const mnnkv_gear_options,
    dst: *mut c_void,
    dst_cap: usize,
    dst_len: *mut usize,
) -> mnnkv_status {
    body!(encode(Dtype::from_code(dtype, "dtype")?, (src, src_len), options, (dst, dst_cap), dst_len))
}

/// mnnkv_encode_gear of F16.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_encode_fp16_gear(
    src: *const c_void,
    src_len: usize,
    options: *const mnnkv_gear_options,
    dst: *mut c_void,
    dst_cap: usize,
    dst_len: *mut usize,
) -> mnnkv_status {
    body!(encode(Dtype::F16, (src, src_len), options, (dst, dst_cap), dst_len))
}

/// Frees the working memory that the calling thread keeps for encoding and decoding.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub extern "C" fn mnnkv_thread_trim() {
    guard_or((), || {
        drop(ENCODER.take());
        drop(DECODER.take());
        Ok(())
    });
}
