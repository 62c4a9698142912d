//! What only llama.cpp needs: attention over the cache that it keeps itself ([`rows`]), and its states in fewer bytes
//! ([`state`]).
//!
//! The crate uses the kernels, the codec and the ground floor of `mnn-kv`, and nothing of its sessions. Unsafe code is in
//! [`ffi`] alone.

// Refused memory is OUT_OF_MEMORY; see clippy.toml.
#![deny(clippy::disallowed_methods, clippy::disallowed_macros)]

pub mod ffi;
pub mod rows;
pub mod state;
pub mod words;
