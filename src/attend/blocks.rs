//! The blocks of a layer, and which of their heads are in memory and which in a file alone.

use super::basis::Basis;
use super::block::{Block, Codes, Format, NarrowWork, Shape};
use super::cell::{Cell, Here, Own, Place, Placed};
use super::offload::{Offloaded, SketchWork};
use super::sketch::Group;
use super::slots::Slots;
use super::widths::Widths;
use crate::arch::attend::lines::bytes;
use crate::arch::attend::{BLOCK, HeadBlock, Line};
use crate::status::Result;
use crate::sys::{Shared, memory};

/// Blocks that directions are chosen by.
const SAMPLES: usize = 8;
/// Bytes of what is known of a head of a block: its cell, its score, and its place in a list.
const CELL_BYTES: usize = size_of::<Cell>() + size_of::<f32>() + 2 * size_of::<u32>();

/// The blocks of a layer, ascending.
#[derive(Debug)]
pub struct Blocks {
    /// Of all blocks.
    shape: Shape,
    list: Vec<Placed>,
    /// Their heads, `[block][head]`.
    cells: Vec<Cell>,
    /// The greatest share of attention of a row that each of these got lately; 1 of a new one.
    scores: Vec<f32>,
    /// The codes in memory, of each format.
    slots: [Slots; 2],
    /// A head in k4v4 is there, or has been.
    is_rotated: bool,
    /// For each head the blocks whose codes are in memory, ascending.
    here: Vec<Vec<u32>>,
    /// For each head the blocks whose codes are in a file alone, ascending.
    away: Vec<Vec<u32>>,
    /// Bytes of channels in 16 bits.
    wide_bytes: usize,
    /// The directions of sketches; from the first block on that goes to a file.
    pub(crate) basis: Option<Shared<Basis>>,
    /// Blocks that others share.
    pub(crate) base: Option<Shared<Blocks>>,
    /// Where the sketches of the next blocks go.
    pub(crate) group: Group,
}

impl Blocks {
    /// No blocks.
    pub const NONE: Blocks = Blocks {
        shape: Shape { dims: 0 },
        list: Vec::new(),
        cells: Vec::new(),
        scores: Vec::new(),
        slots: [Slots::NONE, Slots::NONE],
        is_rotated: false,
        here: Vec::new(),
        away: Vec::new(),
        wide_bytes: 0,
        basis: None,
        base: None,
        group: Group::NONE,
    };

    /// All blocks.
    pub fn list(&self) -> &[Placed] {
        &self.list
    }

    /// KV heads; 0 without blocks.
    pub fn heads(&self) -> usize {
        self.here.len()
    }

    /// KV heads and dims.
    pub fn size(&self) -> (usize, usize) {
        (self.heads(), self.shape.dims)
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
        self.code_bytes() + self.other_bytes()
    }

    /// Bytes of memory beside those of codes.
    pub fn other_bytes(&self) -> usize {
        let lists = self.here.iter().chain(&self.away).map(|list| list.capacity() * size_of::<u32>()).sum::<usize>();
        lists
            + self.list.capacity() * size_of::<Placed>()
            + self.cells.capacity() * size_of::<Cell>()
            + self.scores.capacity() * size_of::<f32>()
            + self.basis.as_ref().map_or(0, |basis| basis.bytes())
    }

    /// Bytes of memory of a block of so many heads whose codes are in memory, none of their channels in 16 bits.
    pub fn block_bytes(shape: Shape, format: Format, heads: usize) -> usize {
        heads * (Slots::slot_bytes(shape.lines(format)) + CELL_BYTES) + size_of::<Placed>()
    }

    /// Whether heads in memory have k4v4.
    pub fn has_few(&self) -> bool {
        self.slots[Format::K4V4 as usize].bytes() > 0
    }

    /// Whether V of some heads may be rotated.
    pub(super) fn is_rotated(&self) -> bool {
        self.is_rotated
    }

    /// Bytes of memory of a block of so many heads whose codes are in a file alone.
    pub fn away_bytes(heads: usize) -> usize {
        heads * CELL_BYTES + size_of::<Placed>()
    }

    /// Bytes of codes.
    pub fn code_bytes(&self) -> usize {
        self.slots.iter().map(Slots::bytes).sum::<usize>() + self.wide_bytes
    }

