//! A state of the file: its pieces, layers and sections, as commit records say one after the other.

use super::runs::{self, Run};
use super::{Place, checksum};
use crate::bytes::Reader;
use crate::status::{Result, bail};
use crate::sys::memory;
use std::sync::atomic::AtomicBool;

/// The most bytes of a value that a commit record has itself.
pub(super) const INLINE: u64 = 64;

/// The kinds of items in a commit record. From `OPTIONAL` on a reader skips what it does not know; from `BODY` on, within
/// both halves, the item begins with a place in the body.
pub(super) mod kind {
    pub(in crate::snapshot) const LAYER: u8 = 0x01;
    pub(in crate::snapshot) const SECTION: u8 = 0x02;
    pub(in crate::snapshot) const REMOVED: u8 = 0x03;
    pub(in crate::snapshot) const PIECE: u8 = 0x41;
    pub(in crate::snapshot) const BODY: u8 = 0x40;
    pub(in crate::snapshot) const OPTIONAL: u8 = 0x80;
}

/// The shape of a layer's rows. The element types are codes `MNNKV_DTYPE_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// KV heads.
    pub heads: u32,
    /// Elements of a row.
    pub head_dim: u32,
    /// The type of K.
    pub key: u8,
    /// The type of V.
    pub value: u8,
}

impl Geometry {
    /// The fault of a geometry that no cache has.
    pub(super) fn fault(&self) -> Option<&'static str> {
        match self {
            Geometry { heads: 0, .. } => Some("heads is 0"),
            Geometry { head_dim: 0, .. } => Some("head_dim is 0"),
            Geometry { key, value, .. } if !(1..=6).contains(key) || !(1..=6).contains(value) => {
                Some("the types of K and V are codes 1 to 6")
            }
            _ => None,
        }
    }
}

/// Bytes of the file and their checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) sum: u64,
}

impl Extent {
    pub(super) fn end(&self) -> u64 {
        self.offset + self.len
    }
}

/// Bytes in one or more places: those of the section before stay where new ones only follow them.
#[derive(Debug, Default)]
pub(super) struct Value {
    pub(super) extents: Vec<Extent>,
    /// Whether its bytes were written here, or compared with the checksums and no damage found since.
    pub(super) verified: AtomicBool,
}

impl Value {
    pub(super) fn len(&self) -> u64 {
        self.extents.iter().map(|extent| extent.len).sum()
    }
}

/// Encoded tokens of a layer.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) layer: u32,
    pub(super) tokens: u32,
    pub(super) at: Extent,
    pub(super) raw_sum: u64,
    /// Whether its bytes were compared with the checksum.
    pub(super) verified: AtomicBool,
}

impl Piece {
    pub(super) fn place(&self, piece: u32) -> Place<'static> {
        Place::Piece { layer: self.layer, piece, tokens: self.tokens }
    }
}

/// A layer of the committed state.
#[derive(Debug)]
pub struct LayerEntry {
    /// Its rows.
    pub geometry: Geometry,
    /// Its tokens, in physical order.
    pub runs: Vec<Run>,
    /// The first piece of this geometry.
    pub(super) since: u32,
    pub(super) state: Value,
}

impl LayerEntry {
    /// The number of tokens.
    pub fn tokens(&self) -> u32 {
        runs::tokens(&self.runs)
    }

    /// The bytes of its opaque state.
    pub fn state_len(&self) -> u64 {
        self.state.len()
    }
}

/// The committed state of a file.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) sequence: u64,
    /// Where it ends.
    pub(super) end: u64,
    pub(super) record: Option<Extent>,
    pub(super) pieces: Vec<Piece>,
    /// Ascending.
    pub(super) layers: Vec<(u32, LayerEntry)>,
    /// Ascending.
    pub(super) sections: Vec<(String, Value)>,
}

