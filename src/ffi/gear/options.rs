//! Gear: options
//!
//! Lossless compression of the words of a cache, bit for bit, in the formats of docs/format.md. No handle: each thread
//! keeps working memory for its next call, which mnnkv_thread_trim frees.

use crate::dtype::Dtype;
use crate::ffi::given::{self, frequencies};
use crate::ffi::pointer::{self, Sized32};
use crate::gear::{Effort, Format, Options, Positions, Predictors, Rotation};
use crate::status::{Result, bail};

/// Format v1, that of the reference system: F16 and F32, without checksums.
pub const MNNKV_GEAR_FORMAT_V1: u32 = 1;
/// Format v2: all types, with checksums. Uses rows and channels; smaller, most from effort 7 on, and slower.
pub const MNNKV_GEAR_FORMAT_V2: u32 = 2;
/// Format lanes: all types, with a checksum. As large as V1 at effort 1, and about three times as fast to decode with
/// AVX-512. effort and the fields of V2 are not used, but must be in their ranges.
pub const MNNKV_GEAR_FORMAT_LANES: u32 = 3;
/// Predictors of V1: the bytes as they are, the difference to the byte before, the exclusive or with it.
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
    pub struct_size: u32,
    /// MNNKV_GEAR_FORMAT_*; 0 = V1 for F16 and F32, V2 for BF16 and INT8.
    pub format: u32,
    /// V1: the predictors to try, MNNKV_PREDICT_* or-ed together; 0 = all. V2 and LANES: must be 0.
    pub predictors: u32,
    /// 1 = fastest .. 9 = smallest; 0 = 5. More effort may cost 1% of size where words are mostly noise.
    pub effort: i32,
    /// V2: elements per row (one token of one head). 0 = unknown, as is a value larger than src, and rows of more
    /// than 4,096 bytes where there are fewer than 64. Without a rotation hint src may end within a row.
    pub head_dim: u32,
    pub reserved: [u32; 3],
    /// V2, for K: the rotation hint, MNNKV_ROPE_*; 0 = none, fields below are not read. V1 and LANES do not use it: they refuse a
    /// pairing that is unknown, rope_reserved that is not 0 and rope_positions without rope_tokens, and check no other range.
    /// Equal tokens at different positions then compress as equal, most in the first layer, and encoding takes about three
    /// times as long. Lossless for any arithmetic of the host. src must be [head][token][dim], with head_dim set.
    pub rope_pairing: u32,
    /// Rotated channels, the first of each row: even, at most head_dim; 0 = head_dim.
    pub rope_dims: u32,
    /// Tokens per head; divides the rows of src. 0 = all rows are one head. Required with rope_positions.
    pub rope_tokens: u32,
    /// Position of the first token of each head; others count on. Not read with rope_positions.
    pub rope_first_position: u32,
    /// Pair i at position p is rotated by p * rope_theta^(-2 i / rope_dims) radians: 1 to 1e30, 0 = 10000. Not read
    /// with rope_inv_freq.
    pub rope_theta: f32,
    pub rope_reserved: u32,
    /// [rope_dims / 2] radians per position, 0 to 1e6, for scaled variants; NULL = from rope_theta. F32 keys gain most
    /// from the numbers that the host itself uses.
    pub rope_inv_freq: *const f32,
    /// [rope_tokens] positions; NULL = counting from rope_first_position.
    pub rope_positions: *const u32,
}

// SAFETY: repr(C), begins with a u32, integers, floats and raw pointers only.
unsafe impl Sized32 for mnnkv_gear_options {
    const MIN: usize = 32;
}
const _: () = assert!(std::mem::offset_of!(mnnkv_gear_options, rope_pairing) == 32);

/// Reads the options for words of `dtype`.
///
/// # Safety
/// `options` is as for [`pointer::options`]. Its arrays are as long as the header says, and outlive `'a`.
pub(super) unsafe fn read_options<'a>(options: *const mnnkv_gear_options, dtype: Dtype) -> Result<Options<'a>> {
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
        MNNKV_GEAR_FORMAT_LANES => Format::Lanes,
        f => bail!(InvalidArgument, "options->format is {f}; 0 to 3 expected"),
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
    let Some(pairing) = given::pairing(given.rope_pairing)? else { return Ok(None) };
    if given.rope_reserved != 0 {
        bail!(InvalidArgument, "options->rope_reserved is {}; 0 expected", given.rope_reserved);
    }
    let dims = if given.rope_dims == 0 { given.head_dim } else { given.rope_dims } as usize;
    let tokens = given.rope_tokens as usize;
    // SAFETY: rope_dims / 2 numbers, by the header.
    let frequencies = unsafe { frequencies(given.rope_theta, given.rope_inv_freq, dims, "options->rope_inv_freq") }?;
    let positions = if given.rope_positions.is_null() {
        Positions::Counting { first: given.rope_first_position }
    } else if tokens == 0 {
        bail!(InvalidArgument, "options->rope_tokens is 0; the length of rope_positions expected");
    } else {
        // SAFETY: rope_tokens numbers, by the header.
        Positions::Given(unsafe { pointer::input(given.rope_positions, tokens, "options->rope_positions") }?)
    };
    Ok(Some(Rotation { pairing, dims, frequencies, tokens, positions }))
}
