//! What a file has of a layer: where its tokens are, and what its session remembers of them.

use super::{ChatFile, Extent};
use crate::attend::{self, Offloaded, Place, Shape, Sketches};
use crate::bytes::{Reader, push_number};
use crate::layout::{Kind, Rows};
use crate::run::Run;
use crate::status::{Error, Result, bail};
use crate::sys::memory;
use std::ops::Range;

/// The version of a table; a reader takes no other.
const VERSION: u64 = 2;
/// Flags of a block: all of its tokens are left, and it is the next one of the tile and of the chat.
const WHOLE: u8 = 1;
const NEXT: u8 = 2;

/// Raw tokens of a layer, encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Where it is.
    pub at: Extent,
    /// Tokens.
    pub tokens: u32,
}

/// What is known of some blocks that were saved together: see [`TileBlock`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tile {
    /// Where it is.
    pub at: Extent,
    /// Blocks.
    pub blocks: u32,
}

/// A block of the chat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its tile, and its number in it.
    pub tile: (u32, u32),
    /// The logical position of the first token that is left; the others follow it.
    pub first: u32,
    /// The tokens that are left, one bit each.
    pub live: u64,
}

/// A head of a block: where its codes were, and its score, which is not negative.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Head {
    /// In memory, beside the file.
    Here(f32),
    /// In the file alone.
    Away(f32),
    /// It was dropped.
    Gone,
}

impl Head {
    /// As a table has it: the bits of the score, with the sign set where it was in the file alone, or all bits.
    fn bits(self) -> u32 {
        match self {
            Head::Here(score) => score.to_bits(),
            Head::Away(score) => score.to_bits() | 1 << 31,
            Head::Gone => u32::MAX,
        }
    }

    /// `None`: no head has these bits.
    fn of(bits: u32) -> Option<Self> {
        let score = f32::from_bits(bits & i32::MAX as u32);
        match bits {
            u32::MAX => Some(Head::Gone),
            _ if !score.is_finite() => None,
            _ if bits >> 31 == 0 => Some(Head::Here(score)),
            _ => Some(Head::Away(score)),
        }
    }
}

/// The part of a layer in a file.
#[derive(Debug, PartialEq)]
pub struct Table {
    /// Heads, dims and types.
    pub rows: Rows,
    /// Tokens of the chat.
    pub logical: u32,
    /// Tokens of the cache, in pieces.
    pub raw: Vec<Run<u32>>,
    /// The pieces that `raw` names by number.
    pub pieces: Vec<Piece>,
    /// The blocks, ascending.
    pub blocks: Vec<Entry>,
    /// Their heads, `[block][head]`.
    pub heads: Vec<Head>,
    /// The tiles that `blocks` names by number.
    pub tiles: Vec<Tile>,
    /// The directions of sketches.
    pub basis: Option<Extent>,
    /// What the session has beside.
    pub state: Vec<u8>,
}

impl Table {
    /// Tokens of the cache.
    pub fn physical(&self) -> u32 {
        self.raw.last().map_or(0, Run::end)
    }

    /// The bytes.
    pub fn write(&self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        let rows = &self.rows;
        let numbers = [VERSION, rows.heads as u64, rows.dims as u64, self.logical.into()];
        numbers.into_iter().try_for_each(|number| push_number(&mut out, number))?;
        memory::extend(&mut out, &[rows.key.code() as u8, rows.value.code() as u8])?;
        push_number(&mut out, self.pieces.len() as u64)?;
        for piece in &self.pieces {
            piece.at.put(&mut out)?;
            push_number(&mut out, piece.tokens.into())?;
        }
        push_number(&mut out, self.raw.len() as u64)?;
        for run in &self.raw {
            [run.of, run.offset, run.count].into_iter().try_for_each(|number| push_number(&mut out, number.into()))?;
        }
        memory::push(&mut out, self.basis.is_some().into())?;
        self.basis.iter().try_for_each(|basis| basis.put(&mut out))?;
        push_number(&mut out, self.tiles.len() as u64)?;
        for tile in &self.tiles {
            tile.at.put(&mut out)?;
            push_number(&mut out, tile.blocks.into())?;
        }
        push_number(&mut out, self.blocks.len() as u64)?;
        let (mut next, mut end) = ((0, 0), 0);
        for block in &self.blocks {
            let is_next = (block.tile, block.first) == (next, end);
            let flag = |is_set, flag| if is_set { flag } else { 0 };
            memory::push(&mut out, flag(block.live == u64::MAX, WHOLE) | flag(is_next, NEXT))?;
            if !is_next {
                let (tile, number) = block.tile;
                [tile, number, block.first].into_iter().try_for_each(|n| push_number(&mut out, n.into()))?;
            }
            if block.live != u64::MAX {
                memory::extend(&mut out, &block.live.to_le_bytes())?;
            }
            (next, end) = ((block.tile.0, block.tile.1 + 1), block.first + block.live.count_ones());
        }
        self.heads.iter().try_for_each(|head| memory::extend(&mut out, &head.bits().to_le_bytes()))?;
        push_number(&mut out, self.state.len() as u64)?;
        memory::extend(&mut out, &self.state)?;
        Ok(out)
    }

