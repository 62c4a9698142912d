//! Changes that the next commit makes, and the commit record that says them.

use super::runs::{self, Run};
use super::state::{Extent, Geometry, INLINE, LayerEntry, Piece, State, Value, kind};
use crate::bytes;
use crate::status::Result;
use crate::sys::memory;
use std::sync::atomic::AtomicBool;

/// A value to be: the first parts of the committed one, and new bytes behind them.
#[derive(Debug)]
pub(super) struct StagedValue {
    pub(super) kept: usize,
    pub(super) tail: Tail,
}

#[derive(Debug)]
pub(super) enum Tail {
    None,
    /// At most [`INLINE`] bytes, which the record will have.
    Inline(Vec<u8>),
    Stored(Extent),
}

impl StagedValue {
    /// Whether it is the committed value.
    pub(super) fn is(&self, old: &Value) -> bool {
        matches!(self.tail, Tail::None) && self.kept == old.extents.len()
    }

    /// Where its new bytes are; those of the record come last.
    fn offset(&self) -> u64 {
        match &self.tail {
            Tail::Stored(extent) => extent.offset,
            Tail::None | Tail::Inline(_) => u64::MAX,
        }
    }
}

#[derive(Debug)]
pub(super) struct StagedLayer {
    pub(super) layer: u32,
    pub(super) geometry: Geometry,
    /// Whether the record says the geometry, and the layer begins anew.
    pub(super) is_new: bool,
    pub(super) since: u32,
    pub(super) runs: Vec<Run>,
    pub(super) state: StagedValue,
}

#[derive(Debug)]
pub(super) struct StagedSection {
    pub(super) name: String,
    /// `None`: removed.
    pub(super) value: Option<StagedValue>,
}

#[derive(Debug, Default)]
pub(super) struct Staged {
    pub(super) pieces: Vec<Piece>,
    pub(super) layers: Vec<StagedLayer>,
    pub(super) sections: Vec<StagedSection>,
}

/// A change that is ready to be made without memory.
pub(super) struct Changes {
    layers: Vec<(u32, LayerEntry)>,
    sections: Vec<(String, Option<Value>)>,
}

#[derive(Clone, Copy)]
enum Item {
    Piece(usize),
    Layer(usize),
    Section(usize),
}

impl Staged {
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.layers.is_empty() && self.sections.is_empty()
    }

    /// The bytes that were written for them.
    pub(super) fn extents(&self) -> impl Iterator<Item = &Extent> {
        let states = self.layers.iter().map(|layer| &layer.state);
        let values = states.chain(self.sections.iter().filter_map(|section| section.value.as_ref()));
        let stored = values.filter_map(|value| match &value.tail {
            Tail::Stored(extent) => Some(extent),
            Tail::None | Tail::Inline(_) => None,
        });
        self.pieces.iter().map(|piece| &piece.at).chain(stored)
    }

    /// The commit record of the state behind `before`, to be written at `offset`.
    pub(super) fn record(&self, before: &State, offset: u64) -> Result<(Vec<u8>, Changes)> {
        let mut out = Vec::new();
        bytes::push_number(&mut out, before.record.map_or(0, |_| before.sequence + 1))?;
        bytes::push_number(&mut out, before.end)?;
        bytes::push_number(&mut out, before.record.map_or(0, |record| record.len))?;
        if let Some(record) = before.record {
            memory::extend(&mut out, &record.sum.to_le_bytes())?;
        }
        bytes::push_number(&mut out, before.pieces.len() as u64)?;
        // In the order of their bytes, so that a gap says where these are.
        let mut items = Vec::new();
        for (i, piece) in self.pieces.iter().enumerate() {
            memory::push(&mut items, (piece.at.offset, Item::Piece(i)))?;
        }
        for (i, layer) in self.layers.iter().enumerate() {
            memory::push(&mut items, (layer.state.offset(), Item::Layer(i)))?;
        }
        for (i, section) in self.sections.iter().enumerate() {
            let place = section.value.as_ref().map_or(u64::MAX, StagedValue::offset);
            memory::push(&mut items, (place, Item::Section(i)))?;
        }
        items.sort_unstable_by_key(|(offset, item)| match item {
            Item::Piece(i) => (*offset, *i),
            Item::Layer(i) => (*offset, self.pieces.len() + i),
            Item::Section(i) => (*offset, self.pieces.len() + self.layers.len() + i),
        });
        let mut changes = Changes { layers: Vec::new(), sections: Vec::new() };
        let mut cursor = before.end;
        let mut item = Vec::new();
        for (_, which) in items {
            item.clear();
            // The value of the item, and where its inline bytes begin in it.
            let mut value = None;
            let tag = match which {
                Item::Piece(i) => {
                    let piece = &self.pieces[i];
                    bytes::push_number(&mut item, piece.at.offset - cursor)?;
                    bytes::push_number(&mut item, piece.at.len)?;
                    cursor = piece.at.end();
                    bytes::push_number(&mut item, piece.layer.into())?;
                    bytes::push_number(&mut item, piece.tokens.into())?;
                    memory::extend(&mut item, &piece.at.sum.to_le_bytes())?;
                    memory::extend(&mut item, &piece.raw_sum.to_le_bytes())?;
                    kind::PIECE
                }
                Item::Layer(i) => {
                    let staged = &self.layers[i];
                    self.write_layer(&mut item, before, staged)?;
                    let old = before.find_layer(staged.layer).ok().map(|at| &before.layers[at].1.state);
                    value = Some(write_value(&mut item, &mut cursor, &staged.state, old)?);
                    kind::LAYER
                }
                Item::Section(i) => {
                    let staged = &self.sections[i];
                    bytes::push_number(&mut item, staged.name.len() as u64)?;
                    memory::extend(&mut item, staged.name.as_bytes())?;
                    if let Some(new) = &staged.value {
                        let old = before.find_section(&staged.name).ok().map(|at| &before.sections[at].1);
                        value = Some(write_value(&mut item, &mut cursor, new, old)?);
                    }
                    if staged.value.is_some() { kind::SECTION } else { kind::REMOVED }
                }
            };
            memory::push(&mut out, tag)?;
            bytes::push_number(&mut out, item.len() as u64)?;
            if let Some((value, true)) = &mut value
                && let Some(last) = value.extents.last_mut()
            {
                // Inline bytes are the last of an item.
                last.offset = offset + (out.len() + item.len()) as u64 - last.len;
            }
            memory::extend(&mut out, &item)?;
            match (which, value) {
                (Item::Layer(i), Some((state, _))) => {
                    let StagedLayer { layer, geometry, since, runs, .. } = &self.layers[i];
                    let entry = LayerEntry { geometry: *geometry, runs: memory::copied(runs)?, since: *since, state };
                    memory::push(&mut changes.layers, (*layer, entry))?;
                }
                (Item::Section(i), value) => {
                    let change = (memory::text(&self.sections[i].name)?, value.map(|(value, _)| value));
                    memory::push(&mut changes.sections, change)?;
                }
                _ => {}
            }
        }
        Ok((out, changes))
    }

    fn write_layer(&self, item: &mut Vec<u8>, before: &State, staged: &StagedLayer) -> Result<()> {
        bytes::push_number(item, staged.layer.into())?;
        memory::push(item, staged.is_new.into())?;
        let mut old: &[Run] = &[];
        if staged.is_new {
            bytes::push_number(item, staged.geometry.heads.into())?;
            bytes::push_number(item, staged.geometry.head_dim.into())?;
            memory::extend(item, &[staged.geometry.key, staged.geometry.value])?;
        } else if let Ok(at) = before.find_layer(staged.layer) {
            old = &before.layers[at].1.runs;
        }
        let first_new = before.pieces.len() as u32;
        // The record has all pieces that were added before the bytes of this item; a layer whose item has no bytes comes
        // behind all of them.
        let pieces =
            first_new + self.pieces.iter().filter(|piece| piece.at.offset < staged.state.offset()).count() as u32;
        let mut edits = Vec::new();
        runs::write_edits(&mut edits, old, &staged.runs, first_new, pieces)?;
        bytes::push_number(item, edits.len() as u64)?;
        memory::extend(item, &edits)
    }
}

