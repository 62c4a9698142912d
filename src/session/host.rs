//! The host of a session: its threads, and those that work for the session.

use crate::store::Executor;
use crate::sys;

/// Most workers by default: one decodes ahead while the other encodes.
const MOST_AUTOMATIC: u32 = 2;

/// The threads of a host.
#[derive(Default)]
pub struct Host {
    /// Threads of its attention; 0 = as many as lanes.
    pub threads: u32,
    /// Runs jobs in place of workers.
    pub executor: Option<Executor>,
    /// The host calls [`Session::attend`](super::Session::attend).
    pub attends: bool,
}

impl Host {
    /// The workers of a session with `lanes` lanes; with an executor only whether it is 0 matters. `given` is the config's
    /// number, `None` where automatic.
    pub(super) fn workers(&self, given: Option<u32>, lanes: u32) -> u32 {
        let threads = if self.threads == 0 { lanes } else { self.threads };
        match (given, &self.executor) {
            (Some(workers), _) => workers,
            (None, Some(_)) => 1,
            (None, None) => left(sys::cores(), threads),
        }
    }
}

/// The workers for the cores that a host leaves free.
fn left(cores: u32, threads: u32) -> u32 {
    cores.saturating_sub(threads).min(MOST_AUTOMATIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_get_the_cores_that_the_host_leaves_and_at_most_two() {
        let cases = [(1, 1), (2, 1), (2, 2), (2, 4), (8, 4), (8, 7), (8, 8)];
        assert_eq!(cases.map(|(cores, threads)| left(cores, threads)), [0, 1, 0, 0, 2, 1, 0]);
    }

    #[test]
    fn a_number_in_the_config_holds_and_an_executor_needs_none() {
        let host = |threads, executor| Host { threads, executor, attends: false };
        let executor = || Some(Box::new(|_| true) as Executor);
        assert_eq!((host(0, None).workers(None, 1 << 20), host(1 << 20, None).workers(None, 1)), (0, 0));
        assert_eq!((host(9, None).workers(Some(5), 9), host(0, executor()).workers(Some(0), 1)), (5, 0));
        assert_eq!(host(1 << 20, executor()).workers(None, 1), 1);
    }
}
