//! The cores that the process may use.

/// The number of cores that the calling thread may use, at least 1: those of its affinity, and no more than the control
/// groups of the process allow. Allocates nothing.
pub fn cores() -> u32 {
    system::cores().unwrap_or(1).max(1)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod system {
    use std::fs::File;
    use std::io::{Read, Write};

    /// Longer paths would be copied to the heap by the standard library.
    const MOST_PATH: usize = 380;

    pub(super) fn cores() -> Option<u32> {
        let cores = affinity()?;
        Some(quota().map_or(cores, |quota| cores.min(quota)))
    }

    fn affinity() -> Option<u32> {
        // SAFETY: the set is plain bits; the call writes no more than its size, and the other call reads it.
        let (error, count) = unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            let error = libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set);
            (error, libc::CPU_COUNT(&set))
        };
        if error == 0 {
            return u32::try_from(count).ok();
        }
        // More cores than the set has room for.
        // SAFETY: a query without pointers.
        u32::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }).ok()
    }

    /// The least quota of the control groups that the process is in, in whole cores.
    fn quota() -> Option<u32> {
        let mut room = [0; 4096];
        let groups = read(format_args!("/proc/self/cgroup"), &mut room)?;
        groups.lines().filter_map(group).min()
    }

    /// The least quota from a group up to the root. `line` is number, controllers and path.
    fn group(line: &str) -> Option<u32> {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, mut path) = (parts.next()?, parts.next()?.trim_end_matches('/'));
        let is_first = !controllers.is_empty();
        if is_first && !controllers.split(',').any(|name| name == "cpu") {
            return None;
        }
        let mut least = None;
        loop {
            let (mut a, mut b) = ([0; 64], [0; 64]);
            let quota = if is_first {
                let folder = format_args!("/sys/fs/cgroup/cpu{path}/cpu.cfs_");
                let quota = read(format_args!("{folder}quota_us"), &mut a);
                quota
                    .zip(read(format_args!("{folder}period_us"), &mut b))
                    .and_then(|(quota, period)| share(quota, period))
            } else {
                let file = read(format_args!("/sys/fs/cgroup{path}/cpu.max"), &mut a);
                file.and_then(|text| text.trim().split_once(' ')).and_then(|(quota, period)| share(quota, period))
            };
            least = least.into_iter().chain(quota).min();
            let Some(end) = path.rfind('/') else { return least };
            path = &path[..end];
        }
    }

    /// Whole cores, at least 1; `None` without a limit ("max" or -1).
    pub(super) fn share(quota: &str, period: &str) -> Option<u32> {
        let (quota, period): (u64, u64) = (quota.trim().parse().ok()?, period.trim().parse().ok()?);
        u32::try_from(quota.checked_div(period)?).ok().map(|cores| cores.max(1))
    }

    /// The beginning of a small file, as far as there is room.
    fn read<'a>(path: std::fmt::Arguments<'_>, room: &'a mut [u8]) -> Option<&'a str> {
        let mut name = [0; MOST_PATH];
        let mut rest = &mut name[..];
        rest.write_fmt(path).ok()?;
        let len = MOST_PATH - rest.len();
        let count = File::open(std::str::from_utf8(&name[..len]).ok()?).ok()?.read(room).ok()?;
        std::str::from_utf8(&room[..count]).ok()
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod system {
    pub(super) fn cores() -> Option<u32> {
        std::thread::available_parallelism().ok().and_then(|cores| u32::try_from(cores.get()).ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standard_library_counts_as_many() {
        assert_eq!(cores() as usize, std::thread::available_parallelism().unwrap().get());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_that_is_bound_to_one_core_has_one() {
        let bound = std::thread::spawn(|| {
            // SAFETY: the set is plain bits, and the core is one that the thread may use.
            unsafe {
                let mut set: libc::cpu_set_t = std::mem::zeroed();
                libc::CPU_SET(libc::sched_getcpu() as usize, &mut set);
                assert_eq!(libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set), 0);
            }
            cores()
        });
        assert_eq!(bound.join().unwrap(), 1);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_quota_is_whole_cores_and_never_none() {
        let quotas =
            [("max", "100000"), ("-1\n", "100000\n"), ("250000", "100000"), ("5000", "100000"), ("1", "0"), ("", "")];
        let cores = quotas.map(|(quota, period)| system::share(quota, period));
        assert_eq!(cores, [None, None, Some(2), Some(1), None, None]);
    }
}
