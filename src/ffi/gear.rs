//! Exports of the gear room: stateless calls over per-thread working memory.

use super::panic::{guard, guard_or};
use super::pointer::{self, Out, Sized32};
use super::status::mnnkv_status;
use crate::dtype::Dtype;
use crate::gear::{self, Decoder, Encoder, Options, Predictors, Width};
use crate::status::{Error, Result, bail};
use std::cell::Cell;
use std::ffi::{c_char, c_void};

/// Format v1 of gear blobs; docs/format.md has it byte for byte.
pub const MNNKV_GEAR_FORMAT_V1: u32 = 1;
/// Try the lane as it is.
pub const MNNKV_PREDICT_RAW: u32 = 1;
/// Try the difference of each byte to the one before it.
pub const MNNKV_PREDICT_DELTA_SEQ: u32 = 2;
/// Try the exclusive or of each byte with the one before it.
pub const MNNKV_PREDICT_XOR_SEQ: u32 = 4;

const _: () = assert!(
    MNNKV_PREDICT_RAW == Predictors::RAW
        && MNNKV_PREDICT_DELTA_SEQ == Predictors::DELTA_SEQ
        && MNNKV_PREDICT_XOR_SEQ == Predictors::XOR_SEQ
);

/// How to encode. Zero every field, then set struct_size; a NULL pointer means the same as all zeros.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct mnnkv_gear_options {
    /// sizeof(mnnkv_gear_options)
    pub struct_size: u32,
    /// Wire format; 0 = MNNKV_GEAR_FORMAT_V1. This version of the library writes no other.
    pub format: u32,
    /// Which predictors to try, MNNKV_PREDICT_* or-ed together; 0 = all of the format. Fewer are faster.
    pub predictors: u32,
    /// 0 = default, 1 = fastest .. 9 = smallest. In this version every effort tries everything and gives the same
    /// bytes.
    pub effort: i32,
    /// Elements per row (one token of one head), 0 = unknown. Format v1 has no use for it.
    pub head_dim: u32,
    /// Must be 0.
    pub reserved: [u32; 3],
}

// SAFETY: repr(C), begins with a u32, integers only.
unsafe impl Sized32 for mnnkv_gear_options {
    const MIN: usize = 32;
}
const _: () = assert!(size_of::<mnnkv_gear_options>() == 32);

impl mnnkv_gear_options {
    fn check(&self) -> Result<Options> {
        match self.format {
            0 | MNNKV_GEAR_FORMAT_V1 => {}
            2 => bail!(Unsupported, "options->format is 2; this version writes format 1"),
            f => bail!(InvalidArgument, "options->format is {f}; 1 (or 0, the default) expected"),
        }
        if !(0..=9).contains(&self.effort) {
            bail!(InvalidArgument, "options->effort is {}; 0 to 9 expected", self.effort);
        }
        pointer::reserved(&self.reserved, "options")?;
        Ok(Options { predictors: Predictors::from_bits(self.predictors)? })
    }
}

thread_local! {
    static ENCODER: Cell<Option<Encoder>> = const { Cell::new(None) };
    static DECODER: Cell<Option<Decoder>> = const { Cell::new(None) };
}

/// Lends the calling thread's `T` to `body`. After a panic the thread starts over with a fresh one.
fn with_local<T: Default, R>(
    local: &'static std::thread::LocalKey<Cell<Option<T>>>,
    body: impl FnOnce(&mut T) -> R,
) -> R {
    let mut value = local.try_with(Cell::take).ok().flatten().unwrap_or_default();
    let result = body(&mut value);
    let _ = local.try_with(|cell| cell.set(Some(value)));
    result
}

/// What encode and decode have in common: bytes to read, bytes to write, and how many were.
///
/// # Safety
/// As the exports below.
unsafe fn buffers<'a>(
    src: (*const c_void, usize),
    dst: (*mut c_void, usize),
    dst_len: *mut usize,
) -> Result<(&'a [u8], &'a mut [u8], Out<usize>)> {
    pointer::disjoint((src.0, src.1, "src"), (dst.0, dst.1, "dst"))?;
    // SAFETY: the caller vouches for its pointers; the two do not overlap.
    unsafe {
        Ok((
            pointer::input_bytes(src.0, src.1, "src")?,
            pointer::output_bytes(dst.0, dst.1, "dst")?,
            Out::new(dst_len, "dst_len")?,
        ))
    }
}

/// # Safety
/// As the exports below.
unsafe fn encode(
    width: Width,
    src: (*const c_void, usize),
    options: *const mnnkv_gear_options,
    dst: (*mut c_void, usize),
    dst_len: *mut usize,
) -> mnnkv_status {
    guard(|| {
        // SAFETY: the caller vouches for its pointers.
        let (src, dst, dst_len) = unsafe { buffers(src, dst, dst_len) }?;
        // SAFETY: as above.
        let options = unsafe { pointer::options(options, "options") }?.unwrap_or_default().check()?;
        with_local(&ENCODER, |encoder| {
            let blob = encoder.encode(src, width, &options)?;
            match dst.get_mut(..blob.len()) {
                Some(target) => target.copy_from_slice(blob),
                None => return report_needed(&dst_len, Error::too_small("dst_cap (bytes)", dst.len(), blob.len())),
            }
            dst_len.set(blob.len());
            Ok(())
        })
    })
}