    /// Makes room for more blocks of a shape and so many heads, which all have.
    pub fn reserve(&mut self, shape: Shape, heads: usize, more: usize) -> Result<()> {
        if self.list.is_empty() && (self.shape, self.heads()) != (shape, heads) {
            let lists = || memory::collect((0..heads).map(|_| Vec::new()));
            let (here, away) = (lists()?, lists()?);
            *self = Blocks { shape, here, away, ..Blocks::NONE };
        }
        memory::reserve(&mut self.list, more)?;
        memory::reserve(&mut self.cells, more * heads)?;
        memory::reserve(&mut self.scores, more * heads)?;
        let room = self.list.len() + more;
        for list in self.here.iter_mut().chain(&mut self.away) {
            let more = room - list.len();
            memory::reserve(list, more)?;
        }
        Ok(())
    }

    /// Appends a block, for which there is room in the lists, from a logical position on, of whose tokens some are left.
    /// OUT_OF_MEMORY: nothing has changed.
    pub fn push(&mut self, block: &Block, first: u32, live: u64) -> Result<()> {
        let (number, before, shape) = (self.list.len(), self.cells.len(), self.shape);
        for format in [Format::K8V4, Format::K4V4] {
            let own = block.heads().iter().filter(|codes| codes.format(shape) == Some(format)).count();
            self.slots[format as usize].reserve(shape.lines(format), own)?;
        }
        for codes in block.heads() {
            let here = codes.format(shape).map(|format| {
                let wide = memory::copied(codes.parts(shape).1)?.into_boxed_slice();
                Ok(Here::Own(Own { format, is_unfit: false, slot: 0, wide }))
            });
            match here.transpose() {
                Ok(here) => put(&mut self.cells, Cell { here, offloaded: None }),
                Err(refused) => {
                    self.cells.truncate(before);
                    return Err(refused);
                }
            }
        }
        for (head, (cell, codes)) in (0..).zip(self.cells[before..].iter_mut().zip(block.heads())) {
            put(&mut self.scores, 1.0);
            if let Some(Here::Own(own)) = &mut cell.here {
                own.slot = self.slots[own.format as usize].push((number as u32, head), codes.parts(shape).0);
                self.is_rotated |= own.format == Format::K4V4;
            }
        }
        put(&mut self.list, Placed { first, live, place: None, ticket: 0, tile: None });
        self.list_heads_from(number);
        Ok(())
    }

    /// Appends a block of the base, for which there is room in the lists.
    pub fn push_base(&mut self, of_base: u32, first: u32, live: u64) {
        let number = self.list.len();
        for _ in 0..self.heads() {
            put(&mut self.cells, Cell { here: Some(Here::Base(of_base)), offloaded: None });
            put(&mut self.scores, 1.0);
        }
        self.is_rotated |= self.base.as_ref().is_some_and(|base| base.is_rotated);
        put(&mut self.list, Placed { first, live, place: None, ticket: 0, tile: None });
        self.list_heads_from(number);
    }

    /// Replaces the tokens that are left of each block: `first` and `live`. Blocks without any go.
    pub fn cut(&mut self, left: &[(u32, u64)]) {
        for (placed, (first, live)) in self.list.iter_mut().zip(left) {
            (placed.first, placed.live) = (*first, *live);
        }
        self.remove(|all, block| all.list[block].live == 0);
    }

    /// Removes the blocks from the `count`th on.
    pub fn truncate(&mut self, count: usize) {
        self.remove(|_, block| block >= count);
    }

    /// Removes the blocks of which no head is anywhere.
    pub fn remove_gone(&mut self) {
        self.remove(|all, block| all.cells_of(block as u32).iter().all(Cell::is_nowhere));
    }

    fn remove(&mut self, goes: impl Fn(&Self, usize) -> bool) {
        let (heads, mut left) = (self.heads(), 0);
        // Slots know blocks by their numbers of before.
        for block in 0..self.list.len() {
            if goes(self, block) {
                (0..heads).for_each(|head| self.free_slot(block, head));
            }
        }
        for block in 0..self.list.len() {
            if !goes(self, block) {
                self.list.swap(left, block);
                (0..heads).for_each(|head| {
                    let (to, from) = (left * heads + head, block * heads + head);
                    self.cells.swap(to, from);
                    self.scores.swap(to, from);
                });
                left += 1;
            }
        }
        self.give_back();
        self.list.truncate(left);
        self.cells.truncate(left * heads);
        self.scores.truncate(left * heads);
        self.list_heads();
    }

