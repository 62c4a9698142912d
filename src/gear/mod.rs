//! gear: a lossless codec for the words of a KV cache.
//!
//! [`v1`] is the format of the reference system: flat byte planes. [`v2`] has rows and channels: it leaves out repeated
//! rows, and codes channels of like distribution together. [`lanes`] has one prefix code for a byte of every word, which
//! registers hold. `docs/format.md` describes all byte for byte.
//!
//! The first two end in standard ZSTD frames, written by [`zstd`] (the library), and they choose by [`histogram`],
//! [`estimate`] and [`matches`]; these four therefore stand beside them.
//!
//! Stages are pure functions over slices. [`Encoder`] and [`Decoder`] own the working memory that stages share, so a
//! steady stream of calls allocates nothing.

mod budget;
mod checksum;
mod codec;
mod estimate;
mod histogram;
mod lanes;
mod matches;
mod options;
mod v1;
mod v2;
mod zstd;

pub(crate) use checksum::checksum;
pub use codec::{Decoder, Encoder, announced_len, bound, decoded_len};
pub use options::{Effort, Format, Frequencies, Options, Pairing, Positions, Predictors, Rotation};
