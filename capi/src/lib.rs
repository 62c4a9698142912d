//! The C library. It has no code: the exports are the `#[no_mangle]` functions of the crates below, and a crate that is
//! not named is not linked. A crate of its own, so that tests and other Rust programs build no C library, and so that
//! the feature `model` decides about the exports of `mnn-kv-model`.

extern crate mnnkv_core as _;
#[cfg(feature = "model")]
extern crate mnnkv_model as _;
