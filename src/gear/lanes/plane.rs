//! A coded plane: its part of a blob, and back.
//!
//! ```text
//! part = lengths of the code, number of escaped symbols, number of bytes of the stream,
//!        escaped symbols, stream, u16[lanes]: the first bits of each lane
//! ```

use super::code::Code;
use crate::arch::{
    self,
    lanes::{DecodeTable, MAX_LANES, Pending, SLACK, Source, Target, Windows},
};
use crate::bytes::{self, NUMBER_BOUND, Reader, put_number};
use crate::status::{Result, bail};
use crate::sys::memory;

/// More bytes than the lengths of any code have.
const CODE_BOUND: usize = 260;

/// The symbols of a plane of `len` that are coded: whole steps, and at least one symbol less than all.
pub(super) fn coded_len(len: usize, lanes: usize) -> usize {
    (len - 1) / lanes * lanes
}

/// Writes the part of `plane` to the start of `out`, which is as long as the plane, and returns its length, or `None` if
/// it is no shorter than the plane. `streams` is working memory.
pub(super) fn encode(
    plane: &[u8],
    code: &Code,
    lanes: usize,
    streams: &mut Vec<u8>,
    out: &mut [u8],
) -> Result<Option<usize>> {
    let (symbols, tail) = plane.split_at(coded_len(plane.len(), lanes));
    let room = symbols.len() + SLACK;
    let (escapes, stream) = memory::at_least(streams, 2 * room)?[..2 * room].split_at_mut(room);
    let mut target = Target { at: stream.len(), bytes: stream, escape_at: escapes.len(), escapes };
    let mut pending = Pending { lanes, bits: [0; MAX_LANES], count: [8; MAX_LANES] };
    for (bits, symbol) in pending.bits.iter_mut().zip(tail) {
        *bits = *symbol as u16;
    }
    (arch::kernels().lanes_encode)(&code.encode_table(), &mut pending, symbols, &mut target);
    let (escapes, stream) = (&target.escapes[target.escape_at..], &target.bytes[target.at..]);

    let mut head = [0; CODE_BOUND + 2 * NUMBER_BOUND];
    let mut head_len = code.write(&mut head);
    head_len += put_number(escapes.len() as u64, &mut head[head_len..]);
    head_len += put_number(stream.len() as u64, &mut head[head_len..]);
    let len = head_len + escapes.len() + stream.len() + 2 * lanes;
    if len >= plane.len() {
        return Ok(None);
    }
    let (to_head, rest) = out.split_at_mut(head_len);
    let (to_escapes, rest) = rest.split_at_mut(escapes.len());
    let (to_stream, rest) = rest.split_at_mut(stream.len());
    to_head.copy_from_slice(&head[..head_len]);
    to_escapes.copy_from_slice(escapes);
    to_stream.copy_from_slice(stream);
    let lanes = pending.bits.iter().zip(&pending.count).take(lanes);
    for (to, (bits, count)) in rest.as_chunks_mut::<2>().0.iter_mut().zip(lanes) {
        // A bit marks the end.
        *to = ((bits << 1 | 1) << (15 - count)).to_le_bytes();
    }
    Ok(Some(len))
}

/// A coded plane on its way back to symbols.
pub(super) struct Plane {
    table: DecodeTable,
    windows: Windows,
}

impl Plane {
    /// Working memory.
    pub(super) const EMPTY: Plane = Plane {
        table: DecodeTable::EMPTY,
        windows: Windows { lanes: 64, bits: [0; MAX_LANES], free: [8; MAX_LANES], at: 0, escape_at: 0 },
    };

    /// Begins with the part at the start of `blob`, which is moved behind it.
    pub(super) fn begin<'a>(&mut self, blob: &mut Reader<'a>, lanes: usize) -> Result<Source<'a>> {
        let (code, code_len) = Code::read(blob.rest())?;
        blob.take(code_len, "a code")?;
        code.decode_table(&mut self.table);
        let mut length = |what: &str| bytes::length(blob.number(what)?, what);
        let (escapes, stream) = (length("the number of escaped symbols")?, length("the length of a stream")?);
        let source = blob.rest();
        blob.take(escapes, "the escaped symbols")?;
        blob.take(stream, "a stream")?;
        let first = blob.take(2 * lanes, "the first bits of the lanes")?;
        (self.windows.lanes, self.windows.at, self.windows.escape_at) = (lanes, escapes, 0);
        let to = self.windows.bits.iter_mut().zip(&mut self.windows.free);
        let mut is_marked = true;
        for ((bits, free), word) in to.zip(first.as_chunks::<2>().0) {
            let word = u16::from_le_bytes(*word);
            let mark = word & word.wrapping_neg();
            is_marked &= (1..256).contains(&mark);
            *bits = word ^ mark;
            *free = (mark.trailing_zeros() + 1) as u8 & 15;
        }
        if !is_marked {
            bail!(Corrupt, "the first bits of a lane have no mark in their low byte");
        }
        Ok(Source { bytes: source, end: escapes + stream, escape_end: escapes })
    }

    /// Decodes whole steps to `out`.
    pub(super) fn decode(&mut self, source: &Source<'_>, out: &mut [u8]) -> Result<()> {
        if !(arch::kernels().lanes_decode)(&self.table, &mut self.windows, source, out) {
            bail!(
                Corrupt,
                "a stream of {} bytes or its {} escaped symbols end too early",
                source.end - source.escape_end,
                source.escape_end
            );
        }
        Ok(())
    }

    /// Writes the symbols that are left in the lanes to `out`, and checks that nothing else is left.
    pub(super) fn end(&self, source: &Source<'_>, out: &mut [u8]) -> Result<()> {
        let Windows { lanes, bits, free, at, escape_at } = &self.windows;
        if *at != source.end || *escape_at != source.escape_end {
            bail!(
                Corrupt,
                "{} bytes of a stream and {} escaped symbols are left over",
                source.end - at,
                source.escape_end - escape_at
            );
        }
        for (to, bits) in out.iter_mut().zip(bits) {
            *to = (bits >> 8) as u8;
        }
        let is_left =
            free[..*lanes].iter().any(|free| *free != 8) || bits[out.len()..*lanes].iter().any(|bits| *bits != 0);
        if is_left {
            bail!(Corrupt, "bits are left over in a lane");
        }
        Ok(())
    }
}
