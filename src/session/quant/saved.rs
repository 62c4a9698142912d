//! The quantised tokens of a layer in a chat file: a piece for each block, whose parts are the codes of a head.

use super::shape;
use crate::attend::{BLOCK, Block, Blocks, Found};
use crate::bytes::{Reader, push_number};
use crate::layout::{self, Pair, Rows};
use crate::session::offload::Offload;
use crate::session::tokens::Tokens;
use crate::snapshot::{Run, Snapshot};
use crate::status::{Result, Status, bail};
use crate::store::{NewPiece, RawSum, SavedRun, WritePiece};
use crate::sys::memory;

/// The part of a chat file that a layer with quantised tokens has.
#[derive(Debug, Default)]
pub(in crate::session) struct SavedQuant {
    /// First tokens of the cache, which stay there.
    held: u32,
    /// Tokens of the cache.
    physical: u32,
    /// The first position and the tokens that are left of each block, ascending.
    blocks: Vec<(u32, u64)>,
}

/// Runs of ones: the first, and how many.
fn runs(mut live: u64) -> impl Iterator<Item = (u32, u32)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if live == 0 {
            return None;
        }
        let skipped = live.trailing_zeros();
        live >>= skipped;
        let count = live.trailing_ones();
        live = live.checked_shr(count).unwrap_or(0);
        let first = at + skipped;
        at = first + count;
        Some((first, count))
    })
}

impl SavedQuant {
    /// Tokens of the cache.
    pub(in crate::session) fn physical(&self) -> u32 {
        self.physical
    }

    /// Tokens in blocks.
    pub(in crate::session) fn tokens(&self) -> u32 {
        self.blocks.iter().map(|(_, live)| live.count_ones()).sum()
    }

    /// Appends what a chat file keeps.
    pub(in crate::session) fn put(&self, out: &mut Vec<u8>) -> Result<()> {
        push_number(out, self.held.into())?;
        push_number(out, self.physical.into())?;
        push_number(out, self.blocks.len() as u64)?;
        let mut end = 0;
        for (first, live) in &self.blocks {
            push_number(out, (first - end).into())?;
            memory::extend(out, &live.to_le_bytes())?;
            end = first + live.count_ones();
        }
        Ok(())
    }

    /// Reads what [`SavedQuant::put`] wrote, of a chat of `logical` tokens.
    pub(in crate::session) fn read(reader: &mut Reader<'_>, logical: u32) -> Result<Self> {
        let (held, physical) = (reader.small("the held tokens")?, reader.small("the tokens of the cache")?);
        let mut saved = SavedQuant { held: held.min(physical), physical, blocks: Vec::new() };
        let mut end = 0u32;
        for _ in 0..reader.small("the blocks")? {
            let (gap, live) = (reader.small("the blocks")?, reader.u64("the blocks")?);
            let first = end.saturating_add(gap);
            end = first.saturating_add(live.count_ones());
            if live == 0 || end > logical {
                bail!(Corrupt, "the blocks: {} tokens from {first} on; the chat has {logical}", live.count_ones());
            }
            memory::push(&mut saved.blocks, (first, live))?;
        }
        Ok(saved)
    }

    /// CORRUPT: if a token is in two places.
    pub(in crate::session) fn check(&self, positions: &[Pair], logical: u32) -> Result<()> {
        let mut all = memory::copied(positions)?;
        for (first, live) in &self.blocks {
            memory::push(&mut all, [*first as i32, live.count_ones() as i32])?;
        }
        all.sort_unstable();
        match layout::check_pairs(&all, logical) {
            Ok(_) => Ok(()),
            Err(error) => bail!(Corrupt, "a token is in two places: {}", error.unless_out_of_memory()?),
        }
    }
}

impl Tokens {
    /// The part that a chat file keeps; `None` where no token is quantised.
    pub(in crate::session) fn saved(&self) -> Result<Option<SavedQuant>> {
        if self.blocks.list().is_empty() {
            return Ok(None);
        }
        let blocks = memory::collect(self.blocks.list().iter().map(|placed| (placed.first, placed.live)))?;
        Ok(Some(SavedQuant { held: self.held, physical: self.lengths.physical, blocks }))
    }

    /// Forgets the pieces of other files than the one that says of each whether it has it.
    pub(in crate::session) fn see_file(&mut self, has: impl Fn((u32, u64)) -> Result<bool>) -> Result<()> {
        for block in 0..self.blocks.list().len() as u32 {
            if let Some(known) = self.blocks.list()[block as usize].saved
                && !has(known)?
            {
                self.blocks.set_saved(block, None);
            }
        }
        Ok(())
    }

