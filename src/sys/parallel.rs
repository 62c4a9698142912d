//! Jobs of one call, shared between the calling thread and threads that live as long as the call.

use super::threads::Thread;
use super::{Mutex, memory};
use crate::status::{Error, Result, bail};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs `run(&mut worker, job)` for every job below `jobs`, on up to `threads` threads, the calling one included. Each
/// thread has a worker of its own: working memory that it keeps from job to job. Fewer threads run where the system
/// refuses one. Blocks until all have ended.
///
/// The first error ends the call: jobs that have not begun are left out. Which jobs ran before is unspecified.
/// INTERNAL: if a job panicked.
#[expect(clippy::disallowed_methods, reason = "room is reserved first")]
pub fn for_each<W: Default>(
    jobs: usize,
    threads: usize,
    run: impl Fn(&mut W, usize) -> Result<()> + Sync,
) -> Result<()> {
    let shared = Jobs { count: jobs, next: AtomicUsize::new(0), done: AtomicUsize::new(0), error: Mutex::new(None) };
    let more = threads.min(jobs).saturating_sub(1);
    let body = || shared.work(&run);
    let mut helpers = Helpers(Vec::new());
    memory::reserve(&mut helpers.0, more)?;
    for _ in 0..more {
        // SAFETY: `helpers` joins the thread before `shared` and `run` are dropped, even if this thread panics.
        match unsafe { Thread::start_scoped(c"mnnkv-job", body) } {
            Ok(thread) => helpers.0.push(thread),
            Err(_) => break,
        }
    }
    body();
    drop(helpers);
    shared.result()
}

struct Jobs {
    count: usize,
    next: AtomicUsize,
    done: AtomicUsize,
    error: Mutex<Option<Error>>,
}

impl Jobs {
    fn work<W: Default>(&self, run: &impl Fn(&mut W, usize) -> Result<()>) {
        let mut worker = W::default();
        loop {
            let job = self.next.fetch_add(1, Ordering::Relaxed);
            if job >= self.count {
                return;
            }
            match run(&mut worker, job) {
                Ok(()) => drop(self.done.fetch_add(1, Ordering::Relaxed)),
                Err(error) => {
                    self.next.store(self.count, Ordering::Relaxed);
                    if let Ok(mut first) = self.error.lock() {
                        first.get_or_insert(error);
                    }
                    return;
                }
            }
        }
    }

    fn result(self) -> Result<()> {
        match self.error.into_inner() {
            Ok(Some(error)) => Err(error),
            Ok(None) if self.done.into_inner() == self.count => Ok(()),
            _ => bail!(Internal, "a job panicked"),
        }
    }
}

/// Threads that are joined when this is dropped.
struct Helpers(Vec<Thread>);

impl Drop for Helpers {
    fn drop(&mut self) {
        self.0.drain(..).for_each(Thread::join);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_runs_once_whatever_the_number_of_threads() {
        for (jobs, threads) in [(0, 4), (1, 4), (7, 0), (7, 1), (100, 3), (3, 100)] {
            let runs: Vec<AtomicUsize> = (0..jobs).map(|_| AtomicUsize::new(0)).collect();
            for_each::<()>(jobs, threads, |(), job| {
                runs[job].fetch_add(1, Ordering::Relaxed);
                Ok(())
            })
            .unwrap();
            assert!(runs.iter().all(|runs| runs.load(Ordering::Relaxed) == 1), "{jobs} jobs on {threads} threads");
        }
    }

    #[test]
    fn the_first_error_ends_the_call_and_a_panic_of_a_helper_is_an_error() {
        let error = for_each::<()>(1000, 2, |(), job| if job == 3 { bail!(Io, "job 3 failed") } else { Ok(()) });
        assert_eq!(error.unwrap_err().to_string(), "IO: job 3 failed");

        let caller = std::thread::current().id();
        let met = std::sync::Barrier::new(2);
        let result = for_each::<()>(2, 2, |(), _| {
            met.wait();
            assert_eq!(std::thread::current().id(), caller, "only the caller's job ends");
            Ok(())
        });
        assert_eq!(result.unwrap_err().to_string(), "INTERNAL: a job panicked");
    }
}
