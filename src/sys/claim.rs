//! A value that one thread at a time may claim. Never blocks: a claim on a value in use is refused.

use std::cell::UnsafeCell;
use std::mem;
use std::sync::atomic::{AtomicU8, Ordering};

/// The state of a [`Claim`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ClaimState {
    Free,
    InUse,
    /// A panic passed through the owner of the claim.
    Poisoned,
}

/// A value and its mark, which a compare-exchange sets. Aligned so that neighbours share no cache line, with the mark in
/// the line of the value's first bytes.
#[repr(C, align(128))]
pub(crate) struct Claim<T> {
    mark: AtomicU8,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by `&self` only in `with`, of which the mark lets one run at a time. Its acquire and release
// order the uses on different threads.
unsafe impl<T: Send> Sync for Claim<T> {}

impl<T> Claim<T> {
    pub(crate) const fn new(value: T) -> Self {
        Claim { mark: AtomicU8::new(ClaimState::Free as u8), value: UnsafeCell::new(value) }
    }

    /// Runs `body` on the value. `None` where it is not free.
    #[inline(always)]
    pub(crate) fn with<R>(&self, body: impl FnOnce(&mut T) -> R) -> Option<R> {
        let (free, in_use) = (ClaimState::Free as u8, ClaimState::InUse as u8);
        self.mark.compare_exchange(free, in_use, Ordering::Acquire, Ordering::Relaxed).ok()?;
        // A panic of the body leaves the value poisoned.
        let panics = Poisons(&self.mark);
        // SAFETY: claimed above, and no other reference is made.
        let result = body(unsafe { &mut *self.value.get() });
        mem::forget(panics);
        self.mark.store(free, Ordering::Release);
        Some(result)
    }

    /// The value, whatever its state.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// The state at some moment of the call, for an error.
    pub(crate) fn state(&self) -> ClaimState {
        match self.mark.load(Ordering::Relaxed) {
            mark if mark == ClaimState::Free as u8 => ClaimState::Free,
            mark if mark == ClaimState::InUse as u8 => ClaimState::InUse,
            _ => ClaimState::Poisoned,
        }
    }
}

struct Poisons<'a>(&'a AtomicU8);

impl Drop for Poisons<'_> {
    fn drop(&mut self) {
        self.0.store(ClaimState::Poisoned as u8, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn a_value_in_use_is_refused_and_free_again_afterwards() {
        let mut claim = Claim::new(10);
        claim.with(|value| {
            *value += 1;
            assert_eq!((claim.with(|_| ()), claim.state()), (None, ClaimState::InUse));
        });
        assert_eq!((claim.with(|value| *value), claim.state()), (Some(11), ClaimState::Free));
        assert_eq!(*claim.get_mut(), 11);
    }

    #[test]
    fn a_panic_poisons_what_it_passes_through() {
        let claim = Claim::new(10);
        assert!(catch_unwind(AssertUnwindSafe(|| claim.with(|_| panic!("a bug")))).is_err());
        assert_eq!((claim.with(|_| ()), claim.state()), (None, ClaimState::Poisoned));
    }

    #[test]
    fn threads_that_share_a_value_never_have_it_at_once() {
        let mut claims = [Claim::new(10), Claim::new(11)];
        let entered: u32 = std::thread::scope(|scope| {
            let threads = [0, 0, 0, 1].map(|at| {
                let claims = &claims;
                scope.spawn(move || {
                    let mut entered = 0;
                    for _ in 0..20_000 {
                        // Neither atomic nor locked: ThreadSanitizer sees a second thread.
                        let claimed = claims[at].with(|value| *value += 1).is_some();
                        assert!(at == 0 || claimed, "a thread with a value of its own is never refused");
                        entered += u32::from(claimed);
                    }
                    entered
                })
            });
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(claims.iter_mut().map(|claim| *claim.get_mut()).sum::<u32>(), 10 + 11 + entered);
    }
}
