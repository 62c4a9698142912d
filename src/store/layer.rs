//! The blocks of one layer, found by ticket or by token.

use super::block::Block;
use super::stats::Statistics;
use crate::layout::{Layout, TokenRange};
use crate::run::Run;
use crate::status::Result;
use crate::sys::memory;
use std::ops::Range;

/// The blocks of one layer. No token is in two of them.
#[derive(Default)]
pub(super) struct LayerBlocks {
    pub(super) stats: Statistics,
    /// By ticket, ascending.
    pub(super) blocks: Vec<Block>,
    /// All segments of all blocks, with their tickets.
    pub(super) index: Vec<Run<u64>>,
    /// The tokens that were edited while others were released; see [`LayerBlocks::edited`].
    pub(super) edited: Option<Range<u32>>,
}

/// What an edit leaves, computed before anything changes.
pub(super) struct LayerEdit {
    /// By block, in the order of [`LayerBlocks::blocks`].
    segments: Vec<Vec<Run>>,
    index: Vec<Run<u64>>,
}

impl LayerBlocks {
    /// The index of the block with this ticket.
    pub(super) fn find(&self, ticket: u64) -> Option<usize> {
        self.blocks.binary_search_by_key(&ticket, Block::ticket).ok()
    }

    /// The blocks that have tokens of `range`, one for each segment there.
    pub(super) fn blocks_in(&self, range: Range<u32>) -> impl Iterator<Item = &Block> {
        Run::within(&self.index, range).filter_map(|segment| Some(&self.blocks[self.find(segment.of)?]))
    }

    /// Counts the blocks that have tokens of a rewritten range as stale; false where there are none.
    pub(super) fn count_stale(&mut self, range: &Range<u32>) -> bool {
        if self.blocks_in(range.clone()).next().is_none() {
            return false;
        }
        let is_stale = |block: &&Block| block.overlaps(range) && block.has_content();
        self.stats.stale_blocks += self.blocks.iter().filter(is_stale).count() as u64;
        true
    }

    /// Remembers that these tokens were moved, written or removed if others are released now: whatever a host derives of
    /// all tokens, such as sums, has zeros of released ones.
    pub(super) fn edited(&mut self, range: Range<u32>) {
        if self.blocks.iter().any(Block::is_released) {
            let before = self.edited.take().unwrap_or(range.clone());
            self.edited = Some(range.start.min(before.start)..range.end.max(before.end));
        }
    }

    /// Reserves room for more whole blocks, so that [`LayerBlocks::push`] cannot fail.
    pub(super) fn reserve(&mut self, blocks: usize) -> Result<()> {
        memory::reserve_amortized(&mut self.blocks, blocks)?;
        memory::reserve_amortized(&mut self.index, blocks)
    }

    /// Adds a block. Its ticket must be the highest, and its tokens in no other block.
    #[expect(clippy::disallowed_methods, reason = "room was made by `reserve`")]
    pub(super) fn push(&mut self, block: Block) {
        for segment in &block.segments {
            let at = self.index.partition_point(|other| other.begin < segment.begin);
            self.index.insert(at, segment.with(block.ticket()));
        }
        self.blocks.push(block);
    }

    /// Drops the blocks for which `keep` is false.
    pub(super) fn retain(&mut self, keep: impl FnMut(&Block) -> bool) {
        let before = self.blocks.len();
        self.blocks.retain(keep);
        if self.blocks.len() < before {
            let LayerBlocks { blocks, index, .. } = self;
            index.retain(|segment| blocks.binary_search_by_key(&segment.of, Block::ticket).is_ok());
        }
    }

    /// Computes what is left when only `kept` is left of the cache.
    pub(super) fn plan(&self, kept: &[Run]) -> Result<LayerEdit> {
        Ok(LayerEdit {
            segments: memory::try_collect(self.blocks.iter().map(|block| Run::kept(&block.segments, kept)))?,
            index: Run::kept(&self.index, kept)?,
        })
    }

    /// Applies an edit. Blocks that are gone stay, for [`LayerBlocks::retain`] to drop.
    pub(super) fn apply(&mut self, edit: LayerEdit) {
        self.index = edit.index;
        for (block, segments) in self.blocks.iter_mut().zip(edit.segments) {
            block.segments = segments;
        }
    }

    /// Drops the tokens from `len` on, as [`LayerBlocks::apply`].
    pub(super) fn truncate(&mut self, len: u32) {
        self.edited(len..u32::MAX);
        if len == 0 {
            self.edited = None;
        }
        for block in &mut self.blocks {
            Run::truncate(&mut block.segments, len);
        }
        Run::truncate(&mut self.index, len);
    }

    /// The longest ranges of tokens of the blocks for which `which` is true. Neighbouring blocks are one range, since a
    /// page or a flash block may lie across their border. Segments that the layout has no room for are left out.
    pub(super) fn runs(&self, layout: &Layout, which: impl Fn(&Block) -> bool) -> Result<Vec<TokenRange>> {
        let mut runs: Vec<TokenRange> = Vec::new();
        for segment in &self.index {
            let Ok(range) = layout.range(segment.begin, segment.count) else { break };
            if !self.find(segment.of).is_some_and(|at| which(&self.blocks[at])) {
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
