//! The queue between the host's thread and the workers.
//!
//! The host's thread pushes jobs and collects outcomes; workers take jobs and hand outcomes in. One mutex, held for a few
//! moves of pointers and never during a job. The host's thread blocks in one place only, [`Queue::wait`], for a job that
//! a worker has already begun.
//!
//! A job owns its bytes, and an outcome is booked against the blocks that exist by then. So a job can never touch a token
//! that has moved meanwhile: the outcome of a block that is gone is dropped.

use crate::status::Result;
use crate::sys::memory;
use crate::sys::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;

/// The order of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// Needed in this step; before every `Later`.
    Soon,
    /// Needed at any time.
    Later,
}

struct Books<J, O> {
    soon: VecDeque<J>,
    later: VecDeque<J>,
    /// Jobs that workers have taken and not handed in.
    running: usize,
    /// Has room for the outcome of every job, so that [`Queue::hand_in`] cannot fail.
    outcomes: VecDeque<O>,
    /// Workers must return.
    closed: bool,
}

/// Jobs `J` on their way to workers, outcomes `O` on their way back.
pub(super) struct Queue<J, O> {
    books: Mutex<Books<J, O>>,
    work: Condvar,
    news: Condvar,
}

impl<J, O> Queue<J, O> {
    pub(super) fn new() -> Self {
        let (soon, later, outcomes) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        let books = Books { soon, later, running: 0, outcomes, closed: false };
        Queue { books: Mutex::new(books), work: Condvar::new(), news: Condvar::new() }
    }

    /// A worker's panic is caught around its job, outside this lock, so it cannot poison the lock.
    fn books(&self) -> MutexGuard<'_, Books<J, O>> {
        self.books.lock().expect("nothing panics while it holds the queue")
    }

    /// Adds a job; bounds are the caller's. OUT_OF_MEMORY: the job is dropped.
    #[expect(clippy::disallowed_methods, reason = "room is reserved first")]
    pub(super) fn push(&self, job: J, urgency: Urgency) -> Result<()> {
        let mut books = self.books();
        let books_mut = &mut *books;
        let jobs = books_mut.soon.len() + books_mut.later.len() + books_mut.running + 1;
        memory::reserve_deque(&mut books_mut.outcomes, jobs)?;
        let queue = match urgency {
            Urgency::Soon => &mut books_mut.soon,
            Urgency::Later => &mut books_mut.later,
        };
        memory::reserve_deque(queue, 1)?;
        queue.push_back(job);
        drop(books);
        self.work.notify_one();
        Ok(())
    }

    /// Takes back the last waiting job for which `which` is true; workers take jobs from the front.
    pub(super) fn take_back(&self, which: impl Fn(&J) -> bool) -> Option<J> {
        let mut books = self.books();
        let books = &mut *books;
        [&mut books.soon, &mut books.later]
            .into_iter()
            .find_map(|jobs| jobs.iter().rposition(&which).and_then(|at| jobs.remove(at)))
    }

    /// Takes the oldest outcome. Never blocks.
    pub(super) fn outcome(&self) -> Option<O> {
        self.books().outcomes.pop_front()
    }

    /// Blocks until there is an outcome; returns false at once when no job is under way.
    pub(super) fn wait(&self) -> bool {
        let mut books = self.books();
        while books.outcomes.is_empty() {
            if books.running == 0 && books.soon.is_empty() && books.later.is_empty() {
                return false;
            }
            books = self.news.wait(books).expect("nothing panics while it holds the queue");
        }
        true
    }

    /// A worker's next job; blocks while there is none. `None` when the queue was closed.
    pub(super) fn next(&self) -> Option<J> {
        let mut books = self.books();
        loop {
            if books.closed {
                return None;
            }
            if let Some(job) = books.soon.pop_front().or_else(|| books.later.pop_front()) {
                books.running += 1;
                return Some(job);
            }
            books = self.work.wait(books).expect("nothing panics while it holds the queue");
        }
    }

    /// Hands in the outcome of a job from [`Queue::next`].
    pub(super) fn hand_in(&self, outcome: O) {
        let mut books = self.books();
        books.running -= 1;
        #[expect(clippy::disallowed_methods, reason = "room was reserved when the job was pushed")]
        books.outcomes.push_back(outcome);
        drop(books);
        self.news.notify_one();
    }

    /// Makes all workers return. Waiting jobs are dropped.
    pub(super) fn close(&self) {
        let mut books = self.books();
        books.closed = true;
        books.soon.clear();
        books.later.clear();
        drop(books);
        self.work.notify_all();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn urgent_jobs_go_first_and_jobs_can_be_taken_back() {
        let queue: Queue<u32, u32> = Queue::new();
        for (job, urgency) in [(1, Urgency::Later), (2, Urgency::Soon), (3, Urgency::Later), (4, Urgency::Soon)] {
            queue.push(job, urgency).unwrap();
        }
        assert_eq!(queue.next(), Some(2));
        assert_eq!(queue.take_back(|job| *job > 1), Some(4));
        assert_eq!(queue.take_back(|job| *job > 1), Some(3));
        assert_eq!(queue.next(), Some(1));
        queue.hand_in(10);
        assert!(queue.wait());
        assert_eq!((queue.outcome(), queue.outcome()), (Some(10), None));
        queue.hand_in(20);
        assert_eq!(queue.outcome(), Some(20));
        assert!(!queue.wait(), "nothing is under way");
        queue.close();
        assert_eq!(queue.next(), None);
    }
}