/// # Safety
/// As the exports below.
unsafe fn decode(
    width: Width,
    src: (*const c_void, usize),
    dst: (*mut c_void, usize),
    dst_len: *mut usize,
) -> mnnkv_status {
    guard(|| {
        // SAFETY: the caller vouches for its pointers.
        let (src, dst, dst_len) = unsafe { buffers(src, dst, dst_len) }?;
        match with_local(&DECODER, |decoder| decoder.decode(src, width, dst)) {
            Ok(len) => {
                dst_len.set(len);
                Ok(())
            }
            Err(error) => report_needed(&dst_len, error),
        }
    })
}

/// BUFFER_TOO_SMALL is the one failure that writes an output: the length that is needed.
fn report_needed(len: &Out<usize>, error: Error) -> Result<()> {
    if let Some(needed) = error.needed() {
        len.set(needed);
    }
    Err(error)
}

/// The capacity that is always enough to encode src_len bytes of dtype (MNNKV_DTYPE_F16 or F32) in any format:
/// a little over src_len. 0 when no such input can be encoded: length 0, not a whole number of words, or more than
/// 4,261,672,974 of them (format v1 counts in 32 bits, overhead included). Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn mnnkv_gear_bound(src_len: usize, dtype: u32) -> usize {
    guard_or(0, || {
        let width = match Dtype::from_code(dtype, "dtype")? {
            Dtype::F16 => Width::Two,
            Dtype::F32 => Width::Four,
            Dtype::Bf16 => bail!(Unsupported, "dtype is BF16; format v1 encodes F16 and F32"),
        };
        Ok(gear::bound(src_len, width).unwrap_or(0))
    })
}

/// Encodes src_len bytes of fp16 words, bit-exactly whatever the bits are (so bf16 words may be passed too).
///
/// src: little-endian words, at least one; any order of elements works, [head][token][dim] compresses best.
/// dst: dst_cap bytes that do not overlap src; mnnkv_gear_bound is always enough. dst_len: bytes written.
/// INVALID_ARGUMENT: src_len is 0, odd or over the format's limit, or an option is out of range.
/// BUFFER_TOO_SMALL: *dst_len is what this input needs; dst is untouched.
/// The calling thread keeps about three times src_len of working memory for its next call (mnnkv_thread_trim gives
/// it back). Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_encode_fp16_gear(
    src: *const c_void,
    src_len: usize,
    options: *const mnnkv_gear_options,
    dst: *mut c_void,
    dst_cap: usize,
    dst_len: *mut usize,
) -> mnnkv_status {
    // SAFETY: passed on.
    unsafe { encode(Width::Two, (src, src_len), options, (dst, dst_cap), dst_len) }
}

/// Decodes a blob that mnnkv_encode_fp16_gear made. The blob may come from anywhere: it is checked throughout.
///
/// dst: dst_cap bytes that do not overlap src. dst_len: bytes written. To ask for the size, pass dst NULL and
/// dst_cap 0: the answer is BUFFER_TOO_SMALL and *dst_len, from headers that agree with each other.
/// CORRUPT: the blob is malformed; dst is untouched. Format v1 has no checksum: a blob with flipped bits may decode
/// to other words of the right number.
/// The calling thread keeps as much working memory as the output for its next call. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_decode_fp16_gear(
    src: *const c_void,
    src_len: usize,
    dst: *mut c_void,
    dst_cap: usize,
    dst_len: *mut usize,
) -> mnnkv_status {
    // SAFETY: passed on.
    unsafe { decode(Width::Two, (src, src_len), (dst, dst_cap), dst_len) }
}

/// As mnnkv_encode_fp16_gear, for 4-byte words.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_encode_fp32_gear(
    src: *const c_void,
    src_len: usize,
    options: *const mnnkv_gear_options,
    dst: *mut c_void,
    dst_cap: usize,
    dst_len: *mut usize,
) -> mnnkv_status {
    // SAFETY: passed on.
    unsafe { encode(Width::Four, (src, src_len), options, (dst, dst_cap), dst_len) }
}

/// As mnnkv_decode_fp16_gear, for 4-byte words.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_decode_fp32_gear(
    src: *const c_void,
    src_len: usize,
    dst: *mut c_void,
    dst_cap: usize,
    dst_len: *mut usize,
) -> mnnkv_status {
    // SAFETY: passed on.
    unsafe { decode(Width::Four, (src, src_len), (dst, dst_cap), dst_len) }
}

/// Reads a predictor list as hosts' configs have it, such as "raw,delta_seq,xor_seq", into the bits of
/// mnnkv_gear_options::predictors.
///
/// list: len bytes of text without a terminator; NULL with len 0 is the empty list. Blanks around names and unknown
/// names are ignored; a list with no known name means raw. INVALID_ARGUMENT: the text is not UTF-8. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_predictors_parse(list: *const c_char, len: usize, predictors: *mut u32) -> mnnkv_status {
    guard(|| {
        // SAFETY: the caller vouches for its pointers.
        let list = unsafe { pointer::input_bytes(list.cast(), len, "list") }?;
        // SAFETY: as above.
        let predictors = unsafe { Out::new(predictors, "predictors") }?;
        match std::str::from_utf8(list) {
            Ok(text) => predictors.set(Predictors::parse(text).bits()),
            Err(e) => bail!(InvalidArgument, "list is not UTF-8 from byte {} on", e.valid_up_to()),
        }
        Ok(())
    })
}

/// Frees the working memory that encode and decode calls left with the calling thread. Never needed for
/// correctness; useful after a rare large call. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn mnnkv_thread_trim() {
    guard_or((), || {
        let _ = ENCODER.try_with(Cell::take);
        let _ = DECODER.try_with(Cell::take);
        Ok(())
    });
}
