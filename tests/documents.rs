//! What documents and patches say of themselves and of the sources. One program, since none of it calls the library.

#[path = "documents/adopt.rs"]
mod adopt;
#[path = "documents/benchmarks.rs"]
mod benchmarks;
#[cfg(unix)]
#[path = "documents/patches.rs"]
mod patches;
#[path = "documents/readme.rs"]
mod readme;
