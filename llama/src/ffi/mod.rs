//! The C exports of the crate. Each file holds those of one room and only converts; the helpers are those of
//! [`mnnkv::ffi`]. The doc comments become `include/mnnkv/llama.h`.

#![allow(non_camel_case_types)]
#![allow(clippy::missing_safety_doc)] // session.h states the duties of a caller once, for all functions
#![allow(missing_docs)] // one comment may stand for neighbouring constants

pub mod rows;
pub mod state;
pub mod status;