    /// Frees the slot of a head of a block.
    fn free_slot(&mut self, block: usize, head: usize) {
        let heads = self.heads();
        let Some(Here::Own(Own { format, slot, .. })) = self.cells[block * heads + head].here.take() else { return };
        if let Some((block, head)) = self.slots[format as usize].remove(slot)
            && let Some(Here::Own(moved)) = &mut self.cells[block as usize * heads + head as usize].here
        {
            moved.slot = slot;
        }
    }

    /// Lists all heads anew.
    fn list_heads(&mut self) {
        self.here.iter_mut().chain(&mut self.away).for_each(Vec::clear);
        self.wide_bytes = 0;
        self.list_heads_from(0);
    }

    /// Lists the heads of the blocks from one on, for which there is room.
    fn list_heads_from(&mut self, first: usize) {
        let heads = self.heads();
        let Blocks { cells, slots, here, away, wide_bytes, .. } = self;
        for (at, cells) in (first as u32..).zip(cells[first * heads..].chunks_exact(heads.max(1))) {
            for (head, cell) in cells.iter().enumerate() {
                *wide_bytes += cell.wide_bytes();
                if let Some(Here::Own(own)) = &cell.here {
                    slots[own.format as usize].own(own.slot, (at, head as u32));
                }
                match cell {
                    _ if cell.is_here() => put(&mut here[head], at),
                    _ if cell.is_away() => put(&mut away[head], at),
                    _ => {}
                }
            }
        }
    }

    /// A head of a block.
    pub fn cell(&self, block: u32, head: usize) -> &Cell {
        &self.cells_of(block)[head]
    }

    /// The heads of a block.
    pub fn cells_of(&self, block: u32) -> &[Cell] {
        &self.cells[block as usize * self.heads()..][..self.heads()]
    }

    fn cell_mut(&mut self, block: u32, head: usize) -> &mut Cell {
        let at = block as usize * self.heads() + head;
        &mut self.cells[at]
    }

    /// The score of a head of a block.
    pub fn score(&self, block: u32, head: usize) -> f32 {
        self.scores[block as usize * self.heads() + head]
    }

    /// Changes a head of a block, and takes note of where its codes are.
    fn change(&mut self, block: u32, head: usize, change: impl FnOnce(&mut Self)) {
        let before = self.cell(block, head).wide_bytes();
        change(self);
        let cell = self.cell(block, head);
        let (is_here, is_away) = (cell.is_here(), cell.is_away());
        self.wide_bytes = self.wide_bytes + cell.wide_bytes() - before;
        note(&mut self.here[head], block, is_here);
        note(&mut self.away[head], block, is_away);
    }

    /// Bytes of memory that codes take as those of a block.
    pub fn bytes_of(codes: &Codes) -> usize {
        codes.bytes().len() + Slots::slot_bytes(0)
    }

    /// A head of a block has come back to memory; it stays in the file alone where there is no room for its codes.
    pub fn arrive(&mut self, block: u32, head: usize, codes: &Codes) -> Result<()> {
        match codes.format(self.shape).filter(|_| !self.cell(block, head).is_here()) {
            Some(format) => self.put_codes(block, head, format, codes.parts(self.shape)),
            None => Ok(()),
        }
    }

    /// Codes of a head of a block, in place of those in memory. On an error these are there still.
    fn put_codes(&mut self, block: u32, head: usize, format: Format, (lines, wide): (&[Line], &[Line])) -> Result<()> {
        let slots = &mut self.slots[format as usize];
        slots.reserve(lines.len(), 1)?;
        let wide = memory::copied(wide)?.into_boxed_slice();
        let slot = slots.push((block, head as u32), lines);
        self.is_rotated |= format == Format::K4V4;
        self.change(block, head, |all| {
            all.free_slot(block as usize, head);
            all.cell_mut(block, head).here = Some(Here::Own(Own { format, is_unfit: false, slot, wide }));
        });
        Ok(())
    }

    /// A head of a block leaves memory.
    pub fn leave(&mut self, block: u32, head: usize) {
        self.change(block, head, |all| all.free_slot(block as usize, head));
    }

