//! The blocks of one layer, found by ticket or by token.

use super::block::{Block, Kept, Segment};
use super::stats::Statistics;
use crate::layout::{Layout, TokenRange};
use crate::status::Result;
use crate::sys::memory;
use std::ops::Range;

/// One layer's blocks. No token is in two of them.
pub(super) struct Layer {
    pub(super) number: u32,
    pub(super) stats: Statistics,
    /// By ticket, ascending.
    blocks: Vec<Block>,
    /// Every segment of every block, by its first token.
    index: Vec<Entry>,
}

/// Where a segment is, and its block.
#[derive(Clone, Copy)]
struct Entry {
    begin: u32,
    end: u32,
    ticket: u64,
}

/// What is left of every block of a layer after an edit. Nothing has changed yet.
pub(super) struct Edit {
    /// In the order of the blocks.
    pieces: Vec<Vec<Segment>>,
}

impl Layer {
    pub(super) fn new(number: u32) -> Self {
        Layer { number, stats: Statistics::default(), blocks: Vec::new(), index: Vec::new() }
    }

    /// By ticket, ascending.
    pub(super) fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// As [`Layer::blocks`]. Segments must not change; see [`Layer::retain`] and [`Layer::apply`].
    pub(super) fn blocks_mut(&mut self) -> &mut [Block] {
        &mut self.blocks
    }

    /// Where the block of a ticket is.
    pub(super) fn find(&self, ticket: u64) -> Option<usize> {
        self.blocks.binary_search_by_key(&ticket, Block::ticket).ok()
    }

    /// The block of a ticket.
    pub(super) fn block_mut(&mut self, ticket: u64) -> Option<&mut Block> {
        self.find(ticket).map(|at| &mut self.blocks[at])
    }

    /// The tickets of the blocks that have tokens of `range`, once for each segment there.
    pub(super) fn tickets_in(&self, range: Range<u32>) -> impl Iterator<Item = u64> + '_ {
        let first = self.index.partition_point(|entry| entry.end <= range.start);
        self.index[first..].iter().take_while(move |entry| entry.begin < range.end).map(|entry| entry.ticket)
    }

    /// Ranges of `range` that no block covers, each as (begin, count).
    pub(super) fn uncovered(&self, range: Range<u32>) -> Result<Vec<(u32, u32)>> {
        let first = self.index.partition_point(|entry| entry.end <= range.start);
        let covered = self.index[first..].iter().map(|entry| (entry.begin, entry.end));
        let mut gaps = Vec::new();
        let mut at = range.start;
        for (begin, end) in covered.take_while(|(begin, _)| *begin < range.end).chain([(range.end, range.end)]) {
            if at < begin {
                memory::push(&mut gaps, (at, begin - at))?;
            }
            at = at.max(end);
        }
        Ok(gaps)
    }

    /// Makes room for one more block, so that [`Layer::push`] cannot fail.
    pub(super) fn reserve(&mut self) -> Result<()> {
        memory::reserve_amortized(&mut self.blocks, 1)?;
        memory::reserve_amortized(&mut self.index, 1)
    }

    /// Adds a block with a higher ticket than any other, whose tokens are in no other.
    #[expect(clippy::disallowed_methods, reason = "room was made by `reserve`")]
    pub(super) fn push(&mut self, block: Block) {
        for segment in block.segments() {
            let entry = Entry { begin: segment.begin, end: segment.end(), ticket: block.ticket() };
            let at = self.index.partition_point(|other| other.begin < entry.begin);
            self.index.insert(at, entry);
        }
        self.blocks.push(block);
    }

    /// Drops the blocks that `keep` refuses.
    pub(super) fn retain(&mut self, keep: impl FnMut(&Block) -> bool) {
        let before = self.blocks.len();
        self.blocks.retain(keep);
        if self.blocks.len() < before {
            let Layer { blocks, index, .. } = self;
            index.retain(|entry| blocks.binary_search_by_key(&entry.ticket, Block::ticket).is_ok());
        }
    }

    /// What is left of every block when only `kept` is left of the cache, with room made for it: [`Layer::apply`]
    /// cannot fail.
    pub(super) fn plan(&mut self, kept: &[Kept]) -> Result<Edit> {
        let mut pieces = Vec::new();
        memory::reserve(&mut pieces, self.blocks.len())?;
        for block in &self.blocks {
            let mut left = Vec::new();
            block.cut(kept, &mut left)?;
            memory::push(&mut pieces, left)?;
        }
        let segments: usize = pieces.iter().map(Vec::len).sum();
        let more = segments.saturating_sub(self.index.len());
        memory::reserve_amortized(&mut self.index, more)?;
        Ok(Edit { pieces })
    }

    /// Follows an edit of the cache. Blocks of which nothing worth keeping is left stay without segments, for
    /// [`Layer::retain`] to drop.
    #[expect(clippy::disallowed_methods, reason = "room was made by `plan`")]
    pub(super) fn apply(&mut self, edit: Edit) {
        self.index.clear();
        for (block, pieces) in self.blocks.iter_mut().zip(edit.pieces) {
            block.set_segments(pieces);
            let ticket = block.ticket();
            self.index.extend(block.segments().iter().map(|s| Entry { begin: s.begin, end: s.end(), ticket }));
        }
        self.index.sort_unstable_by_key(|entry| entry.begin);
    }

    /// Drops the tokens from `len` on.
    pub(super) fn truncate(&mut self, len: u32) {
        for block in &mut self.blocks {
            block.truncate(len);
        }
        self.index.retain_mut(|entry| {
            entry.end = entry.end.min(len);
            entry.begin < entry.end
        });
    }

    /// The longest ranges of tokens whose blocks `which` names: neighbouring blocks are one, since a page or a flash block
    /// may lie across their border. Segments that the layout has no room for are left out.
    pub(super) fn runs(&self, layout: &Layout, which: impl Fn(&Block) -> bool) -> Result<Vec<TokenRange>> {
        let mut runs: Vec<TokenRange> = Vec::new();
        for entry in &self.index {
            let Ok(range) = layout.range(entry.begin, entry.end - entry.begin) else { break };
            if !self.find(entry.ticket).is_some_and(|at| which(&self.blocks[at])) {
                continue;
            }
            match runs.last_mut().and_then(|run| run.joined(range)) {
                Some(joined) => *runs.last_mut().expect("one was joined") = joined,
                None => memory::push(&mut runs, range)?,
            }
        }
        Ok(runs)
    }
}
