//! Where the queue's locks come from: the standard library; loom, when its interleavings are tried one by one; or the
//! standard library in a form that ThreadSanitizer sees through.

#[cfg(loom)]
pub(super) use loom::sync::{Condvar, Mutex, MutexGuard};
#[cfg(tsan)]
pub(super) use seen::{Condvar, Mutex, MutexGuard};
#[cfg(not(any(loom, tsan)))]
pub(super) use std::sync::{Condvar, Mutex, MutexGuard};

/// The standard library's locks with a note of each hand-over.
///
/// ThreadSanitizer knows an order between threads only where it watches the operations that make it. It does not see
/// into the standard library (which would have to be built with it), so it misses every lock that was contended and
/// reports races that are none. Here whoever unlocks writes to an atomic and whoever locks reads it, both while holding
/// the lock: that is the order that the lock makes, and no more.
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
        /// `None` while its condition is waited for.
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
            // The lock itself is given up after this.
            if self.inner.is_some() {
                self.handed_over.store(0, Ordering::Release);
            }
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.inner.as_ref().expect("nobody uses a guard that waits")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.inner.as_mut().expect("nobody uses a guard that waits")
        }
    }

    impl Condvar {
        pub fn new() -> Self {
            Condvar(sync::Condvar::new())
        }

        pub fn wait<'a, T>(&self, mut guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
            let inner = guard.inner.take().expect("nobody uses a guard that waits");
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
