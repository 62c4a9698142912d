//! The tokens of a layer as runs of pieces, and a new list of them as an edit of the old one.

use crate::bytes::{self, Reader};
use crate::status::{Result, bail, error};
use crate::sys::memory;

/// Consecutive tokens of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The number of the piece.
    pub piece: u32,
    /// Tokens of the piece before the first.
    pub offset: u32,
    /// Tokens, at least one.
    pub count: u32,
}

impl Run {
    /// The runs of the tokens from `begin` on, `count` in all, or as many as there are.
    pub fn clip(runs: &[Run], begin: u32, count: u32) -> Result<Vec<Run>> {
        let (mut found, mut at) = (Vec::new(), 0);
        for run in runs {
            let (first, end) = (begin.clamp(at, at + run.count), (begin + count).clamp(at, at + run.count));
            if first < end {
                memory::push(&mut found, Run { offset: run.offset + first - at, count: end - first, ..*run })?;
            }
            at += run.count;
        }
        Ok(found)
    }
}

/// Appends a run, to the last one where it continues it.
pub(super) fn push(runs: &mut Vec<Run>, run: Run) -> Result<()> {
    match runs.last_mut() {
        Some(last) if last.piece == run.piece && last.offset + last.count == run.offset => {
            last.count += run.count;
            Ok(())
        }
        _ => memory::push(runs, run),
    }
}

/// The number of tokens.
pub(super) fn tokens(runs: &[Run]) -> u64 {
    runs.iter().map(|run| u64::from(run.count)).sum()
}

/// A place in a list: runs before it, tokens of the next one before it.
#[derive(Clone, Copy)]
struct Place<'a> {
    runs: &'a [Run],
    offset: u32,
}

impl<'a> Place<'a> {
    /// The rest of the first run.
    fn first(&self) -> Option<Run> {
        let run = self.runs.first()?;
        Some(Run { piece: run.piece, offset: run.offset + self.offset, count: run.count - self.offset })
    }

    /// Moves behind at most `count` tokens of the first run, and returns these.
    fn advance(&mut self, count: u64) -> Option<Run> {
        let first = self.first()?;
        let taken = count.min(first.count.into()) as u32;
        self.offset += taken;
        if taken == first.count {
            (self.runs, self.offset) = (&self.runs[1..], 0);
        }
        Some(Run { count: taken, ..first })
    }

    /// The place of a token behind this one, and the tokens between.
    fn find(&self, piece: u32, token: u32) -> Option<(Place<'a>, u64)> {
        let (mut place, mut between) = (*self, 0);
        while let Some(run) = place.first() {
            if run.piece == piece && (run.offset..run.offset + run.count).contains(&token) {
                let skipped = token - run.offset;
                place.offset += skipped;
                return Some((place, between + u64::from(skipped)));
            }
            between += u64::from(run.count);
            place.advance(run.count.into());
        }
        None
    }
}

/// `new` as an edit of `old`. Pieces from `first_new` on are not in `old`.
///
/// An edit is a number of twice the tokens: even, with the tokens of `old` that are left out before those that stay; odd,
/// with the piece, counted back from the last of `pieces`, and the offset in it.
pub(super) fn write_edits(out: &mut Vec<u8>, old: &[Run], new: &[Run], first_new: u32, pieces: u32) -> Result<()> {
    let mut place = Place { runs: old, offset: 0 };
    // Tokens left out, and tokens that stay behind them.
    let mut kept = (0u64, 0u64);
    for run in new {
        let mut rest = *run;
        while rest.count > 0 {
            let found = if rest.piece < first_new { place.find(rest.piece, rest.offset) } else { None };
            let count = match found {
                Some((at, skipped)) => {
                    if skipped > 0 && kept.1 > 0 {
                        write_kept(out, &mut kept)?;
                    }
                    place = at;
                    let same = place.advance(rest.count.into()).map_or(rest.count, |run| run.count);
                    kept = (kept.0 + skipped, kept.1 + u64::from(same));
                    same
                }
                None => {
                    write_kept(out, &mut kept)?;
                    bytes::push_number(out, u64::from(rest.count) << 1 | 1)?;
                    bytes::push_number(out, (pieces - 1 - rest.piece).into())?;
                    bytes::push_number(out, rest.offset.into())?;
                    rest.count
                }
            };
            rest.offset += count;
            rest.count -= count;
        }
    }
    write_kept(out, &mut kept)
}

fn write_kept(out: &mut Vec<u8>, kept: &mut (u64, u64)) -> Result<()> {
    let (skipped, count) = std::mem::take(kept);
    if count == 0 {
        return Ok(());
    }
    bytes::push_number(out, count << 1)?;
    bytes::push_number(out, skipped)
}

/// Applies `edits` to `old`. `tokens_of` returns the tokens of a piece that the layer may use.
pub(super) fn read_edits(
    edits: &[u8],
    old: &[Run],
    pieces: u32,
    tokens_of: impl Fn(u32) -> Option<u32>,
) -> Result<Vec<Run>> {
    let mut place = Place { runs: old, offset: 0 };
    let mut reader = Reader::new(edits);
    let mut new = Vec::new();
    while !reader.rest().is_empty() {
        let tag = reader.number("an edit")?;
        let count = tag >> 1;
        if count == 0 {
            bail!(Corrupt, "an edit has no tokens");
        }
        if tag & 1 == 1 {
            let back = reader.small("a piece")?;
            let Some(piece) = pieces.checked_sub(1).and_then(|last| last.checked_sub(back)) else {
                bail!(Corrupt, "an edit takes a piece {back} before the last of {pieces}");
            };
            let offset = reader.small("an offset")?;
            push(&mut new, checked(piece, offset, count, &tokens_of).map_err(|why| why.into_corrupt())?)?;
        } else {
            for (len, stays) in [(reader.number("the tokens left out")?, false), (count, true)] {
                let mut left = len;
                while left > 0 {
                    let Some(run) = place.advance(left) else {
                        bail!(Corrupt, "an edit is {left} tokens longer than the layer before");
                    };
                    left -= u64::from(run.count);
                    if stays {
                        push(&mut new, run)?;
                    }
                }
            }
        }
    }
    if tokens(&new) > u32::MAX.into() {
        bail!(Corrupt, "{} tokens; at most {} allowed", tokens(&new), u32::MAX);
    }
    Ok(new)
}

/// Why a run is refused.
pub(super) enum Refused {
    NoPiece(u32),
    Outside(u32, u32, u64, u32),
}

impl Refused {
    fn into_corrupt(self) -> crate::status::Error {
        match self {
            Refused::NoPiece(piece) => error!(Corrupt, "piece {piece} is not of this layer and geometry"),
            Refused::Outside(piece, offset, count, tokens) => {
                error!(Corrupt, "piece {piece} has {tokens} tokens; {count} from {offset} on are taken")
            }
        }
    }

    pub(super) fn into_invalid(self) -> crate::status::Error {
        let error = self.into_corrupt();
        error!(InvalidArgument, "{}", error.message())
    }
}

/// The run, if its piece has it.
pub(super) fn checked(
    piece: u32,
    offset: u32,
    count: u64,
    tokens_of: impl Fn(u32) -> Option<u32>,
) -> std::result::Result<Run, Refused> {
    let tokens = tokens_of(piece).ok_or(Refused::NoPiece(piece))?;
    match u64::from(offset).checked_add(count) {
        Some(end) if count > 0 && end <= tokens.into() => Ok(Run { piece, offset, count: count as u32 }),
        _ => Err(Refused::Outside(piece, offset, count, tokens)),
    }
}
