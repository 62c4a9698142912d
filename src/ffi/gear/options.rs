//! Gear: options
//!
//! Lossless compression of the words of a cache, bit for bit, in the formats of docs/format.md. No handle: each thread
//! keeps working memory for its next call, which mnnkv_thread_trim frees.

use crate::dtype::Dtype;
use crate::ffi::pointer::{self, Sized32};
use crate::gear::{Effort, Format, Options, Predictors};
use crate::status::{Result, bail};

/// The format of the reference system, without a checksum. The reference reads F16 and F32.
pub const MNNKV_GEAR_FORMAT_V1: u32 = 1;
/// The same behind a header with a checksum of the words, 26 bytes longer.
pub const MNNKV_GEAR_FORMAT_CHECKED: u32 = 2;
/// Predictors: the bytes as they are, the difference to the byte before, the exclusive or with it.
pub const MNNKV_PREDICT_RAW: u32 = 1;
pub const MNNKV_PREDICT_DELTA_SEQ: u32 = 2;
pub const MNNKV_PREDICT_XOR_SEQ: u32 = 4;

const _: () = assert!(
    MNNKV_PREDICT_RAW == Predictors::RAW
        && MNNKV_PREDICT_DELTA_SEQ == Predictors::DELTA_SEQ
        && MNNKV_PREDICT_XOR_SEQ == Predictors::XOR_SEQ
);

/// How to encode. NULL = all defaults. Decoding needs no options.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_gear_options {
    /// sizeof(mnnkv_gear_options)
    pub struct_size: u32,
    /// MNNKV_GEAR_FORMAT_*; 0 = V1 for F16 and F32, CHECKED for BF16 and INT8.
    pub format: u32,
    /// The predictors to try, MNNKV_PREDICT_* or-ed together; 0 = all.
    pub predictors: u32,
    /// 1 = fastest .. 9 = smallest; 0 = 5. More effort may cost 1% of size where words are mostly noise.
    pub effort: i32,
}

// SAFETY: repr(C), begins with a u32, integers only.
unsafe impl Sized32 for mnnkv_gear_options {
    const MIN: usize = 16;
}

/// Reads the options for words of `dtype`.
///
/// # Safety
/// `options` is as for [`pointer::options`].
pub(super) unsafe fn read_options(options: *const mnnkv_gear_options, dtype: Dtype) -> Result<Options> {
    let default_format = match dtype {
        Dtype::F16 | Dtype::F32 => Format::V1,
        Dtype::Bf16 | Dtype::Int8 => Format::Checked,
    };
    // SAFETY: passed on.
    let Some(given) = (unsafe { pointer::options(options, "options") })? else {
        return Ok(Options::new(default_format));
    };
    let format = match given.format {
        0 => default_format,
        MNNKV_GEAR_FORMAT_V1 => Format::V1,
        MNNKV_GEAR_FORMAT_CHECKED => Format::Checked,
        f => bail!(InvalidArgument, "options->format is {f}; 0 to 2 expected"),
    };
    Ok(Options {
        format,
        predictors: Predictors::from_bits(given.predictors)?,
        effort: Effort::new(given.effort, "options->effort")?,
    })
}
