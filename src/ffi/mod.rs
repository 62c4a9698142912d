//! The C ABI: the only room with `extern "C"`.
//!
//! [`panic`] keeps panics inside and handles poisoned, [`pointer`] turns what C hands over into slices and values,
//! [`status`] numbers the outcomes and keeps the text of the last failure. Each other file holds the exports of one
//! room and only converts. The doc comments here become `include/mnnkv.h`, which is the manual.
//!
//! Exports are plain functions, not made by macros: cbindgen reads the source without expanding it.

#![allow(non_camel_case_types)]
#![allow(clippy::missing_safety_doc)] // the header states what a caller owes, once for all functions
#![allow(missing_docs)] // one comment may stand for neighbouring constants or fields

pub mod cache;
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
