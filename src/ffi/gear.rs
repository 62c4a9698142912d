//! Exports of the gear room: stateless calls over per-thread working memory.

use super::panic::{guard, guard_or};
use super::pointer::{self, Out, Sized32};
use super::status::mnnkv_status;
use crate::dtype::Dtype;
use crate::gear::{
    self, Decoder, Effort, Encoder, Format, Frequencies, Options, Pairing, Positions, Predictors, Rotation,
};
use crate::status::{Error, Result, bail};
use crate::sys::memory;
use crate::sys::thread_slot::ThreadSlot;
use std::ffi::{c_char, c_void};

/// Format v1 of gear blobs, of the reference system: F16 and F32.
pub const MNNKV_GEAR_FORMAT_V1: u32 = 1;
/// Format v2: all types, knows rows and channels, has checksums. Smaller where channels differ or rows repeat, most
/// from effort 7 on; slower than v1. Libraries before it answer CORRUPT. docs/format.md has both byte for byte.
pub const MNNKV_GEAR_FORMAT_V2: u32 = 2;
/// The bytes as they are.
pub const MNNKV_PREDICT_RAW: u32 = 1;
/// The difference of each byte to the one before it.
pub const MNNKV_PREDICT_DELTA_SEQ: u32 = 2;
/// The exclusive or of each byte with the one before it.
pub const MNNKV_PREDICT_XOR_SEQ: u32 = 4;
/// Rotation turns channels d and d + rope_dims / 2 together, as in Llama (rotate_half).
pub const MNNKV_ROPE_HALF: u32 = 1;
/// Rotation turns channels 2 d and 2 d + 1 together, as in GPT-J.
pub const MNNKV_ROPE_ADJACENT: u32 = 2;

const _: () = assert!(
    MNNKV_PREDICT_RAW == Predictors::RAW
        && MNNKV_PREDICT_DELTA_SEQ == Predictors::DELTA_SEQ
        && MNNKV_PREDICT_XOR_SEQ == Predictors::XOR_SEQ
        && MNNKV_ROPE_HALF == Pairing::Half as u32
        && MNNKV_ROPE_ADJACENT == Pairing::Adjacent as u32
);

/// How to encode. Zero every field, then set struct_size; a NULL pointer means the same as all zeros. Decoding needs
/// none of this. Working memory and time are bounded whatever is asked for.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_gear_options {
    /// sizeof(mnnkv_gear_options)
    pub struct_size: u32,
    /// MNNKV_GEAR_FORMAT_*; 0 = V1 for F16 and F32, V2 for BF16 and INT8, which V1 does not have.
    pub format: u32,
    /// V1: the predictors to try, MNNKV_PREDICT_* or-ed together; 0 = all. V2 has none: must be 0.
    pub predictors: u32,
    /// 1 = fastest .. 9 = smallest, 0 = 5. Up to 6, a look at the words chooses what is tried; at 9 everything is. A
    /// higher one is never larger than a lower one by more than 0.1%. Every decoder reads the blobs of all.
    pub effort: i32,
    /// V2: elements per row (one token of one head). 0 = unknown, or more than src holds: compresses worse. So do fewer
    /// than 64 rows of more than 4,096 bytes: they are taken for unknown. src need not be whole rows, except with a
    /// rotation hint.
    pub head_dim: u32,
    /// Must be 0.
    pub reserved: [u32; 3],
    /// V2, for K: MNNKV_ROPE_* says how the host rotated keys by position, 0 = not known or not rotated; then no field
    /// below is read. Keys are compared as they were before, which pays most in the first layer, where they depend on
    /// the token alone, and takes several times as long where it pays. Bit-exact whatever arithmetic the host used;
    /// F32 keys gain most when rope_inv_freq are the host's own numbers. src must be [head][token][dim] with head_dim
    /// set. V1 has no use for it.
    pub rope_pairing: u32,
    /// Rotated channels, the first of each row: even, at most head_dim; 0 = head_dim.
    pub rope_dims: u32,
    /// Tokens per head, of which the rows in src are a multiple; 0 = all rows are one head. Set it with rope_positions.
    pub rope_tokens: u32,
    /// Position of each head's first token; the others follow. Not read with rope_positions.
    pub rope_first_position: u32,
    /// Pair i of a token at position p was turned by p * rope_theta^(-2 i / rope_dims) radians; 1 to 1e30, 0 = 10000.
    /// Not read with rope_inv_freq.
    pub rope_theta: f32,
    /// Must be 0.
    pub rope_reserved: u32,
    /// The angles per position in radians, rope_dims / 2 numbers of 0 to 1e6, for scaled variants; NULL = from
    /// rope_theta. This array and the next are read during the call only.
    pub rope_inv_freq: *const f32,
    /// The position of each of the rope_tokens tokens; NULL = counting from rope_first_position.
    pub rope_positions: *const u32,
}

