//! The lanes of a session as C uses them: one by the attention thread whose it is at the moment, all of them by the thread
//! that begins and ends steps. In Rust the compiler sees to that; here each lane has a mark, which is set on the way in and
//! never waited for: who finds it set has broken the header's rules and is refused.

use crate::session::Lane;
use crate::status::{Error, Result, bail, error};
use crate::sys::memory;
use std::cell::UnsafeCell;
use std::mem;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};

const FREE: u8 = 0;
const IN_USE: u8 = 1;
/// A panic passed through.
const POISONED: u8 = 2;

/// A lane and what it is at, in the same cache line as what most tiles need of a lane.
#[repr(C, align(128))]
struct Cell {
    mark: AtomicU8,
    lane: UnsafeCell<Lane>,
}

pub(super) struct Lanes {
    cells: Vec<Cell>,
    /// Held by whoever has all lanes, since a host may begin and end steps from several threads.
    all: Mutex<()>,
}

// SAFETY: a lane is Send, and reached only by who has set its mark.
unsafe impl Sync for Lanes {}

impl Lanes {
    pub(super) fn new(lanes: Vec<Lane>) -> Result<Self> {
        let cell = |lane| Cell { mark: AtomicU8::new(FREE), lane: UnsafeCell::new(lane) };
        Ok(Lanes { cells: memory::collect(lanes.into_iter().map(cell))?, all: Mutex::new(()) })
    }

    /// Runs `body` on one lane.
    #[inline(always)]
    pub(super) fn one(&self, lane: u32, body: impl FnOnce(&mut Lane) -> Result<()>) -> Result<()> {
        let Some(cell) = self.cells.get(lane as usize) else {
            bail!(InvalidArgument, "lane is {lane}; the session has {}", self.cells.len());
        };
        let Some(marked) = Marked::new(std::slice::from_ref(cell)) else { return Err(self.refusal()) };
        // SAFETY: its mark is set, by this call.
        let result = body(unsafe { &mut *cell.lane.get() });
        marked.free();
        result
    }

    /// Runs `body` on all lanes. A second thread waits until the first is done.
    pub(super) fn all<T>(&self, body: impl FnOnce(&mut [&mut Lane]) -> Result<T>) -> Result<T> {
        let _only = self.all.lock().map_err(|_| Error::out_of_service("the session"))?;
        let Some(marked) = Marked::new(&self.cells) else { return Err(self.refusal()) };
        // SAFETY: the marks are set, by this call.
        let lanes = memory::collect(self.cells.iter().map(|cell| unsafe { &mut *cell.lane.get() }));
        let result = lanes.and_then(|mut lanes| body(&mut lanes));
        marked.free();
        result
    }

    #[cold]
    fn refusal(&self) -> Error {
        let marks = || self.cells.iter().map(|cell| cell.mark.load(Ordering::Relaxed));
        match marks().position(|mark| mark == IN_USE) {
            _ if marks().any(|mark| mark == POISONED) => Error::out_of_service("the session"),
            Some(lane) => error!(InvalidArgument, "lane {lane} is in use by another thread"),
            None => error!(InvalidArgument, "a lane was in use by another thread"),
        }
    }
}

/// Lanes whose marks are set. Dropped, as when a panic passes, it leaves them poisoned.
struct Marked<'a>(&'a [Cell]);

impl<'a> Marked<'a> {
    /// `None` where one is not free; then none has been marked.
    #[inline(always)]
    fn new(cells: &'a [Cell]) -> Option<Self> {
        for (at, cell) in cells.iter().enumerate() {
            if cell.mark.compare_exchange(FREE, IN_USE, Ordering::Acquire, Ordering::Relaxed).is_err() {
                Marked(&cells[..at]).free();
                return None;
            }
        }
        Some(Marked(cells))
    }

    #[inline(always)]
    fn free(self) {
        self.0.iter().for_each(|cell| cell.mark.store(FREE, Ordering::Release));
        mem::forget(self);
    }
}

impl Drop for Marked<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|cell| cell.mark.store(POISONED, Ordering::Release));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Session;
    use crate::status::Status;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::AtomicU32;

    fn lanes(count: u32) -> Lanes {
        Lanes::new(Session::lanes(count).unwrap()).unwrap()
    }

    fn status(result: Result<()>) -> Option<Status> {
        result.err().map(|error| error.status())
    }

    #[test]
    fn a_lane_in_use_is_refused_and_others_are_not() {
        let lanes = lanes(2);
        let inner = |lane| status(lanes.one(lane, |_| Ok(())));
        lanes
            .one(1, |_| {
                assert_eq!((inner(0), inner(1)), (None, Some(Status::InvalidArgument)));
                assert_eq!(status(lanes.all(|_| Ok(()))), Some(Status::InvalidArgument));
                assert_eq!(inner(0), None, "a call that was refused has let go of the lanes it had");
                Ok(())
            })
            .unwrap();
        lanes
            .all(|all| {
                assert_eq!(all.len(), 2);
                assert_eq!(inner(1), Some(Status::InvalidArgument));
                Ok(())
            })
            .unwrap();
        assert_eq!((inner(0), inner(1), inner(2)), (None, None, Some(Status::InvalidArgument)));
    }

    #[test]
    fn after_a_panic_the_session_is_out_of_service() {
        let one = lanes(2);
        assert!(catch_unwind(AssertUnwindSafe(|| one.one(1, |_| panic!("a bug")))).is_err());
        assert_eq!(status(one.one(1, |_| Ok(()))), Some(Status::Internal));
        assert_eq!(status(one.all(|_| Ok(()))), Some(Status::Internal));
        let all = lanes(2);
        assert!(catch_unwind(AssertUnwindSafe(|| all.all::<()>(|_| panic!("a bug")))).is_err());
        assert_eq!(status(all.one(0, |_| Ok(()))), Some(Status::Internal));
        assert_eq!(status(all.all(|_| Ok(()))), Some(Status::Internal));
    }

    #[test]
    fn threads_that_share_a_lane_never_have_it_at_once() {
        let (lanes, inside, entered) = (lanes(2), AtomicU8::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            let threads = [0, 0, 0, 1].map(|lane| {
                let (lanes, inside, entered) = (&lanes, &inside, &entered);
                scope.spawn(move || {
                    for _ in 0..20_000 {
                        let result = lanes.one(lane, |_| {
                            if lane == 0 {
                                assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0);
                                inside.fetch_sub(1, Ordering::Relaxed);
                                entered.fetch_add(1, Ordering::Relaxed);
                            }
                            Ok(())
                        });
                        assert!(lane == 0 || result.is_ok(), "a thread with a lane of its own is never refused");
                    }
                })
            });
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        assert!(entered.into_inner() > 0);
        lanes.all(|_| Ok(())).unwrap();
    }
}