    /// Reads what [`Table::write`] wrote. CORRUPT: if it is none, or names what is not there.
    pub fn read(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes);
        let version = reader.number("the version")?;
        if version != VERSION {
            bail!(Unsupported, "version {version}; {VERSION} is known");
        }
        let (heads, dims, logical) = (reader.small("heads")?, reader.small("dims")?, reader.small("the length")?);
        let key = Kind::from_code(reader.byte("the type of K")?.into(), "the type of K");
        let value = Kind::from_code(reader.byte("the type of V")?.into(), "the type of V");
        let (Ok(key), Ok(value)) = (key, value) else { bail!(Corrupt, "the types of K and V are codes 1 to 6") };
        if heads == 0 || dims == 0 || heads > 1 << 16 || dims > 1 << 16 || logical > i32::MAX as u32 {
            bail!(Corrupt, "{logical} tokens of {heads} heads of {dims}");
        }
        let rows = Rows { key, value, heads: heads as usize, dims: dims as usize };
        let mut pieces = Vec::new();
        for _ in 0..reader.small("pieces")? {
            let at = Extent::get(&mut reader, "a piece")?;
            memory::push(&mut pieces, Piece { at, tokens: reader.small("the tokens of a piece")? })?;
        }
        let raw = read_runs(&mut reader, &pieces, logical)?;
        let basis = match reader.byte("whether there are directions")? {
            0 => None,
            1 => Some(Extent::get(&mut reader, "the directions")?),
            other => bail!(Corrupt, "{other} says whether there are directions; 0 or 1 expected"),
        };
        let mut tiles = Vec::new();
        for _ in 0..reader.small("tiles")? {
            let at = Extent::get(&mut reader, "a tile")?;
            memory::push(&mut tiles, Tile { at, blocks: reader.small("the blocks of a tile")? })?;
        }
        let blocks = read_blocks(&mut reader, &tiles, logical)?;
        let mut list = Vec::new();
        for _ in 0..blocks.len() * rows.heads {
            let bits = reader.u32("a score")?;
            let Some(head) = Head::of(bits) else { bail!(Corrupt, "a score has the bits {bits:#x}") };
            memory::push(&mut list, head)?;
        }
        let len = reader.number("the state")?;
        let state = memory::copied(reader.take(len, "the state")?)?;
        reader.end("the table")?;
        Ok(Table { rows, logical, raw, pieces, blocks, heads: list, tiles, basis, state })
    }

    /// Reads all that the table of a layer leads to; `see` takes the bytes of each thing, or what is wrong with it.
    pub(super) fn verify(
        &self,
        file: &ChatFile,
        layer: u32,
        see: &mut impl FnMut(Result<u64>) -> Result<()>,
    ) -> Result<()> {
        let within = |error: Error| error.within(format_args!("layer {layer}"));
        for Piece { at, tokens } in &self.pieces {
            let read = file.read(at, "raw tokens");
            let checked = read.and_then(|bytes| super::raw::check(&bytes, *tokens, self.rows));
            see(checked.map(|()| at.len).map_err(within))?;
        }
        if let Some(at) = &self.basis {
            see(file.read(at, "directions").map(|read| read.len() as u64).map_err(within))?;
        }
        let Ok(shape) = Shape::new(self.rows.dims) else { return Ok(()) };
        for tile in &self.tiles {
            let read = file.read(&tile.at, "a tile");
            let blocks = read.and_then(|bytes| read_tile(&bytes, tile.blocks, shape, self.rows.heads)).map_err(within);
            match blocks {
                Err(error) => see(Err(error))?,
                Ok(blocks) => {
                    see(Ok(tile.at.len))?;
                    for block in blocks {
                        let sketches = block.place.sketches.places(self.rows.heads, shape.dims);
                        for (head, sketch) in block.heads.iter().zip(sketches) {
                            let Some(head) = head else { continue };
                            let bytes = head.bytes();
                            let (offset, len) = (block.place.codes.start + bytes.start, bytes.end - bytes.start);
                            let read = file.read(&Extent { offset, len, sum: head.sum }, "a head of a block");
                            see(read.map(|_| len).map_err(within))?;
                            see(read_sketch(file, sketch, head.sum, shape).map_err(within))?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// All that it leads to but blocks, which the tiles have.
    pub fn extents(&self) -> impl Iterator<Item = &Extent> {
        self.pieces.iter().map(|piece| &piece.at).chain(self.tiles.iter().map(|tile| &tile.at)).chain(&self.basis)
    }
}

fn read_runs(reader: &mut Reader<'_>, pieces: &[Piece], logical: u32) -> Result<Vec<Run<u32>>> {
    let (mut raw, mut begin) = (Vec::new(), 0u32);
    for _ in 0..reader.small("runs of raw tokens")? {
        let (of, offset) = (reader.small("a piece")?, reader.small("an offset")?);
        let count = reader.small("the tokens of a run")?;
        let tokens = pieces.get(of as usize).map_or(0, |piece| piece.tokens);
        if count == 0 || offset.checked_add(count).is_none_or(|end| end > tokens) || count > logical - begin {
            bail!(Corrupt, "{count} raw tokens from {offset} on of piece {of}, which has {tokens}");
        }
        memory::push(&mut raw, Run { of, offset, begin, count })?;
        begin += count;
    }
    Ok(raw)
}

fn read_blocks(reader: &mut Reader<'_>, tiles: &[Tile], logical: u32) -> Result<Vec<Entry>> {
    let (mut blocks, mut next, mut end) = (Vec::new(), (0u32, 0u32), 0u32);
    for _ in 0..reader.small("blocks")? {
        let flags = reader.byte("the flags of a block")?;
        if flags & !(WHOLE | NEXT) != 0 {
            bail!(Corrupt, "the flags of a block are {flags:#x}");
        }
        let (tile, first) = match flags & NEXT {
            0 => ((reader.small("a tile")?, reader.small("a block of a tile")?), reader.small("a position")?),
            _ => (next, end),
        };
        let live = if flags & WHOLE != 0 { u64::MAX } else { reader.u64("the tokens of a block")? };
        let count = tiles.get(tile.0 as usize).map_or(0, |tile| tile.blocks);
        if tile.1 >= count || first < end || live == 0 || live.count_ones() > logical.saturating_sub(first) {
            bail!(Corrupt, "block {} of tile {} with {live:#x} from {first} on", tile.1, tile.0);
        }
        memory::push(&mut blocks, Entry { tile, first, live })?;
        (next, end) = ((tile.0, tile.1 + 1), first + live.count_ones());
    }
    Ok(blocks)
}

/// Reads a sketch of codes of a checksum; returns its bytes.
fn read_sketch(file: &ChatFile, place: Range<u64>, sum: u64, shape: Shape) -> Result<u64> {
    let len = place.end - place.start;
    let mut bytes = memory::filled(0, len as usize)?;
    file.storage().read_at(place.start, &mut bytes)?;
    if attend::read_sketch(&mut bytes, sum, shape.dims).is_none() {
        bail!(Corrupt, "a sketch at offset {} has changed", place.start);
    }
    Ok(len)
}

/// What a tile has of a block.
#[derive(Debug)]
pub struct TileBlock {
    /// Where it is.
    pub place: Place,
    /// Its heads; `None` of those that were dropped before.
    pub heads: Vec<Option<Offloaded>>,
}

/// Appends a block to a tile.
pub fn put_block(out: &mut Vec<u8>, place: &Place, heads: impl Iterator<Item = Option<Offloaded>>) -> Result<()> {
    let Place { codes, sketches } = place;
    memory::extend(out, &codes.start.to_le_bytes())?;
    memory::extend(out, &((codes.end - codes.start) as u32).to_le_bytes())?;
    memory::extend(out, &sketches.first.to_le_bytes())?;
    memory::extend(out, &sketches.stride.to_le_bytes())?;
    for head in heads {
        let Some(Offloaded { lines, first, sum }) = head else {
            memory::extend(out, &[0; 4])?;
            continue;
        };
        memory::extend(out, &lines.to_le_bytes())?;
        memory::extend(out, &first.to_le_bytes())?;
        memory::extend(out, &sum.to_le_bytes())?;
    }
    Ok(())
}

/// Reads the blocks of a tile. CORRUPT: if a head is not within its block, or has not the lines of a head.
pub fn read_tile(bytes: &[u8], blocks: u32, shape: Shape, heads: usize) -> Result<Vec<TileBlock>> {
    let (mut reader, mut list) = (Reader::new(bytes), Vec::new());
    for _ in 0..blocks {
        let (start, len) = (reader.u64("the place of a block")?, reader.u32("the bytes of a block")?);
        let Some(end) = start.checked_add(len.into()) else { bail!(Corrupt, "a block of {len} bytes at {start}") };
        let sketches = Sketches { first: reader.u64("the place of sketches")?, stride: reader.u32("a stride")? };
        // Offsets are far below what sums of a few cannot hold.
        if sketches.first > i64::MAX as u64 {
            bail!(Corrupt, "sketches of a block at {}", sketches.first);
        }
        let mut block = TileBlock { place: Place { codes: start..end, sketches }, heads: Vec::new() };
        memory::reserve(&mut block.heads, heads)?;
        for head in 0..heads {
            let lines = reader.u32("the lines of a head")?;
            let found = match lines {
                0 => None,
                _ => {
                    let (first, sum) = (reader.u32("the first line of a head")?, reader.u64("the checksum of a head")?);
                    Some(Offloaded { first, lines, sum })
                }
            };
            let is_within =
                |head: &Offloaded| shape.format_of(head.lines as usize).is_some() && head.bytes().end <= u64::from(len);
            if found.as_ref().is_some_and(|head| !is_within(head)) {
                bail!(Corrupt, "head {head} of a block at {start} has {lines} lines");
            }
            memory::push(&mut block.heads, found)?;
        }
        memory::push(&mut list, block)?;
    }
    reader.end("the tile")?;
    Ok(list)
}
