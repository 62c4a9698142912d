//! Snapshot: the file of a chat
//!
//! A snapshot is a file that holds the layers of a chat, and sections of the host: bytes by name, such as token ids,
//! recurrent state or the sampler. It is saved again and again, each time by what is new. docs/format.md has its bytes.
//!
//!   mnnkv_snapshot_put     gives a section
//!   mnnkv_snapshot_commit  makes all that was given since the last commit the state of the file, durably
//!
//! A process or power that fails at any moment leaves the last state or the new one. Damage is found by checksums, and
//! named; it is never read as something else, and never leads to an older state. All readers see the committed state.
//!
//! A file is open for one writer, or for any number of readers (BUSY), on systems that lock files; with io the host must
//! see to it. It must not be truncated while it is open, nor while a session that loaded it has not begun each of the loaded
//! layers: reading it may then raise a signal. A file written on one CPU opens on every other one.

use super::io::{self, mnnkv_snapshot_io};
use crate::ffi::handle;
use crate::ffi::panic::body;
use crate::ffi::pointer::{self, Sized32};
use crate::ffi::status::mnnkv_status;
use crate::snapshot::{Access, Snapshot, Storage};
use crate::status::{Error, Result, bail};
use crate::sys::Mutex;
use std::ffi::{c_char, c_void};
use std::path::Path;

/// An open snapshot.
pub struct mnnkv_snapshot(Mutex<Snapshot>);

/// Reads.
pub const MNNKV_SNAPSHOT_READ: u32 = 0;
/// Reads and saves.
pub const MNNKV_SNAPSHOT_APPEND: u32 = 1;

/// The arguments of mnnkv_snapshot_create and mnnkv_snapshot_open.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_snapshot_options {
    /// sizeof(mnnkv_snapshot_options)
    pub struct_size: u32,
    /// MNNKV_ABI_VERSION
    pub abi_version: u32,
    /// The file; NULL with io.
    pub path: *const c_char,
    /// The functions of a host in place of a file; NULL with path.
    pub io: *const mnnkv_snapshot_io,
    /// The model, its rotation and whatever else must be the same to load the caches: at most 64 KiB, compared byte by
    /// byte. NULL = none in create, any in open.
    pub fingerprint: *const c_void,
    /// Bytes of fingerprint.
    pub fingerprint_len: usize,
    /// MNNKV_SNAPSHOT_*; create ignores it.
    pub access: u32,
    /// Must be 0.
    pub reserved: u32,
}

// SAFETY: repr(C), begins with a u32, integers and raw pointers only.
unsafe impl Sized32 for mnnkv_snapshot_options {
    const MIN: usize = size_of::<mnnkv_snapshot_options>();
}

/// Runs the body of an export on a snapshot.
///
/// # Safety
/// `snapshot` is NULL or live.
pub(in crate::ffi) unsafe fn with(
    snapshot: *const mnnkv_snapshot,
    body: impl FnOnce(&mut Snapshot) -> Result<()>,
) -> Result<()> {
    // SAFETY: passed on.
    let snapshot = unsafe { pointer::reference(snapshot, "snapshot") }?;
    body(&mut *snapshot.0.lock().map_err(|_| Error::out_of_service("snapshot"))?)
}

/// The storage of a path, by `file`, or of a host's functions.
///
/// # Safety
/// Pointers of the options are NULL or as the header says.
unsafe fn storage(
    options: &mnnkv_snapshot_options,
    writes: bool,
    file: impl FnOnce(&Path) -> Result<Storage>,
) -> Result<Storage> {
    pointer::reserved(&[options.reserved], "options")?;
    // SAFETY: passed on.
    unsafe {
        match (options.path.is_null(), pointer::options(options.io, "options->io")?) {
            (false, None) => file(pointer::path(options.path, "options->path")?),
            (true, Some(io)) => io::storage(io, writes),
            (false, Some(_)) => bail!(InvalidArgument, "options->path and options->io are both given"),
            (true, None) => bail!(InvalidArgument, "options->path and options->io are both NULL"),
        }
    }
}

/// Makes or opens a snapshot.
///
/// # Safety
/// Pointers are NULL or as the header says.
unsafe fn made(
    options: *const mnnkv_snapshot_options,
    out: *mut *mut mnnkv_snapshot,
    make: impl FnOnce(&mnnkv_snapshot_options, Option<&[u8]>) -> Result<Snapshot>,
) -> Result<()> {
    // SAFETY: passed on.
    unsafe {
        let options = pointer::required(options, "options")?;
        handle::create(options.abi_version, out, || {
            let given = pointer::input_bytes(options.fingerprint, options.fingerprint_len, "options->fingerprint")?;
            let fingerprint = (!options.fingerprint.is_null()).then_some(given);
            Ok(mnnkv_snapshot(Mutex::new(make(&options, fingerprint)?)))
        })
    }
}

/// Makes an empty snapshot, for further saves. A failure leaves no file.
/// INVALID_ARGUMENT: if not exactly one of path and io is given, the fingerprint is too long, or the host has bytes
/// already
/// NOT_FOUND: if the folder does not exist
/// IO: if there is a file at path, or it cannot be written
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_snapshot_create(
    options: *const mnnkv_snapshot_options,
    out: *mut *mut mnnkv_snapshot,
) -> mnnkv_status {
    body!(made(options, out, |options, fingerprint| {
        Snapshot::create(storage(options, true, Storage::create)?, fingerprint.unwrap_or_default())
    }))
}

/// Opens a snapshot at its newest state.
/// NOT_FOUND: if there is no file at path
/// BUSY: if another handle writes the file, or access is APPEND and any handle has it open
/// CORRUPT: if it is no snapshot, one whose making was killed (remove it), or damaged: the text has the part and its offset
/// STALE: if it is for another fingerprint
/// UNSUPPORTED: if it needs a later version of the library
/// INVALID_ARGUMENT: if not exactly one of path and io is given, the fingerprint is too long, or access is neither
/// IO: if the system or the host cannot read
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_snapshot_open(
    options: *const mnnkv_snapshot_options,
    out: *mut *mut mnnkv_snapshot,
) -> mnnkv_status {
    body!(made(options, out, |options, fingerprint| {
        let (access, file): (_, fn(&Path) -> Result<Storage>) = match options.access {
            MNNKV_SNAPSHOT_READ => (Access::ReadOnly, Storage::open),
            MNNKV_SNAPSHOT_APPEND => (Access::Append, Storage::edit),
            other => bail!(InvalidArgument, "options->access is {other}; 0 or 1 expected"),
        };
        Snapshot::open(storage(options, access == Access::Append, file)?, fingerprint, access)
    }))
}

/// Closes a snapshot. Drops what is not committed, and truncates the file to its committed state.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_snapshot_destroy(snapshot: *mut mnnkv_snapshot) {
    // SAFETY: the header is the contract.
    unsafe { handle::destroy(snapshot) }
}

/// Makes all that was given since the last commit the state of the file, durably; without any, does nothing. After a
/// failure the old state stands, and the call may be repeated, for example when there is room on the disk again. Where
/// the device fails on, so that destroy cannot undo the writes, the file has the old state or the new one,
/// whole, when it is opened next. The call does not look at the path: where the file was removed or replaced there, it
/// saves to the removed file, and returns OK.
/// INVALID_ARGUMENT: if the access is not APPEND
/// IO: if the system or the host cannot write
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_snapshot_commit(snapshot: *mut mnnkv_snapshot) -> mnnkv_status {
    body!(with(snapshot, |snapshot| snapshot.commit()))
}

#[cfg(test)]
mod tests;
