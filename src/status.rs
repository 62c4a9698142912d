//! The one error type of the library and the numbers it crosses the C ABI with.

use crate::sys::memory;
use std::borrow::Cow;
use std::fmt;

/// The kind of an [`Error`]. The numbers are part of the ABI and never change meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Status {
    /// An argument is outside what the function allows.
    InvalidArgument = 1,
    /// An output buffer is too small; where the call has a length output, it holds what is needed.
    BufferTooSmall = 2,
    /// Encoded input is malformed.
    Corrupt = 3,
    /// The request is well-formed but this version cannot do it.
    Unsupported = 4,
    /// The named thing does not exist.
    NotFound = 5,
    /// A bounded queue is full.
    Busy = 6,
    /// A plan or block no longer fits the cache.
    Stale = 7,
    /// The operating system refused a read or write.
    Io = 8,
    /// Memory could not be had.
    OutOfMemory = 9,
    /// A bug in the library, caught before it reached the host.
    Internal = 100,
}

impl Status {
    /// Every kind, for tables and tests.
    pub const ALL: [Status; 10] = [
        Status::InvalidArgument,
        Status::BufferTooSmall,
        Status::Corrupt,
        Status::Unsupported,
        Status::NotFound,
        Status::Busy,
        Status::Stale,
        Status::Io,
        Status::OutOfMemory,
        Status::Internal,
    ];

    /// The number that crosses the C ABI.
    pub const fn code(self) -> i32 {
        self as i32
    }

    /// The name in the header, without its prefix.
    pub const fn name(self) -> &'static str {
        match self {
            Status::InvalidArgument => "INVALID_ARGUMENT",
            Status::BufferTooSmall => "BUFFER_TOO_SMALL",
            Status::Corrupt => "CORRUPT",
            Status::Unsupported => "UNSUPPORTED",
            Status::NotFound => "NOT_FOUND",
            Status::Busy => "BUSY",
            Status::Stale => "STALE",
            Status::Io => "IO",
            Status::OutOfMemory => "OUT_OF_MEMORY",
            Status::Internal => "INTERNAL",
        }
    }
}

/// A failure: its kind, and a sentence with the given and the allowed value.
///
/// Constructors never abort: without memory for the sentence, the error has a fixed one.
#[derive(Debug, PartialEq, Eq)]
pub struct Error(Inner);

/// At most two registers, so that success is cheap to return.
#[derive(Debug, PartialEq, Eq)]
enum Inner {
    Full(Box<Failure>),
    /// Without memory for a message.
    Bare(Status),
}

#[derive(Debug, PartialEq, Eq)]
struct Failure {
    status: Status,
    message: Cow<'static, str>,
    needed: Option<usize>,
}

impl Error {
    /// An error of `status` with a sentence for the host's log.
    pub fn new(status: Status, message: impl Into<Cow<'static, str>>) -> Self {
        Error::full(status, message.into(), None)
    }

    fn full(status: Status, message: Cow<'static, str>, needed: Option<usize>) -> Self {
        Error(memory::try_boxed(Failure { status, message, needed }).map_or(Inner::Bare(status), Inner::Full))
    }

    /// As [`Error::new`] with text to be formatted. Out of line, so that functions which check their arguments stay
    /// small.
    #[cold]
    #[inline(never)]
    pub fn formatted(status: Status, text: fmt::Arguments<'_>) -> Self {
        match memory::try_format(text) {
            Some(text) => Error::full(status, Cow::Owned(text), None),
            None => Error(Inner::Bare(status)),
        }
    }

    /// As [`Error::formatted`], of an error that is part of a result: OUT_OF_MEMORY where there is no memory for it.
    pub fn kept(status: Status, text: fmt::Arguments<'_>) -> Result<Self> {
        let message = Cow::Owned(memory::format(text)?);
        Ok(Error(Inner::Full(memory::boxed(Failure { status, message, needed: None })?)))
    }

    /// The same error with words before its sentence.
    pub fn within(&self, place: impl fmt::Display) -> Self {
        Error::formatted(self.status(), format_args!("{place}: {}", self.message()))
    }

    /// Hands on that memory ran out, if only for the sentence, and returns any other error as a value: for callers that
    /// go on without what failed.
    pub fn unless_out_of_memory(self) -> Result<Self> {
        match self.0 {
            Inner::Bare(_) => Err(Error(Inner::Bare(Status::OutOfMemory))),
            _ if self.status() == Status::OutOfMemory => Err(self),
            _ => Ok(self),
        }
    }

    /// The error of every call on `what` after a panic passed through it.
    pub fn out_of_service(what: &str) -> Self {
        error!(Internal, "{what} is out of service since a bug in mnn-kv; destroy it")
    }

    /// An output of `given` units where `needed` are required.
    pub fn too_small(what: &str, given: usize, needed: usize) -> Self {
        match memory::try_format(format_args!("{what} holds {given}, {needed} needed")) {
            Some(text) => Error::full(Status::BufferTooSmall, Cow::Owned(text), Some(needed)),
            None => Error(Inner::Bare(Status::OutOfMemory)),
        }
    }

    /// The kind of failure.
    pub fn status(&self) -> Status {
        match &self.0 {
            Inner::Full(failure) => failure.status,
            Inner::Bare(status) => *status,
        }
    }

    /// The sentence: the given and the allowed value.
    pub fn message(&self) -> &str {
        match &self.0 {
            Inner::Full(failure) => &failure.message,
            Inner::Bare(_) => "no memory for the details of this error",
        }
    }

    /// For [`Status::BufferTooSmall`]: the capacity that would have been enough.
    pub fn needed(&self) -> Option<usize> {
        match &self.0 {
            Inner::Full(failure) => failure.needed,
            Inner::Bare(_) => None,
        }
    }
}

impl Clone for Error {
    fn clone(&self) -> Self {
        match memory::try_format(format_args!("{}", self.message())) {
            Some(text) => Error::full(self.status(), Cow::Owned(text), self.needed()),
            None => Error(Inner::Bare(self.status())),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.status().name(), self.message())
    }
}

impl std::error::Error for Error {}

/// The result of every fallible function of the library.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the named status with a formatted sentence.
#[doc(hidden)]
#[macro_export]
macro_rules! error {
    ($status:ident, $($text:tt)+) => {
        $crate::status::Error::formatted($crate::status::Status::$status, format_args!($($text)+))
    };
}
#[doc(hidden)]
pub use error;

/// Returns early with an [`error!`].
#[doc(hidden)]
#[macro_export]
macro_rules! bail {
    ($status:ident, $($text:tt)+) => {
        return Err($crate::status::error!($status, $($text)+))
    };
}
#[doc(hidden)]
pub use bail;
