//! The recall of a layer in a chat file: the tokens of the cache in their order, and behind them those that are away.

use super::blocks::{Block, Blocks};
use super::vault::{Copy, View};
use super::{Recall, Workshop};
use crate::layout::{self, Pair, Rows};
use crate::snapshot::numbers::{Reader, put};
use crate::status::{Result, bail};
use crate::store::{NewPiece, SavedRun, WritePiece};
use crate::sys::memory;

/// A block of a file: its first logical position, its tokens, and whether it is away.
#[derive(Clone, Copy, Debug)]
struct SavedBlock {
    begin: u32,
    count: u32,
    is_away: bool,
}

/// The part of a chat file that a layer has whose tokens are in any order, or away.
#[derive(Debug, Default)]
pub(in crate::session) struct SavedRecall {
    /// The logical positions of the tokens of the cache, in physical order, as runs.
    positions: Vec<Pair>,
    /// Tokens before the first block.
    first: u32,
    /// Ascending.
    blocks: Vec<SavedBlock>,
}

impl SavedRecall {
    /// The logical positions of the tokens of the cache, in physical order.
    pub(in crate::session) fn positions(&self) -> &[Pair] {
        &self.positions
    }

    /// The logical ranges of the tokens that are away, ascending.
    pub(in crate::session) fn away(&self) -> impl Iterator<Item = Pair> {
        self.blocks.iter().filter(|block| block.is_away).map(|block| [block.begin as i32, block.count as i32])
    }

    /// Tokens of the cache.
    pub(in crate::session) fn physical(&self) -> u32 {
        self.positions.iter().map(|run| run[1] as u32).sum()
    }

    /// Appends what a chat file keeps.
    pub(in crate::session) fn put(&self, out: &mut Vec<u8>) -> Result<()> {
        put(out, self.positions.len() as u64)?;
        for [begin, count] in &self.positions {
            put(out, *begin as u64)?;
            put(out, *count as u64)?;
        }
        put(out, self.first.into())?;
        put(out, self.blocks.len() as u64)?;
        let mut end = self.first;
        for block in &self.blocks {
            put(out, (block.begin - end).into())?;
            put(out, u64::from(block.count) << 1 | u64::from(block.is_away))?;
            end = block.begin + block.count;
        }
        Ok(())
    }

    /// Reads what [`SavedRecall::put`] wrote, of a chat of `logical` tokens.
    /// CORRUPT: if a token is in two places.
    pub(in crate::session) fn read(reader: &mut Reader<'_>, logical: u32) -> Result<Self> {
        let mut saved = SavedRecall::default();
        let range = |begin: u32, count: u32, what: &str| match begin.checked_add(count) {
            Some(end) if end <= logical && count > 0 => Ok(()),
            _ => bail!(Corrupt, "{what}: {count} tokens from {begin} on; the chat has {logical}"),
        };
        for _ in 0..reader.small("the positions")? {
            let (begin, count) = (reader.small("the positions")?, reader.small("the positions")?);
            range(begin, count, "the positions")?;
            memory::push(&mut saved.positions, [begin as i32, count as i32])?;
        }
        saved.first = reader.small("the first block")?;
        let mut end = saved.first;
        for _ in 0..reader.small("the blocks")? {
            let (gap, count) = (reader.small("the blocks")?, reader.number("the blocks")?);
            let (begin, is_away) = (end.saturating_add(gap), count & 1 == 1);
            let count = u32::try_from(count >> 1).unwrap_or(u32::MAX);
            range(begin, count, "the blocks")?;
            end = begin + count;
            memory::push(&mut saved.blocks, SavedBlock { begin, count, is_away })?;
        }
        let mut all = memory::copied(&saved.positions)?;
        for away in saved.away() {
            memory::push(&mut all, away)?;
        }
        all.sort_unstable();
        saved.check_blocks(&all)?;
        match layout::check_pairs(&all, logical) {
            Ok(_) => Ok(saved),
            Err(error) => bail!(Corrupt, "a token is in two places: {}", error.unless_out_of_memory()?),
        }
    }
}

impl SavedRecall {
    /// CORRUPT: if a block has a token that is not among these, which ascend.
    fn check_blocks(&self, there: &[Pair]) -> Result<()> {
        let mut runs = there.iter().peekable();
        for block in &self.blocks {
            let (mut at, end) = (block.begin, block.begin + block.count);
            while at < end {
                while runs.next_if(|run| (run[0] + run[1]) as u32 <= at).is_some() {}
                match runs.peek() {
                    Some(run) if run[0] as u32 <= at => at = (run[0] + run[1]) as u32,
                    _ => bail!(Corrupt, "the blocks: token {at} of the block at {} is nowhere", block.begin),
                }
            }
        }
        Ok(())
    }
}

/// The tokens of a layer of a file that are away.
pub(in crate::session) struct LoadedRecall {
    blocks: Blocks,
}

