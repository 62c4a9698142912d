//! Test data and random numbers of tests and benchmarks.
#![allow(dead_code, unused_imports)]

mod again;
mod noise;
mod random;

pub use again::again;
pub use noise::Noise;
pub use random::Random;
use std::path::PathBuf;

/// A file below `testdata/`.
pub fn testdata(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)
}

/// The bytes of a file below `testdata/`.
pub fn read(name: &str) -> Vec<u8> {
    let path = testdata(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}