// SAFETY: repr(C), begins with a u32, integers, floats and raw pointers only.
unsafe impl Sized32 for mnnkv_gear_options {
    const MIN: usize = 32;
}
const _: () = assert!(std::mem::offset_of!(mnnkv_gear_options, rope_pairing) == 32);

/// Reads what C passed, for words of `dtype`.
///
/// # Safety
/// `options` is as [`pointer::options`] wants it, and arrays that it points to are as long as the header says; they
/// outlive `'a`.
unsafe fn read_options<'a>(options: *const mnnkv_gear_options, dtype: Dtype) -> Result<Options<'a>> {
    let default_format = match dtype {
        Dtype::F16 | Dtype::F32 => Format::V1,
        Dtype::Bf16 | Dtype::Int8 => Format::V2,
    };
    // SAFETY: passed on.
    let Some(given) = (unsafe { pointer::options(options, "options") })? else {
        return Ok(Options::new(default_format));
    };
    let format = match given.format {
        0 => default_format,
        MNNKV_GEAR_FORMAT_V1 if default_format == Format::V2 => {
            bail!(Unsupported, "options->format is 1, which has no {}; 2 (or 0, the default) expected", dtype.name())
        }
        MNNKV_GEAR_FORMAT_V1 => Format::V1,
        MNNKV_GEAR_FORMAT_V2 => Format::V2,
        f => bail!(InvalidArgument, "options->format is {f}; 0 to 2 expected"),
    };
    pointer::reserved(&given.reserved, "options")?;
    Ok(Options {
        format,
        predictors: Predictors::from_bits(given.predictors, format)?,
        effort: Effort::new(given.effort, "options->effort")?,
        head_dim: given.head_dim as usize,
        // SAFETY: passed on.
        rotation: unsafe { rotation(&given) }?,
    })
}

/// # Safety
/// As [`read_options`].
unsafe fn rotation<'a>(given: &mnnkv_gear_options) -> Result<Option<Rotation<'a>>> {
    let pairing = match given.rope_pairing {
        0 => return Ok(None),
        MNNKV_ROPE_HALF => Pairing::Half,
        MNNKV_ROPE_ADJACENT => Pairing::Adjacent,
        p => bail!(InvalidArgument, "options->rope_pairing is {p}; 0 to 2 expected"),
    };
    if given.rope_reserved != 0 {
        bail!(InvalidArgument, "options->rope_reserved is {}; 0 expected", given.rope_reserved);
    }
    let dims = if given.rope_dims == 0 { given.head_dim } else { given.rope_dims } as usize;
    let tokens = given.rope_tokens as usize;
    let frequencies = if given.rope_inv_freq.is_null() {
        Frequencies::Theta(if given.rope_theta == 0.0 { 10_000.0 } else { given.rope_theta })
    } else {
        // SAFETY: the caller says there are rope_dims / 2.
        Frequencies::Given(unsafe { pointer::input(given.rope_inv_freq, dims / 2, "options->rope_inv_freq") }?)
    };
    let positions = if given.rope_positions.is_null() {
        Positions::Counting { first: given.rope_first_position }
    } else if tokens == 0 {
        bail!(InvalidArgument, "options->rope_tokens is 0; the length of rope_positions expected");
    } else {
        // SAFETY: the caller says there are rope_tokens.
        Positions::Given(unsafe { pointer::input(given.rope_positions, tokens, "options->rope_positions") }?)
    };
    Ok(Some(Rotation { pairing, dims, frequencies, tokens, positions }))
}

/// An encoder, and the kind of call whose memory it holds.
#[derive(Default)]
struct Kept {
    kind: Option<(Dtype, Format, bool)>,
    encoder: Encoder,
}

static ENCODER: ThreadSlot<Kept> = ThreadSlot::new(0);
static DECODER: ThreadSlot<Decoder> = ThreadSlot::new(1);

