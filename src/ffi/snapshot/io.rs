//! Snapshot: bytes of the host
//!
//! A snapshot is a file (mnnkv_snapshot_options::path), or bytes that the host keeps in a container of its own, encrypted
//! or not (mnnkv_snapshot_options::io). Each of the host's functions returns 0, or any other number,
//! with which the call fails with IO and which its text names. But append takes bytes that it cannot read for damaged, and
//! writes their tokens again; verify names them.

use crate::ffi::pointer::{self, Sized32};
use crate::snapshot::{Medium, Storage};
use crate::status::{Result, bail, error};
use crate::sys::{Mutex, memory};
use std::ffi::{c_char, c_void};
use std::fmt;
use std::sync::PoisonError;

/// Functions that read and write bytes. Copied by create and open; user must stay valid until mnnkv_snapshot_destroy
/// returns. They are called inside functions of the library, on the caller's thread, never two at once, and must neither
/// throw nor call the snapshot.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_snapshot_io {
    /// sizeof(mnnkv_snapshot_io)
    pub struct_size: u32,
    /// Must be 0.
    pub reserved: u32,
    /// The name of the bytes in error texts, UTF-8; copied. NULL = snapshot.
    pub name: *const c_char,
    /// The first argument of each function.
    pub user: *mut c_void,
    /// Writes the number of bytes to *size.
    pub size: Option<unsafe extern "C" fn(user: *mut c_void, size: *mut u64) -> i32>,
    /// Reads len bytes from offset on; fewer are a failure.
    pub read: Option<unsafe extern "C" fn(user: *mut c_void, offset: u64, to: *mut c_void, len: usize) -> i32>,
    /// Writes len bytes at offset, over what is there, or after it. NULL = none; the access must be READ.
    pub write: Option<unsafe extern "C" fn(user: *mut c_void, offset: u64, from: *const c_void, len: usize) -> i32>,
    /// Returns when all that was written would survive a power failure. NULL if write is NULL.
    pub sync: Option<unsafe extern "C" fn(user: *mut c_void) -> i32>,
    /// Drops the bytes from size on. NULL = they stay; what a discarded save wrote is then overwritten by the next one.
    pub truncate: Option<unsafe extern "C" fn(user: *mut c_void, size: u64) -> i32>,
}

// SAFETY: repr(C), begins with a u32; an integer, raw pointers, and function pointers that may be NULL.
unsafe impl Sized32 for mnnkv_snapshot_io {
    const MIN: usize = size_of::<mnnkv_snapshot_io>();
}

/// The functions of a host, one call at a time.
struct Host {
    name: String,
    io: Mutex<mnnkv_snapshot_io>,
}

// SAFETY: the header lets any thread that calls the library call them; the mutex keeps calls apart.
unsafe impl Send for Host {}
// SAFETY: as above.
unsafe impl Sync for Host {}

impl Host {
    /// `at`: what the text has of the arguments.
    fn call(
        &self,
        verb: &str,
        at: fmt::Arguments<'_>,
        call: impl FnOnce(&mnnkv_snapshot_io) -> Option<i32>,
    ) -> Result<()> {
        let io = self.io.lock().unwrap_or_else(PoisonError::into_inner);
        match call(&io) {
            Some(0) => Ok(()),
            Some(code) => Err(error!(Io, "io->{verb} of {}{at} returned {code}", self.name)),
            None => Err(error!(InvalidArgument, "io->{verb} of {} is NULL", self.name)),
        }
    }
}

// Each function is called with the user of its host, and with bytes that live as long as the call: the header is the
// contract.
impl Medium for Host {
    fn len(&self) -> Result<u64> {
        let mut size = 0;
        // SAFETY: see above.
        self.call("size", format_args!(""), |io| io.size.map(|call| unsafe { call(io.user, &mut size) }))?;
        Ok(size)
    }

    fn read_at(&self, offset: u64, to: &mut [u8]) -> Result<()> {
        let (ptr, len) = (to.as_mut_ptr().cast(), to.len());
        self.call("read", format_args!(" at offset {offset}"), |io| {
            // SAFETY: see above.
            io.read.map(|call| unsafe { call(io.user, offset, ptr, len) })
        })
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        let (ptr, len) = (from.as_ptr().cast(), from.len());
        self.call("write", format_args!(" at offset {offset}"), |io| {
            // SAFETY: see above.
            io.write.map(|call| unsafe { call(io.user, offset, ptr, len) })
        })
    }

    fn sync(&self) -> Result<()> {
        // SAFETY: see above.
        self.call("sync", format_args!(""), |io| io.sync.map(|call| unsafe { call(io.user) }))
    }

    fn truncate(&self, len: u64) -> Result<()> {
        self.call("truncate", format_args!(" to {len} bytes"), |io| {
            // SAFETY: see above.
            Some(io.truncate.map_or(0, |call| unsafe { call(io.user, len) }))
        })
    }
}

/// The storage of a host's functions.
///
/// # Safety
/// `io` is as the header says.
pub(super) unsafe fn storage(io: mnnkv_snapshot_io, writes: bool) -> Result<Storage> {
    pointer::reserved(&[io.reserved], "io")?;
    let given = [
        ("size", io.size.is_some()),
        ("read", io.read.is_some()),
        ("write", io.write.is_some() || !writes),
        ("sync", io.sync.is_some() || !writes),
    ];
    for (name, is_given) in given {
        if !is_given {
            bail!(InvalidArgument, "io->{name} is NULL");
        }
    }
    // SAFETY: passed on.
    let name = if io.name.is_null() { "snapshot" } else { unsafe { pointer::text(io.name, "io->name") }? };
    Storage::host(name, Host { name: memory::text(name)?, io: Mutex::new(io) })
}
