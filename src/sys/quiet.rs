//! Panics without a message.
//!
//! The library catches its panics and reports them as a status. The standard library would first print each to standard
//! error, which belongs to the host.

use std::cell::Cell;
use std::panic::{self, PanicHookInfo};
use std::sync::{Once, OnceLock};

type Hook = Box<dyn Fn(&PanicHookInfo<'_>) + Sync + Send>;

/// The previous hook, which prints the panics of all other code, such as a Rust host's.
static BEFORE: OnceLock<Hook> = OnceLock::new();

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

fn hook(panic: &PanicHookInfo<'_>) {
    if !QUIET.get()
        && let Some(before) = BEFORE.get()
    {
        before(panic);
    }
}

/// Installs the hook, once. Allocates nothing: the box of a function has no size.
fn install() {
    static INSTALLED: Once = Once::new();
    // A thread that is panicking, such as a host's that unwinds through a destructor, may not change hooks.
    if !INSTALLED.is_completed() && !std::thread::panicking() {
        INSTALLED.call_once(|| {
            if BEFORE.set(panic::take_hook()).is_ok() {
                #[expect(clippy::disallowed_methods, reason = "a function has no size: nothing is allocated")]
                panic::set_hook(Box::new(hook));
            }
        });
    }
}

/// Runs `body`, which catches its panics. A panic that begins in it on this thread prints no message.
pub(crate) fn quietly<T>(body: impl FnOnce() -> T) -> T {
    /// Ends the silence, also if a panic leaves `body`.
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            QUIET.set(self.0);
        }
    }
    install();
    let _restore = Restore(QUIET.replace(true));
    body()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::again;
    use std::panic::catch_unwind;

    fn fail(text: &'static str) -> bool {
        catch_unwind(|| panic!("{text}")).is_err()
    }

    #[test]
    #[ignore = "run by the test below, in a process whose standard error is read"]
    fn panics_in_a_process_of_its_own() {
        assert!(quietly(|| fail("one")));
        assert!(quietly(|| quietly(|| fail("two")) && fail("three")));
        assert!(catch_unwind(|| quietly(|| panic!("four"))).is_err());
        assert!(fail("printed"));
    }

    #[test]
    #[cfg_attr(miri, ignore = "starts a process")]
    fn panics_are_silent_inside_and_reach_the_previous_hook_outside() {
        let name = "sys::quiet::tests::panics_in_a_process_of_its_own";
        let run = again(name).env("RUST_BACKTRACE", "0").output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
        assert!(run.status.success() && out.contains("1 passed"), "{out}{err}");
        assert_eq!(err.matches("panicked at").count(), 1, "{err}");
        assert!(err.contains("printed"), "{err}");
    }
}
