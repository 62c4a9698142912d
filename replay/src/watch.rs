//! Progress and cancellation of long work.

use std::sync::atomic::{AtomicBool, Ordering};

/// The caller's view of running work. Threads share it.
#[derive(Clone, Copy)]
pub struct Watch<'a> {
    /// Work that has not begun when this becomes true is left out.
    pub stop: &'a AtomicBool,
    /// Called with each finished amount of work, by any thread.
    pub done: &'a (dyn Fn(u64) + Sync),
}

impl Watch<'_> {
    /// Whether further work is to be left out.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}
