//! Lists of 32-bit numbers: byte plane by byte plane in one ZSTD frame, so that repeated stretches are matches.

use crate::bytes::{Reader, push_bytes};
use crate::gear::codec::Context;
use crate::gear::zstd::{self, Search};
use crate::status::Result;
use crate::sys::memory;

/// Appends the numbers of `list`. `scratch` is working memory.
pub(in crate::gear::v2) fn push(
    list: impl ExactSizeIterator<Item = u32> + Clone,
    zstd: &mut zstd::Compressor,
    scratch: (&mut Vec<u8>, &mut Vec<u8>),
    out: &mut Vec<u8>,
) -> Result<()> {
    let planes = memory::at_least(scratch.0, 4 * list.len())?;
    for (i, plane) in planes.chunks_exact_mut(list.len().max(1)).enumerate() {
        for (byte, number) in plane.iter_mut().zip(list.clone()) {
            *byte = number.to_le_bytes()[i];
        }
    }
    let frame = memory::at_least(scratch.1, zstd::bound(planes.len()))?;
    let len = zstd.encode(planes, Search::Level(3), frame)?;
    push_bytes(out, &frame[..len])
}

/// Reads a list of [`push`] with the length of `list`. `spare` is working memory, used if it has four bytes for each
/// number.
pub(in crate::gear::v2) fn read(
    body: &mut Reader<'_>,
    what: &str,
    context: &mut Context<'_>,
    spare: &mut [u8],
    list: &mut [u32],
) -> Result<()> {
    let len = list.len();
    let mut own = Vec::new();
    let planes = match spare.get_mut(..4 * len) {
        Some(planes) => planes,
        // Rows shorter than four bytes.
        None => context.budget.at_least(&mut own, 4 * len)?,
    };
    context.unzstd(body.bytes(what)?, planes)?;
    for (i, number) in list.iter_mut().enumerate() {
        *number = u32::from_le_bytes(std::array::from_fn(|plane| planes[plane * len + i]));
    }
    context.budget.release(&mut own);
    Ok(())
}
