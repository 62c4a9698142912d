//! C8: K and V as int8 codes with a scale per channel. Calibrate, quantise, restore, measure

use crate::c8::{self, CacheShape, Order, Scales, Symmetry, ranges};
use mnnkv::dtype::Dtype;
use mnnkv::ffi::cache::mnnkv_layout;
use mnnkv::ffi::given::checked_float;
use mnnkv::ffi::panic::guard;
use mnnkv::ffi::pointer::{self, Sized32, SizedOut};
use mnnkv::ffi::status::mnnkv_status;
use mnnkv::layout::{self, Kind, Layout, TokenRange};
use mnnkv::status::{Error, Result, bail};
use mnnkv::sys::memory;
use std::ffi::c_void;

/// mnnkv_c8_shape::order: [token][head][dim], the order of a projection.
pub const MNNKV_ORDER_TOKEN_HEAD_DIM: u32 = 1;
/// mnnkv_c8_shape::order: [head][token][dim], the order of mnnkv_kv_gather.
pub const MNNKV_ORDER_HEAD_TOKEN_DIM: u32 = 2;

/// mnnkv_c8_parameters: equal steps below and above 0, and every offset 0. The default of exporters, and the only form
/// that all runtimes read correctly.
pub const MNNKV_C8_SYMMETRIC: u32 = 1;
/// mnnkv_c8_parameters: 255 steps from the least to the greatest number (or 0).
pub const MNNKV_C8_ASYMMETRIC: u32 = 2;

const _: () = assert!(
    MNNKV_ORDER_TOKEN_HEAD_DIM == Order::TokenHeadDim as u32
        && MNNKV_ORDER_HEAD_TOKEN_DIM == Order::HeadTokenDim as u32
        && MNNKV_C8_SYMMETRIC == Symmetry::Symmetric as u32
        && MNNKV_C8_ASYMMETRIC == Symmetry::Asymmetric as u32
);

/// The shape of the values of K or of V: kv_heads * head_dim * tokens dense elements in native byte order, of any
/// alignment. Their codes are int8, one each, in the same order. Lengths beside a shape must equal those of the shape:
/// values in bytes, codes in codes.
///
/// A channel is a dimension of a KV head, number kv_head * head_dim + dim; there are kv_heads * head_dim of them.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_c8_shape {
    /// sizeof(mnnkv_c8_shape)
    pub struct_size: u32,
    /// MNNKV_DTYPE_F16, _BF16 or _F32.
    pub dtype: u32,
    /// MNNKV_ORDER_*.
    pub order: u32,
    /// KV heads (not query heads), at least 1.
    pub kv_heads: u32,
    /// Elements per head and token, at least 1.
    pub head_dim: u32,
    /// Tokens; 0 is legal.
    pub tokens: u32,
    /// Must be 0.
    pub reserved: [u32; 2],
}

// SAFETY: repr(C), begins with a u32, integers only.
unsafe impl Sized32 for mnnkv_c8_shape {
    const MIN: usize = 32;
}
const _: () = assert!(size_of::<mnnkv_c8_shape>() == 32);

/// A scale and an offset for each channel of K or of V.
///
///   code  = clamp(rint(value / scale + offset), -128, 127)
///   value = (code - offset) * scale
///
/// in f32, rounded to nearest with ties to even. Scales are finite and at least 2^-100. Offsets are integers from -128
/// to 127, and 0 in symmetric files. Other values are INVALID_ARGUMENT, and the message names the channel. Repeat a
/// scale that a file has once for all channels.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_c8_scales {
    /// sizeof(mnnkv_c8_scales)
    pub struct_size: u32,
    /// Length of both arrays: kv_heads * head_dim.
    pub channels: u32,
    /// A scale for each channel.
    pub scale: *const f32,
    /// An offset for each channel.
    pub offset: *const f32,
    /// Must be 0.
    pub reserved: [u32; 2],
}

