//! Gear: encode

use super::options::{mnnkv_gear_options, read_options};
use super::{DECODER, ENCODER, Kept, buffers, report_needed, with_local};
use crate::dtype::Dtype;
use crate::ffi::panic::{body, guard_or};
use crate::ffi::status::mnnkv_status;
use crate::gear::{self, Encoder};
use crate::status::{Error, Result};
use crate::store;
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
    let ((src, dst, dst_len), options) = unsafe { (buffers(src, dst, dst_len)?, read_options(options, dtype)?) };
    with_local(&ENCODER, |kept| {
        // Memory of another kind of call would add to that of this one.
        let kind = Some((dtype, options.format, options.rotation.is_some()));
        if kept.kind != kind {
            *kept = Kept { kind, encoder: Encoder::default() };
        }
        let blob = kept.encoder.encode(src, dtype, &options)?;
        match dst.get_mut(..blob.len()) {
            Some(target) => target.copy_from_slice(blob),
            None => return report_needed(&dst_len, Error::too_small("dst_cap (bytes)", dst.len(), blob.len())),
        }
        dst_len.set(blob.len());
        Ok(())
    })
}

/// Returns a capacity that suffices to encode src_len bytes of dtype (F16, BF16, F32 or INT8) in any format, a little
/// over src_len; 0 if src_len is 0, no whole number of words, or larger than memory.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub extern "C" fn mnnkv_gear_bound(src_len: usize, dtype: u32) -> usize {
    guard_or(0, || Ok(gear::bound(src_len, Dtype::from_code(dtype, "dtype")?).unwrap_or(0)))
}

/// Encodes src_len bytes of little-endian words of dtype (F16, BF16, F32 or INT8), bit for bit.
/// src: at least one word. V1 takes any order; V2 compresses [head][token][dim] best.
/// dst: dst_cap bytes; mnnkv_gear_bound always suffices.
/// dst_len: bytes written.
/// INVALID_ARGUMENT: if dtype is another; if src_len is 0 or no whole number of words (with a rotation hint: of rows), or
/// exceeds 4,261,672,974 words in V1; if an option is out of range or does not fit src_len; if a rotation hint comes with
/// INT8 in V2
/// UNSUPPORTED: if format is V1 with BF16 or INT8; if dtype is TQ3 or TQ4
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
        store::trim_thread();
        Ok(())
    });
}
