//! The C ABI: the only room with `extern "C"`.
//!
//! [`panic`] keeps panics inside and handles poisoned, [`pointer`] turns what C hands over into slices and values,
//! [`status`] numbers the outcomes and keeps the text of the last failure. Each other file holds the exports of one
//! room and only converts. The doc comments here become `include/mnnkv.h`, which is the manual.
//!
//! Exports are plain functions, not made by macros: cbindgen reads the source without expanding it.

#![allow(non_camel_case_types)]
#![allow(clippy::missing_safety_doc)] // the header states what a caller owes, once for all functions

mod lanes;
mod panic;
mod pointer;

pub mod compressor;
pub mod compressor_caches;
pub mod compressor_write;
pub mod gear;
pub mod h2o;
pub mod kv_int8;
pub mod layout;
pub mod metrics;
pub mod msmodelslim;
pub mod msmodelslim_writer;
pub mod session;
pub mod sizing;
pub mod status;
pub mod store;
pub mod version;
