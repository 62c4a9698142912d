//! Changes that the next commit makes, and the commit record that says them.

use super::runs::{self, Run};
use super::state::{Extent, Geometry, LayerEntry, Piece, State, Value, kind};
use crate::bytes::push_number;
use crate::status::Result;
use crate::sys::memory;

/// A value to be.
#[derive(Debug)]
pub(super) struct StagedValue {
    pub(super) value: Value,
    /// Its first parts that are those of the committed one; behind them is a new one, or none.
    pub(super) kept: usize,
    /// The bytes of the new part where the record will have them, and with them its place.
    pub(super) inline: Vec<u8>,
}

impl StagedValue {
    /// Whether it is the committed value.
    pub(super) fn is(&self, old: &Value) -> bool {
        self.value.extents.len() == self.kept && self.kept == old.extents.len()
    }

    /// The bytes that were written for it.
    fn written(&self) -> Option<&Extent> {
        self.value.extents.get(self.kept).filter(|_| self.inline.is_empty())
    }

    /// Where its new bytes are; those of the record come last.
    fn offset(&self) -> u64 {
        self.written().map_or(u64::MAX, |extent| extent.offset)
    }

    /// Appends it to an item. `cursor` is where the bytes end that items before have.
    fn write(&self, item: &mut Vec<u8>, cursor: &mut u64) -> Result<()> {
        push_number(item, self.kept as u64)?;
        push_number(item, self.value.extents.get(self.kept).map_or(0, |extent| extent.len))?;
        memory::extend(item, &self.inline)?;
        if let Some(extent) = self.written() {
            push_number(item, extent.offset - *cursor)?;
            memory::extend(item, &extent.sum.to_le_bytes())?;
            *cursor = extent.end();
        }
        Ok(())
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

impl StagedLayer {
    /// Appends all but the state to an item. `staged` are the pieces of the record.
    fn write(&self, item: &mut Vec<u8>, before: &State, staged: &[Piece]) -> Result<()> {
        push_number(item, self.layer.into())?;
        memory::push(item, self.is_new.into())?;
        let mut old: &[Run] = &[];
        if self.is_new {
            push_number(item, self.geometry.heads.into())?;
            push_number(item, self.geometry.head_dim.into())?;
            memory::extend(item, &[self.geometry.key, self.geometry.value])?;
        } else if let Some(entry) = before.layer(self.layer) {
            old = &entry.runs;
        }
        let first_new = before.pieces.len() as u32;
        // The record has all pieces that were added before the bytes of this item; a layer whose item has no bytes comes
        // behind all of them.
        let added = staged.iter().filter(|piece| piece.at.offset < self.state.offset()).count() as u32;
        let mut edits = Vec::new();
        runs::write_edits(&mut edits, old, &self.runs, first_new, first_new + added)?;
        push_number(item, edits.len() as u64)?;
        memory::extend(item, &edits)
    }
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

impl Staged {
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.layers.is_empty() && self.sections.is_empty()
    }

    /// The bytes that were written for them.
    pub(super) fn extents(&self) -> impl Iterator<Item = &Extent> {
        let states = self.layers.iter().map(|layer| &layer.state);
        let values = states.chain(self.sections.iter().filter_map(|section| section.value.as_ref()));
        self.pieces.iter().map(|piece| &piece.at).chain(values.filter_map(StagedValue::written))
    }

    /// The commit record of the state behind `before`, to be written at `offset`.
    pub(super) fn record(&mut self, before: &State, offset: u64) -> Result<Vec<u8>> {
        let Staged { pieces, layers, sections } = self;
        let mut out = Vec::new();
        push_number(&mut out, before.record.map_or(0, |_| before.sequence + 1))?;
        push_number(&mut out, before.end)?;
        push_number(&mut out, before.record.map_or(0, |record| record.len))?;
        if let Some(record) = before.record {
            memory::extend(&mut out, &record.sum.to_le_bytes())?;
        }
        push_number(&mut out, before.pieces.len() as u64)?;
        // In the order of their bytes, so that a gap says where these are.
        let places = pieces.iter().map(|piece| piece.at.offset);
        let places = places.chain(layers.iter().map(|layer| layer.state.offset()));
        let of_section = |section: &StagedSection| section.value.as_ref().map_or(u64::MAX, StagedValue::offset);
        let mut items = memory::collect(places.chain(sections.iter().map(of_section)).zip(0..))?;
        items.sort_unstable();
        let (mut cursor, mut item) = (before.end, Vec::new());
        for (_, at) in items {
            item.clear();
            let (tag, value) = if let Some(piece) = pieces.get(at) {
                push_number(&mut item, piece.at.offset - cursor)?;
                push_number(&mut item, piece.at.len)?;
                cursor = piece.at.end();
                push_number(&mut item, piece.layer.into())?;
                push_number(&mut item, piece.tokens.into())?;
                memory::extend(&mut item, &piece.at.sum.to_le_bytes())?;
                memory::extend(&mut item, &piece.raw_sum.to_le_bytes())?;
                (kind::PIECE, None)
            } else if let Some(layer) = layers.get_mut(at - pieces.len()) {
                layer.write(&mut item, before, pieces)?;
                (kind::LAYER, Some(&mut layer.state))
            } else {
                let section = &mut sections[at - pieces.len() - layers.len()];
                push_number(&mut item, section.name.len() as u64)?;
                memory::extend(&mut item, section.name.as_bytes())?;
                (if section.value.is_some() { kind::SECTION } else { kind::REMOVED }, section.value.as_mut())
            };
            if let Some(value) = &value {
                value.write(&mut item, &mut cursor)?;
            }
            memory::push(&mut out, tag)?;
            push_number(&mut out, item.len() as u64)?;
            memory::extend(&mut out, &item)?;
            if let Some(value) = value.filter(|value| !value.inline.is_empty())
                && let Some(last) = value.value.extents.last_mut()
            {
                // Inline bytes are the last of an item.
                last.offset = offset + out.len() as u64 - last.len;
            }
        }
        Ok(out)
    }

    /// Makes the changes, for which the state has room.
    pub(super) fn make(mut self, state: &mut State) {
        #[expect(clippy::disallowed_methods, reason = "room is reserved by State::reserve")]
        state.pieces.append(&mut self.pieces);
        for StagedLayer { layer, geometry, since, runs, state: staged, .. } in self.layers {
            state.set_layer(layer, LayerEntry { geometry, runs, since, state: staged.value });
        }
        for StagedSection { name, value } in self.sections {
            state.set_section(name, value.map(|staged| staged.value));
        }
    }
}
