//! Exports of the store room.

mod blocks;
mod edits;
mod handle;
mod statistics;

pub use blocks::*;
pub use edits::*;
pub use handle::*;
pub use statistics::*;