/// The start of a commit record.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RecordHead {
    pub(super) sequence: u64,
    /// Where the bytes of this save begin: the end of the state before.
    pub(super) base: u64,
    /// The record of the state before.
    pub(super) previous: Option<Extent>,
    pub(super) pieces: u32,
}

impl RecordHead {
    /// Reads the head of a record that is expected to be of state `sequence`; `body` is where the body begins.
    pub(super) fn read(reader: &mut Reader<'_>, sequence: u64, record: &Extent, body: u64) -> Result<Self> {
        let found = reader.number("the sequence")?;
        if found != sequence {
            bail!(Corrupt, "the sequence is {found}; {sequence} expected");
        }
        let base = reader.number("the base")?;
        if !(body..=record.offset).contains(&base) {
            bail!(Corrupt, "the base is {base}; {body} to {} allowed", record.offset);
        }
        let len = reader.number("the length of the record before")?;
        let previous = match base.checked_sub(len).filter(|offset| *offset >= body) {
            _ if (len == 0) != (sequence == 0) || (len == 0 && base != body) => {
                bail!(Corrupt, "state {sequence} begins at {base} with a record of {len} bytes before it")
            }
            None => bail!(Corrupt, "the record before has {len} bytes and ends at {base}; the body begins at {body}"),
            Some(_) if len == 0 => None,
            Some(offset) => Some(Extent { offset, len, sum: reader.u64("the checksum of the record before")? }),
        };
        Ok(RecordHead { sequence, base, previous, pieces: reader.small("the number of pieces")? })
    }
}

/// One item of a record, and where the bytes that it has in the body may be.
struct Item<'a> {
    reader: Reader<'a>,
    /// Where the reader's bytes begin in the file.
    offset: u64,
    /// Behind the last bytes that an item has.
    cursor: u64,
    /// The start of the record.
    limit: u64,
}

impl Item<'_> {
    /// The place of `len` bytes in the body, a gap behind the item before.
    fn body(&mut self, gap: u64, len: u64) -> Result<u64> {
        let offset = self.cursor.checked_add(gap).filter(|o| o.checked_add(len).is_some_and(|e| e <= self.limit));
        let Some(offset) = offset else {
            bail!(Corrupt, "{len} bytes, {gap} behind offset {}, reach past the record at {}", self.cursor, self.limit);
        };
        self.cursor = offset + len;
        Ok(offset)
    }

    /// A value as the item says it: what stays of the old one, and what follows.
    fn value(&mut self, old: Option<&Value>) -> Result<Value> {
        let kept = self.reader.number("the parts that stay")?;
        let len = self.reader.number("the length of a value")?;
        let added = match len {
            0 => None,
            1..=INLINE => {
                let offset = self.offset + self.reader.at() as u64;
                Some(Extent { offset, len, sum: checksum(self.reader.take(len, "a value")?) })
            }
            _ => {
                let gap = self.reader.number("a gap")?;
                Some(Extent { offset: self.body(gap, len)?, len, sum: self.reader.u64("the checksum of a value")? })
            }
        };
        let old = old.map_or(&[][..], |old| &old.extents);
        let Some(stays) = usize::try_from(kept).ok().and_then(|kept| old.get(..kept)) else {
            bail!(Corrupt, "{kept} parts stay; there were {}", old.len());
        };
        let mut value = Value { extents: memory::copied(stays)?, verified: AtomicBool::new(false) };
        if let Some(added) = added {
            memory::push(&mut value.extents, added)?;
        }
        Ok(value)
    }

    fn finish<T>(&self, read: T) -> Result<T> {
        if !self.reader.rest().is_empty() {
            bail!(Corrupt, "bytes follow behind the last field");
        }
        Ok(read)
    }
}

