//! Lists of 32-bit numbers: byte plane by byte plane in one ZSTD frame, so that stretches that repeat are matches.

use super::container::{Reader, push_bytes};
use crate::gear::zstd::{self, Search};
use crate::status::Result;
use crate::sys::memory;

/// Appends `list`.
pub(super) fn push(
    list: &[u32],
    zstd: &mut zstd::Compressor,
    scratch: &mut (Vec<u8>, Vec<u8>),
    out: &mut Vec<u8>,
) -> Result<()> {
    let planes = memory::at_least(&mut scratch.0, 4 * list.len())?;
    for (i, plane) in planes.chunks_exact_mut(list.len().max(1)).enumerate() {
        for (byte, number) in plane.iter_mut().zip(list) {
            *byte = number.to_le_bytes()[i];
        }
    }
    let frame = memory::at_least(&mut scratch.1, zstd::bound(planes.len()))?;
    let len = zstd.encode(planes, Search::Level(3), frame)?;
    push_bytes(out, &frame[..len])
}

/// Reads what [`push`] wrote for a list as long as this.
pub(super) fn read(
    body: &mut Reader<'_>,
    what: &str,
    zstd: &mut zstd::Decompressor,
    scratch: &mut Vec<u8>,
    list: &mut [u32],
) -> Result<()> {
    let planes = memory::at_least(scratch, 4 * list.len())?;
    zstd.decode(body.bytes(what)?, planes)?;
    let len = list.len();
    for (i, number) in list.iter_mut().enumerate() {
        *number = u32::from_le_bytes(std::array::from_fn(|plane| planes[plane * len + i]));
    }
    Ok(())
}
