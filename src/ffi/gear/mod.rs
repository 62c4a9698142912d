//! Exports of the gear room: stateless calls over per-thread working memory.

mod decode;
mod encode;
mod options;

pub use decode::*;
pub use encode::*;
pub use options::*;

use super::pointer::{self, Out};
use crate::gear::{Decoder, Encoder};
use crate::status::{Error, Result};
use crate::sys::memory;
use crate::sys::thread_slot::ThreadSlot;
use std::ffi::c_void;

static ENCODER: ThreadSlot<Encoder> = ThreadSlot::new(0);
static DECODER: ThreadSlot<Decoder> = ThreadSlot::new(1);

/// Runs `body` on the calling thread's `T`. After a panic the thread gets a new one.
fn with_local<T: Default + 'static, R>(local: &ThreadSlot<T>, body: impl FnOnce(&mut T) -> Result<R>) -> Result<R> {
    let mut value = match local.take() {
        Some(value) => value,
        None => memory::boxed(T::default())?,
    };
    let result = body(&mut value);
    local.put(value);
    result
}

/// The buffers of encode and decode: bytes to read, bytes to write, and their number.
///
/// # Safety
/// As the exports.
unsafe fn buffers<'a>(
    src: (*const c_void, usize),
    dst: (*mut c_void, usize),
    dst_len: *mut usize,
) -> Result<(&'a [u8], &'a mut [u8], Out<usize>)> {
    pointer::disjoint((src.0, src.1, "src"), (dst.0, dst.1, "dst"))?;
    // SAFETY: passed on; the two do not overlap.
    unsafe {
        Ok((
            pointer::input_bytes(src.0, src.1, "src")?,
            pointer::output_bytes(dst.0, dst.1, "dst")?,
            Out::new(dst_len, "dst_len")?,
        ))
    }
}

/// Writes the length that BUFFER_TOO_SMALL needs, the only output of a failure.
fn report_needed(len: &Out<usize>, error: Error) -> Result<()> {
    if let Some(needed) = error.needed() {
        len.set(needed);
    }
    Err(error)
}