// SAFETY: repr(C), begins with a u32, integers and raw pointers only.
unsafe impl Sized32 for mnnkv_c8_scales {
    const MIN: usize = size_of::<mnnkv_c8_scales>();
}

/// Errors of values that became codes and values again. Set struct_size before the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_c8_figures {
    /// sizeof(mnnkv_c8_figures)
    pub struct_size: u32,
    /// The channel with the largest root mean square error; the first of equals.
    pub worst_channel: u32,
    /// Values compared.
    pub elements: u64,
    /// Values outside the range of codes; their error is unbounded. The error of all others is at most half a scale and
    /// the rounding to the element type.
    pub saturated: u64,
    /// The largest absolute difference.
    pub max_abs_error: f64,
    /// The root mean square difference.
    pub rms_error: f64,
    /// rms_error over the root mean square value; 0 if nothing differs, infinite if all values are 0 and a restored one
    /// is not.
    pub relative_rms_error: f64,
    /// The cosine between values and restored values; 1 if nothing differs, 0 if one side is all zeros or infinite.
    pub cosine_similarity: f64,
    /// Written as 0.
    pub reserved: [u32; 2],
}

// SAFETY: repr(C), begins with a u32, integers and floats only.
unsafe impl Sized32 for mnnkv_c8_figures {
    const MIN: usize = 64;
}
const _: () = assert!(size_of::<mnnkv_c8_figures>() == 64);

impl mnnkv_c8_shape {
    fn check(&self) -> Result<CacheShape> {
        pointer::reserved(&self.reserved, "shape")?;
        CacheShape::new(
            Dtype::from_code(self.dtype, "shape->dtype")?,
            Order::from_code(self.order, "shape->order")?,
            self.kv_heads as usize,
            self.head_dim as usize,
            self.tokens as usize,
        )
    }
}

/// # Safety
/// As [`pointer::required`].
unsafe fn shape(ptr: *const mnnkv_c8_shape) -> Result<CacheShape> {
    // SAFETY: passed on.
    unsafe { pointer::required(ptr, "shape") }?.check()
}

/// The names of a struct of scales and its two arrays in errors.
type Names = [&'static str; 3];
const SCALES: Names = ["scales", "scales->scale", "scales->offset"];
const KEY_SCALES: Names = ["key_scales", "key_scales->scale", "key_scales->offset"];
const VALUE_SCALES: Names = ["value_scales", "value_scales->scale", "value_scales->offset"];

/// Scales from C, and their addresses.
struct Given<'a> {
    scales: Scales<'a>,
    places: [(*const c_void, usize, &'static str); 2],
}

impl Given<'_> {
    /// Fails when an output overlaps the scales.
    fn apart_from(&self, output: (*const c_void, usize, &str)) -> Result<()> {
        self.places.iter().try_for_each(|place| pointer::disjoint(output, *place))
    }
}

/// # Safety
/// As [`pointer::required`], and both arrays are of the stated length.
unsafe fn scales<'a>(
    ptr: *const mnnkv_c8_scales,
    [name, scale_name, offset_name]: Names,
    channels: usize,
) -> Result<Given<'a>> {
    // SAFETY: passed on.
    let given = unsafe { pointer::required(ptr, name) }?;
    pointer::reserved(&given.reserved, name)?;
    if given.channels as usize != channels {
        bail!(InvalidArgument, "{name}->channels is {}; kv_heads * head_dim is {channels}", given.channels);
    }
    // SAFETY: passed on.
    let (scale, offset) = unsafe {
        (pointer::input(given.scale, channels, scale_name)?, pointer::input(given.offset, channels, offset_name)?)
    };
    let scales = Scales::new(scale, offset).map_err(|e| e.within(name))?;
    let bytes = size_of_val(scale);
    Ok(Given { scales, places: [(given.scale.cast(), bytes, "scale"), (given.offset.cast(), bytes, "offset")] })
}

