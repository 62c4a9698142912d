//! Status
//!
//! Numbers never change meaning.

use crate::status::{Error, Status};
use std::cell::RefCell;
use std::ffi::c_char;

/// The outcome of a call: MNNKV_OK or a failure below.
pub type mnnkv_status = i32;

/// Success.
pub const MNNKV_OK: mnnkv_status = 0;
/// An argument is outside of what the function accepts.
pub const MNNKV_INVALID_ARGUMENT: mnnkv_status = 1;
/// An output buffer is too small. The length output of the call holds the size that is needed.
pub const MNNKV_BUFFER_TOO_SMALL: mnnkv_status = 2;
/// Encoded input is malformed.
pub const MNNKV_CORRUPT: mnnkv_status = 3;
/// Valid, but not supported by this version of the library.
pub const MNNKV_UNSUPPORTED: mnnkv_status = 4;
/// A file, a name or what a number names does not exist.
pub const MNNKV_NOT_FOUND: mnnkv_status = 5;
/// A queue is full, a file is in use, or a thread still attends. Nothing was done; the call may be repeated later.
pub const MNNKV_BUSY: mnnkv_status = 6;
/// A block or plan does not fit the cache, or a file is of another model.
pub const MNNKV_STALE: mnnkv_status = 7;
/// The system refused a read or write.
pub const MNNKV_IO: mnnkv_status = 8;
/// The system refused memory. Nothing was changed; the call may be repeated.
pub const MNNKV_OUT_OF_MEMORY: mnnkv_status = 9;
/// A bug in the library. Every later call on the handle but its _destroy returns INTERNAL; after mnnkv_session_attend only the
/// open step is lost: abort it.
pub const MNNKV_INTERNAL: mnnkv_status = 100;

/// Bytes of a text with its zero. Of longer texts the middle is left out. Thread-local storage: no allocation.
const TEXT_BYTES: usize = 1024;
/// Stands for the middle of a long text.
const CUT: &str = " ... ";

thread_local! {
    static LAST_ERROR: RefCell<[u8; TEXT_BYTES]> = const { RefCell::new([0; TEXT_BYTES]) };
}

/// Stores the text that `mnnkv_last_error` returns.
pub(super) fn set_last_error(error: &Error) {
    let message = error.message();
    // A long path is in the middle of a text; the cause is at its end.
    let (front, dots, back) = match message.len() {
        0..TEXT_BYTES => (message, "", ""),
        len => {
            let half = (TEXT_BYTES - 1 - CUT.len()) / 2;
            let whole = |at: &usize| message.is_char_boundary(*at);
            let front = (0..=half).rev().find(whole).unwrap_or(0);
            let back = (len - half..len).find(whole).unwrap_or(len);
            (&message[..front], CUT, &message[back..])
        }
    };
    LAST_ERROR.with_borrow_mut(|text| {
        // A zero inside would end the text.
        let bytes = front.bytes().chain(dots.bytes()).chain(back.bytes()).map(|b| if b == 0 { b' ' } else { b });
        text.iter_mut().zip(bytes.chain([0])).for_each(|(to, from)| *to = from);
    });
}

#[cfg(test)]
pub(super) fn last_error_text() -> String {
    LAST_ERROR.with_borrow(|text| std::ffi::CStr::from_bytes_until_nul(text).unwrap().to_str().unwrap().to_owned())
}

/// Returns the name of a status without its prefix, such as "CORRUPT"; "UNKNOWN" for other numbers. Static text.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub extern "C" fn mnnkv_status_name(status: mnnkv_status) -> *const c_char {
    let name = match status {
        MNNKV_OK => c"OK",
        MNNKV_INVALID_ARGUMENT => c"INVALID_ARGUMENT",
        MNNKV_BUFFER_TOO_SMALL => c"BUFFER_TOO_SMALL",
        MNNKV_CORRUPT => c"CORRUPT",
        MNNKV_UNSUPPORTED => c"UNSUPPORTED",
        MNNKV_NOT_FOUND => c"NOT_FOUND",
        MNNKV_BUSY => c"BUSY",
        MNNKV_STALE => c"STALE",
        MNNKV_IO => c"IO",
        MNNKV_OUT_OF_MEMORY => c"OUT_OF_MEMORY",
        MNNKV_INTERNAL => c"INTERNAL",
        _ => c"UNKNOWN",
    };
    name.as_ptr()
}

/// Returns one sentence about the calling thread's last failure: what was given, and what is allowed.
/// Where memory is short it may say no more than that. UTF-8, at most 1,023 bytes (of a longer text the middle is left out),
/// never NULL, "" before the first failure. Valid until the thread's next call of this library. A successful call does not
/// clear it.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub extern "C" fn mnnkv_last_error() -> *const c_char {
    LAST_ERROR.with_borrow(|text| text.as_ptr().cast())
}

// The numbers of the header and those of the library are one list.
const _: () = {
    assert!(Status::InvalidArgument.code() == MNNKV_INVALID_ARGUMENT);
    assert!(Status::BufferTooSmall.code() == MNNKV_BUFFER_TOO_SMALL);
    assert!(Status::Corrupt.code() == MNNKV_CORRUPT);
    assert!(Status::Unsupported.code() == MNNKV_UNSUPPORTED);
    assert!(Status::NotFound.code() == MNNKV_NOT_FOUND);
    assert!(Status::Busy.code() == MNNKV_BUSY);
    assert!(Status::Stale.code() == MNNKV_STALE);
    assert!(Status::Io.code() == MNNKV_IO);
    assert!(Status::OutOfMemory.code() == MNNKV_OUT_OF_MEMORY);
    assert!(Status::Internal.code() == MNNKV_INTERNAL);
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    #[test]
    fn a_long_text_is_cut_in_its_middle_between_characters_and_a_zero_does_not_end_it() {
        for at in 0..4 {
            let long = format!("{}{}", "x".repeat(at), "\u{1F600}".repeat(300));
            set_last_error(&Error::new(Status::Io, long.clone()));
            let kept = last_error_text();
            let (front, back) = kept.split_once(CUT).unwrap();
            assert!(long.starts_with(front) && long.ends_with(back), "{kept}");
            assert!((TEXT_BYTES - 8..TEXT_BYTES).contains(&kept.len()), "{}", kept.len());
        }
        set_last_error(&Error::new(Status::Io, "a\0b"));
        assert_eq!(last_error_text(), "a b");
    }

    #[test]
    fn names_are_those_of_the_library() {
        for status in Status::ALL {
            // SAFETY: the function returns static text.
            let name = unsafe { CStr::from_ptr(mnnkv_status_name(status.code())) };
            assert_eq!(name.to_str(), Ok(status.name()));
        }
    }
}
