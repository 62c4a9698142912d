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

/// Calls `body` with the value of a variable, or `None` if it is unset, empty, 512 words or longer, or not Unicode.
#[cfg(windows)]
pub(crate) fn with_variable<R>(name: &CStr, body: impl FnOnce(Option<&str>) -> R) -> R {
    /// Values of the variables that the library reads are far shorter.
    const MOST: usize = 512;

    #[link(name = "kernel32")]
    unsafe extern "system" {
        fn GetEnvironmentVariableW(name: *const u16, value: *mut u16, size: u32) -> u32;
    }

    let (mut wide, mut value, mut text) = ([0u16; 64], [0u16; MOST], [0u8; 3 * MOST]);
    let name = name.to_bytes_with_nul();
    let Some(room) = wide.get_mut(..name.len()) else { return body(None) };
    room.iter_mut().zip(name).for_each(|(to, from)| *to = u16::from(*from));
    // SAFETY: the name ends with a zero, and there is room for as many words as is said.
    let len = unsafe { GetEnvironmentVariableW(wide.as_ptr(), value.as_mut_ptr(), MOST as u32) } as usize;
    // A value that is too long gives the room that it needs.
    let Some(value) = value.get(..len).filter(|value| !value.is_empty() && value.len() < MOST) else {
        return body(None);
    };
    let mut end = 0;
    for c in char::decode_utf16(value.iter().copied()) {
        let Ok(c) = c else { return body(None) };
        end += c.encode_utf8(&mut text[end..]).len();
    }
    body(std::str::from_utf8(&text[..end]).ok())
}

/// Calls `body` with the value of a variable, or `None` if it is unset or not Unicode.
#[cfg(not(any(unix, windows)))]
pub(crate) fn with_variable<R>(name: &CStr, body: impl FnOnce(Option<&str>) -> R) -> R {
    let value = name.to_str().ok().and_then(|name| std::env::var(name).ok());
    body(value.as_deref())
}