/// Lends the calling thread's `T` to `body`. After a panic the thread starts over with a fresh one.
fn with_local<T: Default + 'static, R>(local: &ThreadSlot<T>, body: impl FnOnce(&mut T) -> Result<R>) -> Result<R> {
    let mut value = match local.take() {
        Some(value) => value,
        None => memory::boxed(T::default())?,
    };
    let result = body(&mut value);
    local.put(value);
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
    dtype: Dtype,
    src: (*const c_void, usize),
    options: *const mnnkv_gear_options,
    dst: (*mut c_void, usize),
    dst_len: *mut usize,
) -> mnnkv_status {
    guard(|| {
        // SAFETY: the caller vouches for its pointers.
        let (src, dst, dst_len) = unsafe { buffers(src, dst, dst_len) }?;
        // SAFETY: as above.
        let options = unsafe { read_options(options, dtype) }?;
        with_local(&ENCODER, |kept| {
            // What another kind of call left would come on top of what this one takes.
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
    })
}

/// # Safety
/// As the exports below.
unsafe fn decode(
    dtype: Dtype,
    src: (*const c_void, usize),
    dst: (*mut c_void, usize),
    dst_len: *mut usize,
) -> mnnkv_status {
    // SAFETY: passed on.
    guard(|| unsafe { decode_within(dtype, None, src, dst, dst_len) })
}

/// # Safety
/// As the exports below.
unsafe fn decode_within(
    dtype: Dtype,
    max_working_bytes: Option<usize>,
    src: (*const c_void, usize),
    dst: (*mut c_void, usize),
    dst_len: *mut usize,
) -> Result<()> {
    // SAFETY: the caller vouches for its pointers.
    let (src, dst, dst_len) = unsafe { buffers(src, dst, dst_len) }?;
    match with_local(&DECODER, |decoder| decoder.decode_within(src, dtype, dst, max_working_bytes)) {
        Ok(len) => {
            dst_len.set(len);
            Ok(())
        }
        Err(error) => report_needed(&dst_len, error),
    }
}

/// BUFFER_TOO_SMALL is the one failure that writes an output: the length that is needed.
fn report_needed(len: &Out<usize>, error: Error) -> Result<()> {
    if let Some(needed) = error.needed() {
        len.set(needed);
    }
    Err(error)
}

/// The capacity that is always enough to encode src_len bytes of dtype (MNNKV_DTYPE_F16, BF16, F32 or INT8) in any
/// format that can hold them: a little over src_len. 0 when none can: length 0, not a whole number of words, or larger
/// than memory. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn mnnkv_gear_bound(src_len: usize, dtype: u32) -> usize {
    guard_or(0, || Ok(gear::bound(src_len, Dtype::from_code(dtype, "dtype")?).unwrap_or(0)))
}

/// Encodes src_len bytes of fp16 words, bit-exactly whatever the bits are.
///
/// src: little-endian words, at least one; [head][token][dim], though other orders only compress worse.
/// dst: dst_cap bytes that do not overlap src; mnnkv_gear_bound is always enough. dst_len: bytes written.
/// INVALID_ARGUMENT: src_len is 0 or no whole number of words (with a rotation hint: of rows), or over V1's limit of
/// 4,261,672,974 words (it counts in 32 bits, overhead included); an option is out of range or does not fit src_len.
/// UNSUPPORTED: format V1 with BF16 or INT8 words.
/// BUFFER_TOO_SMALL: *dst_len is what this input needs; dst is untouched.
/// OUT_OF_MEMORY: dst is untouched.
/// Working memory is at most six times src_len and 2 MiB, whatever the options. The calling thread keeps it for its next
/// call of this kind (mnnkv_thread_trim gives it back), at most as much as its largest call may take, beside what decoding
/// keeps. Any thread.
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
    unsafe { encode(Dtype::F16, (src, src_len), options, (dst, dst_cap), dst_len) }
}

/// Decodes a blob of either format that mnnkv_encode_fp16_gear made (BF16: also V1 blobs of bf16 words that were
/// passed as fp16). The blob may come from anywhere: it is checked throughout.
///
/// dst: dst_cap bytes that do not overlap src. dst_len: bytes written. To ask for the size, pass dst NULL and
/// dst_cap 0: the answer is BUFFER_TOO_SMALL and *dst_len, from headers that agree with each other. It is the blob's
/// claim: bound it before you allocate for a blob from elsewhere.
/// CORRUPT: the blob is malformed. A damaged or cut V2 blob is always refused, by its checksums. V1 has none: with
/// flipped bits it may decode to other words of the right number.
/// INVALID_ARGUMENT: the V2 blob holds words of another type. UNSUPPORTED: a V2 blob of a later version of the library
/// that this one cannot read, or one whose damage looks like that.
/// OUT_OF_MEMORY: the system refused memory. After CORRUPT, UNSUPPORTED or OUT_OF_MEMORY the first decoded-length bytes
/// of dst are undefined; the rest is untouched.
/// Working memory is at most three times src_len and the decoded length together and 256 KiB, whatever the blob: one
/// that takes more is OUT_OF_MEMORY, which no encoder of this library wrote (mnnkv_decode_gear has another limit). The
/// calling thread keeps it for its next call (mnnkv_thread_trim gives it back), beside what encoding keeps. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_decode_fp16_gear(
    src: *const c_void,
    src_len: usize,
    dst: *mut c_void,
    dst_cap: usize,
    dst_len: *mut usize,
) -> mnnkv_status {
    // SAFETY: passed on.
    unsafe { decode(Dtype::F16, (src, src_len), (dst, dst_cap), dst_len) }
}