/// Writes empty ranges, +inf and -inf, to begin a calibration. min, max: one number per channel. Any thread.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_c8_ranges_clear(channels: usize, min: *mut f32, max: *mut f32) -> mnnkv_status {
    guard(|| {
        // SAFETY: the caller guarantees its pointers.
        let (min, max) = unsafe { ranges_mut(channels, min, max) }?;
        ranges::clear(min, max);
        Ok(())
    })
}

/// # Safety
/// Both arrays are writable for `channels` numbers.
unsafe fn ranges_mut<'a>(channels: usize, min: *mut f32, max: *mut f32) -> Result<(&'a mut [f32], &'a mut [f32])> {
    let bytes = channels.saturating_mul(size_of::<f32>());
    pointer::disjoint((min.cast(), bytes, "min"), (max.cast(), bytes, "max"))?;
    // SAFETY: passed on; they do not overlap.
    unsafe { Ok((pointer::output(min, channels, "min")?, pointer::output(max, channels, "max")?)) }
}

/// Widens the ranges of all channels by a batch of K or of V as it enters the cache (K after RoPE).
///
/// values: values_len bytes. min, max: kv_heads * head_dim numbers each, changed in place. The result does not depend
/// on the order or the size of batches. Ranges of several threads merge by the lesser min and the greater max of each
/// channel. Nothing has changed on failure. Any thread.
/// INVALID_ARGUMENT: if a value is NaN or infinite (the message names token and channel), values_len is not that of the
///   shape, or a range is neither empty nor finite.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_c8_ranges_update(
    shape: *const mnnkv_c8_shape,
    values: *const c_void,
    values_len: usize,
    min: *mut f32,
    max: *mut f32,
) -> mnnkv_status {
    guard(|| {
        // SAFETY: the caller guarantees its pointers.
        let shape = unsafe { self::shape(shape) }?;
        let bytes = shape.channels().saturating_mul(size_of::<f32>());
        for (array, name) in [(min, "min"), (max, "max")] {
            pointer::disjoint((array.cast(), bytes, name), (values, values_len, "values"))?;
        }
        let (values, (min, max)) =
            // SAFETY: as above; ranges overlap nothing.
            unsafe { (pointer::input_bytes(values, values_len, "values")?, ranges_mut(shape.channels(), min, max)?) };
        ranges::update(&shape, values, min, max)
    })
}

/// Computes scales and offsets from ranges.
///
///   lo = min(min, 0), hi = max(max, 0), in f32
///   MNNKV_C8_SYMMETRIC    scale = max(-lo, hi) / 127      offset = 0
///   MNNKV_C8_ASYMMETRIC   scale = (hi - lo) / 255         offset = rint(-lo / scale) - 128
///
/// The least scale is 2^-23. dtype: element type of the statistics, MNNKV_DTYPE_F16, _BF16 or _F32. Scales are rounded
/// to it, as files of that type hold them, and written as f32. The offset is computed from the scale before that rounding.
/// min, max, scale, offset: channels numbers each. Nothing is written on failure. Any thread.
/// INVALID_ARGUMENT: if symmetry or dtype is not supported, a range is empty, or a scale overflows dtype; the message
///   names the channel.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_c8_parameters(
    min: *const f32,
    max: *const f32,
    channels: usize,
    symmetry: u32,
    dtype: u32,
    scale: *mut f32,
    offset: *mut f32,
) -> mnnkv_status {
    guard(|| {
        let bytes = channels.saturating_mul(size_of::<f32>());
        let outputs = [(scale.cast_const().cast(), bytes, "scale"), (offset.cast_const().cast(), bytes, "offset")];
        for output in outputs {
            pointer::disjoint(output, (min.cast(), bytes, "min"))?;
            pointer::disjoint(output, (max.cast(), bytes, "max"))?;
        }
        pointer::disjoint(outputs[0], outputs[1])?;
        let (symmetry, dtype) = (Symmetry::from_code(symmetry, "symmetry")?, Dtype::from_code(dtype, "dtype")?);
        // SAFETY: the caller guarantees its pointers; outputs overlap nothing.
        let (min, max, scale, offset) = unsafe {
            (
                pointer::input(min, channels, "min")?,
                pointer::input(max, channels, "max")?,
                pointer::output(scale, channels, "scale")?,
                pointer::output(offset, channels, "offset")?,
            )
        };
        c8::parameters(min, max, symmetry, dtype, scale, offset)
    })
}

