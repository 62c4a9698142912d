//! The tokens of a layer as runs of pieces, and a new list of them as an edit of the old one.

use crate::bytes::{self, Reader};
use crate::status::{Result, bail};

/// Tokens of a piece, by its number.
pub type Run = crate::run::Run<u32>;

/// The number of tokens.
pub(super) fn tokens(runs: &[Run]) -> u32 {
    runs.last().map_or(0, Run::end)
}

/// Appends tokens of a piece.
fn push(runs: &mut Vec<Run>, run: Run) -> Result<()> {
    let begin = tokens(runs);
    if begin.checked_add(run.count).is_none() {
        bail!(Corrupt, "{} tokens; at most {} allowed", u64::from(begin) + u64::from(run.count), u32::MAX);
    }
    Run::push(runs, Run { begin, ..run })
}

/// Appends tokens of a piece, if it has them. `tokens_of` returns the tokens of a piece that the layer may use.
pub(super) fn append(
    runs: &mut Vec<Run>,
    (piece, offset, count): (u32, u32, u64),
    tokens_of: impl Fn(u32) -> Option<u32>,
) -> Result<()> {
    let Some(tokens) = tokens_of(piece) else {
        bail!(Corrupt, "piece {piece} is not of this layer and geometry");
    };
    if count == 0 || u64::from(offset).checked_add(count).is_none_or(|end| end > tokens.into()) {
        bail!(Corrupt, "piece {piece} has {tokens} tokens; {count} from {offset} on are taken");
    }
    push(runs, Run { of: piece, offset, begin: 0, count: count as u32 })
}

/// The first run from `at` on that has a token of a piece, from this token on.
fn find(runs: &[Run], at: u32, piece: u32, token: u32) -> Option<Run> {
    let mut behind = Run::within(runs, at..u32::MAX);
    let run = behind.find(|run| run.of == piece && (run.offset..run.offset + run.count).contains(&token))?;
    run.part(&(run.begin + (token - run.offset)..run.end()))
}

/// `new` as an edit of `old`. Pieces from `first_new` on are not in `old`.
///
/// An edit is a number of twice the tokens: even, with the tokens of `old` that are left out before those that stay; odd,
/// with the piece, counted back from the last of `pieces`, and the offset in it.
pub(super) fn write_edits(out: &mut Vec<u8>, old: &[Run], new: &[Run], first_new: u32, pieces: u32) -> Result<()> {
    // The place in `old`; tokens left out before it, and tokens that stay behind them.
    let (mut at, mut kept) = (0, (0, 0));
    for run in new {
        let mut rest = *run;
        while rest.count > 0 {
            let found = if rest.of < first_new { find(old, at, rest.of, rest.offset) } else { None };
            let count = found.map_or(rest.count, |found| found.count.min(rest.count));
            if found.is_none_or(|found| found.begin > at) {
                write_kept(out, &mut kept)?;
            }
            match found {
                Some(found) => {
                    kept = (kept.0 + (found.begin - at), kept.1 + count);
                    at = found.begin + count;
                }
                None => {
                    bytes::push_number(out, u64::from(count) << 1 | 1)?;
                    bytes::push_number(out, (pieces - 1 - rest.of).into())?;
                    bytes::push_number(out, rest.offset.into())?;
                }
            }
            rest.offset += count;
            rest.count -= count;
        }
    }
    write_kept(out, &mut kept)
}

fn write_kept(out: &mut Vec<u8>, kept: &mut (u32, u32)) -> Result<()> {
    let (skipped, count) = std::mem::take(kept);
    if count == 0 {
        return Ok(());
    }
    bytes::push_number(out, u64::from(count) << 1)?;
    bytes::push_number(out, skipped.into())
}

/// Applies `edits` to `old`. `tokens_of` returns the tokens of a piece that the layer may use.
pub(super) fn read_edits(
    edits: &[u8],
    old: &[Run],
    pieces: u32,
    tokens_of: impl Fn(u32) -> Option<u32>,
) -> Result<Vec<Run>> {
    let (mut reader, mut new, mut at) = (Reader::new(edits), Vec::new(), 0);
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
            append(&mut new, (piece, offset, count), &tokens_of)?;
        } else {
            for (len, stays) in [(reader.number("the tokens left out")?, false), (count, true)] {
                let left = u64::from(tokens(old) - at);
                if len > left {
                    bail!(Corrupt, "an edit is {} tokens longer than the layer before", len - left);
                }
                let range = at..at + len as u32;
                at = range.end;
                Run::within(old, range).filter(|_| stays).try_for_each(|run| push(&mut new, run))?;
            }
        }
    }
    Ok(new)
}
