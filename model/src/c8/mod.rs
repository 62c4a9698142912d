//! A KV cache as int8 codes, with a scale and an offset for each channel, as msmodelslim's "C8" has it.
//!
//! A channel is a dim of a KV head, `kv_head * head_dim + dim`; K and V have parameters of their own. Host or tool
//! watch calibration data go by ([`ranges`]), make scales of what they saw ([`parameters`]), and turn caches into codes
//! and back ([`quantize`], [`dequantize`]); [`errors`] says what that costs.
//!
//! ```text
//! code  = clamp(rint(value / scale + offset), -128, 127)      in f32: divided, added, rounded half to even
//! value = (code - offset) * scale                             in f32, then rounded to the element type
//! ```
//! All of it is pure functions over slices, which any thread may call. Values are bytes in the byte order of the
//! machine and need no alignment.

mod codes;
mod errors;
mod parameters;
pub mod ranges;
mod shape;

pub use codes::{dequantize, quantize};
pub use errors::{Errors, Figures, errors};
pub(super) use parameters::of_range;
pub use parameters::{LEAST_SCALE, Scales, Symmetry, parameters};
pub use shape::{CacheShape, Order};
