//! Files that come with a model.
//!
//! Every file is read through copies, by position and of bounded size, never mapped: one that shrinks while it is read
//! gives an error, and one of 20 GB is read on a machine of 4 ([`mod@file`]).

// Memory that is refused is OUT_OF_MEMORY for the host; see clippy.toml.
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_macros))]

pub mod c8;
pub mod compressor;
mod element;
pub mod ffi;
pub mod file;
pub mod msmodelslim;
pub(crate) mod names;
pub mod safetensors;
pub mod sizing;
