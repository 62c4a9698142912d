//! The queues between the hosts' threads and whoever runs their jobs.
//!
//! Each store has a [`Queue`], with bounds and an order of its own. The queues of a process share the workers: a worker
//! takes a job of each queue in turn. One mutex, held for a few moves of pointers and never during a job. A host's thread blocks in
//! [`Queue::wait`] and [`Queue::close`], for a job of its own store that has begun.
//!
//! A job owns its bytes, and an outcome is booked against the blocks that exist by then. So a job can never touch a token
//! that has moved meanwhile: the outcome of a block that is gone is dropped.

use crate::status::Result;
use crate::sys::memory;
use crate::sys::{Condvar, Mutex, MutexGuard, Shared};
use std::collections::VecDeque;

/// The order of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// Needed in this step; before every `Later`.
    Soon,
    /// Needed at any time.
    Later,
}

/// One store's part of the books.
struct JobQueue<C, J, O> {
    id: usize,
    context: C,
    /// Most workers that run its jobs at once.
    workers: u32,
    /// By [`Urgency`].
    jobs: [VecDeque<J>; 2],
    /// Jobs that were taken and not handed in.
    running: usize,
    /// Has room for the outcome of every job, so that [`Queues::hand_in`] cannot fail.
    outcomes: VecDeque<O>,
    /// Outcomes are dropped.
    is_closed: bool,
}

impl<C: Copy, J, O> JobQueue<C, J, O> {
    fn waiting(&self) -> usize {
        self.jobs.iter().map(VecDeque::len).sum()
    }

    fn take(&mut self) -> Option<Taken<C, J>> {
        let job = self.jobs.iter_mut().find_map(VecDeque::pop_front)?;
        self.running += 1;
        Some(Taken { id: self.id, context: self.context, job })
    }
}

struct Books<C, J, O> {
    /// By id, ascending.
    queues: Vec<JobQueue<C, J, O>>,
    last_id: usize,
    /// The queue that a worker took a job of last.
    served: usize,
    /// Workers that take jobs, a bit for each number.
    present: u64,
}

impl<C: Copy, J, O> Books<C, J, O> {
    fn find(&mut self, id: usize) -> Option<&mut JobQueue<C, J, O>> {
        self.queues.binary_search_by_key(&id, |queue| queue.id).ok().map(|at| &mut self.queues[at])
    }

    fn wanted(&self) -> u32 {
        self.queues.iter().map(|queue| queue.workers).max().unwrap_or(0)
    }

    /// A job of the next queue in turn.
    fn take(&mut self) -> Option<Taken<C, J>> {
        let next = self.queues.partition_point(|queue| queue.id <= self.served);
        let (before, behind) = self.queues.split_at_mut(next);
        let mut in_turn = behind.iter_mut().chain(before);
        let taken =
            in_turn.find_map(|queue| if queue.running < queue.workers as usize { queue.take() } else { None })?;
        self.served = taken.id;
        Some(taken)
    }
}

/// A job that has begun. Its outcome must be handed in.
pub(super) struct Taken<C, J> {
    /// The number of its queue.
    pub(super) id: usize,
    pub(super) context: C,
    pub(super) job: J,
}

/// The queues of a process: jobs `J` on their way to workers, with the context `C` of their store, and outcomes `O` on
/// their way back.
pub(super) struct Queues<C, J, O> {
    books: Mutex<Books<C, J, O>>,
    work: Condvar,
    news: Condvar,
}

impl<C: Copy, J, O> Queues<C, J, O> {
    pub(super) fn new() -> Self {
        let books = Books { queues: Vec::new(), last_id: 0, served: 0, present: 0 };
        Queues { books: Mutex::new(books), work: Condvar::new(), news: Condvar::new() }
    }