/// All interleavings of a small host and its workers; `make test` runs them.
#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    fn workers(queue: &Arc<Queue<u32, u32>>, count: usize) -> Vec<thread::JoinHandle<()>> {
        (0..count)
            .map(|_| {
                let queue = queue.clone();
                thread::spawn(move || {
                    while let Some(job) = queue.next() {
                        queue.hand_in(job * 10);
                    }
                })
            })
            .collect()
    }

    #[test]
    fn every_job_comes_back_once_in_any_order() {
        loom::model(|| {
            let queue = Arc::new(Queue::new());
            let workers = workers(&queue, 2);
            queue.push(1, Urgency::Later).unwrap();
            queue.push(2, Urgency::Soon).unwrap();
            let mut outcomes = Vec::new();
            while outcomes.len() < 2 {
                assert!(queue.wait(), "a job was lost");
                outcomes.extend(std::iter::from_fn(|| queue.outcome()));
            }
            outcomes.sort_unstable();
            assert_eq!(outcomes, [10, 20]);
            assert!(!queue.wait(), "nothing is left");
            queue.close();
            workers.into_iter().for_each(|w| w.join().unwrap());
        });
    }

    #[test]
    fn a_job_is_taken_back_or_done_and_never_both() {
        loom::model(|| {
            let queue = Arc::new(Queue::new());
            let workers = workers(&queue, 1);
            queue.push(1, Urgency::Soon).unwrap();
            queue.push(2, Urgency::Soon).unwrap();
            let mut seen: Vec<u32> = queue.take_back(|job| *job == 2).map(|job| job * 10).into_iter().collect();
            while queue.wait() {
                seen.extend(std::iter::from_fn(|| queue.outcome()));
            }
            seen.sort_unstable();
            assert_eq!(seen, [10, 20]);
            queue.close();
            workers.into_iter().for_each(|w| w.join().unwrap());
        });
    }

    #[test]
    fn closing_ends_sleeping_and_busy_workers() {
        loom::model(|| {
            let queue = Arc::new(Queue::new());
            let workers = workers(&queue, 2);
            queue.push(1, Urgency::Later).unwrap();
            queue.close();
            workers.into_iter().for_each(|w| w.join().unwrap());
            assert!(queue.outcome().is_none() || queue.outcome().is_none());
        });
    }
}