/// Returns the value as it will be, and whether its last bytes are inline.
fn write_value(item: &mut Vec<u8>, cursor: &mut u64, new: &StagedValue, old: Option<&Value>) -> Result<(Value, bool)> {
    let kept = old.map_or(&[][..], |old| &old.extents[..new.kept]);
    let mut value = Value { extents: Vec::new(), verified: AtomicBool::new(true) };
    memory::reserve(&mut value.extents, kept.len() + 1)?;
    memory::extend(&mut value.extents, kept)?;
    bytes::push_number(item, kept.len() as u64)?;
    match &new.tail {
        Tail::None => bytes::push_number(item, 0)?,
        Tail::Inline(bytes) => {
            bytes::push_number(item, bytes.len() as u64)?;
            memory::extend(item, bytes)?;
            let extent = Extent { offset: 0, len: bytes.len() as u64, sum: super::checksum(bytes) };
            memory::push(&mut value.extents, extent)?;
        }
        Tail::Stored(extent) => {
            bytes::push_number(item, extent.len)?;
            bytes::push_number(item, extent.offset - *cursor)?;
            memory::extend(item, &extent.sum.to_le_bytes())?;
            *cursor = extent.end();
            memory::push(&mut value.extents, *extent)?;
        }
    }
    Ok((value, matches!(new.tail, Tail::Inline(_))))
}

const _: () = assert!(INLINE < 128, "the length of inline bytes is one byte");

impl Changes {
    /// Takes the memory that [`Changes::make`] needs.
    pub(super) fn reserve(&self, state: &mut State, pieces: usize) -> Result<()> {
        memory::reserve_amortized(&mut state.pieces, pieces)?;
        memory::reserve_amortized(&mut state.layers, self.layers.len())?;
        memory::reserve_amortized(&mut state.sections, self.sections.len())
    }

    /// Makes the changes. Takes no memory after [`Changes::reserve`].
    pub(super) fn make(self, state: &mut State, pieces: &mut Vec<Piece>) {
        #[expect(clippy::disallowed_methods, reason = "room is reserved by reserve")]
        state.pieces.append(pieces);
        for (layer, entry) in self.layers {
            match state.find_layer(layer) {
                Ok(at) => state.layers[at].1 = entry,
                #[expect(clippy::disallowed_methods, reason = "room is reserved by reserve")]
                Err(at) => state.layers.insert(at, (layer, entry)),
            }
        }
        for (name, value) in self.sections {
            match (state.find_section(&name), value) {
                (Ok(at), Some(value)) => state.sections[at].1 = value,
                (Ok(at), None) => drop(state.sections.remove(at)),
                #[expect(clippy::disallowed_methods, reason = "room is reserved by reserve")]
                (Err(at), Some(value)) => state.sections.insert(at, (name, value)),
                (Err(_), None) => {}
            }
        }
    }
}
