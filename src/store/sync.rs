//! Where the queue's locks come from: the standard library, or loom when its interleavings are tried one by one.

#[cfg(loom)]
pub(super) use loom::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(loom))]
pub(super) use std::sync::{Condvar, Mutex, MutexGuard};
