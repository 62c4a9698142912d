//! Format lanes: one prefix code for a byte of every word, decoded in registers. `docs/format.md` describes it byte for
//! byte.
//!
//! Each line feeds the next, and decoding goes up:
//!
//! | stage | input -> output | file |
//! |---|---|---|
//! | turn | bf16 and f32 words -> words whose last byte is the exponent | `form.rs` over `arch` |
//! | split | words -> a plane of bytes for each place in a word | `form.rs` over `arch` |
//! | choose | a plane -> raw, constant or coded, and its code | `choose.rs`, `code.rs`, `package_merge.rs` |
//! | code | a plane -> streams of 64 or 128 lanes | `plane.rs` over `arch` |
//! | contain | planes -> header and parts | `container.rs`, `../checksum.rs` |
//!
//! [`decode`] works in pieces that fit the first-level cache and allocates nothing.

mod choose;
mod code;
mod container;
mod decode;
mod encode;
mod form;
mod package_merge;
mod plane;

pub(super) use container::is_lanes;
pub(super) use decode::{Decoder, decoded_len};
pub(super) use encode::{bound, encode};
