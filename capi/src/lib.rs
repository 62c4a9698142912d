//! The C library. It has no code: the exports are those of the crate below with its feature `capi`, and a crate that is
//! not named is not linked. A crate of its own, so that tests and other Rust programs build no C library.

extern crate mnnkv_core as _;
