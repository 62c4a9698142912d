//! How handles come and go: each is a box whose address C holds.

use super::panic::guard;
use super::pointer::Out;
use super::version;
use crate::status::Result;
use crate::sys::memory;

/// Hands out what `make` returns.
///
/// # Safety
/// A non-NULL `out` is writable.
pub unsafe fn create<T>(abi_version: u32, out: *mut *mut T, make: impl FnOnce() -> Result<T>) -> Result<()> {
    version::check_abi(abi_version)?;
    // SAFETY: passed on.
    let out = unsafe { Out::new(out, "out") }?;
    // Memory comes first: what `make` returns may have left a file.
    out.set(Box::into_raw(memory::boxed_with(make)?));
    Ok(())
}

/// Runs the body of a `_destroy` export.
///
/// # Safety
/// A non-NULL `handle` is from [`create`], not destroyed yet and in no other call.
pub unsafe fn destroy<T>(handle: *mut T) {
    if !handle.is_null() {
        guard(|| {
            // SAFETY: passed on.
            drop(unsafe { Box::from_raw(handle) });
            Ok(())
        });
    }
}