impl Recall {
    /// The part that a chat file keeps; `None` where no token has left.
    pub(in crate::session) fn saved(&self, positions: &[Pair]) -> Result<Option<SavedRecall>> {
        let list = self.blocks.list();
        if list.is_empty() {
            return Ok(None);
        }
        let block = |block: &Block| SavedBlock { begin: block.begin, count: block.count, is_away: block.is_away };
        let (positions, blocks) = (memory::copied(positions)?, memory::collect(list.iter().map(block))?);
        Ok(Some(SavedRecall { positions, first: self.blocks.first(), blocks }))
    }

    /// Forgets the pieces of other files than the one that says of each whether it has it.
    pub(in crate::session) fn see_file(&mut self, has: impl Fn((u32, u64)) -> Result<bool>) -> Result<()> {
        for copy in self.blocks.list_mut().iter_mut().filter_map(|block| block.copy.as_mut()) {
            let has = copy.in_file().map_or(Ok(false), &has)?;
            copy.set_in_file(copy.in_file().filter(|_| has));
        }
        Ok(())
    }

    /// Writes the tokens that are away and that the file, which was seen, has not. Returns where each is, as tokens behind the
    /// `begin` of the cache.
    pub(in crate::session) fn save(
        &mut self,
        rows: &Rows,
        mut begin: u32,
        work: &mut Workshop,
        write: &mut WritePiece<'_>,
    ) -> Result<Vec<SavedRun>> {
        let mut runs = Vec::new();
        for block in self.blocks.list_mut().iter_mut().filter(|block| block.is_away) {
            let Some(copy) = &mut block.copy else { bail!(Internal, "a block that is away has no copy") };
            let (piece, sum) = match copy.in_file() {
                Some(place) => place,
                None => {
                    let place = self.vault.export(rows, copy, work, |tokens, parts, raw_sum| {
                        write(&NewPiece { tokens, parts, raw_sum })
                    })?;
                    if let Some((piece, _)) = copy.view().filter(|view| view.1 != place.1) {
                        bail!(Corrupt, "piece {piece} of the file that the chat was loaded from has changed since");
                    }
                    place
                }
            };
            copy.set_in_file(Some((piece, sum)));
            for (offset, count) in copy.runs() {
                memory::push(&mut runs, SavedRun { piece, sum, offset, begin, count })?;
                begin += count;
            }
        }
        Ok(runs)
    }

    /// The blocks of a layer of a file, of which the cache has the tokens at `positions`; `saved` has the others, whose
    /// bytes are `views`, in the same order.
    pub(in crate::session) fn loaded(
        &self,
        positions: &[Pair],
        logical: u32,
        saved: Option<&SavedRecall>,
        views: Vec<View>,
    ) -> Result<LoadedRecall> {
        let size = self.rules.block_tokens;
        let (mut list, mut views) = (Vec::new(), views.into_iter());
        let mut there = memory::copied(positions)?;
        for away in saved.iter().flat_map(|saved| saved.away()) {
            memory::push(&mut there, away)?;
        }
        there.sort_unstable();
        // From where on no token is missing: the begin of the last run, unless the chat goes on behind it.
        let (begin, end) = there
            .iter()
            .fold((0, 0), |(begin, end), run| (if run[0] == end { begin } else { run[0] }, run[0] + run[1]));
        let floor = if end as u32 == logical { begin as u32 } else { logical };
        let first = saved.map_or(self.rules.sink_tokens, |saved| saved.first);
        let mut add = |begin: u32, count: u32, copy: Option<Copy>| {
            let is_away = copy.is_some();
            memory::push(&mut list, Block { begin, count, is_away, is_pinned: false, copy, slot: None })
        };
        match saved {
            Some(saved) => {
                for &SavedBlock { begin, count, is_away } in &saved.blocks {
                    let view = if is_away { views.next() } else { None };
                    for at in (0..count).step_by(size as usize) {
                        let len = size.min(count - at);
                        let copy = view.as_ref().map(|view| Copy::of_view(view.part(at, len)?)).transpose()?;
                        add(begin + at, len, copy)?;
                    }
                }
            }
            // Blocks are made as of any chat.
            None if floor == 0 => {}
            // Tokens that were evicted before are in no block.
            None => {
                let limit = logical.saturating_sub(self.rules.recent_tokens);
                for &[begin, count] in positions {
                    let (begin, end) = (begin as u32, ((begin + count) as u32).min(limit));
                    let mut at = begin.max(first);
                    while at + size <= end {
                        add(at, size, None)?;
                        at += size;
                    }
                }
            }
        }
        Ok(LoadedRecall { blocks: Blocks::of(first, list, floor) })
    }

    /// Takes what a file has, after a reset.
    pub(in crate::session) fn take(&mut self, loaded: LoadedRecall) {
        self.blocks = loaded.blocks;
    }
}
