//! Files that come with a model.
//!
//! Files are read through copies, by position and of bounded size, and never mapped: a file that shrinks is an error,
//! and a file of 20 GB needs the memory of its headers ([`mod@file`]). The crate uses the public layout room of
//! `mnn-kv` for packed caches, and nothing of its store or session.

// Refused memory is OUT_OF_MEMORY; see clippy.toml.
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_macros))]

pub mod c8;
pub mod compressor;
pub mod ffi;
pub mod file;
pub mod msmodelslim;
pub(crate) mod names;
pub mod safetensors;
pub mod sizing;
