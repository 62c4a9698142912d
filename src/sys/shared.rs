//! A value that several threads own.

use super::memory;
use crate::status::Result;
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

/// `Arc`, whose allocation can be refused.
pub(crate) struct Shared<T>(NonNull<Counted<T>>);

struct Counted<T> {
    owners: AtomicUsize,
    value: T,
}

// SAFETY: owners on several threads reach the value by `&T` alone, and the last one may drop it on any thread.
unsafe impl<T: Send + Sync> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Shared<T> {}

impl<T> Shared<T> {
    pub(crate) fn new(value: T) -> Result<Self> {
        Shared::made(|| Ok(value))
    }

    /// Shares what `make` returns. Memory comes first: `make` is called only if there is some.
    pub(crate) fn made(make: impl FnOnce() -> Result<T>) -> Result<Self> {
        let counted = memory::boxed_with(|| Ok(Counted { owners: AtomicUsize::new(1), value: make()? }))?;
        Ok(Shared(NonNull::from(Box::leak(counted))))
    }

    fn counted(&self) -> &Counted<T> {
        // SAFETY: the allocation lives until its last owner is dropped, and `self` is one.
        unsafe { self.0.as_ref() }
    }

    /// The number of owners.
    pub(crate) fn owners(&self) -> usize {
        self.counted().owners.load(Ordering::Acquire)
    }

    /// The value, if `self` is its only owner.
    pub(crate) fn get_mut(&mut self) -> Option<&mut T> {
        if self.owners() > 1 {
            return None;
        }
        // SAFETY: no other owner exists, and a new one would need `self`, which is borrowed exclusively.
        Some(unsafe { &mut self.0.as_mut().value })
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        // Relaxed: `self` is an owner, so the value is not dropped meanwhile.
        self.counted().owners.fetch_add(1, Ordering::Relaxed);
        Shared(self.0)
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.counted().value
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // Release and acquire: every use by other owners happens before the drop.
        if self.counted().owners.fetch_sub(1, Ordering::AcqRel) == 1 {
            // SAFETY: it was leaked from a box in `new`, and this was its last owner.
            drop(unsafe { Box::from_raw(self.0.as_ptr()) });
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn the_last_owner_drops_the_value_on_any_thread() {
        static DROPPED: Mutex<u32> = Mutex::new(0);
        struct Value(u64);
        impl Drop for Value {
            fn drop(&mut self) {
                *DROPPED.lock().unwrap() += 1;
            }
        }
        for round in 0..50 {
            let shared = Shared::new(Value(round)).unwrap();
            let threads: Vec<_> = (0..3)
                .map(|_| {
                    let mine = shared.clone();
                    std::thread::spawn(move || (*mine).0)
                })
                .collect();
            drop(shared);
            assert!(threads.into_iter().all(|t| t.join().unwrap() == round));
            assert_eq!(u64::from(*DROPPED.lock().unwrap()), round + 1);
        }
    }
}