    /// A head of a block is no longer in the file. Returns whether it was.
    pub fn forget(&mut self, block: u32, head: usize) -> bool {
        let was = self.cell(block, head).offloaded.is_some();
        self.change(block, head, |all| all.cell_mut(block, head).offloaded = None);
        was
    }

    /// Whether a head of a block may have fewer bits: not where the file has it, or is about to, which may have others that memory
    /// has not.
    pub fn may_narrow(&self, block: u32, head: usize) -> bool {
        self.list[block as usize].place.is_none() && self.cell(block, head).is_wide()
    }

    /// Gives a head of a block that is in memory fewer bits, if it fits them. On an error it has its bits still.
    pub fn narrow(&mut self, block: u32, head: usize, widths: &mut Widths, work: &mut NarrowWork) -> Result<()> {
        let (shape, heads) = (self.shape, self.heads());
        let Some(codes) = self.view(block, head, &[]).filter(|_| self.may_narrow(block, head)) else {
            return Ok(());
        };
        if let Some(lines) = work.encode(shape, &codes, widths.head(shape, (head, heads))?)? {
            return self.put_codes(block, head, Format::K4V4, (lines, &[]));
        }
        if let Some(Here::Own(own)) = &mut self.cell_mut(block, head).here {
            own.is_unfit = true;
        }
        Ok(())
    }

    /// How many heads in memory may have fewer bits, and the bytes that all of them would take less.
    pub fn narrowing(&self) -> (usize, usize) {
        if self.slots[Format::K8V4 as usize].bytes() == 0 {
            return (0, 0);
        }
        let [most, least] = [Format::K8V4, Format::K4V4].map(|format| Slots::slot_bytes(self.shape.lines(format)));
        let new = self.list.iter().zip(self.cells.chunks_exact(self.heads().max(1)));
        let new = new.filter(|(placed, _)| placed.place.is_none()).flat_map(|(_, cells)| cells);
        let saved = new.filter(|cell| cell.is_wide()).map(|cell| most - least + cell.wide_bytes());
        saved.fold((0, 0), |(heads, bytes), saved| (heads + 1, bytes + saved))
    }

    /// Returns the memory of heads that have left.
    pub fn give_back(&mut self) {
        self.slots.iter_mut().for_each(Slots::give_back);
    }

    /// A block is on its way to a place in the file, by a write of this number.
    pub fn writes(&mut self, block: u32, place: Place, ticket: u64) {
        let placed = &mut self.list[block as usize];
        debug_assert!(placed.place.is_none(), "heads that are in the file alone would be lost");
        (placed.place, placed.ticket) = (Some(place), ticket);
    }

    /// The block of a write that has not ended.
    pub fn written(&self, ticket: u64) -> Option<u32> {
        let at = self.list.iter().position(|placed| placed.ticket == ticket)?;
        Some(at as u32)
    }

    /// The write of a block has ended: its heads in the file. Without any it has failed, and its place is free.
    pub fn end_write(&mut self, block: u32, heads: Option<Vec<Option<Offloaded>>>) {
        self.list[block as usize].ticket = 0;
        let Some(heads) = heads else {
            self.list[block as usize].place = None;
            return;
        };
        for (head, known) in heads.into_iter().enumerate() {
            if self.cell(block, head).is_here() {
                self.know(block, head, known);
            }
        }
    }

    /// Takes what is known of a head of a block in the file.
    fn know(&mut self, block: u32, head: usize, known: Option<Offloaded>) {
        let is_rotated = known.is_some_and(|known| self.shape.format_of(known.lines as usize) == Some(Format::K4V4));
        self.is_rotated |= is_rotated;
        self.change(block, head, |all| all.cell_mut(block, head).offloaded = known);
    }

    /// Takes the directions of sketches, where there are none.
    pub(crate) fn set_basis(&mut self, basis: Shared<Basis>) {
        if self.basis.is_none() {
            self.basis = Some(basis);
        }
    }

    /// A saved chat has a block in a tile, at a place in the file; `heads` are what is known of those there, where they may leave
    /// memory.
    pub fn set_saved_in(&mut self, block: u32, tile: (u32, u32), place: Place, heads: Option<Vec<Option<Offloaded>>>) {
        let placed = &mut self.list[block as usize];
        (placed.place, placed.ticket, placed.tile) = (Some(place), 0, Some(tile));
        for (head, known) in heads.into_iter().flatten().enumerate() {
            self.know(block, head, known);
        }
    }

