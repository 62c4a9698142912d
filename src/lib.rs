//! mnn-kv: KV-cache compression for on-device LLM hosts.
//!
//! The library is used through its C ABI (`include/`); these are the modules behind it.
//!
//! | module | what |
//! |---|---|
//! | [`dtype`], [`status`] | element types; the one error type and its numbers |
//! | [`gear`] | words to fewer bytes and back: the frame of the reference (v1), and a checked container around it |
//! | [`layout`] | packed caches: index, gather, scatter, move, compact, clear |
//! | [`h2o`] | attention scores and eviction plans |
//! | [`store`] | cold blocks kept compressed, raw memory released |
//! | [`file`] | the file of a chat, which is the tier below memory |
//! | [`attend`] | attention over K in 8 bits and V in 4 |
//! | [`session`] | the modules above together, as configured |
//! | [`arch`] | SIMD kernels and the choice between them |
//! | `json` | JSON in |
//! | `bytes` | numbers and strings of bytes, as formats have them |
//! | `run` | tokens that follow each other in two places |
//! | `sys` | memory that can be refused; every other module grows its containers through it |
//! | [`ffi`] | the C ABI, the only module with `extern "C"` |
//!
//! gear, layout and h2o do not import each other. A byte flows one way: packed cache, gathered by layout,
//! encoded by gear, kept by the store; and back. Everything below the C ABI is safe Rust over slices, except `arch` and
//! `sys`.

// Memory that is refused is OUT_OF_MEMORY for the host; see clippy.toml.
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_macros))]

#[cfg(panic = "abort")]
compile_error!("mnn-kv turns panics into a status; build it with panic = \"unwind\"");

pub mod arch;
pub mod attend;
mod bytes;
pub mod dtype;
pub mod ffi;
pub mod file;
pub mod gear;
pub mod h2o;
#[doc(hidden)]
pub mod json;
pub mod layout;
mod run;
pub mod session;
pub mod status;
pub mod store;
pub mod sys;

// Tests inside the crate share these with the programs of `tests/`, which call the crate by its name.
#[cfg(test)]
extern crate self as mnnkv;
#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod common;
#[cfg(test)]
#[path = "../tests/common/described.rs"]
mod described;
#[cfg(test)]
#[path = "../tests/common/host.rs"]
mod host;
#[cfg(test)]
#[path = "../tests/common/quantised/mod.rs"]
mod quantised;
