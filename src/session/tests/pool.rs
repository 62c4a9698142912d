//! A host's threads, which run jobs of all sessions, the latest first.

use crate::store::{self, Executor};
use crate::sys::{Condvar, Mutex};
use std::cell::Cell;
use std::sync::OnceLock;

struct Pool {
    jobs: Mutex<Vec<usize>>,
    work: Condvar,
}

impl Pool {
    fn work(&self) {
        let mut jobs = self.jobs.lock().unwrap();
        loop {
            match jobs.pop() {
                Some(job) => {
                    drop(jobs);
                    store::run_one(job);
                    jobs = self.jobs.lock().unwrap();
                }
                None => jobs = self.work.wait(jobs).unwrap(),
            }
        }
    }
}

/// Takes jobs to the pool, and refuses the last of each `refused`.
pub(super) fn executor(refused: usize) -> Executor {
    static POOL: OnceLock<&Pool> = OnceLock::new();
    let pool = *POOL.get_or_init(|| {
        let pool: &Pool = Box::leak(Box::new(Pool { jobs: Mutex::new(Vec::new()), work: Condvar::new() }));
        (0..2).for_each(|_| drop(std::thread::spawn(|| pool.work())));
        pool
    });
    let count = Cell::new(0_usize);
    Box::new(move |job| {
        count.set(count.get() + 1);
        let takes = !count.get().is_multiple_of(refused);
        if takes {
            pool.jobs.lock().unwrap().push(job);
            pool.work.notify_one();
        }
        takes
    })
}
