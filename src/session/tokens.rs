//! The token index of a layer: where each token of a chat is. A token is raw, in a slot of the host's cache; or in a block, in
//! memory or in the file; or it is gone. A raw one that is stored has a blob in the [`store`](crate::store) in place of its bytes.
//!
//! Every move of tokens is an [`Edit`]: it is prepared, which may fail, and then applied, which cannot.

mod runs;

pub(super) use runs::Runs;

use super::tier::Tier;
use crate::attend::{BLOCK, Blocks, Placed};
use crate::file::Extent;
use crate::file::table::{Piece, Tile};
use crate::layout::Pair;
use crate::run::Run;
use crate::status::Result;
use crate::sys::memory;

/// Tokens of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheLengths {
    /// Tokens of the chat since the last reset, less those that an edit of the history removed.
    pub logical: u32,
    /// Tokens in the cache.
    pub physical: u32,
}

/// Where the tokens of a layer are.
pub(super) struct Tokens {
    pub(super) lengths: CacheLengths,
    /// The positions of the raw tokens, in the order of their slots.
    pub(super) raw: Runs,
    /// The others that are not gone.
    pub(super) blocks: Blocks,
    /// The first raw tokens, which are never quantised.
    pub(super) held: u32,
    /// The first position that the window of the layer has not left behind: tokens before it are gone, or about to go.
    pub(super) passed: u32,
    pub(super) in_file: InFile,
}

/// What the chat file has of a layer since the last save or open, beside its blocks.
#[derive(Debug, Default)]
pub(super) struct InFile {
    /// Raw tokens.
    pub(super) pieces: Vec<Piece>,
    /// The raw tokens of the cache that are in a piece, by its number.
    pub(super) raw: Vec<Run<u32>>,
    /// The cache has no raw tokens: the next begin writes them to it.
    pub(super) is_away: bool,
    /// What is known of blocks there; see [`Placed::tile`].
    pub(super) tiles: Vec<Tile>,
    /// The directions of sketches.
    pub(super) basis: Option<Extent>,
    /// It is what the file of the base has, of raw tokens alone.
    pub(super) of_base: bool,
}

impl InFile {
    /// Nothing.
    const NONE: InFile =
        InFile { pieces: Vec::new(), raw: Vec::new(), is_away: false, tiles: Vec::new(), basis: None, of_base: false };
}

/// Tokens as a move leaves them.
pub(super) struct Edit {
    /// The slots of the raw tokens that stay.
    pub(super) slots: Runs,
    raw: Runs,
    lengths: CacheLengths,
    /// Of each block the first position, and the tokens that are left; `None` where blocks stay as they are.
    blocks: Option<Vec<(u32, u64)>>,
    held: u32,
    passed: u32,
    /// The raw tokens that are in the file, too.
    in_file: Vec<Run<u32>>,
}

impl Edit {
    /// The lengths that it leaves.
    pub(super) fn lengths(&self) -> CacheLengths {
        self.lengths
    }
}

/// How many of these positions are before one.
pub(super) fn stay_before(positions: &[Pair], end: u32) -> u32 {
    positions.iter().map(|&[first, count]| (end as i32 - first).clamp(0, count) as u32).sum()
}

/// The pins once only the tokens at these positions stay, which are counted anew. Pins behind the last of them stay at their
/// distance from it: a step that is undone loses none.
pub(super) fn pins_of(pins: &Runs, positions: &[Pair]) -> Result<Runs> {
    // An empty range may be anywhere.
    let mut left = memory::collect(positions.iter().copied().filter(|range| range[1] > 0))?;
    let end = left.last().map_or(0, |range| range[0] + range[1]);
    memory::push(&mut left, [end, i32::MAX - end])?;
    pins.renumbered(&left)
}

impl Tokens {
    /// None.
    pub(super) const NONE: Tokens = Tokens {
        lengths: CacheLengths { logical: 0, physical: 0 },
        raw: Runs::NONE,
        blocks: Blocks::NONE,
        held: 0,
        passed: 0,
        in_file: InFile::NONE,
    };

    /// The positions of the tokens that a KV head can attend to, wherever they are; ascending.
    pub(super) fn attended(&self, head: usize) -> Result<Runs> {
        let mut all = memory::copied(self.raw.pairs())?;
        for (at, placed) in (0..).zip(self.blocks.list()) {
            if !self.blocks.cell(at, head).is_nowhere() {
                memory::push(&mut all, [placed.first as i32, placed.tokens() as i32])?;
            }
        }
        all.sort_unstable();
        Runs::of(&all, self.lengths.logical)
    }

    /// Makes room for a step, so that [`Tokens::append`] cannot fail; edits keep such room.
    pub(super) fn reserve(&mut self) -> Result<()> {
        self.raw.reserve()
    }

    /// The host has appended raw tokens.
    pub(super) fn append(&mut self, count: u32) -> Result<()> {
        self.raw.push([self.lengths.logical as i32, count as i32])?;
        self.lengths.logical += count;
        self.lengths.physical += count;
        Ok(())
    }

