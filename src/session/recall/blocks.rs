//! The blocks of a chat: tokens that leave a cache and come back together.

use super::vault::Copy;
use crate::layout::Pair;
use crate::status::Result;
use crate::sys::memory;
use std::ops::Range;

/// Consecutive tokens of a chat.
#[derive(Debug)]
pub(super) struct Block {
    /// The first logical position.
    pub(super) begin: u32,
    /// Tokens; fewer than the rules say once an edit of the history has removed some.
    pub(super) count: u32,
    /// The tokens are not in the cache, but in `copy`.
    pub(super) is_away: bool,
    /// It has a pinned token.
    pub(super) is_pinned: bool,
    /// The parked copy; one of a block that is in the cache, too, saves encoding it again.
    pub(super) copy: Option<Copy>,
    /// The summary of the keys.
    pub(super) slot: Option<u32>,
}

impl Block {
    pub(super) fn range(&self) -> Range<u32> {
        self.begin..self.begin + self.count
    }

    /// Whether its tokens are away and can be read.
    pub(super) fn may_return(&self) -> bool {
        self.is_away && !self.is_lost()
    }

    /// Whether its tokens are away, and the file has not what was parked.
    pub(super) fn is_lost(&self) -> bool {
        self.is_away && self.copy.as_ref().is_some_and(Copy::is_lost)
    }

    /// The logical range of its tokens.
    pub(super) fn pair(&self) -> Pair {
        [self.begin as i32, self.count as i32]
    }
}

/// The tokens that an edit of the history leaves.
pub(in crate::session) struct Plan {
    cuts: Vec<Cut>,
    first: u32,
    end: u32,
    floor: u32,
}

/// The tokens of a block that an edit of the history keeps.
struct Cut {
    begin: u32,
    count: u32,
    /// The tokens that stay of those that the block had, lowest first.
    kept: u64,
}

/// The blocks of a layer, ascending, and the position from which on tokens have none.
#[derive(Debug)]
pub(super) struct Blocks {
    list: Vec<Block>,
    first: u32,
    end: u32,
    /// Tokens before it may be missing: they were evicted without recall.
    floor: u32,
}

impl Blocks {
    /// No blocks; the first one will begin at `first`.
    pub(super) fn new(first: u32) -> Self {
        Blocks { list: Vec::new(), first, end: first, floor: 0 }
    }

    /// These blocks, which ascend, behind the first `first` tokens of a chat of which none is missing from `floor` on.
    pub(super) fn of(first: u32, list: Vec<Block>, floor: u32) -> Self {
        let end = list.last().map_or(first, |block| block.range().end).max(floor);
        Blocks { list, first, end, floor }
    }

    /// Tokens before the first block.
    pub(super) fn first(&self) -> u32 {
        self.first
    }

    pub(super) fn list(&self) -> &[Block] {
        &self.list
    }

    pub(super) fn list_mut(&mut self) -> &mut [Block] {
        &mut self.list
    }

    /// The logical ranges of the tokens of no block, of a chat of `logical` tokens.
    pub(super) fn outside(&self, logical: u32) -> [Pair; 2] {
        let first = self.first.min(logical);
        let end = self.end.clamp(first, logical);
        [[0, first as i32], [end as i32, (logical - end) as i32]]
    }

    /// Makes blocks of `size` tokens of those before `limit`.
    pub(super) fn grow(&mut self, size: u32, limit: u32) -> Result<()> {
        let count = limit.saturating_sub(self.end) / size;
        memory::reserve_amortized(&mut self.list, count as usize)?;
        for _ in 0..count {
            let block =
                Block { begin: self.end, count: size, is_away: false, is_pinned: false, copy: None, slot: None };
            memory::push(&mut self.list, block)?;
            self.end += size;
        }
        Ok(())
    }

    /// The tokens of each block that an edit of the history leaves, which keeps these logical ranges. A plan for [`Blocks::apply`].
    pub(super) fn cut(&self, logical: &[Pair]) -> Result<Plan> {
        let mut cuts = Vec::new();
        memory::reserve(&mut cuts, self.list.len())?;
        // Ranges and blocks ascend: `before` tokens are in the ranges that end before a block.
        let (mut ranges, mut before) = (logical, 0);
        for block in &self.list {
            while let [[begin, count], rest @ ..] = ranges
                && (begin + count) as u32 <= block.begin
            {
                (ranges, before) = (rest, before + *count as u32);
            }
            let mut cut = Cut { begin: before, count: 0, kept: 0 };
            let mut inside = before;
            for &[begin, count] in ranges.iter().take_while(|[begin, _]| (*begin as u32) < block.range().end) {
                let (begin, end) = (begin as u32, (begin + count) as u32);
                let (first, last) = (begin.max(block.begin), end.min(block.range().end));
                if cut.count == 0 {
                    cut.begin = inside + (first - begin);
                }
                cut.count += last - first;
                cut.kept |= ones(last - first) << (first - block.begin);
                inside += end - begin;
            }
            memory::push(&mut cuts, cut)?;
        }
        let before = |limit: u32| {
            let kept = |&[begin, count]: &Pair| (begin + count).min(limit as i32).max(begin) - begin;
            logical.iter().map(kept).sum::<i32>() as u32
        };
        Ok(Plan { cuts, first: before(self.first), end: before(self.end), floor: before(self.floor) })
    }

    /// Applies a plan of [`Blocks::cut`]. Calls `changed` with each block that has lost tokens, and has none left if its
    /// count is 0. Without blocks the first one will begin at `first`.
    pub(super) fn apply(&mut self, plan: Plan, first: u32, mut changed: impl FnMut(&mut Block)) {
        for (block, cut) in self.list.iter_mut().zip(&plan.cuts) {
            if cut.count < block.count {
                if let Some(copy) = &mut block.copy {
                    copy.keep(cut.kept);
                }
                block.count = cut.count;
                changed(block);
            }
            block.begin = cut.begin;
        }
        self.list.retain(|block| block.count > 0);
        self.floor = plan.floor;
        let first = first.max(plan.floor);
        (self.first, self.end) = if self.list.is_empty() { (first, first) } else { (plan.first, plan.end) };
    }
}

/// The `count` lowest bits.
pub(super) fn ones(count: u32) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}
