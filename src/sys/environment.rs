//! Variables of the environment, read without a copy.

use std::ffi::CStr;

/// Calls `body` with the value of a variable, or `None` if it is unset or not UTF-8.
#[cfg(unix)]
pub(crate) fn with_variable<R>(name: &CStr, body: impl FnOnce(Option<&str>) -> R) -> R {
    // SAFETY: the name is terminated. As with every getenv, no other thread may set variables during the call; the value
    // is read in it.
    let value = unsafe {
        let value = libc::getenv(name.as_ptr());
        if value.is_null() { None } else { Some(CStr::from_ptr(value)) }
    };
    body(value.and_then(|value| value.to_str().ok()))
}

/// Calls `body` with the value of a variable, or `None` if it is unset or not Unicode.
#[cfg(not(unix))]
pub(crate) fn with_variable<R>(name: &CStr, body: impl FnOnce(Option<&str>) -> R) -> R {
    let value = name.to_str().ok().and_then(|name| std::env::var(name).ok());
    body(value.as_deref())
}