    /// Writes the blocks that the file, which was seen, has not: those that are away from the file of the budget, and heads
    /// that were dropped as parts without bytes. Returns where each token is, as tokens behind those of the cache.
    /// CORRUPT: if the file of the budget has blocks no more; `lost` has all of them.
    pub(in crate::session) fn save_blocks(
        &mut self,
        offload: Option<&Offload>,
        lost: &mut Found,
        write: &mut WritePiece<'_>,
    ) -> Result<Vec<SavedRun>> {
        let (mut saved, mut read, mut failure) = (Vec::new(), Vec::new(), None);
        let mut begin = self.lengths.physical;
        for block in 0..self.blocks.list().len() as u32 {
            let placed = &self.blocks.list()[block as usize];
            let live = placed.live;
            let of = match placed.saved {
                Some(place) => place,
                None => {
                    let blocks = &self.blocks;
                    while read.len() < blocks.heads() {
                        memory::push(&mut read, Vec::new())?;
                    }
                    for (head, (cell, bytes)) in blocks.cells_of(block).iter().zip(&mut read).enumerate() {
                        memory::cleared(bytes, 0)?;
                        if !blocks.copy(block, head, bytes)?
                            && let (Some(from), Some(offload)) = (&cell.offloaded, offload)
                            && let Err(error) = offload.read(from, bytes)
                        {
                            if error.status() != Status::Corrupt {
                                return Err(error);
                            }
                            lost.lose(block, head)?;
                            failure.get_or_insert(error);
                        }
                    }
                    if failure.is_some() {
                        continue;
                    }
                    let parts = memory::collect(read.iter().map(Vec::as_slice))?;
                    let mut raw_sum = RawSum::default();
                    parts.iter().for_each(|part| raw_sum.add(part));
                    write(&NewPiece { tokens: BLOCK as u32, parts: &parts, raw_sum: raw_sum.get() })?
                }
            };
            self.blocks.set_saved(block, Some(of));
            for (offset, count) in runs(live) {
                memory::push(&mut saved, SavedRun { of, offset, begin, count })?;
                begin += count;
            }
        }
        failure.map_or(Ok(saved), Err)
    }
}

impl SavedQuant {
    /// The first raw tokens, which are never quantised.
    pub(in crate::session) fn held(&self) -> u32 {
        self.held
    }

    /// The blocks of a layer of a file, whose tokens are `list` behind those of the cache.
    pub(in crate::session) fn load(&self, from: &Snapshot, rows: &Rows, list: &[Run]) -> Result<Blocks> {
        let Some(shape) = shape(rows) else {
            bail!(Corrupt, "a layer of {} has {rows} and quantised tokens", from.name());
        };
        let (mut blocks, mut block) = (Blocks::NONE, Block::default());
        blocks.reserve(shape, rows.heads, self.blocks.len())?;
        let mut begin = self.physical;
        for (at, &(first, live)) in (0..).zip(&self.blocks) {
            let count = live.count_ones();
            let found = Run::within(list, begin..begin + count);
            begin += count;
            let piece = found.clone().next().map_or(0, |run| run.of);
            let is_block = found.clone().all(|run| run.of == piece)
                && runs(live).eq(found.map(|run| (run.offset, run.count)))
                && from.piece_tokens(piece) == Some(BLOCK as u32);
            let bytes = from.piece(piece)?;
            if !is_block || bytes.ends.len() != rows.heads {
                bail!(Corrupt, "piece {piece} of {} is no block of the quantised tokens from {first} on", from.name());
            }
            for (head, codes) in block.heads_mut(rows.heads)?.iter_mut().enumerate() {
                codes.read(shape, bytes.part(head)).map_err(|error| {
                    let error = error.within(format_args!("head {head}"));
                    error.within(format_args!("piece {piece} of {}", from.name()))
                })?;
            }
            bytes.bytes.drop_pages();
            blocks.push(&block, first, live)?;
            blocks.set_saved(at, Some((piece, from.piece_sum(piece).unwrap_or_default())));
        }
        Ok(blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::runs;

    #[test]
    fn runs_are_those_of_the_bits() {
        for live in [0, 1, u64::MAX, 1 << 63, 0xF0F3_FFFF_0000_0001, u64::MAX >> 1, u64::MAX << 5] {
            let ones: Vec<u32> = runs(live).flat_map(|(first, count)| first..first + count).collect();
            assert_eq!(ones, (0..64).filter(|at| live >> at & 1 == 1).collect::<Vec<_>>(), "{live:x}");
        }
    }
}
