//! The blocks of a layer, and which of their heads are in memory and which in a file alone.

use super::basis::Basis;
use super::block::{Block, Cell, Codes, Shape};
use super::offload::{Offloaded, SketchWork};
use crate::arch::attend::{BLOCK, Line};
use crate::status::Result;
use crate::sys::memory;
use std::ops::Range;

/// Blocks that directions are chosen by.
const SAMPLES: usize = 8;

/// A block in a chat.
#[derive(Debug)]
pub struct Placed {
    /// Its heads.
    pub block: Block,
    /// The logical position of the first token that is left; the others follow it.
    pub first: u32,
    /// The tokens that are left, one bit each.
    pub live: u64,
    /// The bytes in the file that blocks go to, once it has been written.
    pub place: Option<Range<u64>>,
}

impl Placed {
    /// A whole block, from a logical position on.
    pub fn new(block: Block, first: u32) -> Self {
        Placed { block, first, live: u64::MAX, place: None }
    }

    /// Tokens that are left.
    pub fn tokens(&self) -> u32 {
        self.live.count_ones()
    }

    /// Whether no head is anywhere.
    pub fn is_gone(&self) -> bool {
        self.block.0.iter().all(|cell| cell.codes.is_none() && cell.offloaded.is_none())
    }
}

/// The blocks of a layer, ascending.
#[derive(Debug, Default)]
pub struct Blocks {
    list: Vec<Placed>,
    /// For each head the blocks whose codes are in memory, ascending.
    here: Vec<Vec<u32>>,
    /// For each head the blocks whose codes are in a file alone, ascending.
    away: Vec<Vec<u32>>,
    /// Bytes of codes, and of sketches.
    code_bytes: usize,
    sketch_bytes: usize,
    /// The directions of sketches; from the first block on that goes to a file.
    pub basis: Option<Basis>,
}

impl Blocks {
    /// No blocks.
    pub const NONE: Blocks =
        Blocks { list: Vec::new(), here: Vec::new(), away: Vec::new(), code_bytes: 0, sketch_bytes: 0, basis: None };

    /// The blocks of a file.
    pub fn of(list: Vec<Placed>) -> Result<Self> {
        let (heads, count) = (list.first().map_or(0, |placed| placed.block.0.len()), list.len());
        let mut blocks = Blocks::default();
        blocks.reserve(heads, count)?;
        blocks.list = list;
        blocks.list_heads();
        Ok(blocks)
    }

    /// All blocks.
    pub fn list(&self) -> &[Placed] {
        &self.list
    }

    /// KV heads; 0 without blocks.
    pub fn heads(&self) -> usize {
        self.here.len()
    }

    /// The blocks of a head whose codes are in memory.
    pub fn here(&self, head: usize) -> &[u32] {
        self.here.get(head).map_or(&[], Vec::as_slice)
    }

    /// The blocks of a head whose codes are in a file alone.
    pub fn away(&self, head: usize) -> &[u32] {
        self.away.get(head).map_or(&[], Vec::as_slice)
    }

    /// Heads of blocks in memory.
    pub fn cells_here(&self) -> usize {
        self.here.iter().map(Vec::len).sum()
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        let lists = self.here.iter().chain(&self.away).map(|list| list.capacity() * size_of::<u32>()).sum::<usize>();
        let cells = self.heads() * size_of::<Cell>();
        self.code_bytes
            + self.sketch_bytes
            + lists
            + self.list.capacity() * (size_of::<Placed>() + cells)
            + self.basis.as_ref().map_or(0, Basis::bytes)
    }

    /// Bytes of memory of a block of so many heads whose codes are in memory, none of their channels in 16 bits.
    pub fn block_bytes(shape: Shape, heads: usize) -> usize {
        heads * (shape.head_lines() * size_of::<Line>() + size_of::<Cell>() + 2 * size_of::<u32>())
            + size_of::<Placed>()
    }

    /// Bytes of memory of a block of so many heads whose codes are in a file alone, and those of its sketches.
    pub fn away_bytes(heads: usize) -> [usize; 2] {
        let sketches = heads * size_of::<Offloaded>();
        [sketches + heads * (size_of::<Cell>() + 2 * size_of::<u32>()) + size_of::<Placed>(), sketches]
    }

    /// Bytes of codes.
    pub fn code_bytes(&self) -> usize {
        self.code_bytes
    }

    /// Bytes of sketches.
    pub fn sketch_bytes(&self) -> usize {
        self.sketch_bytes
    }

    /// Makes room for more blocks of so many heads.
    pub fn reserve(&mut self, heads: usize, more: usize) -> Result<()> {
        if self.list.is_empty() && self.here.len() != heads {
            (self.here, self.away) = (Vec::new(), Vec::new());
            for lists in [&mut self.here, &mut self.away] {
                memory::reserve(lists, heads)?;
                (0..heads).try_for_each(|_| memory::push(lists, Vec::new()))?;
            }
        }
        memory::reserve(&mut self.list, more)?;
        let room = self.list.len() + more;
        for list in self.here.iter_mut().chain(&mut self.away) {
            let more = room - list.len();
            memory::reserve(list, more)?;
        }
        Ok(())
    }

    /// Appends a block, for which there is room.
    pub fn push(&mut self, placed: Placed) {
        put(&mut self.list, placed);
        self.list_heads_from(self.list.len() - 1);
    }