    /// A panic of a job is caught around it, outside this lock, so it cannot poison the lock.
    fn books(&self) -> MutexGuard<'_, Books<C, J, O>> {
        self.books.lock().expect(NEVER)
    }

    /// Adds a queue, of whose jobs up to `workers` run at once.
    #[expect(clippy::disallowed_methods, reason = "room is reserved first")]
    pub(super) fn open(this: &Shared<Self>, context: C, workers: u32) -> Result<Queue<C, J, O>> {
        let mut books = this.books();
        memory::reserve_amortized(&mut books.queues, 1)?;
        books.last_id += 1;
        let id = books.last_id;
        let (jobs, outcomes) = (Default::default(), VecDeque::new());
        books.queues.push(JobQueue { id, context, workers, jobs, running: 0, outcomes, is_closed: false });
        drop(books);
        Ok(Queue { queues: this.clone(), id })
    }

    /// The most workers that an open queue has.
    pub(super) fn wanted(&self) -> u32 {
        self.books().wanted()
    }

    /// Registers worker `number`; false where it is present.
    pub(super) fn arrive(&self, number: u32) -> bool {
        let mut books = self.books();
        let is_new = books.present & 1 << number == 0;
        books.present |= 1 << number;
        is_new
    }

    /// Takes back what [`Queues::arrive`] registered.
    pub(super) fn leave(&self, number: u32) {
        self.books().present &= !(1 << number);
    }

    pub(super) fn is_present(&self, number: u32) -> bool {
        self.books().present & 1 << number != 0
    }

    /// The next job of worker `number`; blocks while there is none. `None` when no queue has so many workers any more: the
    /// worker must return, and is not present.
    pub(super) fn next(&self, number: u32) -> Option<Taken<C, J>> {
        let mut books = self.books();
        loop {
            if number >= books.wanted() {
                books.present &= !(1 << number);
                drop(books);
                // The job that it has just handed in may have been in the way of another one.
                self.work.notify_one();
                return None;
            }
            if let Some(taken) = books.take() {
                return Some(taken);
            }
            books = self.work.wait(books).expect(NEVER);
        }
    }

    /// Hands in the outcome of a job that was taken from queue `id`.
    pub(super) fn hand_in(&self, id: usize, outcome: O) {
        let mut late = None;
        let mut books = self.books();
        let queue = books.find(id).expect("a queue stays while a job of it runs");
        queue.running -= 1;
        if queue.is_closed {
            late = Some(outcome);
        } else {
            #[expect(clippy::disallowed_methods, reason = "room was reserved when the job was pushed")]
            queue.outcomes.push_back(outcome);
        }
        drop(books);
        self.news.notify_all();
        drop(late);
    }
}

/// Why a lock is not poisoned.
const NEVER: &str = "nothing panics while it holds the queues";

/// The end of a queue that its store holds. It must be closed.
pub(super) struct Queue<C, J, O> {
    queues: Shared<Queues<C, J, O>>,
    id: usize,
}

impl<C: Copy, J, O> Queue<C, J, O> {
    fn with<R>(&self, body: impl FnOnce(&mut JobQueue<C, J, O>) -> R) -> R {
        body(self.queues.books().find(self.id).expect(OPEN))
    }

    /// Adds a job; bounds are the caller's. OUT_OF_MEMORY: the job is dropped.
    #[expect(clippy::disallowed_methods, reason = "room is reserved first")]
    pub(super) fn push(&self, job: J, urgency: Urgency) -> Result<()> {
        self.with(|queue| {
            let all = queue.waiting() + queue.running + 1;
            memory::reserve_deque(&mut queue.outcomes, all)?;
            let jobs = &mut queue.jobs[urgency as usize];
            memory::reserve_deque(jobs, 1)?;
            jobs.push_back(job);
            Ok(())
        })?;
        self.queues.work.notify_one();
        Ok(())
    }

    /// Takes back the last waiting job for which `which` is true; jobs begin from the front.
    pub(super) fn take_back(&self, which: impl Fn(&J) -> bool) -> Option<J> {
        self.with(|queue| {
            queue.jobs.iter_mut().find_map(|jobs| jobs.iter().rposition(&which).and_then(|at| jobs.remove(at)))
        })
    }

