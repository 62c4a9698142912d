//! The locks of the queue: those of the standard library, those of loom when it explores interleavings, or those of the
//! standard library in a form that ThreadSanitizer can follow.

#[cfg(loom)]
pub(super) use loom::sync::{Condvar, Mutex, MutexGuard};
#[cfg(tsan)]
pub(super) use seen::{Condvar, Mutex, MutexGuard};
#[cfg(not(any(loom, tsan)))]
pub(super) use std::sync::{Condvar, Mutex, MutexGuard};

/// The standard library's locks with an instrumented happens-before edge.
///
/// ThreadSanitizer observes only instrumented code. The standard library is not built with it, so contended locks are
/// invisible and false races are reported. Here unlocking stores to an atomic and locking loads it, both while the lock
/// is held: exactly the order that the lock makes.
#[cfg(tsan)]
mod seen {
    use std::ops::{Deref, DerefMut};
    use std::sync::atomic::{AtomicU8, Ordering};
    use std::sync::{self, LockResult, PoisonError};

    pub struct Mutex<T> {
        inner: sync::Mutex<T>,
        handed_over: AtomicU8,
    }

    pub struct MutexGuard<'a, T> {
        /// `None` while a condition is waited for.
        inner: Option<sync::MutexGuard<'a, T>>,
        handed_over: &'a AtomicU8,
    }

    pub struct Condvar(sync::Condvar);

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Self {
            Mutex { inner: sync::Mutex::new(value), handed_over: AtomicU8::new(0) }
        }

        pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
            MutexGuard::of(self.inner.lock(), &self.handed_over)
        }
    }

    impl<'a, T> MutexGuard<'a, T> {
        fn of(inner: LockResult<sync::MutexGuard<'a, T>>, handed_over: &'a AtomicU8) -> LockResult<Self> {
            handed_over.load(Ordering::Acquire);
            match inner {
                Ok(inner) => Ok(MutexGuard { inner: Some(inner), handed_over }),
                Err(poison) => Err(PoisonError::new(MutexGuard { inner: Some(poison.into_inner()), handed_over })),
            }
        }
    }

    impl<T> Drop for MutexGuard<'_, T> {
        fn drop(&mut self) {
            // The lock itself is released after this.
            if self.inner.is_some() {
                self.handed_over.store(0, Ordering::Release);
            }
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.inner.as_ref().expect("a waiting guard is not used")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.inner.as_mut().expect("a waiting guard is not used")
        }
    }

    impl Condvar {
        pub fn new() -> Self {
            Condvar(sync::Condvar::new())
        }

        pub fn wait<'a, T>(&self, mut guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
            let inner = guard.inner.take().expect("a waiting guard is not used");
            guard.handed_over.store(0, Ordering::Release);
            MutexGuard::of(self.0.wait(inner), guard.handed_over)
        }

        pub fn notify_one(&self) {
            self.0.notify_one();
        }

        pub fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}
