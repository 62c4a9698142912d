//! `mnnkv/snapshot.h`: parked layers, and the file of a chat.

mod contents;
mod handle;
mod io;
mod layers;
mod park;

pub use contents::*;
pub use handle::*;
pub use io::*;
pub use layers::*;
pub use park::*;