    /// Takes the oldest outcome. Never blocks.
    pub(super) fn outcome(&self) -> Option<O> {
        self.with(|queue| queue.outcomes.pop_front())
    }

    /// Blocks until there is an outcome; returns false at once when no job is under way. A job that waits for a host's
    /// thread is not.
    pub(super) fn wait(&self) -> bool {
        let mut books = self.queues.books();
        loop {
            let queue = books.find(self.id).expect(OPEN);
            if !queue.outcomes.is_empty() {
                return true;
            }
            if queue.running == 0 && (queue.workers == 0 || queue.waiting() == 0) {
                return false;
            }
            books = self.queues.news.wait(books).expect(NEVER);
        }
    }

    /// Removes the queue: blocks until each of its jobs that has begun is handed in, and drops the others. Workers that no
    /// queue has any more return from [`Queues::next`].
    pub(super) fn close(&self) {
        let mut books = self.queues.books();
        let queue = books.find(self.id).expect(OPEN);
        queue.is_closed = true;
        let waiting = std::mem::take(&mut queue.jobs);
        while books.find(self.id).is_some_and(|queue| queue.running > 0) {
            books = self.queues.news.wait(books).expect(NEVER);
        }
        let at = books.queues.binary_search_by_key(&self.id, |queue| queue.id);
        let queue = at.ok().map(|at| books.queues.remove(at));
        drop(books);
        self.queues.work.notify_all();
        drop((waiting, queue));
    }
}

/// Why a queue is found.
const OPEN: &str = "a queue is used before it is closed";

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    type Tens = Queues<u32, u32, u32>;

    fn queues() -> Shared<Tens> {
        Shared::new(Queues::new()).unwrap()
    }

    #[test]
    fn urgent_jobs_go_first_and_jobs_can_be_taken_back() {
        let queues = queues();
        let queue = Queues::open(&queues, 0, 1).unwrap();
        let next = || queues.next(0).map(|taken| taken.job);
        for (job, urgency) in [(1, Urgency::Later), (2, Urgency::Soon), (3, Urgency::Later), (4, Urgency::Soon)] {
            queue.push(job, urgency).unwrap();
        }
        assert_eq!(next(), Some(2));
        queues.hand_in(queue.id, 10);
        assert_eq!(queue.take_back(|job| *job > 1), Some(4));
        assert_eq!(queue.take_back(|job| *job > 1), Some(3));
        assert_eq!(next(), Some(1));
        assert!(queue.wait());
        assert_eq!((queue.outcome(), queue.outcome()), (Some(10), None));
        queues.hand_in(queue.id, 20);
        assert_eq!(queue.outcome(), Some(20));
        assert!(!queue.wait(), "nothing is under way");
        queue.close();
        assert_eq!(next(), None);
    }

    #[test]
    fn queues_take_turns_and_none_has_more_workers_than_it_asked_for() {
        let queues = queues();
        let open = |context, workers, jobs: [u32; 3]| {
            let queue = Queues::open(&queues, context, workers).unwrap();
            jobs.iter().for_each(|job| queue.push(*job, Urgency::Later).unwrap());
            queue
        };
        let (one, two, _three) = (open(7, 1, [10, 11, 12]), open(8, 2, [20, 21, 22]), open(9, 0, [30, 31, 32]));
        let next = || queues.next(0).map(|taken| (taken.context, taken.job));
        assert_eq!([next(), next(), next()], [Some((7, 10)), Some((8, 20)), Some((8, 21))]);
        [&one, &two].iter().for_each(|queue| queues.hand_in(queue.id, 0));
        assert_eq!([next(), next()], [Some((7, 11)), Some((8, 22))]);
        assert_eq!((queues.wanted(), queues.arrive(1), queues.arrive(1)), (2, true, false));
    }
}