/// Converts values to codes.
///
/// values: values_len bytes. codes: room for codes_cap codes; kv_heads * head_dim * tokens are written. Values outside
/// the range of codes saturate, infinities included; NaN becomes the code of 0. Codes do not depend on the CPU. Any
/// thread.
/// INVALID_ARGUMENT: if values_len is not that of the shape, or a scale is invalid.
/// BUFFER_TOO_SMALL: if codes_cap is too small; mnnkv_model_last_error has the required codes.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_c8_quantize(
    shape: *const mnnkv_c8_shape,
    values: *const c_void,
    values_len: usize,
    scales: *const mnnkv_c8_scales,
    codes: *mut i8,
    codes_cap: usize,
) -> mnnkv_status {
    guard(|| {
        // SAFETY: the caller guarantees its pointers.
        let shape = unsafe { self::shape(shape) }?;
        // SAFETY: as above.
        let given = unsafe { self::scales(scales, SCALES, shape.channels()) }?;
        if codes_cap < shape.elements() {
            return Err(Error::too_small("codes_cap (codes)", codes_cap, shape.elements()));
        }
        let output = (codes.cast_const().cast(), shape.elements(), "codes");
        pointer::disjoint(output, (values, values_len, "values"))?;
        given.apart_from(output)?;
        // SAFETY: as above; codes overlap nothing.
        let (values, codes) = unsafe {
            (pointer::input_bytes(values, values_len, "values")?, pointer::output(codes, shape.elements(), "codes")?)
        };
        c8::quantize(&shape, values, &given.scales, codes)
    })
}

/// Converts codes to values.
///
/// codes: codes_len codes. values: room for values_cap bytes; those of the shape are written, rounded to its dtype.
/// Products above the range of dtype become infinite: |code - offset| is at most 255, so this needs a scale above 256 in F16,
/// and above 1.3e36 in BF16 and F32. Values do not depend on the CPU. Any thread.
/// INVALID_ARGUMENT: if codes_len is not that of the shape, or a scale is invalid.
/// BUFFER_TOO_SMALL: if values_cap is too small; mnnkv_model_last_error has the required bytes.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_c8_dequantize(
    shape: *const mnnkv_c8_shape,
    codes: *const i8,
    codes_len: usize,
    scales: *const mnnkv_c8_scales,
    values: *mut c_void,
    values_cap: usize,
) -> mnnkv_status {
    guard(|| {
        // SAFETY: the caller guarantees its pointers.
        let shape = unsafe { self::shape(shape) }?;
        // SAFETY: as above.
        let given = unsafe { self::scales(scales, SCALES, shape.channels()) }?;
        if values_cap < shape.bytes() {
            return Err(Error::too_small("values_cap (bytes)", values_cap, shape.bytes()));
        }
        let output = (values.cast_const(), shape.bytes(), "values");
        pointer::disjoint(output, (codes.cast(), codes_len, "codes"))?;
        given.apart_from(output)?;
        // SAFETY: as above; values overlap nothing.
        let (codes, values) = unsafe {
            (pointer::input(codes, codes_len, "codes")?, pointer::output_bytes(values, shape.bytes(), "values")?)
        };
        c8::dequantize(&shape, codes, &given.scales, values)
    })
}