    /// The raw tokens in other slots than these are gone, or in blocks.
    pub(super) fn left_in(&self, slots: &[Pair]) -> Result<Edit> {
        let (slots, mut raw) = (Runs::of(slots, self.lengths.physical)?, self.raw.at(slots)?);
        raw.reserve()?;
        let lengths = CacheLengths { physical: raw.count(), ..self.lengths };
        let in_file = self.left_in_file(&slots)?;
        Ok(Edit { slots, raw, lengths, blocks: None, held: self.held, passed: self.passed, in_file })
    }

    /// Tokens that the first raw tile has less than a block: tiles and blocks begin at the same tokens.
    pub(super) fn missing(&self) -> usize {
        (self.held as usize).wrapping_neg() % BLOCK
    }

    /// No later row attends to tokens before a position: raw tiles and blocks that have no others are gone; `None`: there are none.
    pub(super) fn behind(&self, position: u32) -> Result<Option<Edit>> {
        let first = self.blocks.list().first();
        let before = stay_before(self.raw.pairs(), position) as usize;
        let leaving = ((before + self.missing()) / BLOCK * BLOCK).saturating_sub(self.missing()) as u32;
        if leaving == 0 && first.is_none_or(|block| block.first + block.tokens() > position) {
            return Ok(None);
        }
        let physical = self.lengths.physical;
        let edit = self.left_in(&[[leaving as i32, (physical - leaving) as i32]])?;
        let left = |block: &Placed| if block.first + block.tokens() > position { block.live } else { 0 };
        let blocks = memory::collect(self.blocks.list().iter().map(|block| (block.first, left(block))))?;
        Ok(Some(Edit { blocks: Some(blocks), held: self.held.saturating_sub(leaving), passed: position, ..edit }))
    }

    /// An edit of the history: only the tokens at these positions stay, and positions are counted anew over them.
    pub(super) fn kept(&self, positions: &[Pair]) -> Result<Edit> {
        let (slots, mut raw) = (self.raw.places_of(positions)?, self.raw.renumbered(positions)?);
        raw.reserve()?;
        let held = self.raw.at(&[[0, self.held as i32]])?.renumbered(positions)?.count();
        let mut blocks = Vec::new();
        memory::reserve(&mut blocks, self.blocks.list().len())?;
        let (mut ranges, mut before) = (positions, 0);
        for Placed { first, live, .. } in self.blocks.list() {
            let (mut left, mut anew, mut at) = (0u64, None, *first as i32);
            for token in (0..BLOCK).filter(|token| live >> token & 1 == 1) {
                while let Some(([_, count], rest)) =
                    ranges.split_first().filter(|([begin, count], _)| begin + count <= at)
                {
                    (ranges, before) = (rest, before + count);
                }
                if let Some([begin, _]) = ranges.first().filter(|[begin, _]| *begin <= at) {
                    left |= 1 << token;
                    anew.get_or_insert(before + at - begin);
                }
                at += 1;
            }
            memory::push(&mut blocks, (anew.unwrap_or_default() as u32, left))?;
        }
        let logical = positions.iter().map(|range| range[1] as u32).sum();
        let lengths = CacheLengths { logical, physical: raw.count() };
        let in_file = self.left_in_file(&slots)?;
        let passed = stay_before(positions, self.passed);
        Ok(Edit { slots, raw, lengths, blocks: Some(blocks), held, passed, in_file })
    }

    /// Of the raw tokens in the file those in these slots.
    fn left_in_file(&self, slots: &Runs) -> Result<Vec<Run<u32>>> {
        let kept = slots.pairs().iter().scan(0, |begin, &[offset, count]| {
            let run = Run { of: (), offset: offset as u32, begin: *begin, count: count as u32 };
            *begin = run.end();
            Some(run)
        });
        Run::kept(&self.in_file.raw, &memory::collect(kept)?)
    }

    /// The host has written the raw tokens in these slots anew.
    pub(super) fn rewritten(&mut self, slots: std::ops::Range<u32>) -> Result<()> {
        let own = &self.in_file.raw;
        let (before, behind) = (Run::within(own, 0..slots.start), Run::within(own, slots.end..u32::MAX));
        self.in_file.raw = memory::collect(before.chain(behind))?;
        Ok(())
    }

    /// Applies an edit of these tokens; the places in the file of blocks that go are free.
    pub(super) fn apply(&mut self, edit: Edit, tier: Option<&mut Tier>) {
        let Edit { raw, lengths, blocks, held, passed, in_file, .. } = edit;
        (self.raw, self.lengths, self.held, self.passed, self.in_file.raw) = (raw, lengths, held, passed, in_file);
        let Some(left) = blocks else { return };
        if let Some(tier) = tier {
            let gone = self.blocks.list().iter().zip(&left).filter(|(_, (_, live))| *live == 0);
            gone.for_each(|(placed, _)| tier.free(placed, self.blocks.size()));
        }
        self.blocks.cut(&left);
    }

    /// All tokens are gone.
    pub(super) fn clear(&mut self, tier: Option<&mut Tier>) {
        if let Some(tier) = tier {
            tier.free_all(&self.blocks);
        }
        *self = Tokens::NONE;
    }
}
