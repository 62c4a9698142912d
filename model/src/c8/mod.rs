//! KV caches as int8 codes with a scale and an offset for each channel: msmodelslim's C8.
//!
//! A channel is a dimension of a KV head, `kv_head * head_dim + dim`. K and V have parameters of their own. [`ranges`]
//! accumulates calibration data, [`parameters`] computes scales, [`quantize`] and [`dequantize`] convert caches, and
//! [`errors`] measures the loss.
//!
//! ```text
//! code  = clamp(rint(value / scale + offset), -128, 127)      in f32: divided, added, rounded half to even
//! value = (code - offset) * scale                             in f32, then rounded to the element type
//! ```
//! All functions are pure; any thread may call them. Values are bytes in native byte order, of any alignment.

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
