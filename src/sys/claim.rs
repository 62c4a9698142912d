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

// SAFETY: the value is reached only by `Claimed`, of which the mark lets one exist at a time. Its acquire and release
// order the uses on different threads.
unsafe impl<T: Send> Sync for Claim<T> {}

impl<T> Claim<T> {
    pub(crate) const fn new(value: T) -> Self {
        Claim { mark: AtomicU8::new(ClaimState::Free as u8), value: UnsafeCell::new(value) }
    }

    /// Runs `body` on the value. `None` where it is not free.
    #[inline(always)]
    pub(crate) fn with<R>(&self, body: impl FnOnce(&mut T) -> R) -> Option<R> {
        let claimed = Claim::all(std::slice::from_ref(self))?;
        // SAFETY: claimed above, and no other reference is made.
        let result = body(unsafe { &mut *self.value.get() });
        claimed.release();
        Some(result)
    }

    /// Claims all values, or none where one is not free.
    #[inline(always)]
    pub(crate) fn all(claims: &[Self]) -> Option<Claimed<'_, T>> {
        let (free, in_use) = (ClaimState::Free as u8, ClaimState::InUse as u8);
        for (at, claim) in claims.iter().enumerate() {
            if claim.mark.compare_exchange(free, in_use, Ordering::Acquire, Ordering::Relaxed).is_err() {
                Claimed(&claims[..at]).release();
                return None;
            }
        }
        Some(Claimed(claims))
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

/// Values that the holder has claimed. Dropped by a panic, it leaves them poisoned.
pub(crate) struct Claimed<'a, T>(&'a [Claim<T>]);

impl<T> Claimed<'_, T> {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        // SAFETY: claimed, and no exclusive reference exists while `self` is borrowed.
        self.0.iter().map(|claim| unsafe { &*claim.value.get() })
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        // SAFETY: claimed, `self` is borrowed exclusively, and each value comes once.
        self.0.iter().map(|claim| unsafe { &mut *claim.value.get() })
    }

    /// As a drop, of a holder that does not panic.
    #[inline(always)]
    fn release(self) {
        self.set(ClaimState::Free);
        mem::forget(self);
    }

    #[inline(always)]
    fn set(&self, state: ClaimState) {
        self.0.iter().for_each(|claim| claim.mark.store(state as u8, Ordering::Release));
    }
}

impl<T> Drop for Claimed<'_, T> {
    fn drop(&mut self) {
        self.set(if std::thread::panicking() { ClaimState::Poisoned } else { ClaimState::Free });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn claims() -> [Claim<u32>; 2] {
        [Claim::new(10), Claim::new(11)]
    }

    #[test]
    fn a_value_in_use_is_refused_and_others_are_not() {
        let claims = claims();
        claims[1].with(|value| {
            *value += 1;
            assert_eq!((claims[0].with(|value| *value), claims[1].with(|_| ())), (Some(10), None));
            assert_eq!(claims[1].state(), ClaimState::InUse);
            assert!(Claim::all(&claims).is_none());
            assert_eq!(claims[0].state(), ClaimState::Free, "a refused claim on all releases the first");
        });
        {
            let mut all = Claim::all(&claims).unwrap();
            all.iter_mut().for_each(|value| *value += 1);
            assert_eq!((all.iter().copied().collect::<Vec<_>>(), claims[1].with(|_| ())), (vec![11, 13], None));
        }
        assert_eq!(claims.each_ref().map(|claim| claim.with(|value| *value)), [Some(11), Some(13)]);
    }

    #[test]
    fn a_panic_poisons_what_it_passes_through() {
        for all in [false, true] {
            let claims = claims();
            let panics = AssertUnwindSafe(|| {
                if all {
                    let _all = Claim::all(&claims);
                    panic!("a bug");
                }
                claims[1].with(|_| panic!("a bug"));
            });
            assert!(catch_unwind(panics).is_err());
            let first = if all { ClaimState::Poisoned } else { ClaimState::Free };
            assert_eq!(claims.each_ref().map(Claim::state), [first, ClaimState::Poisoned]);
            assert!(claims[1].with(|_| ()).is_none() && Claim::all(&claims).is_none());
        }
    }

    #[test]
    fn threads_that_share_a_value_never_have_it_at_once() {
        let claims = claims();
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
        let values: u32 = Claim::all(&claims).unwrap().iter().sum();
        assert_eq!(values, 10 + 11 + entered);
    }
}
