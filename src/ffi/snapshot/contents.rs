//! Snapshot: sections, and what a file has

use super::handle::{mnnkv_snapshot, with};
use crate::ffi::panic::body;
use crate::ffi::pointer::{self, Out};
use crate::ffi::status::mnnkv_status;
use crate::status::Error;
use std::ffi::{c_char, c_void};

/// Gives the bytes of a section, in place of those that it has. They are written at once, and part of the state from the
/// next commit on. If they begin with the committed bytes of the section, only the rest is written.
/// name: 1 to 255 bytes.
/// INVALID_ARGUMENT: if the name is empty or too long, or the access is not APPEND
/// IO: if the system or the host cannot write; what was given before is still there
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_snapshot_put(
    snapshot: *mut mnnkv_snapshot,
    name: *const c_char,
    bytes: *const c_void,
    len: usize,
) -> mnnkv_status {
    body!(with(snapshot, |snapshot| {
        snapshot.put(pointer::text(name, "name")?, pointer::input_bytes(bytes, len, "bytes")?)
    }))
}

/// Writes the committed bytes of a section, and their number to *len.
/// NOT_FOUND: if there is no such section
/// CORRUPT: if its bytes are damaged; other sections can still be read
/// IO: if the system or the host cannot read
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_snapshot_get(
    snapshot: *const mnnkv_snapshot,
    name: *const c_char,
    out: *mut c_void,
    cap: usize,
    len: *mut usize,
) -> mnnkv_status {
    body!(with(snapshot, |snapshot| {
        let (out, len) = (pointer::output_bytes(out, cap, "out")?, Out::new(len, "len")?);
        let name = pointer::text(name, "name")?;
        len.set_len(match snapshot.section_len(name).map(usize::try_from) {
            // Nothing is read for a buffer that is too small.
            Some(Ok(needed)) if needed > out.len() => Err(Error::too_small("cap (bytes)", out.len(), needed)),
            _ => pointer::copied(&snapshot.section(name)?, out, "cap (bytes)"),
        })
    }))
}
