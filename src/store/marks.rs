//! The state of each head of a layer in the cache, which threads change without a lock.

use crate::status::Result;
use crate::sys::{AtomicU8, memory};
use std::sync::atomic::Ordering;

const STORED: u8 = 0;
const IN_USE: u8 = 1;
const RESTORED: u8 = 2;

/// A mark per head. A head is stored (its released tokens read as zero), in use by one thread, or restored.
pub(super) struct Marks(Vec<AtomicU8>);

impl Marks {
    pub(super) fn new(heads: usize) -> Result<Self> {
        memory::collect((0..heads).map(|_| AtomicU8::new(STORED))).map(Marks)
    }

    pub(super) fn heads(&self) -> usize {
        self.0.len()
    }

    /// Claims a head; returns whether it is restored. `None`: another thread has it. Its owner must give it back by
    /// [`Marks::set`].
    pub(super) fn claim(&self, head: usize) -> Option<bool> {
        let mark = &self.0[head];
        let mut state = mark.load(Ordering::Relaxed);
        while state != IN_USE {
            match mark.compare_exchange(state, IN_USE, Ordering::Acquire, Ordering::Relaxed) {
                Ok(state) => return Some(state == RESTORED),
                Err(now) => state = now,
            }
        }
        None
    }

    /// Ends a claim.
    pub(super) fn set(&self, head: usize, restored: bool) {
        self.0[head].store(if restored { RESTORED } else { STORED }, Ordering::Release);
    }

    /// Whether a head is restored, and no thread has it.
    pub(super) fn is_restored(&self, head: usize) -> bool {
        self.0[head].load(Ordering::Acquire) == RESTORED
    }

    /// Whether any head is restored or in use.
    pub(super) fn any(&self) -> bool {
        self.0.iter().any(|mark| mark.load(Ordering::Acquire) != STORED)
    }
}

/// All interleavings of two threads; `make test` runs them.
#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU32;
    use loom::thread;

    /// A head of a cache, 7 when it is restored. Its order comes from the mark alone.
    struct Head {
        marks: Marks,
        bytes: AtomicU32,
        owners: AtomicU32,
    }

    impl Head {
        /// Runs `body` as the owner of the head; returns false where another thread has it.
        fn own(&self, body: impl FnOnce(bool) -> bool) -> bool {
            let Some(restored) = self.marks.claim(0) else { return false };
            assert_eq!(self.owners.fetch_add(1, Ordering::Relaxed), 0);
            assert_eq!(self.bytes.load(Ordering::Relaxed), if restored { 7 } else { 0 });
            let restored = body(restored);
            assert_eq!(self.owners.fetch_sub(1, Ordering::Relaxed), 1);
            self.marks.set(0, restored);
            true
        }

        fn restore(&self) -> bool {
            self.own(|_| {
                self.bytes.store(7, Ordering::Relaxed);
                true
            })
        }

        fn release(&self) -> bool {
            self.own(|_| {
                self.bytes.store(0, Ordering::Relaxed);
                false
            })
        }
    }

    #[test]
    fn one_thread_at_a_time_has_a_head_and_sees_the_bytes_of_the_one_before() {
        loom::model(|| {
            let marks = Marks::new(1).unwrap();
            let head = Arc::new(Head { marks, bytes: AtomicU32::new(0), owners: AtomicU32::new(0) });
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let head = head.clone();
                    thread::spawn(move || (head.restore(), head.release()))
                })
                .collect();
            let done: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            assert!(done.iter().any(|(restored, _)| *restored), "a head that is free is restored");
            assert!(head.restore() && head.marks.is_restored(0) && head.marks.any());
        });
    }
}
