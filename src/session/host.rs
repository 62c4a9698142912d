//! The host of a session: its threads, and those that work for the session.

use crate::sys;

/// Most workers by default: one decodes ahead while the other encodes.
const MOST_AUTOMATIC: u32 = 2;

/// What a host says of itself.
#[derive(Clone, Copy, Default)]
pub struct Host {
    /// The host calls [`Session::attend`](super::Session::attend).
    pub attends: bool,
}

/// The workers of a session whose host has `threads` threads. `given` is the config's number, `None` where automatic.
pub(super) fn workers(given: Option<u32>, threads: u32) -> u32 {
    given.unwrap_or_else(|| left(sys::cores(), threads))
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
        assert_eq!((workers(None, 1 << 20), workers(Some(5), 9)), (0, 5));
    }
}
