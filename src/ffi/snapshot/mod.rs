//! `mnnkv/snapshot.h`: the file of a chat.

mod contents;
mod handle;
mod io;

pub use contents::*;
pub use handle::*;
pub use io::*;
