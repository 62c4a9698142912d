//! `mnnkv/snapshot.h`: the file of a chat.

mod contents;
mod handle;
mod io;
mod layers;

pub use contents::*;
pub use handle::*;
pub use io::*;
pub use layers::*;
