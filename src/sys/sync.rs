//! The locks of the library: those of the standard library; of loom, which tries every interleaving; or of the standard
//! library in a form that ThreadSanitizer understands.

#[cfg(loom)]
pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
#[cfg(tsan)]
pub(crate) use seen::{Condvar, Mutex, MutexGuard};
#[cfg(not(any(loom, tsan)))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};

/// The standard library's locks with an instrumented happens-before edge.
///
/// ThreadSanitizer derives the order between threads from operations in code that it compiled. The standard library is
/// not, so ThreadSanitizer misses every contended lock and reports false races. Here an unlock writes to an atomic and a
/// lock reads it, both while the lock is held: the order of the lock itself, and no more.
#[cfg(tsan)]
mod seen {
    use std::ops::{Deref, DerefMut};
    use std::sync::atomic::{AtomicU8, Ordering};
    use std::sync::{self, LockResult, PoisonError};

    #[derive(Debug, Default)]
    pub struct Mutex<T> {
        inner: sync::Mutex<T>,
        handed_over: AtomicU8,
    }

    pub struct MutexGuard<'a, T> {
        /// `None` while the condition variable blocks.
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

        pub fn get_mut(&mut self) -> LockResult<&mut T> {
            self.handed_over.load(Ordering::Acquire);
            self.inner.get_mut()
        }

        pub fn into_inner(self) -> LockResult<T> {
            self.handed_over.load(Ordering::Acquire);
            self.inner.into_inner()
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
            self.inner.as_ref().expect("a guard in use does not wait")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.inner.as_mut().expect("a guard in use does not wait")
        }
    }

    impl Condvar {
        pub fn new() -> Self {
            Condvar(sync::Condvar::new())
        }

        pub fn wait<'a, T>(&self, mut guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
            let inner = guard.inner.take().expect("a guard in use does not wait");
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