/// Converts values to codes and back and measures the error. values: values_len bytes. Set figures->struct_size first.
/// Any thread.
/// INVALID_ARGUMENT: if a value is NaN or infinite (the message names token and channel), values_len is not that of the
///   shape, or a scale is invalid.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_c8_measure(
    shape: *const mnnkv_c8_shape,
    values: *const c_void,
    values_len: usize,
    scales: *const mnnkv_c8_scales,
    figures: *mut mnnkv_c8_figures,
) -> mnnkv_status {
    guard(|| {
        // SAFETY: the caller guarantees its pointers.
        let shape = unsafe { self::shape(shape) }?;
        // SAFETY: as above.
        let given = unsafe { self::scales(scales, SCALES, shape.channels()) }?;
        let (values, figures) =
            // SAFETY: as above.
            unsafe { (pointer::input_bytes(values, values_len, "values")?, SizedOut::new(figures, "figures")?) };
        let errors = c8::errors(&shape, values, &given.scales)?;
        let total = errors.total;
        figures.set(&mnnkv_c8_figures {
            struct_size: size_of::<mnnkv_c8_figures>() as u32,
            worst_channel: errors.worst_channel() as u32,
            elements: total.elements,
            saturated: total.saturated,
            max_abs_error: total.max_abs_error,
            rms_error: total.rms_error,
            relative_rms_error: total.relative_rms_error,
            cosine_similarity: total.cosine_similarity,
            reserved: [0; 2],
        });
        Ok(())
    })
}

/// Dense rows of a cache between layout and codes.
struct DenseRows {
    key_shape: CacheShape,
    value_shape: CacheShape,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl DenseRows {
    fn new(layout: &Layout, range: TokenRange) -> Result<Self> {
        let layout::Rows { key, value, heads, dims } = layout.rows();
        let shape = |kind: Kind| CacheShape::new(kind.words(), Order::HeadTokenDim, heads, dims, range.count());
        let (key_shape, value_shape) = (shape(key)?, shape(value)?);
        let (mut key, mut value) = (Vec::new(), Vec::new());
        memory::resize(&mut key, key_shape.bytes())?;
        memory::resize(&mut value, value_shape.bytes())?;
        Ok(DenseRows { key_shape, value_shape, key, value })
    }
}

/// Copies tokens begin .. begin + count of a packed cache as codes: mnnkv_kv_gather, then mnnkv_c8_quantize.
///
/// key, value: the buffers of the layout. key_scales, value_scales: of kv_heads * head_dim channels each. key_codes,
/// value_codes: [head][token][dim], kv_heads * count * head_dim codes each; cap_each is the capacity of each. The call
/// allocates the values of the range. Any thread, also several on one cache without a writer.
/// INVALID_ARGUMENT: if the range exceeds max_tokens, or a scale is invalid.
/// UNSUPPORTED: if K or V of the layout is quantised.
/// BUFFER_TOO_SMALL: if cap_each is too small; mnnkv_model_last_error has the required codes.
/// OUT_OF_MEMORY: if the values of the range cannot be allocated.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_c8_gather(
    layout: *const mnnkv_layout,
    key: *const c_void,
    value: *const c_void,
    begin: u32,
    count: u32,
    key_scales: *const mnnkv_c8_scales,
    value_scales: *const mnnkv_c8_scales,
    key_codes: *mut i8,
    value_codes: *mut i8,
    cap_each: usize,
) -> mnnkv_status {
    guard(|| {
        // SAFETY: the caller guarantees its pointers.
        let given = unsafe { checked_float(layout) }?;
        let layout = &given.layout;
        let range = layout.range(begin, count)?;
        let channels = layout.rows().heads * layout.rows().dims;
        let (of_key, of_value) =
            // SAFETY: as above.
            unsafe { (scales(key_scales, KEY_SCALES, channels)?, scales(value_scales, VALUE_SCALES, channels)?) };
        let len = channels * range.count();
        if cap_each < len {
            return Err(Error::too_small("cap_each (codes)", cap_each, len));
        }
        let outputs =
            [(key_codes.cast_const().cast(), len, "key_codes"), (value_codes.cast_const().cast(), len, "value_codes")];
        pointer::disjoint(outputs[0], outputs[1])?;
        for output in outputs {
            given.apart(key, value, output)?;
            of_key.apart_from(output)?;
            of_value.apart_from(output)?;
        }
        // SAFETY: as above; codes overlap nothing.
        let (cache, key_codes, value_codes) = unsafe {
            (
                given.cache_ref(key, value)?,
                pointer::output(key_codes, len, "key_codes")?,
                pointer::output(value_codes, len, "value_codes")?,
            )
        };
        let mut rows = DenseRows::new(layout, range)?;
        layout::gather(&cache, range, &mut rows.key, &mut rows.value)?;
        c8::quantize(&rows.key_shape, &rows.key, &of_key.scales, key_codes)?;
        c8::quantize(&rows.value_shape, &rows.value, &of_value.scales, value_codes)
    })
}