    /// Sets the score of a head of a block.
    pub fn set_score(&mut self, block: u32, head: usize, score: f32) {
        let at = block as usize * self.heads() + head;
        self.scores[at] = score;
    }

    /// Of a head of a block what is known of it in the file, and its first byte there.
    pub fn in_file(&self, block: u32, head: usize) -> Option<(&Offloaded, u64)> {
        let place = self.list[block as usize].place.as_ref()?;
        let head = self.cell(block, head).offloaded.as_ref()?;
        Some((head, place.codes.start + head.bytes().start))
    }

    /// The offset in the file of the sketch of a head of a block.
    pub(super) fn sketch_of(&self, block: u32, head: usize) -> Option<u64> {
        Some(self.list[block as usize].place.as_ref()?.sketches.of(head))
    }

    /// Of all blocks.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Lowers the scores of all blocks, wherever they are.
    pub fn fade(&mut self, factor: f32) {
        self.scores.iter_mut().for_each(|score| *score *= factor);
    }

    /// Raises the score of a head of a block to one that is higher.
    pub fn raise(&mut self, block: u32, head: usize, score: f32) {
        let at = block as usize * self.heads() + head;
        self.scores[at] = self.scores[at].max(score);
    }

    /// The place in the file of a block of which no head is there any more, and whether a saved chat has it.
    pub fn unused(&mut self, block: u32) -> Option<(Place, bool)> {
        let is_unused = self.cells_of(block).iter().all(|cell| cell.offloaded.is_none());
        let placed = &mut self.list[block as usize];
        let place = placed.place.take_if(|_| is_unused && placed.ticket == 0)?;
        Some((place, placed.tile.take().is_some()))
    }

    /// Keys by which the directions of sketches are chosen, `[head][token][dim]`, and the tokens of a head: those of some blocks in
    /// memory. A head without any has zeros.
    pub fn samples(&self) -> Result<(Vec<f32>, usize)> {
        let most = self.here.iter().map(Vec::len).max().unwrap_or(0).min(SAMPLES);
        let (tokens, heads, dims) = (most * BLOCK, self.heads(), self.shape.dims);
        if tokens == 0 {
            return Ok((Vec::new(), 0));
        }
        let mut keys = memory::filled(0.0, heads * tokens * dims)?;
        let mut work = SketchWork::default();
        for (head, keys) in keys.chunks_exact_mut(tokens * dims).enumerate() {
            let here = self.here(head);
            for (at, keys) in keys.chunks_exact_mut(BLOCK * dims).enumerate() {
                if let Some(codes) = here.get(at * here.len() / most).and_then(|block| self.view(*block, head, &[])) {
                    keys.copy_from_slice(work.keys(&codes)?);
                }
            }
        }
        Ok((keys, tokens))
    }

    /// The lines of a head of a block that is in memory, and those of its channels in 16 bits.
    fn parts(&self, block: u32, head: usize) -> Option<(&[Line], &[Line])> {
        match self.cell(block, head).here.as_ref()? {
            Here::Own(own) => Some((self.slots[own.format as usize].lines(own.slot), &own.wide)),
            Here::Base(block) => self.base.as_ref()?.parts(*block, head),
        }
    }

    /// The lines of a head of a block that is in memory, but for those of channels in 16 bits.
    pub fn lines(&self, block: u32, head: usize) -> Option<&[Line]> {
        Some(self.parts(block, head)?.0)
    }

    /// The codes of a head of a block that is in memory, for the kernels, which fetch the `next` lines meanwhile.
    pub fn view<'a>(&'a self, block: u32, head: usize, next: &'a [Line]) -> Option<HeadBlock<'a>> {
        Some(self.shape.view(self.parts(block, head)?, next))
    }

    /// Appends the codes of a head of a block that is in memory, as a file has them. Returns whether it is.
    pub fn copy(&self, block: u32, head: usize, to: &mut Vec<u8>) -> Result<bool> {
        let Some((lines, wide)) = self.parts(block, head) else { return Ok(false) };
        memory::extend(to, bytes(lines))?;
        memory::extend(to, bytes(wide))?;
        Ok(true)
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
