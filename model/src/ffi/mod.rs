//! The C exports of the crate. Each file holds those of one room and only converts; the helpers are those of
//! [`mnnkv::ffi`]. The doc comments become `include/mnnkv/model/`.

#![allow(non_camel_case_types)]
#![allow(clippy::missing_safety_doc)] // session.h states the duties of a caller once, for all functions

pub mod c8;
pub mod compressor;
pub mod compressor_caches;
pub mod msmodelslim;
pub mod sizing;
pub mod status;
