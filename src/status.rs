//! The one error type of the library and the numbers it crosses the C ABI with.

use std::fmt;

/// What kind of failure an [`Error`] is. The numbers are part of the ABI and never change meaning.
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

/// A failure: its kind, and a sentence that says what was given and what was allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(Box<Failure>);

/// Behind a pointer, so that a result fits a register and success costs nothing to hand on.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Failure {
    status: Status,
    message: String,
    needed: Option<usize>,
}

impl Error {
    /// An error of `status` with a sentence for the host's log.
    pub fn new(status: Status, message: impl Into<String>) -> Self {
        Error(Box::new(Failure { status, message: message.into(), needed: None }))
    }

    /// As [`Error::new`]. Out of line, so that functions which check their arguments stay small.
    #[cold]
    #[inline(never)]
    pub(crate) fn formatted(status: Status, text: fmt::Arguments<'_>) -> Self {
        Error::new(status, text.to_string())
    }

    /// What every call answers once a panic has passed through `what`.
    pub(crate) fn out_of_service(what: &str) -> Self {
        Error::new(Status::Internal, format!("{what} is out of service since a bug in mnn-kv; destroy it"))
    }

    /// An output of `given` units where `needed` are required.
    pub fn too_small(what: &str, given: usize, needed: usize) -> Self {
        Error(Box::new(Failure {
            status: Status::BufferTooSmall,
            message: format!("{what} holds {given}, {needed} needed"),
            needed: Some(needed),
        }))
    }

    /// The kind of failure.
    pub fn status(&self) -> Status {
        self.0.status
    }

    /// What was given and what was allowed.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// For [`Status::BufferTooSmall`]: the capacity that would have been enough.
    pub fn needed(&self) -> Option<usize> {
        self.0.needed
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.status().name(), self.message())
    }
}

impl std::error::Error for Error {}

/// What every fallible function of the library returns.
pub type Result<T> = std::result::Result<T, Error>;

/// Returns early with an error of the named status and a formatted sentence.
macro_rules! bail {
    ($status:ident, $($text:tt)+) => {
        return Err($crate::status::Error::formatted($crate::status::Status::$status, format_args!($($text)+)))
    };
}
pub(crate) use bail;

/// Makes `buffer` exactly `len` long without aborting the process when memory runs out. Old contents are kept up to
/// `len`; callers overwrite them.
pub(crate) fn resize<T: Copy + Default>(buffer: &mut Vec<T>, len: usize) -> Result<()> {
    if len > buffer.len() {
        reserve(buffer, len - buffer.len())?;
    }
    buffer.resize(len, T::default());
    Ok(())
}

/// The first `len` elements of `buffer`, which grows when it is shorter. Old contents are anything; callers overwrite
/// them.
pub(crate) fn at_least<T: Copy + Default>(buffer: &mut Vec<T>, len: usize) -> Result<&mut [T]> {
    if len > buffer.len() {
        resize(buffer, len)?;
    }
    Ok(&mut buffer[..len])
}

/// As [`reserve`], with room for more to come.
pub(crate) fn reserve_amortized<T>(buffer: &mut Vec<T>, additional: usize) -> Result<()> {
    if buffer.capacity() - buffer.len() < additional {
        reserve(buffer, additional.max(buffer.len()))?;
    }
    Ok(())
}

/// Room for `additional` more elements, or [`Status::OutOfMemory`].
pub(crate) fn reserve<T>(buffer: &mut Vec<T>, additional: usize) -> Result<()> {
    #[cfg(test)]
    shortage::check(additional.saturating_mul(size_of::<T>()))?;
    buffer.try_reserve_exact(additional).map_err(|_| {
        Error::new(
            Status::OutOfMemory,
            format!("no memory for {} more bytes", additional.saturating_mul(size_of::<T>())),
        )
    })
}

/// Allocations that fail on purpose: tests of what happens when memory runs out.
#[cfg(test)]
pub(crate) mod shortage {
    use super::Result;
    use std::cell::Cell;

    thread_local! {
        static ODDS: Cell<(u32, u64)> = const { Cell::new((0, 1)) };
        static LEAST: Cell<usize> = const { Cell::new(1024) };
    }

    /// From now on this thread's allocations of 1,024 bytes and more fail, one in `odds` by chance; 0 = none.
    pub(crate) fn set(odds: u32, seed: u64) {
        ODDS.set((odds, seed | 1));
    }

    /// From now on only allocations of at least so many bytes fail.
    pub(crate) fn set_least(bytes: usize) {
        LEAST.set(bytes);
    }

    /// The odds, and the bytes that an allocation must have to fail.
    pub(crate) fn get() -> (u32, usize) {
        (ODDS.get().0, LEAST.get())
    }

    pub(crate) fn check(bytes: usize) -> Result<()> {
        let (odds, mut state) = ODDS.get();
        if odds == 0 || bytes < LEAST.get() {
            return Ok(());
        }
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ODDS.set((odds, state));
        if (state >> 32) % u64::from(odds) == 0 {
            bail!(OutOfMemory, "no memory for {bytes} bytes, as the test wants it");
        }
        Ok(())
    }
}
