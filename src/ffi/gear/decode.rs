//! Gear: decode

use super::{DECODER, with_local};
use crate::dtype::Dtype;
use crate::ffi::panic::body;
use crate::ffi::pointer::{self, Sized32};
use crate::ffi::status::mnnkv_status;
use crate::status::Result;
use std::ffi::c_void;

/// How to decode. NULL = all defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_decode_options {
    /// sizeof(mnnkv_decode_options)
    pub struct_size: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Limit of the working memory of the call, the memory that the thread keeps included; may exceed the default. 0 =
    /// 3 * (src_len + decoded length) + 256 KiB.
    pub max_working_bytes: u64,
}

// SAFETY: repr(C), begins with a u32, integers only.
unsafe impl Sized32 for mnnkv_decode_options {
    const MIN: usize = 16;
}

/// # Safety
/// As the exports.
unsafe fn decode(
    dtype: Dtype,
    options: *const mnnkv_decode_options,
    src: (*const c_void, usize),
    dst: (*mut c_void, usize),
    dst_len: *mut usize,
) -> Result<()> {
    // SAFETY: passed on.
    let max_working_bytes = match unsafe { pointer::options(options, "options") }? {
        Some(given) => {
            pointer::reserved(&[given.reserved], "options")?;
            (given.max_working_bytes > 0).then(|| usize::try_from(given.max_working_bytes).unwrap_or(usize::MAX))
        }
        None => None,
    };
    // SAFETY: passed on.
    let (src, dst, dst_len) = unsafe { pointer::buffers(src, dst, dst_len) }?;
    dst_len.set_len(with_local(&DECODER, |decoder| decoder.decode_within(src, dtype, dst, max_working_bytes)))
}

/// Decodes a blob of either format that encoding words of the same dtype (F16, BF16, F32 or INT8) made. V1 blobs do not
/// name their type: bf16 words that were encoded as F16 decode as either. The blob is not trusted.
/// dst: dst_cap bytes.
/// dst_len: bytes written. With dst NULL and dst_cap 0 the call returns BUFFER_TOO_SMALL and the size that the blob
/// claims: limit it before allocating for a blob from elsewhere.
/// CORRUPT: if the blob is malformed. CHECKED detects by its checksum what changes a word; V1 has none, and flipped bits
/// may decode to other words
/// INVALID_ARGUMENT: if dtype is another, or a CHECKED blob holds another type
/// UNSUPPORTED: if a blob is of a later version, or dtype is TQ3 or TQ4
/// BUFFER_TOO_SMALL: if dst_cap is too small; *dst_len is the size needed
/// OUT_OF_MEMORY: if memory is refused, or the blob needs more than max_working_bytes, whose default suffices for every
/// encoder of this library
///
/// After CORRUPT, UNSUPPORTED or OUT_OF_MEMORY the contents of dst are undefined. The thread keeps the working memory,
/// beside that of encoding.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_decode_gear(
    src: *const c_void,
    src_len: usize,
    dtype: u32,
    options: *const mnnkv_decode_options,
    dst: *mut c_void,
    dst_cap: usize,
    dst_len: *mut usize,
) -> mnnkv_status {
    body!(decode(Dtype::from_code(dtype, "dtype")?, options, (src, src_len), (dst, dst_cap), dst_len))
}
