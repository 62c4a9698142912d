//! An allocator that refuses memory at a chosen allocation of a thread, and the loop over all of them.

use mnnkv::status::{Error, Status};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fmt::Debug;
use std::ptr;

/// The system allocator, with refusals inside [`refusing`]. A test program sets it as its `#[global_allocator]`.
pub struct Failing;

/// The allocations of a call that are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    None,
    /// This one alone, counted from 0: memory is short for a moment.
    Nth(u64),
    /// This one and all that follow: memory has run out.
    From(u64),
}

thread_local! {
    static REFUSED: Cell<Refused> = const { Cell::new(Refused::None) };
    static COUNT: Cell<u64> = const { Cell::new(0) };
    static REFUSALS: Cell<u64> = const { Cell::new(0) };
}

/// Counts an allocation. Returns whether it is granted.
fn granted() -> bool {
    let number = COUNT.get();
    let refuse = match REFUSED.get() {
        Refused::None => return true,
        Refused::Nth(n) => n == number,
        Refused::From(n) => n <= number,
    };
    COUNT.set(number + 1);
    REFUSALS.set(REFUSALS.get() + u64::from(refuse));
    !refuse
}

// SAFETY: every call is passed on to the system allocator, or returns NULL, which is a refusal.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: passed on.
        if granted() { unsafe { System.alloc(layout) } } else { ptr::null_mut() }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: passed on.
        if granted() { unsafe { System.alloc_zeroed(layout) } } else { ptr::null_mut() }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: passed on.
        if size <= layout.size() || granted() { unsafe { System.realloc(old, layout, size) } } else { ptr::null_mut() }
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        // SAFETY: passed on.
        unsafe { System.dealloc(old, layout) }
    }
}

/// Ends the refusals on drop, also when a call panics.
struct Armed;

impl Drop for Armed {
    fn drop(&mut self) {
        REFUSED.set(Refused::None);
    }
}

/// Runs `call` while allocations of this thread are refused. Returns its result and the number of refusals.
pub fn refusing<T>(refused: Refused, call: impl FnOnce() -> T) -> (T, u64) {
    COUNT.set(0);
    REFUSALS.set(0);
    REFUSED.set(refused);
    let armed = Armed;
    let result = call();
    drop(armed);
    (result, REFUSALS.get())
}

/// Runs `call` for each of its allocations: once with that one refused, and once with all from that one on. Each time it
/// must return OUT_OF_MEMORY, and right afterwards, without refusals, its usual result. Returns the number of
/// allocations.
///
/// A call that always fails may return its usual status, without its message.
pub fn each_allocation<T: Debug + PartialEq>(what: &str, call: impl FnMut() -> Result<T, Error>) -> u64 {
    each_of(&[Refused::Nth, Refused::From], what, call)
}

/// As [`each_allocation`], with these kinds of refusals.
pub fn each_of<T: Debug + PartialEq>(
    kinds: &[fn(u64) -> Refused],
    what: &str,
    mut call: impl FnMut() -> Result<T, Error>,
) -> u64 {
    let expected = call();
    let mut allocations = 0;
    for refused in kinds {
        for n in 0.. {
            let (result, refusals) = refusing(refused(n), &mut call);
            let shown = refused(n);
            if refusals == 0 {
                assert_eq!(result, expected, "{what}: {shown:?}");
                allocations = n;
                break;
            }
            let allowed = [Some(Status::OutOfMemory), expected.as_ref().err().map(Error::status)];
            match result {
                Ok(value) => panic!("{what}: {shown:?} was refused, but the call returned {value:?}"),
                Err(e) => assert!(allowed.contains(&Some(e.status())), "{what}: {shown:?}: {e}"),
            }
            assert_eq!(call(), expected, "{what}: after {shown:?}");
        }
    }
    println!("{what}: {allocations} allocations");
    allocations
}
