//! Pieces of a file made anew: the tokens that are left of many, as few.

use super::blob::{Blob, Place};
use super::codec::{BlockShape, Codec};
use super::kv::KvBytes;
use super::piece::{self, Packing, RawSum};
use super::saved::{self, FilePiece, SavedRun, WritePiece};
use crate::layout::{self, Order, Pair, Rows};
use crate::status::{Result, bail};
use crate::sys::memory;
use std::ops::Range;
use std::sync::atomic::AtomicBool;

/// Writes the `len` tokens that the runs of `pieces` have, whose positions are `positions`, as new pieces. Returns where each token is. CORRUPT: if a piece does not decode, or not to what was saved.
pub fn rewrite(
    rows: &Rows,
    pieces: &[FilePiece],
    len: u32,
    positions: &[Pair],
    packing: &Packing<'_>,
    write: &mut WritePiece<'_>,
) -> Result<Vec<SavedRun>> {
    let (mut whole, mut part) = (KvBytes::new(0, 0)?, KvBytes::new(0, 0)?);
    let (mut codec, mut runs) = (Codec::default(), Vec::new());
    for (begin, tokens) in piece::pieces(0, len) {
        let (range, count) = (begin..begin + tokens, tokens as usize);
        whole.fit(rows.key_bytes(count), rows.value_bytes(count))?;
        for piece in pieces.iter().filter(|piece| piece.runs.iter().any(|run| overlap(run, &range).is_some())) {
            decode(&mut codec, rows, piece, &mut part)?;
            for (run, (skip, at, tokens)) in piece.runs.iter().filter_map(|run| Some((run, overlap(run, &range)?))) {
                let from = (run.offset + skip) as usize;
                let (key, value) = whole.parts_mut();
                for (to, from_rows) in [(key, part.key()), (value, part.value())] {
                    layout::copy_dense(
                        rows.heads,
                        tokens,
                        (from_rows, (from, piece.tokens as usize)),
                        (to, (at, count)),
                    );
                }
            }
        }
        let its_positions = piece::positions_of(positions, begin as usize, count)?;
        let (blob, raw_sum) = piece::encode(rows, &its_positions, &whole, packing, &AtomicBool::new(false))?;
        let (piece, sum) = saved::write_blob(&blob, tokens, raw_sum, write)?;
        memory::push(&mut runs, SavedRun { piece, sum, offset: 0, begin, count: tokens })?;
    }
    Ok(runs)
}

/// Tokens of a run before the range, its first token's place in the range, and how many of its tokens are inside.
fn overlap(run: &SavedRun, range: &Range<u32>) -> Option<(u32, usize, usize)> {
    let (first, end) = (run.begin.max(range.start), (run.begin + run.count).min(range.end));
    (first < end).then(|| (first - run.begin, (first - range.start) as usize, (end - first) as usize))
}

/// Decodes a piece and compares its rows with the checksum that was saved.
fn decode(codec: &mut Codec, rows: &Rows, from: &FilePiece, to: &mut KvBytes) -> Result<()> {
    saved::check_lengths(rows, from)?;
    let number = from.runs.first().map_or(0, |run| run.piece);
    let (order, tokens) = (Order::DENSE, from.tokens as usize);
    let shape = BlockShape { ticket: number.into(), rows: *rows, tokens, order, digest: 0 };
    let place = Place { offset: from.offset, sum: from.sum };
    codec.decode(&shape, &Blob::of_file(from.bytes.clone(), place, &from.ends)?, to)?;
    let mut sum = RawSum::default();
    (0..2 * rows.parts()).for_each(|at| sum.add(piece::part(to, rows.parts(), at)));
    if sum.get() != from.raw_sum {
        bail!(Corrupt, "piece {number} at offset {} decodes to other tokens than were saved", from.offset);
    }
    Ok(())
}
