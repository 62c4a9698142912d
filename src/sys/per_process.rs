//! A value of each process.

use super::{memory, process};
use crate::status::Result;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A value that is made at its first use and never dropped. A child of a fork makes its own, whatever state the fork found
/// the parent's in.
pub(crate) struct PerProcess<T>(AtomicPtr<Made<T>>);

struct Made<T> {
    process: u32,
    value: T,
}

impl<T: Send + Sync + 'static> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        PerProcess(AtomicPtr::new(ptr::null_mut()))
    }

    /// The value, made where there is none. Never blocks; of several threads that make one, one succeeds.
    pub(crate) fn get(&self, make: impl FnOnce() -> Result<T>) -> Result<&'static T> {
        let before = self.0.load(Ordering::Acquire);
        if let Some(value) = own(before) {
            return Ok(value);
        }
        let made = Box::into_raw(memory::boxed(Made { process: process(), value: make()? })?);
        match self.0.compare_exchange(before, made, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: made above, and never freed from now on.
            Ok(_) => Ok(unsafe { &(*made).value }),
            Err(other) => {
                // SAFETY: made above, and no other thread has seen it.
                drop(unsafe { Box::from_raw(made) });
                Ok(own(other).expect("another thread of this process has made it"))
            }
        }
    }
}

fn own<T: 'static>(made: *const Made<T>) -> Option<&'static T> {
    // SAFETY: NULL, or made by `get`, which stores no value that is freed or changed.
    let made = unsafe { made.as_ref() }?;
    (made.process == process()).then_some(&made.value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn threads_that_race_for_the_first_use_get_one_value() {
        static VALUE: PerProcess<AtomicU32> = PerProcess::new();
        let get = || VALUE.get(|| Ok(AtomicU32::new(0))).unwrap();
        std::thread::scope(|scope| {
            (0..4).for_each(|_| drop(scope.spawn(|| get().fetch_add(1, Ordering::Relaxed))));
        });
        assert_eq!(get().load(Ordering::Relaxed), 4);
    }
}
