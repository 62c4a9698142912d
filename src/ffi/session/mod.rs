//! Exports of the session room.

mod handle;
mod history;
mod report;
mod step;
mod sums;

pub use handle::*;
pub use history::*;
pub use report::*;
pub use step::*;
pub use sums::*;

pub(in crate::ffi) use handle::with_cache_or_none;
