//! Format v2: rows and channels, with checksums. `docs/format.md` describes it byte for byte.
//!
//! A stage is a pure function over slices; [`Encoder`] and [`DecodeBuffers`] own the working memory that stages share.
//! Each line feeds the next, and decoding goes up:
//!
//! | stage | input -> output | file |
//! |---|---|---|
//! | find rows | rows -> distances, kinds and steps of the rows that repeat earlier ones | `rows/alike.rs` (`equal`, `near`); `rows/rotated.rs` (`angles`, `turn`) for keys with a rotation hint |
//! | pack small steps | step planes -> nibble planes and a list of large steps | `rows/steps.rs` |
//! | write repeats | distances, kinds, steps -> bytes | `rows/repeats.rs` |
//! | keep new rows | rows, distances -> rows that repeat none | `rows/mod.rs` |
//! | split | rows -> byte planes `[plane][channel][row]` | `container/form.rs` over `arch` |
//! | survey | a plane -> its histogram, and the channels that are noise | `planes/survey.rs` |
//! | cluster | units (runs of a channel) -> the group of each | `planes/cluster.rs` |
//! | code | groups -> ZSTD frames, or bytes as they are | `planes/mod.rs`, `planes/group.rs` over `zstd` |
//! | flat | words -> byte planes -> one group each, with matches; replaces all of the above | `planes/flat.rs` |
//! | contain | body -> header, body, checksum | `container/mod.rs` (`numbers`, `list`: its vocabulary) |
//!
//! [`encode`] runs them in the ways that an effort has and keeps the shortest blob. [`decode`] writes the caller's
//! buffer in place.

mod container;
mod decode;
mod encode;
mod planes;
mod rows;

pub(super) use container::is_v2;
pub(super) use decode::{DecodeBuffers, announced_len, decode, decoded_len};
pub(super) use encode::{Encoder, bound};

/// The flag of a body with references between rows.
const REPEATS: u8 = 1;
/// The flag of references between rows turned back to position 0; the body has angles, too.
const ROTATED: u8 = 2;
