//! The C ABI: the only room with `extern "C"`.
//!
//! [`given`] checks descriptions of caches, [`panic`] catches panics, [`pointer`] turns pointers into slices and values,
//! [`handle`] makes and destroys handles, [`status`] numbers the outcomes and stores the last error. The other files hold the
//! exports of one section of `include/mnnkv/*.h` each and only convert. Their doc comments are the headers: see `tests/header.rs`.
//!
//! Exports are written out: cbindgen does not expand macros.

#![allow(non_camel_case_types)]
#![allow(clippy::missing_safety_doc)] // session.h states the duties of a caller once, for all functions
#![allow(missing_docs)] // one comment may stand for neighbouring constants

pub mod cache;
#[doc(hidden)]
pub mod given;
#[doc(hidden)]
pub mod handle;
#[doc(hidden)]
pub mod panic;
#[doc(hidden)]
pub mod pointer;

pub mod gear;
pub mod h2o;
pub mod layout;
pub mod session;
pub mod status;
pub mod store;
pub mod version;
