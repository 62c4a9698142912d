//! gear: a lossless codec for the words of a KV cache.
//!
//! [`v1`] is the format of the reference system: byte planes, each predicted and compressed, without a checksum.
//! [`checked`] is a header with a checksum in front of such a frame, for what goes to a file or stays in memory for long.
//! `docs/format.md` describes both byte for byte.
//!
//! The encoder chooses by [`histogram`], [`estimate`] and [`matches`]. Stages are pure functions over slices. [`Encoder`]
//! and [`Decoder`] own the working memory that stages share, so a steady stream of calls allocates nothing.

mod budget;
mod checked;
mod codec;
mod estimate;
mod histogram;
mod matches;
mod options;
mod v1;
mod zstd;

pub use codec::{Decoder, Encoder, announced_len, bound, decoded_len};
pub use options::{Effort, Format, Options, Predictors};
