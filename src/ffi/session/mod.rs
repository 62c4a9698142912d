//! `mnnkv/session.h`: all that a host needs.

mod attend;
mod chat;
mod handle;
mod history;
mod memory;
mod report;
mod step;

pub use attend::*;
pub use chat::*;
pub use handle::*;
pub use history::*;
pub use memory::*;
pub use report::*;
pub use step::*;
