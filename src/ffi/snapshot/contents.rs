//! Snapshot: sections, and what a file has

use super::handle::{mnnkv_snapshot, with};
use crate::ffi::panic::body;
use crate::ffi::pointer::{self, Out, Sized32, SizedOut};
use crate::ffi::status::mnnkv_status;
use crate::snapshot::Snapshot;
use crate::status::{Error, Result, bail};
use crate::sys::memory;
use std::ffi::{c_char, c_void};

/// The contents of a snapshot. Bytes are of the committed state.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct mnnkv_snapshot_info {
    pub struct_size: u32,
    /// 1 = something was given since the last commit.
    pub is_changed: u32,
    /// The number of the committed state: 0 for an empty file, one more with each commit.
    pub version: u64,
    pub layers: u32,
    pub sections: u32,
    /// Pieces of tokens, those that no layer refers to any more included.
    pub pieces: u32,
    /// Damages that MNNKV_SNAPSHOT_SALVAGE found as it opened the file.
    pub damages: u32,
    /// All bytes of the file, to the end of the committed state.
    pub file_bytes: u64,
    /// Encoded tokens that layers refer to.
    pub token_bytes: u64,
    /// Sections, and what layers have beside tokens.
    pub section_bytes: u64,
    /// Bytes of earlier states and of commit records. mnnkv_snapshot_compact drops them, and often far more.
    pub dead_bytes: u64,
    /// See mnnkv_snapshot_fingerprint.
    pub fingerprint_bytes: u64,
}

// SAFETY: repr(C), begins with a u32, integers only.
unsafe impl Sized32 for mnnkv_snapshot_info {
    const MIN: usize = size_of::<mnnkv_snapshot_info>();
}

/// A layer of a snapshot.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct mnnkv_snapshot_layer_info {
    pub struct_size: u32,
    /// The number of the layer.
    pub layer: u32,
    pub tokens: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    /// MNNKV_DTYPE_*
    pub key_dtype: u32,
    pub value_dtype: u32,
    /// Runs of consecutive tokens in one piece.
    pub runs: u32,
    /// Positions, scores and what else belongs to the layer.
    pub state_bytes: u64,
}

// SAFETY: as above.
unsafe impl Sized32 for mnnkv_snapshot_layer_info {
    const MIN: usize = size_of::<mnnkv_snapshot_layer_info>();
}

/// Reads the contents of a snapshot.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_snapshot_get_info(
    snapshot: *const mnnkv_snapshot,
    info: *mut mnnkv_snapshot_info,
) -> mnnkv_status {
    body!(with(snapshot, |snapshot| {
        let out = SizedOut::new(info, "info")?;
        let usage = snapshot.usage()?;
        out.set(&mnnkv_snapshot_info {
            struct_size: 0,
            is_changed: snapshot.is_changed().into(),
            version: snapshot.version(),
            layers: snapshot.layers().count() as u32,
            sections: snapshot.names().count() as u32,
            pieces: snapshot.pieces().len() as u32,
            damages: snapshot.damage().len() as u32,
            file_bytes: usage.file,
            token_bytes: usage.pieces,
            section_bytes: usage.values,
            dead_bytes: usage.dead,
            fingerprint_bytes: snapshot.fingerprint().len() as u64,
        });
        Ok(())
    }))
}

/// Reads a layer of the committed state. index: below mnnkv_snapshot_info::layers; layers ascend.
/// NOT_FOUND: if index is not below it
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_snapshot_get_layer_info(
    snapshot: *const mnnkv_snapshot,
    index: u32,
    info: *mut mnnkv_snapshot_layer_info,
) -> mnnkv_status {
    body!(with(snapshot, |snapshot| {
        let out = SizedOut::new(info, "info")?;
        let Some((layer, entry)) = snapshot.layers().nth(index as usize) else {
            bail!(NotFound, "index is {index}; {} has {} layers", snapshot.name(), snapshot.layers().count());
        };
        out.set(&mnnkv_snapshot_layer_info {
            struct_size: 0,
            layer,
            tokens: entry.tokens(),
            kv_heads: entry.geometry.heads,
            head_dim: entry.geometry.head_dim,
            key_dtype: entry.geometry.key.into(),
            value_dtype: entry.geometry.value.into(),
            runs: entry.runs.len() as u32,
            state_bytes: entry.state_len(),
        });
        Ok(())
    }))
}

/// Copies bytes to a buffer of C; writes the number needed where there is no room.
fn put_bytes(bytes: &[u8], out: &mut [u8], len: &Out<usize>) -> Result<()> {
    len.set(bytes.len());
    let given = out.len();
    let Some(target) = out.get_mut(..bytes.len()) else {
        return Err(Error::too_small("cap (bytes)", given, bytes.len()));
    };
    target.copy_from_slice(bytes);
    Ok(())
}

/// Writes the fingerprint that the snapshot was made with, and its length to *len.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_snapshot_fingerprint(
    snapshot: *const mnnkv_snapshot,
    out: *mut c_void,
    cap: usize,
    len: *mut usize,
) -> mnnkv_status {
    body!(with(snapshot, |snapshot| {
        let (out, len) = (pointer::output_bytes(out, cap, "out")?, Out::new(len, "len")?);
        put_bytes(snapshot.fingerprint(), out, &len)
    }))
}

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

/// Removes a section with the next commit. A section that does not exist is no error.
/// INVALID_ARGUMENT: if the access is not APPEND
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_snapshot_remove(snapshot: *mut mnnkv_snapshot, name: *const c_char) -> mnnkv_status {
    body!(with(snapshot, |snapshot| snapshot.remove(pointer::text(name, "name")?)))
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
        match snapshot.section_len(name).map(usize::try_from) {
            // Nothing is read for a buffer that is too small.
            Some(Ok(needed)) if needed > out.len() => {
                len.set(needed);
                Err(Error::too_small("cap (bytes)", out.len(), needed))
            }
            _ => put_bytes(&snapshot.section(name)?, out, &len),
        }
    }))
}

/// Compares all pieces, sections and states of layers with their checksums, without decoding them, and writes what is
/// damaged, one part per line, what MNNKV_SNAPSHOT_SALVAGE found included. The text is empty if the state is whole.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_snapshot_verify(
    snapshot: *const mnnkv_snapshot,
    text: *mut c_char,
    cap: usize,
    len: *mut usize,
) -> mnnkv_status {
    body!(with(snapshot, |snapshot| {
        let (out, len) = (pointer::output(text.cast::<u8>(), cap, "text")?, Out::new(len, "len")?);
        pointer::put_text(&damages(snapshot)?, out, &len)
    }))
}

fn damages(snapshot: &Snapshot) -> Result<String> {
    let mut text = String::new();
    for damage in snapshot.damage() {
        memory::append(&mut text, format_args!("{}\n", damage.message()))?;
    }
    snapshot.verify(|damage| memory::append(&mut text, format_args!("{}\n", damage.message())))?;
    Ok(text)
}