/// Writes codes as values into tokens begin .. begin + count of a packed cache: mnnkv_c8_dequantize, then
/// mnnkv_kv_scatter.
///
/// key_codes, value_codes: [head][token][dim], len_each codes each, exactly those of the range. key_scales,
/// value_scales: of kv_heads * head_dim channels each. Padding and other tokens stay unchanged. The call allocates the
/// values of the range. The cache is unchanged on failure. One thread per cache.
/// INVALID_ARGUMENT: if the range exceeds max_tokens, len_each is not that of the range, or a scale is invalid.
/// UNSUPPORTED: if K or V of the layout is quantised.
/// OUT_OF_MEMORY: if the values of the range cannot be allocated.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_c8_scatter(
    layout: *const mnnkv_layout,
    key_codes: *const i8,
    value_codes: *const i8,
    len_each: usize,
    key_scales: *const mnnkv_c8_scales,
    value_scales: *const mnnkv_c8_scales,
    begin: u32,
    count: u32,
    key: *mut c_void,
    value: *mut c_void,
) -> mnnkv_status {
    guard(|| {
        // SAFETY: the caller guarantees its pointers.
        let given = unsafe { checked_float(layout) }?;
        let layout = &given.layout;
        let range = layout.range(begin, count)?;
        let channels = layout.rows().heads * layout.rows().dims;
        let (of_key, of_value) =
            // SAFETY: as above.
            unsafe { (scales(key_scales, KEY_SCALES, channels)?, scales(value_scales, VALUE_SCALES, channels)?) };
        let len = channels * range.count();
        if len_each != len {
            bail!(InvalidArgument, "len_each is {len_each}; {len} expected for {count} tokens");
        }
        let caches =
            [(key.cast_const(), layout.key_bytes(), "key"), (value.cast_const(), layout.value_bytes(), "value")];
        for cache in caches {
            pointer::disjoint(cache, (key_codes.cast(), len, "key_codes"))?;
            pointer::disjoint(cache, (value_codes.cast(), len, "value_codes"))?;
            of_key.apart_from(cache)?;
            of_value.apart_from(cache)?;
        }
        // SAFETY: as above; the cache overlaps no input.
        let (key_codes, value_codes, mut cache) = unsafe {
            (
                pointer::input(key_codes, len, "key_codes")?,
                pointer::input(value_codes, len, "value_codes")?,
                given.cache(key, value)?,
            )
        };
        let mut rows = DenseRows::new(layout, range)?;
        c8::dequantize(&rows.key_shape, key_codes, &of_key.scales, &mut rows.key)?;
        c8::dequantize(&rows.value_shape, value_codes, &of_value.scales, &mut rows.value)?;
        layout::scatter(&mut cache, range, &rows.key, &rows.value)
    })
}
