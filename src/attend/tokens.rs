//! What a step attends to: tokens in blocks and raw ones, and where they are in the chat.

use super::block::Shape;
use super::blocks::Blocks;
use super::offload::Source;
use crate::arch::attend::BLOCK;
use crate::layout::{CacheRef, Pair};
use std::ops::Range;

/// The tokens of a layer.
#[derive(Clone, Copy)]
pub struct Tokens<'a> {
    /// Of a head.
    pub shape: Shape,
    /// Tokens in blocks.
    pub blocks: &'a Blocks,
    /// Where the blocks are that are not in memory; without, steps do without these.
    pub source: Option<Source<'a>>,
    /// Whether the step finds how much attention each block gets.
    pub weighs: bool,
    /// Steps find the squares of queries.
    pub learns: bool,
    /// The cache of the others.
    pub cache: CacheRef<'a>,
    /// Tokens in the cache, those of the step included.
    pub raw: usize,
    /// Tokens that the first raw tile has less than 64. Tiles begin where blocks would, so that sums are in the same order when
    /// whole tiles before them leave.
    pub missing: usize,
    /// Logical positions of the tokens that were in the cache before the step, as runs.
    pub positions: &'a [Pair],
    /// Tokens of the chat, those of the step included.
    pub logical: u32,
}

/// Tokens that are folded at once: raw ones, or a block.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Tile {
    Raw(usize),
    Block(u32),
}

impl Tokens<'_> {
    pub(super) fn kv_heads(&self) -> usize {
        self.cache.layout.rows().heads
    }

    pub(super) fn raw_tiles(&self) -> usize {
        if self.raw > 0 { (self.raw + self.missing).div_ceil(BLOCK) } else { 0 }
    }

    /// The slots of a raw tile.
    pub(super) fn raw_tile(&self, tile: usize) -> Range<usize> {
        let begin = |tile: usize| (tile * BLOCK).saturating_sub(self.missing);
        begin(tile)..begin(tile + 1).min(self.raw)
    }

    /// The logical positions of raw tokens, as runs in the order of their slots.
    fn raw_runs(&self) -> impl DoubleEndedIterator<Item = Range<usize>> {
        let before = self.positions.iter().map(|run| run[1] as usize).sum::<usize>();
        let step = self.logical as usize + before - self.raw;
        let runs = self.positions.iter().map(|&[first, count]| first as usize..(first + count) as usize);
        runs.chain(std::iter::once(step..self.logical as usize))
    }

    /// Raw tokens at logical positions below this one.
    pub(super) fn raw_before(&self, position: usize) -> usize {
        self.raw_runs().map(|run| position.clamp(run.start, run.end) - run.start).sum()
    }

    /// The newest tokens of the chat that are in the cache.
    pub(super) fn newest(&self) -> usize {
        let mut first = self.logical as usize;
        for run in self.raw_runs().rev() {
            if run.end != first {
                break;
            }
            first = run.start;
        }
        self.logical as usize - first
    }

    /// The logical positions of a tile's tokens; those that are not there have the last one.
    pub(super) fn places(&self, tile: Tile, live: u64, places: &mut [u32]) {
        places.fill(u32::MAX);
        let tokens = (0..BLOCK).filter(|token| live >> token & 1 == 1);
        match tile {
            Tile::Block(block) => {
                let first = self.blocks.list()[block as usize].first;
                tokens.zip(first..).for_each(|(token, place)| places[token] = place);
            }
            Tile::Raw(tile) => {
                let all = self.raw_runs().flatten().skip(self.raw_tile(tile).start);
                tokens.zip(all).for_each(|(token, place)| places[token] = place as u32);
            }
        }
    }
}
