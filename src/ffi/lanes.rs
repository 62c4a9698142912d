//! The lanes of a session as C uses them: one by the attention thread whose it is at the moment, all of them by the thread
//! that begins and ends steps. Rust would say so with `&mut`; C promises it, and here is all that relies on it.
//!
//! Attention is called for every 64 tokens or so, so nothing here is locked or waits: marks that are loaded and stored,
//! never exchanged, find a host that breaks its promise nearly always.

use crate::session::Lane;
use crate::status::{Error, Result, Status, bail};
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
    cells: Box<[Cell]>,
    /// Held by whoever has all lanes, since a host may begin and end steps from several threads.
    all: Mutex<()>,
}

// SAFETY: a lane is Send, and reached only by `one` and `all`, whose callers promise that nobody else is at it.
unsafe impl Sync for Lanes {}

impl Lanes {
    pub(super) fn new(lanes: Vec<Lane>) -> Self {
        let cell = |lane| Cell { mark: AtomicU8::new(FREE), lane: UnsafeCell::new(lane) };
        Lanes { cells: lanes.into_iter().map(cell).collect(), all: Mutex::new(()) }
    }

    /// Runs `body` on one lane.
    ///
    /// # Safety
    /// Until this returns no other thread is in here with the same lane, or in [`Lanes::all`].
    #[inline(always)]
    pub(super) unsafe fn one(&self, lane: u32, body: impl FnOnce(&mut Lane) -> Result<()>) -> Result<()> {
        let Some(cell) = self.cells.get(lane as usize) else {
            bail!(InvalidArgument, "lane is {lane}; the session has {}", self.cells.len());
        };
        let Some(marked) = Marked::new(std::slice::from_ref(cell)) else { return Err(self.refusal()) };
        // SAFETY: the caller says that the lane is this thread's.
        let result = body(unsafe { &mut *cell.lane.get() });
        marked.free();
        result
    }

    /// Runs `body` on all lanes. A second thread waits until the first is done.
    ///
    /// # Safety
    /// Until this returns no other thread is in [`Lanes::one`].
    pub(super) unsafe fn all<T>(&self, body: impl FnOnce(&mut [&mut Lane]) -> Result<T>) -> Result<T> {
        let _only = self.all.lock().map_err(|_| out_of_service())?;
        let Some(marked) = Marked::new(&self.cells) else { return Err(self.refusal()) };
        // SAFETY: the caller says that no attention thread has one, and the lock that no other caller of this function has.
        let mut lanes: Vec<&mut Lane> = self.cells.iter().map(|cell| unsafe { &mut *cell.lane.get() }).collect();
        let result = body(&mut lanes);
        marked.free();
        result
    }

    #[cold]
    fn refusal(&self) -> Error {
        let marks = || self.cells.iter().map(|cell| cell.mark.load(Ordering::Relaxed));
        match marks().position(|mark| mark == IN_USE) {
            _ if marks().any(|mark| mark == POISONED) => out_of_service(),
            Some(lane) => Error::new(Status::InvalidArgument, format!("lane {lane} is in use by another thread")),
            None => Error::new(Status::InvalidArgument, "a lane was in use by another thread"),
        }
    }
}

fn out_of_service() -> Error {
    Error::new(Status::Internal, "the session is out of service since a bug in mnn-kv; destroy it")
}

/// Marks of lanes in use. Dropped, as when a panic passes, it leaves them poisoned.
struct Marked<'a>(&'a [Cell]);

impl<'a> Marked<'a> {
    /// `None` where one is not free.
    #[inline(always)]
    fn new(cells: &'a [Cell]) -> Option<Self> {
        if cells.iter().any(|cell| cell.mark.load(Ordering::Acquire) != FREE) {
            return None;
        }
        cells.iter().for_each(|cell| cell.mark.store(IN_USE, Ordering::Relaxed));
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
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn lanes(count: u32) -> Lanes {
        Lanes::new(Session::lanes(count).unwrap())
    }

    fn status(result: Result<()>) -> Option<Status> {
        result.err().map(|error| error.status())
    }

    #[test]
    fn a_lane_in_use_is_refused_and_others_are_not() {
        let lanes = lanes(2);
        // SAFETY: one thread; the inner calls of the same lane are refused before they reach it.
        unsafe {
            let inner = |lane| status(lanes.one(lane, |_| Ok(())));
            lanes
                .one(0, |_| {
                    assert_eq!(inner(0), Some(Status::InvalidArgument));
                    assert_eq!(inner(1), None);
                    assert_eq!(status(lanes.all(|_| Ok(()))), Some(Status::InvalidArgument));
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
    }

    #[test]
    fn after_a_panic_the_session_is_out_of_service() {
        // SAFETY: one thread.
        unsafe {
            let lanes = lanes(2);
            assert!(catch_unwind(AssertUnwindSafe(|| lanes.one(1, |_| panic!("a bug")))).is_err());
            assert_eq!(status(lanes.one(1, |_| Ok(()))), Some(Status::Internal));
            assert_eq!(status(lanes.all(|_| Ok(()))), Some(Status::Internal));
        }
        // SAFETY: one thread.
        unsafe {
            let lanes = lanes(2);
            assert!(catch_unwind(AssertUnwindSafe(|| lanes.all::<()>(|_| panic!("a bug")))).is_err());
            assert_eq!(status(lanes.one(0, |_| Ok(()))), Some(Status::Internal));
            assert_eq!(status(lanes.all(|_| Ok(()))), Some(Status::Internal));
        }
    }

    #[test]
    fn threads_use_their_lanes_at_once() {
        let lanes = lanes(4);
        std::thread::scope(|scope| {
            for lane in 0..4 {
                let lanes = &lanes;
                scope.spawn(move || {
                    for _ in 0..10_000 {
                        // SAFETY: each thread has a lane of its own.
                        unsafe { lanes.one(lane, |_| Ok(())) }.unwrap();
                    }
                });
            }
        });
        // SAFETY: the threads are gone.
        unsafe { lanes.all(|_| Ok(())) }.unwrap();
    }
}
