//! The blocks of one layer, found by ticket or by token.

use super::block::{Block, KeptRun, LiveSegment};
use super::saved::{self, SavedRun};
use super::stats::Statistics;
use crate::layout::{Layout, TokenRange};
use crate::status::Result;
use crate::sys::memory;
use std::ops::Range;

/// The blocks of one layer. No token is in two of them.
pub(super) struct LayerBlocks {
    pub(super) number: u32,
    pub(super) stats: Statistics,
    /// By ticket, ascending.
    blocks: Vec<Block>,
    /// All segments of all blocks, by first token.
    index: Vec<IndexEntry>,
    /// See [`LayerBlocks::edited`].
    edited: Option<Range<u32>>,
    /// The tokens that a file has, ascending.
    pub(super) saved: Vec<SavedRun>,
}

/// Tokens of a segment, and the ticket of its block.
#[derive(Clone, Copy)]
struct IndexEntry {
    begin: u32,
    end: u32,
    ticket: u64,
}

/// The segments that an edit leaves, computed before anything changes.
pub(super) struct LayerEdit {
    /// By block, in the order of [`LayerBlocks::blocks`].
    pieces: Vec<Vec<LiveSegment>>,
    saved: Vec<SavedRun>,
}

impl LayerBlocks {
    pub(super) fn new(number: u32) -> Self {
        LayerBlocks {
            number,
            stats: Statistics::default(),
            blocks: Vec::new(),
            index: Vec::new(),
            edited: None,
            saved: Vec::new(),
        }
    }

    /// By ticket, ascending.
    pub(super) fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// As [`LayerBlocks::blocks`]. Segments must not change; see [`LayerBlocks::retain`] and [`LayerBlocks::apply`].
    pub(super) fn blocks_mut(&mut self) -> &mut [Block] {
        &mut self.blocks
    }

    /// The index of the block with this ticket.
    pub(super) fn find(&self, ticket: u64) -> Option<usize> {
        self.blocks.binary_search_by_key(&ticket, Block::ticket).ok()
    }

    /// The block with this ticket.
    pub(super) fn block_mut(&mut self, ticket: u64) -> Option<&mut Block> {
        self.find(ticket).map(|at| &mut self.blocks[at])
    }

    /// Tickets of the blocks that have tokens of `range`, one for each segment there.
    pub(super) fn tickets_in(&self, range: Range<u32>) -> impl Iterator<Item = u64> + '_ {
        let first = self.index.partition_point(|entry| entry.end <= range.start);
        self.index[first..].iter().take_while(move |entry| entry.begin < range.end).map(|entry| entry.ticket)
    }

    /// Remembers that these tokens were moved, written or removed if others are released now: whatever a host derives of
    /// all tokens, such as sums, has zeros of released ones.
    pub(super) fn edited(&mut self, range: Range<u32>) {
        if self.blocks.iter().any(Block::is_released) {
            let before = self.edited.take().unwrap_or(range.clone());
            self.edited = Some(range.start.min(before.start)..range.end.max(before.end));
        }
    }

    /// The tokens that were edited since the last call while others were released.
    pub(super) fn take_edited(&mut self) -> Option<Range<u32>> {
        self.edited.take()
    }

    /// The parts of `range` that no block covers, as (begin, count).
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

    /// Reserves room for more whole blocks, so that [`LayerBlocks::push`] cannot fail.
    pub(super) fn reserve(&mut self, blocks: usize) -> Result<()> {
        memory::reserve_amortized(&mut self.blocks, blocks)?;
        memory::reserve_amortized(&mut self.index, blocks)
    }

    /// Adds a block. Its ticket must be the highest, and its tokens in no other block.
    #[expect(clippy::disallowed_methods, reason = "room was made by `reserve`")]
    pub(super) fn push(&mut self, block: Block) {
        for segment in block.segments() {
            let entry = IndexEntry { begin: segment.begin, end: segment.end(), ticket: block.ticket() };
            let at = self.index.partition_point(|other| other.begin < entry.begin);
            self.index.insert(at, entry);
        }
        self.blocks.push(block);
    }

    /// Drops the blocks for which `keep` is false.
    pub(super) fn retain(&mut self, keep: impl FnMut(&Block) -> bool) {
        let before = self.blocks.len();
        self.blocks.retain(keep);
        if self.blocks.len() < before {
            let LayerBlocks { blocks, index, .. } = self;
            index.retain(|entry| blocks.binary_search_by_key(&entry.ticket, Block::ticket).is_ok());
        }
    }

    /// Computes the segments that are left when only `kept` is left of the cache, and reserves room for them, so that
    /// [`LayerBlocks::apply`] cannot fail.
    pub(super) fn plan(&mut self, kept: &[KeptRun]) -> Result<LayerEdit> {
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
        // Without memory the next save writes all tokens.
        let saved = saved::cut(&self.saved, kept).unwrap_or_default();
        Ok(LayerEdit { pieces, saved })
    }

    /// Applies an edit. Blocks that end without segments stay, for [`LayerBlocks::retain`] to drop.
    #[expect(clippy::disallowed_methods, reason = "room was made by `plan`")]
    pub(super) fn apply(&mut self, edit: LayerEdit) {
        self.saved = edit.saved;
        self.index.clear();
        for (block, pieces) in self.blocks.iter_mut().zip(edit.pieces) {
            block.set_segments(pieces);
            let ticket = block.ticket();
            self.index.extend(block.segments().iter().map(|s| IndexEntry { begin: s.begin, end: s.end(), ticket }));
        }
        self.index.sort_unstable_by_key(|entry| entry.begin);
    }

    /// Drops the tokens from `len` on.
    pub(super) fn truncate(&mut self, len: u32) {
        self.edited(len..u32::MAX);
        if len == 0 {
            self.edited = None;
        }
        for block in &mut self.blocks {
            block.truncate(len);
        }
        self.saved.retain_mut(|run| {
            run.count = run.segment().before(len).count;
            run.count > 0
        });
        self.index.retain_mut(|entry| {
            entry.end = entry.end.min(len);
            entry.begin < entry.end
        });
    }

    /// The longest ranges of tokens of the blocks for which `which` is true. Neighbouring blocks are one range, since a
    /// page or a flash block may lie across their border. Segments that the layout has no room for are left out.
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