    /// Replaces the tokens that are left of each block: `first` and `live`. Blocks without any go.
    pub fn cut(&mut self, left: &[(u32, u64)]) {
        for (placed, (first, live)) in self.list.iter_mut().zip(left) {
            (placed.first, placed.live) = (*first, *live);
        }
        self.list.retain(|placed| placed.live != 0);
        self.list_heads();
    }

    /// Removes the blocks of which no head is anywhere.
    pub fn remove_gone(&mut self) {
        self.list.retain(|placed| !placed.is_gone());
        self.list_heads();
    }

    /// Lists all heads anew.
    fn list_heads(&mut self) {
        self.here.iter_mut().chain(&mut self.away).for_each(Vec::clear);
        (self.code_bytes, self.sketch_bytes) = (0, 0);
        self.list_heads_from(0);
    }

    /// Lists the heads of the blocks from one on, for which there is room.
    fn list_heads_from(&mut self, first: usize) {
        let Blocks { list, here, away, code_bytes, sketch_bytes, .. } = self;
        for (at, placed) in (first as u32..).zip(&list[first..]) {
            for (head, cell) in placed.block.0.iter().enumerate() {
                *code_bytes += cell.code_bytes();
                *sketch_bytes += cell.sketch_bytes();
                match (&cell.codes, &cell.offloaded) {
                    (Some(_), _) => put(&mut here[head], at),
                    (None, Some(_)) => put(&mut away[head], at),
                    (None, None) => {}
                }
            }
        }
    }

    /// A head of a block.
    pub fn cell(&self, block: u32, head: usize) -> &Cell {
        &self.list[block as usize].block.0[head]
    }

    /// Changes a head of a block, and takes note of where its codes are.
    pub fn change<R>(&mut self, block: u32, head: usize, change: impl FnOnce(&mut Cell) -> R) -> R {
        let cell = &mut self.list[block as usize].block.0[head];
        self.code_bytes -= cell.code_bytes();
        self.sketch_bytes -= cell.sketch_bytes();
        let result = change(cell);
        self.code_bytes += cell.code_bytes();
        self.sketch_bytes += cell.sketch_bytes();
        let (is_here, is_away) = (cell.codes.is_some(), cell.codes.is_none() && cell.offloaded.is_some());
        note(&mut self.here[head], block, is_here);
        note(&mut self.away[head], block, is_away);
        result
    }

    /// Takes note of where a block was written, and of its heads there.
    pub fn written(&mut self, block: u32, place: Range<u64>, heads: Vec<Option<Box<Offloaded>>>) {
        self.list[block as usize].place = Some(place);
        for (head, offloaded) in heads.into_iter().enumerate() {
            self.change(block, head, |cell| cell.offloaded = offloaded);
        }
    }

    /// Lowers the scores of a head's blocks that are in memory.
    pub fn fade(&mut self, head: usize, factor: f32) {
        for block in &self.here[head] {
            self.list[*block as usize].block.0[head].score *= factor;
        }
    }

    /// Raises the score of a head of a block to one that is higher.
    pub fn raise(&mut self, block: u32, head: usize, score: f32) {
        let known = &mut self.list[block as usize].block.0[head].score;
        *known = known.max(score);
    }

    /// The place in the file of a block of which no head is there any more.
    pub fn unused(&mut self, block: u32) -> Option<Range<u64>> {
        let placed = &mut self.list[block as usize];
        placed.place.take_if(|_| placed.block.0.iter().all(|cell| cell.offloaded.is_none()))
    }

    /// Chooses the directions of sketches by the keys of the blocks in memory, if there are any.
    pub fn learn(&mut self, shape: Shape) -> Result<()> {
        let whole = |placed: &&Placed| placed.block.0.iter().all(|cell| cell.codes.is_some());
        let count = self.list.iter().filter(whole).count();
        let step = count.div_ceil(SAMPLES).max(1);
        let some = || self.list.iter().filter(whole).step_by(step);
        let (tokens, heads) = (some().count() * BLOCK, self.heads());
        if tokens == 0 {
            return Ok(());
        }
        let mut keys = memory::filled(0.0, heads * tokens * shape.dims)?;
        let mut work = SketchWork::default();
        for (head, keys) in keys.chunks_exact_mut(tokens * shape.dims).enumerate() {
            for (placed, keys) in some().zip(keys.chunks_exact_mut(BLOCK * shape.dims)) {
                if let Some(codes) = &placed.block.0[head].codes {
                    keys.copy_from_slice(work.keys(shape, codes)?);
                }
            }
        }
        self.basis = Some(Basis::learn(&keys, tokens, heads, shape.dims)?);
        Ok(())
    }

    /// The codes of a head of a block.
    pub fn codes(&self, block: u32, head: usize) -> Option<&Codes> {
        self.cell(block, head).codes.as_ref()
    }
}

/// Appends to a list that has room.
fn put<T>(list: &mut Vec<T>, item: T) {
    debug_assert!(list.len() < list.capacity());
    #[expect(clippy::disallowed_methods, reason = "Blocks::reserve has made room in all lists")]
    list.push(item);
}

/// Adds a number to an ascending list, or removes it. There is room for all blocks.
fn note(list: &mut Vec<u32>, number: u32, is_in: bool) {
    match (list.binary_search(&number), is_in) {
        #[expect(clippy::disallowed_methods, reason = "Blocks::reserve has made room in all lists")]
        (Err(at), true) => list.insert(at, number),
        (Ok(at), false) => drop(list.remove(at)),
        _ => {}
    }
}
