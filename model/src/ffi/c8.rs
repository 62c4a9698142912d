//! C8: K and V as int8 codes with a scale per channel, as msmodelslim has them

use crate::c8::{self, CacheShape, Order};
use mnnkv::dtype::Dtype;
use mnnkv::ffi::panic::guard;
use mnnkv::ffi::pointer::{self, Sized32};
use mnnkv::ffi::status::mnnkv_status;
use mnnkv::status::{Error, Result};
use std::ffi::c_void;

/// mnnkv_c8_shape::order: [token][head][dim], the order of a projection.
pub const MNNKV_ORDER_TOKEN_HEAD_DIM: u32 = 1;
/// mnnkv_c8_shape::order: [head][token][dim], the order of mnnkv_kv_gather and mnnkv_kv_scatter.
pub const MNNKV_ORDER_HEAD_TOKEN_DIM: u32 = 2;

const _: () = assert!(
    MNNKV_ORDER_TOKEN_HEAD_DIM == Order::TokenHeadDim as u32
        && MNNKV_ORDER_HEAD_TOKEN_DIM == Order::HeadTokenDim as u32
);

/// The shape of the values of K or of V: kv_heads * head_dim * tokens dense elements in native byte order, of any
/// alignment. Their codes are int8, one each, in the same order.
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

/// Converts codes to values.
///
///   value = (code - offset) * scale
///
/// in f32, rounded to the dtype of the shape, to nearest with ties to even. codes: kv_heads * head_dim * tokens. scale,
/// offset: one for each channel; mnnkv_msmodelslim_kv_scales reads them, and a scale that a file has once for all
/// channels is to be repeated. values: room for values_cap bytes; those of the shape are written. Products above the
/// range of dtype become infinite: |code - offset| is at most 255, so this needs a scale above 256 in F16, and above
/// 1.3e36 in BF16 and F32. Values do not depend on the CPU. Any thread.
/// INVALID_ARGUMENT: if a scale is not finite or below 2^-100, or an offset is no integer from -128 to 127; the message
///   names the channel.
/// BUFFER_TOO_SMALL: if values_cap is too small; mnnkv_model_last_error has the required bytes.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_c8_dequantize(
    shape: *const mnnkv_c8_shape,
    codes: *const i8,
    scale: *const f32,
    offset: *const f32,
    values: *mut c_void,
    values_cap: usize,
) -> mnnkv_status {
    guard(|| {
        // SAFETY: the caller guarantees its pointers.
        let shape = unsafe { pointer::required(shape, "shape") }?.check()?;
        if values_cap < shape.bytes() {
            return Err(Error::too_small("values_cap (bytes)", values_cap, shape.bytes()));
        }
        let floats = shape.channels().saturating_mul(size_of::<f32>());
        for input in [
            (codes.cast(), shape.elements(), "codes"),
            (scale.cast(), floats, "scale"),
            (offset.cast(), floats, "offset"),
        ] {
            pointer::disjoint((values.cast_const(), shape.bytes(), "values"), input)?;
        }
        // SAFETY: as above; values overlap nothing.
        let (codes, scale, offset, values) = unsafe {
            (
                pointer::input(codes, shape.elements(), "codes")?,
                pointer::input(scale, shape.channels(), "scale")?,
                pointer::input(offset, shape.channels(), "offset")?,
                pointer::output_bytes(values, shape.bytes(), "values")?,
            )
        };
        c8::dequantize(&shape, codes, scale, offset, values)
    })
}
