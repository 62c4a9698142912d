//! gear: a lossless codec for the floating-point words of a KV cache.
//!
//! A word stream is split into byte lanes ([`split`]), each lane is predicted ([`predict`]) and compressed by run
//! lengths ([`rle`]) or ZSTD ([`zstd`]), and the smallest combination is kept ([`choose`]). [`frame`] is the wire
//! format v1, described byte for byte in `docs/format.md`.
//!
//! Stages are pure functions over slices. [`Encoder`] and [`Decoder`] only own the working memory the stages share,
//! so that a steady stream of calls allocates nothing.

mod choose;
mod decode;
mod encode;
mod frame;
mod options;
mod predict;
mod rle;
mod split;
mod zstd;

pub use decode::Decoder;
pub use encode::Encoder;
pub use frame::{bound, decoded_len};
pub use options::{Options, Predictors};
pub use split::Width;
