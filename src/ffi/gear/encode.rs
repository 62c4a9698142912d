//! Gear: encode

use super::options::{mnnkv_gear_options, read_options};
use super::{DECODER, ENCODER, Kept, buffers, report_needed, with_local};
use crate::dtype::Dtype;
use crate::ffi::panic::{body, guard_or};
use crate::ffi::pointer::{self, Out};
use crate::ffi::status::mnnkv_status;
use crate::gear::{self, Encoder, Predictors};
use crate::status::{Error, Result, bail};
use crate::store;
use std::ffi::{c_char, c_void};

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

/// Encodes src_len bytes of little-endian words of the type in the name, bit for bit.
/// src: at least one word. V1 takes any order; V2 compresses [head][token][dim] best.
/// dst: dst_cap bytes; mnnkv_gear_bound always suffices.
/// dst_len: bytes written.
/// INVALID_ARGUMENT: if src_len is 0 or no whole number of words (with a rotation hint: of rows), or exceeds
/// 4,261,672,974 words in V1; if an option is out of range or does not fit src_len; if a rotation hint comes with int8
/// UNSUPPORTED: if format is V1 with bf16 or int8
/// BUFFER_TOO_SMALL: if dst_cap is too small; *dst_len is the size needed
///
/// dst is written only on success. Working memory: at most 6 * src_len + 2 MiB. The thread keeps it, beside that of
/// decoding.
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

/// As mnnkv_encode_fp16_gear, for bf16 words. V2 and LANES only.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_encode_bf16_gear(
    src: *const c_void,
    src_len: usize,
    options: *const mnnkv_gear_options,
    dst: *mut c_void,
    dst_cap: usize,
    dst_len: *mut usize,
) -> mnnkv_status {
    body!(encode(Dtype::Bf16, (src, src_len), options, (dst, dst_cap), dst_len))
}

/// As mnnkv_encode_fp16_gear, for 4-byte words.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_encode_fp32_gear(
    src: *const c_void,
    src_len: usize,
    options: *const mnnkv_gear_options,
    dst: *mut c_void,
    dst_cap: usize,
    dst_len: *mut usize,
) -> mnnkv_status {
    body!(encode(Dtype::F32, (src, src_len), options, (dst, dst_cap), dst_len))
}

/// As mnnkv_encode_fp16_gear, for 1-byte words. V2 and LANES only.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_encode_int8_gear(
    src: *const c_void,
    src_len: usize,
    options: *const mnnkv_gear_options,
    dst: *mut c_void,
    dst_cap: usize,
    dst_len: *mut usize,
) -> mnnkv_status {
    body!(encode(Dtype::Int8, (src, src_len), options, (dst, dst_cap), dst_len))
}

/// Parses a list of V1's predictors, such as "raw,delta_seq,xor_seq", into mnnkv_gear_options::predictors. Blanks and
/// unknown names are ignored; without a known name the result is MNNKV_PREDICT_RAW.
/// list: len bytes without a terminating zero.
/// INVALID_ARGUMENT: if list is not UTF-8
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_predictors_parse(list: *const c_char, len: usize, predictors: *mut u32) -> mnnkv_status {
    body!({
        let list = pointer::input_bytes(list.cast(), len, "list")?;
        let predictors = Out::new(predictors, "predictors")?;
        match std::str::from_utf8(list) {
            Ok(text) => predictors.set(Predictors::parse(text).bits()),
            Err(e) => bail!(InvalidArgument, "list is not UTF-8 from byte {} on", e.valid_up_to()),
        }
        Ok(())
    })
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
