//! `mnnkv/layout.h`: the memory of caches.

mod edits;
mod quantised;

pub use edits::*;
pub use quantised::*;
