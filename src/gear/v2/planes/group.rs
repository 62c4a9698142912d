//! One group of units on the wire, and the code of its payload.

use super::predict::Predictor;
use crate::arch;
use crate::bytes::{Reader, push_bytes};
use crate::gear::codec::Context;
use crate::gear::options::Effort;
use crate::gear::zstd::{self, Search};
use crate::status::{Result, bail};
use crate::sys::memory;

/// How a payload is coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Coding {
    /// Bytes as they are.
    Raw = 0,
    /// One ZSTD frame.
    Zstd = 1,
}

/// A group in a blob.
pub(super) struct WireGroup<'a> {
    pub(super) predictor: Predictor,
    pub(super) coding: Coding,
    pub(super) payload: &'a [u8],
}

impl WireGroup<'_> {
    /// Decodes the payload to `out`, which has the length of the group.
    pub(super) fn decode_into(&self, context: &mut Context<'_>, out: &mut [u8]) -> Result<()> {
        match self.coding {
            Coding::Raw => out.copy_from_slice(self.payload),
            Coding::Zstd => context.unzstd(self.payload, out)?,
        }
        Ok(())
    }
}

/// Reads group `number`, whose units have `len` bytes.
pub(super) fn read<'a>(body: &mut Reader<'a>, number: usize, len: usize) -> Result<WireGroup<'a>> {
    let predictor = Predictor::from_wire(body.byte("a group's predictor")?)?;
    let coding = match body.byte("a group's coding")? {
        0 => Coding::Raw,
        1 => Coding::Zstd,
        coding => bail!(Unsupported, "group with coding {coding}; 0 and 1 are known"),
    };
    let payload = body.bytes("a group's payload")?;
    if coding == Coding::Raw && payload.len() != len {
        bail!(Corrupt, "group {number} has {} bytes; its units have {len}", payload.len());
    }
    Ok(WireGroup { predictor, coding, payload })
}

/// Appends a group of these bytes, with `payload` where that is shorter.
pub(super) fn push(bytes: &[u8], payload: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let (coding, payload) = if payload.len() < bytes.len() { (Coding::Zstd, payload) } else { (Coding::Raw, bytes) };
    memory::reserve(out, payload.len() + 12)?;
    memory::extend(out, &[Predictor::Raw as u8, coding as u8])?;
    push_bytes(out, payload)
}

/// Codes a group's bytes as one ZSTD frame in `out`, which has [`super::room`]. Returns the length.
pub(super) fn code(bytes: &[u8], effort: Effort, zstd: &mut zstd::Compressor, out: &mut [u8]) -> Result<usize> {
    // Where neighbours are often equal, ZSTD's matches may find more than a code for single bytes does.
    let repeats = (arch::kernels().repeats)(bytes);
    if effort.get() < 7 && 2 * repeats < bytes.len() {
        return zstd.encode(bytes, Search::Literals, out);
    }
    let search = if effort.get() < 7 { Search::planes(4) } else { Search::Level(9) };
    let literals = zstd.encode(bytes, Search::Literals, out)?;
    let len = zstd.encode(bytes, search, out)?;
    if len <= literals { Ok(len) } else { zstd.encode(bytes, Search::Literals, out) }
}
