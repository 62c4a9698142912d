//! The ground floor: memory that can be refused, files, pages, threads, panics without a message. Nothing else calls the
//! system, and nothing above it grows a container in any other way.

mod environment;
#[doc(hidden)]
pub mod files;
#[doc(hidden)]
pub mod memory;
pub mod pages;
mod quiet;
mod shared;
pub(crate) mod thread_slot;
mod threads;

pub(crate) use environment::with_variable;
pub(crate) use quiet::quietly;
pub(crate) use shared::Shared;
pub(crate) use threads::{Thread, process};