/// As mnnkv_encode_fp16_gear, for bf16 words. Format V2 only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_encode_bf16_gear(
    src: *const c_void,
    src_len: usize,
    options: *const mnnkv_gear_options,
    dst: *mut c_void,
    dst_cap: usize,
    dst_len: *mut usize,
) -> mnnkv_status {
    // SAFETY: passed on.
    unsafe { encode(Dtype::Bf16, (src, src_len), options, (dst, dst_cap), dst_len) }
}

/// As mnnkv_decode_fp16_gear, for bf16 words.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_decode_bf16_gear(
    src: *const c_void,
    src_len: usize,
    dst: *mut c_void,
    dst_cap: usize,
    dst_len: *mut usize,
) -> mnnkv_status {
    // SAFETY: passed on.
    unsafe { decode(Dtype::Bf16, (src, src_len), (dst, dst_cap), dst_len) }
}

/// As mnnkv_encode_fp16_gear, for 4-byte words. Both formats.
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
    unsafe { encode(Dtype::F32, (src, src_len), options, (dst, dst_cap), dst_len) }
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
    unsafe { decode(Dtype::F32, (src, src_len), (dst, dst_cap), dst_len) }
}

/// As mnnkv_encode_fp16_gear, for one-byte words, such as a quantised cache. Format V2 only; a rotation hint is
/// INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_encode_int8_gear(
    src: *const c_void,
    src_len: usize,
    options: *const mnnkv_gear_options,
    dst: *mut c_void,
    dst_cap: usize,
    dst_len: *mut usize,
) -> mnnkv_status {
    // SAFETY: passed on.
    unsafe { encode(Dtype::Int8, (src, src_len), options, (dst, dst_cap), dst_len) }
}

/// As mnnkv_decode_fp16_gear, for one-byte words, such as a quantised cache.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_decode_int8_gear(
    src: *const c_void,
    src_len: usize,
    dst: *mut c_void,
    dst_cap: usize,
    dst_len: *mut usize,
) -> mnnkv_status {
    // SAFETY: passed on.
    unsafe { decode(Dtype::Int8, (src, src_len), (dst, dst_cap), dst_len) }
}

/// How to decode. Zero every field, then set struct_size; a NULL pointer means the same as all zeros.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_decode_options {
    /// sizeof(mnnkv_decode_options)
    pub struct_size: u32,
    /// Must be 0.
    pub reserved: u32,
    /// The working memory that the call may take, with what the calling thread keeps; more and less than the default
    /// are allowed. 0 = three times src_len and the decoded length together, and 256 KiB.
    pub max_working_bytes: u64,
}

// SAFETY: repr(C), begins with a u32, integers only.
unsafe impl Sized32 for mnnkv_decode_options {
    const MIN: usize = 16;
}

/// As mnnkv_decode_fp16_gear, for words of dtype (MNNKV_DTYPE_F16, BF16, F32 or INT8) and with options, which may be
/// NULL.
///
/// OUT_OF_MEMORY: also when the blob takes more working memory than options->max_working_bytes; mnnkv_last_error has
/// both numbers. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_decode_gear(
    src: *const c_void,
    src_len: usize,
    dtype: u32,
    options: *const mnnkv_decode_options,
    dst: *mut c_void,
    dst_cap: usize,
    dst_len: *mut usize,
) -> mnnkv_status {
    guard(|| {
        let dtype = Dtype::from_code(dtype, "dtype")?;
        let mut max_working_bytes = None;
        // SAFETY: the caller vouches for its pointers.
        if let Some(given) = unsafe { pointer::options(options, "options") }? {
            if given.reserved != 0 {
                bail!(InvalidArgument, "options->reserved is {}; 0 expected", given.reserved);
            }
            if given.max_working_bytes > 0 {
                max_working_bytes = Some(usize::try_from(given.max_working_bytes).unwrap_or(usize::MAX));
            }
        }
        // SAFETY: as above.
        unsafe { decode_within(dtype, max_working_bytes, (src, src_len), (dst, dst_cap), dst_len) }
    })
}

/// Reads a list of V1's predictors as hosts' configs have it, such as "raw,delta_seq,xor_seq", into the bits of
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
        drop(ENCODER.take());
        drop(DECODER.take());
        Ok(())
    });
}
