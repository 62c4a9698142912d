//! The ground floor. No other room calls the system, starts a thread, or grows a container in another way.
//!
//! | file | job |
//! |---|---|
//! | [`memory`] | containers whose growth can fail |
//! | [`pages`] | pages released to the system, taken in bulk, mapped |
//! | [`files`] | paths and files, with errors that name them |
//! | [`storage`] | a file read and written at offsets, mapped, or of a host |
//! | `threads` | threads whose start can fail, and the id of the process |
//! | [`parallel`] | jobs of one call on several threads |
//! | [`thread_slot`] | values per thread |
//! | `sync` | the locks of the worker queue, which loom and ThreadSanitizer replace |
//! | `shared` | a counted reference whose allocation can fail |
//! | `per_process` | a value that a forked child makes anew |
//! | `quiet` | panics without a message |
//! | `environment` | variables of the environment |
//! | `cores` | the number of cores that the process may use |

mod claim;
mod cores;
mod environment;
#[doc(hidden)]
pub mod files;
#[doc(hidden)]
pub mod memory;
pub mod pages;
#[doc(hidden)]
pub mod parallel;
mod per_process;
mod quiet;
mod shared;
#[doc(hidden)]
pub mod storage;
mod sync;
pub(crate) mod thread_slot;
mod threads;

pub(crate) use claim::{Claim, ClaimState};
#[doc(hidden)]
pub use cores::cores;
pub(crate) use environment::with_variable;
pub(crate) use per_process::PerProcess;
pub(crate) use quiet::quietly;
pub(crate) use shared::Shared;
pub(crate) use sync::{Condvar, Mutex, MutexGuard};
pub(crate) use threads::{Thread, process, sleep};
