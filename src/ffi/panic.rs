//! The barrier for panics.

use super::status::{self, MNNKV_OK, mnnkv_status};
use crate::status::{Error, Result, error};
use crate::sys::{Mutex, quietly};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

fn internal(payload: &(dyn Any + Send)) -> Error {
    let text = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no text");
    error!(Internal, "a bug in mnn-kv, please report it: {text}")
}

/// Runs the body of an export. An error or a panic becomes a status and the thread's last error; a panic prints nothing.
pub fn guard(body: impl FnOnce() -> Result<()>) -> mnnkv_status {
    let error = match quietly(|| catch_unwind(AssertUnwindSafe(body))) {
        Ok(Ok(())) => return MNNKV_OK,
        Ok(Err(error)) => error,
        Err(payload) => internal(&*payload),
    };
    status::set_last_error(&error);
    error.status().code()
}

/// The body of an export with a status: an expression of type `Result<()>`, which may hand the export's pointers to unsafe
/// functions.
macro_rules! body {
    ($body:expr) => {
        $crate::ffi::panic::guard(|| {
            // SAFETY: an export is unsafe; the header is its contract, and that of the functions it calls.
            unsafe { $body }
        })
    };
}
pub(super) use body;

/// Runs the body of an export without a status, which returns `fallback` after an error or a panic.
pub fn guard_or<T>(fallback: T, body: impl FnOnce() -> Result<T>) -> T {
    let mut result = fallback;
    let _ = guard(|| {
        result = body()?;
        Ok(())
    });
    result
}

/// The target of an opaque pointer. A panic poisons the mutex: every later call returns INTERNAL, and only destroy works.
pub struct Handle<T>(Mutex<T>);

impl<T> Handle<T> {
    pub fn new(inner: T) -> Self {
        Handle(Mutex::new(inner))
    }

    /// Runs `body` on the object; `name` is for the error.
    pub fn with(&self, name: &str, body: impl FnOnce(&mut T) -> Result<()>) -> Result<()> {
        let mut inner = self.0.lock().map_err(|_| Error::out_of_service(name))?;
        body(&mut inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Status;

    #[test]
    fn a_panic_becomes_a_status_and_its_text_the_last_error() {
        assert_eq!(guard(|| panic!("number {}", 7)), Status::Internal.code());
        assert!(status::last_error_text().contains("number 7"));
        assert_eq!(guard_or(5, || panic!("again")), 5);
    }

    #[test]
    fn a_handle_is_out_of_service_after_a_caught_panic() {
        let handle = Handle::new(1);
        let call = |body: fn(&mut i32) -> Result<()>| guard(|| handle.with("counter", body));
        assert_eq!(call(|_| Ok(())), MNNKV_OK);
        assert_eq!(call(|_| panic!("boom")), Status::Internal.code());
        assert_eq!(call(|_| Ok(())), Status::Internal.code());
        assert!(status::last_error_text().contains("counter"));
    }
}
