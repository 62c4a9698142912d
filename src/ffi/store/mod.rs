//! `mnnkv/store.h`: cold tokens as blobs.

mod blocks;
mod edits;
mod handle;
mod statistics;

pub use blocks::*;
pub use edits::*;
pub use handle::*;
pub use statistics::*;
