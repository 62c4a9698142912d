//! A Rust library that has nothing to do with mnnkv, for a host that links both.

use std::panic;

/// Catches a panic of its own and returns the negated argument: unwinding works when two copies of the standard
/// library are in one program.
#[unsafe(no_mangle)]
pub extern "C" fn other_catches_its_panic(argument: i32) -> i32 {
    panic::set_hook(Box::new(|_| {}));
    let caught = panic::catch_unwind(|| panic::panic_any(argument));
    match caught {
        Ok(()) => 0,
        Err(payload) => payload.downcast_ref::<i32>().map_or(0, |argument| -argument),
    }
}