/// All interleavings of small hosts and their workers; `make test` runs them.
#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::thread;

    type Tens = Queues<u32, u32, u32>;

    fn queues() -> Shared<Tens> {
        Shared::new(Queues::new()).unwrap()
    }

    /// All interleavings with few preemptions, for models of many steps.
    fn explore(body: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = builder.preemption_bound.map(|bound| bound.min(2));
        builder.check(body);
    }

    /// Workers of these numbers. Each returns when no queue has so many.
    fn workers(queues: &Shared<Tens>, numbers: std::ops::Range<u32>) -> Vec<thread::JoinHandle<()>> {
        numbers
            .map(|number| {
                let queues = queues.clone();
                assert!(queues.arrive(number));
                thread::spawn(move || {
                    while let Some(taken) = queues.next(number) {
                        queues.hand_in(taken.id, taken.job * 10 + taken.context);
                    }
                    assert!(!queues.is_present(number));
                })
            })
            .collect()
    }

    fn end(workers: Vec<thread::JoinHandle<()>>) {
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    }

    /// The outcomes of all jobs under way, sorted.
    fn drained(queue: &Queue<u32, u32, u32>) -> Vec<u32> {
        let mut outcomes = Vec::new();
        while queue.wait() {
            outcomes.extend(std::iter::from_fn(|| queue.outcome()));
        }
        outcomes.sort_unstable();
        outcomes
    }

    #[test]
    fn every_job_comes_back_once_in_any_order() {
        loom::model(|| {
            let queues = queues();
            let queue = Queues::open(&queues, 0, 2).unwrap();
            let workers = workers(&queues, 0..2);
            queue.push(1, Urgency::Later).unwrap();
            queue.push(2, Urgency::Soon).unwrap();
            assert_eq!(drained(&queue), [10, 20]);
            queue.close();
            end(workers);
        });
    }

    #[test]
    fn a_job_is_taken_back_or_done_and_never_both() {
        loom::model(|| {
            let queues = queues();
            let queue = Queues::open(&queues, 0, 1).unwrap();
            let workers = workers(&queues, 0..1);
            queue.push(1, Urgency::Soon).unwrap();
            queue.push(2, Urgency::Soon).unwrap();
            let back = queue.take_back(|job| *job == 2).map(|job| job * 10);
            let mut seen = drained(&queue);
            seen.extend(back);
            seen.sort_unstable();
            assert_eq!(seen, [10, 20]);
            queue.close();
            end(workers);
        });
    }

    #[test]
    fn closing_ends_sleeping_and_busy_workers() {
        loom::model(|| {
            let queues = queues();
            let queue = Queues::open(&queues, 0, 2).unwrap();
            let workers = workers(&queues, 0..2);
            queue.push(1, Urgency::Later).unwrap();
            queue.close();
            end(workers);
        });
    }

    #[test]
    fn two_hosts_share_a_worker_and_each_gets_its_own_outcomes() {
        explore(|| {
            let queues = queues();
            let queue = Queues::open(&queues, 1, 1).unwrap();
            let workers = workers(&queues, 0..1);
            let other = Queues::open(&queues, 2, 1).unwrap();
            let host = thread::spawn(move || {
                other.push(2, Urgency::Later).unwrap();
                assert_eq!(drained(&other), [22]);
                other.close();
            });
            queue.push(1, Urgency::Soon).unwrap();
            assert_eq!(drained(&queue), [11]);
            host.join().unwrap();
            queue.close();
            end(workers);
        });
    }

    #[test]
    fn closing_one_queue_costs_the_other_no_job_and_no_worker_of_its_own() {
        explore(|| {
            let queues = queues();
            let (wide, narrow) = (Queues::open(&queues, 1, 2).unwrap(), Queues::open(&queues, 2, 1).unwrap());
            let workers = workers(&queues, 0..2);
            wide.push(1, Urgency::Soon).unwrap();
            narrow.push(2, Urgency::Soon).unwrap();
            // The second worker leaves, whether it sleeps, is about to, or has a job of either.
            wide.close();
            narrow.push(3, Urgency::Soon).unwrap();
            assert_eq!(drained(&narrow), [22, 32]);
            assert!(queues.is_present(0));
            narrow.close();
            end(workers);
        });
    }
}