impl State {
    /// Applies the next commit record, at `record`, whose checksum was verified.
    pub(super) fn apply(&mut self, head: &RecordHead, record: Extent, mut reader: Reader<'_>) -> Result<()> {
        if head.pieces as usize != self.pieces.len() {
            bail!(Corrupt, "{} pieces are said to come before; there are {}", head.pieces, self.pieces.len());
        }
        let mut cursor = head.base;
        while !reader.rest().is_empty() {
            let begin = reader.at();
            let kind = reader.byte("the kind of an item")?;
            let len = reader.number("the length of an item")?;
            let offset = record.offset + reader.at() as u64;
            let inner = Reader::new(reader.take(len, "an item")?);
            let mut item = Item { reader: inner, offset, cursor, limit: record.offset };
            self.apply_item(kind, &mut item, head.pieces)
                .map_err(|e| e.within(format_args!("item at byte {begin}")))?;
            cursor = item.cursor;
        }
        (self.sequence, self.end, self.record) = (head.sequence, record.end(), Some(record));
        Ok(())
    }

    fn apply_item(&mut self, kind: u8, item: &mut Item<'_>, pieces_before: u32) -> Result<()> {
        match kind {
            kind::PIECE => {
                let piece = read_piece(item)?;
                if self.pieces.len() >= u32::MAX as usize {
                    bail!(Corrupt, "more than {} pieces", u32::MAX);
                }
                memory::push(&mut self.pieces, piece)
            }
            kind::LAYER => {
                let (layer, entry) = self.read_layer(item, pieces_before)?;
                self.reserve(0, 1, 0)?;
                self.set_layer(layer, entry);
                Ok(())
            }
            kind::SECTION => {
                let name = read_name(item)?;
                let value = item.value(self.section(name))?;
                item.finish(())?;
                self.reserve(0, 0, 1)?;
                self.set_section(memory::text(name)?, Some(value));
                Ok(())
            }
            kind::REMOVED => {
                let name = read_name(item)?;
                item.finish(())?;
                match self.find_section(name) {
                    Ok(at) => drop(self.sections.remove(at)),
                    Err(_) => bail!(Corrupt, "section {name:?} is removed and was not there"),
                }
                Ok(())
            }
            kind if kind & kind::OPTIONAL == 0 => {
                bail!(Unsupported, "kind {kind} is none that this version reads, and it must be read")
            }
            kind if kind & kind::BODY != 0 => {
                let (gap, len) = (item.reader.number("a gap")?, item.reader.number("a length")?);
                item.body(gap, len).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// A layer as it is after an item.
    fn read_layer(&self, item: &mut Item<'_>, pieces_before: u32) -> Result<(u32, LayerEntry)> {
        let layer = item.reader.small("the layer")?;
        let new_geometry = match item.reader.byte("whether the geometry follows")? {
            0 => None,
            1 => Some(Geometry {
                heads: item.reader.small("the heads")?,
                head_dim: item.reader.small("the head_dim")?,
                key: item.reader.byte("the type of K")?,
                value: item.reader.byte("the type of V")?,
            }),
            other => bail!(Corrupt, "layer {layer}: {other} says whether the geometry follows; 0 or 1 allowed"),
        };
        let len = item.reader.number("the length of edits")?;
        let edits = item.reader.take(len, "edits")?;
        let old = self.layer(layer);
        let state = item.value(old.map(|old| &old.state))?;
        item.finish(())?;
        let (geometry, since, old_runs) = match (new_geometry, old) {
            (Some(geometry), _) => (geometry, pieces_before, &[][..]),
            (None, Some(old)) => (old.geometry, old.since, &old.runs[..]),
            (None, None) => bail!(Corrupt, "layer {layer} is new and has no geometry"),
        };
        if let Some(fault) = geometry.fault() {
            bail!(Corrupt, "layer {layer}: {fault}");
        }
        let tokens_of = |piece| self.tokens_of(&[], layer, since, piece);
        let runs = runs::read_edits(edits, old_runs, self.pieces.len() as u32, tokens_of)
            .map_err(|e| e.within(format_args!("layer {layer}")))?;
        Ok((layer, LayerEntry { geometry, runs, since, state }))
    }

    pub(super) fn layer(&self, layer: u32) -> Option<&LayerEntry> {
        self.find_layer(layer).ok().map(|at| &self.layers[at].1)
    }

    pub(super) fn section(&self, name: &str) -> Option<&Value> {
        self.find_section(name).ok().map(|at| &self.sections[at].1)
    }

    fn find_layer(&self, layer: u32) -> std::result::Result<usize, usize> {
        self.layers.binary_search_by_key(&layer, |(layer, _)| *layer)
    }

    fn find_section(&self, name: &str) -> std::result::Result<usize, usize> {
        self.sections.binary_search_by(|(found, _)| found.as_str().cmp(name))
    }

    /// Makes room for more, so that what adds them cannot fail.
    pub(super) fn reserve(&mut self, pieces: usize, layers: usize, sections: usize) -> Result<()> {
        memory::reserve_amortized(&mut self.pieces, pieces)?;
        memory::reserve_amortized(&mut self.layers, layers)?;
        memory::reserve_amortized(&mut self.sections, sections)
    }

    /// Sets a layer, for which there is room.
    pub(super) fn set_layer(&mut self, layer: u32, entry: LayerEntry) {
        put(self.find_layer(layer), &mut self.layers, Some((layer, entry)));
    }

    /// Sets a section, for which there is room, or removes it.
    pub(super) fn set_section(&mut self, name: String, value: Option<Value>) {
        put(self.find_section(&name), &mut self.sections, value.map(|value| (name, value)));
    }

    /// A piece by its number, of this state or of `staged` behind it.
    pub(super) fn piece<'a>(&'a self, staged: &'a [Piece], piece: u32) -> Option<&'a Piece> {
        let piece = piece as usize;
        self.pieces.get(piece).or_else(|| staged.get(piece.checked_sub(self.pieces.len())?))
    }

    /// The tokens of a [`State::piece`], if it is of this layer and not before `since`.
    pub(super) fn tokens_of(&self, staged: &[Piece], layer: u32, since: u32, piece: u32) -> Option<u32> {
        let found = self.piece(staged, piece)?;
        (found.layer == layer && piece >= since).then_some(found.tokens)
    }
}

fn read_piece(item: &mut Item<'_>) -> Result<Piece> {
    let (gap, len) = (item.reader.number("a gap")?, item.reader.number("the length of a piece")?);
    let offset = item.body(gap, len)?;
    let (layer, tokens) = (item.reader.small("the layer of a piece")?, item.reader.small("the tokens of a piece")?);
    let at = Extent { offset, len, sum: item.reader.u64("the checksum of a piece")? };
    let raw_sum = item.reader.u64("the raw checksum of a piece")?;
    item.finish(Piece { layer, tokens, at, raw_sum, verified: AtomicBool::new(false) })
}

/// The name of a section.
fn read_name<'a>(item: &mut Item<'a>) -> Result<&'a str> {
    let len = item.reader.number("the length of a name")?;
    let name = item.reader.take(len, "a name")?;
    match std::str::from_utf8(name) {
        Ok(name) if (1..=255).contains(&name.len()) => Ok(name),
        _ => bail!(Corrupt, "the name of a section is not 1 to 255 bytes of UTF-8"),
    }
}

/// Sets or removes an element of a sorted list, which has room for it, at the place where it was found or would be.
fn put<T>(place: std::result::Result<usize, usize>, list: &mut Vec<T>, value: Option<T>) {
    match (place, value) {
        (Ok(at), Some(value)) => list[at] = value,
        (Ok(at), None) => drop(list.remove(at)),
        #[expect(clippy::disallowed_methods, reason = "room is reserved by State::reserve")]
        (Err(at), Some(value)) => list.insert(at, value),
        (Err(_), None) => {}
    }
}
