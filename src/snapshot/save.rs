//! A new file, changes of it, and their commit.

use super::sectors::{self, COPIES, Copied, Header, Sector, Slot, Slots};
use super::staged::{Staged, StagedLayer, StagedSection, StagedValue};
use super::state::{Extent, Geometry, INLINE, LayerEntry, Piece, State, Value};
use super::{Access, Run, Snapshot, at, checksum, runs};
use crate::bytes;
use crate::status::{Result, bail, error};
use crate::sys::storage::Storage;
use crate::sys::{Shared, memory};
use std::sync::atomic::{AtomicBool, Ordering};
use xxhash_rust::xxh3::Xxh3;

/// Parts up to this size are written together.
const GATHERED: usize = 128 << 10;

impl Snapshot {
    /// Writes an empty file, as state 0. `fingerprint` says which model it is for, at most 64 KiB.
    pub fn create(storage: Storage, fingerprint: &[u8]) -> Result<Self> {
        let mut given = Some(storage);
        let storage = Shared::made(|| Ok(given.take().expect("taken once")))
            .inspect_err(|_| given.iter().for_each(Storage::remove))?;
        let made = Snapshot::write_new(&storage, fingerprint).inspect_err(|_| storage.remove());
        let (fingerprint, slots, state) = made?;
        Ok(Snapshot::new(storage, None, Access::Append, fingerprint, slots, state))
    }

    fn write_new(storage: &Storage, fingerprint: &[u8]) -> Result<(Vec<u8>, Slots, State)> {
        sectors::check_fingerprint(fingerprint)?;
        if !storage.is_empty()? {
            bail!(InvalidArgument, "{} is not empty", storage.name());
        }
        let header = Header::new(fingerprint);
        let mut state = State { end: header.fingerprint.end(), ..State::default() };
        let record = Staged::default().record(&state, state.end)?;
        let extent = Extent { offset: state.end, len: record.len() as u64, sum: checksum(&record) };
        (state.end, state.record) = (extent.end(), Some(extent));
        let slot = Slot { sequence: state.sequence, record: extent, fingerprint: header.fingerprint };
        let mut start = Vec::new();
        memory::extend(&mut start, &[0; sectors::SECTOR])?;
        for copy in COPIES {
            memory::extend(&mut start, &slot.write(copy.offset()))?;
        }
        memory::extend(&mut start, fingerprint)?;
        memory::extend(&mut start, &record)?;
        storage.write_at(0, &start)?;
        storage.sync()?;
        // Last, so that no part of a file is taken for one.
        storage.write_at(0, &header.write())?;
        storage.sync()?;
        storage.sync_name()?;
        Ok((memory::copied(fingerprint)?, Slots { slots: [slot; 2], unfinished: None }, state))
    }

    /// INVALID_ARGUMENT: if the access is not [`Access::Append`].
    pub fn check_writable(&self) -> Result<()> {
        match self.access {
            Access::Append => Ok(()),
            _ => bail!(InvalidArgument, "{} is open read-only", self.name()),
        }
    }

    /// Writes a piece: `tokens` of a layer in `parts`. Returns its number, for runs. The state has it from the next
    /// commit on.
    pub fn add_piece(&mut self, layer: u32, tokens: u32, parts: &[&[u8]], raw_checksum: u64) -> Result<u32> {
        self.check_writable()?;
        if tokens == 0 || parts.is_empty() {
            bail!(InvalidArgument, "a piece of {tokens} tokens in {} parts; at least 1 of each expected", parts.len());
        }
        let number = self.state.pieces.len() + self.staged.pieces.len();
        if number >= u32::MAX as usize {
            bail!(InvalidArgument, "{} has {number} pieces, the most that it can have", self.name());
        }
        memory::reserve_amortized(&mut self.staged.pieces, 1)?;
        let mut lens = Vec::new();
        bytes::push_number(&mut lens, parts.len() as u64)?;
        for part in parts {
            bytes::push_number(&mut lens, part.len() as u64)?;
        }
        let at = self.write(std::iter::once(&lens[..]).chain(parts.iter().copied()))?;
        let piece = Piece { layer, tokens, at, raw_sum: raw_checksum, verified: AtomicBool::new(false) };
        memory::push(&mut self.staged.pieces, piece)?;
        Ok(number as u32)
    }

    /// Writes bytes behind what is there.
    fn write<'a>(&mut self, parts: impl Iterator<Item = &'a [u8]>) -> Result<Extent> {
        // A slot that is to be taken back may still lead to a record here.
        self.finish_slots()?;
        let begin = self.cursor;
        let (mut offset, mut hash) = (begin, Xxh3::new());
        self.gathered.clear();
        for part in parts {
            hash.update(part);
            if self.gathered.len() + part.len() > GATHERED {
                self.storage.write_at(offset, &self.gathered)?;
                offset += self.gathered.len() as u64;
                self.gathered.clear();
            }
            if part.len() > GATHERED {
                self.storage.write_at(offset, part)?;
                offset += part.len() as u64;
            } else {
                memory::extend(&mut self.gathered, part)?;
            }
        }
        self.storage.write_at(offset, &self.gathered)?;
        self.cursor = offset + self.gathered.len() as u64;
        Ok(Extent { offset: begin, len: self.cursor - begin, sum: hash.digest() })
    }

    /// Writes a value, without the parts of the committed one that it begins with.
    fn stage_value(&mut self, bytes: &[u8], old: impl Fn(&State) -> Option<&Value>) -> Result<StagedValue> {
        let (mut kept, mut rest, mut stored, mut extents) = (0, bytes, Vec::new(), Vec::new());
        if let Some(old) = old(&self.state) {
            let is_verified = old.verified.load(Ordering::Relaxed);
            for extent in &old.extents {
                let Some((same, behind)) = rest.split_at_checked(extent.len as usize) else { break };
                if checksum(same) != extent.sum {
                    break;
                }
                // Bytes that are damaged are written again.
                if !is_verified {
                    memory::resize(&mut stored, same.len())?;
                    if self.storage.read_at(extent.offset, &mut stored).is_err() || stored != same {
                        break;
                    }
                }
                (kept, rest) = (kept + 1, behind);
            }
            old.verified.fetch_or(kept == old.extents.len(), Ordering::Relaxed);
            memory::extend(&mut extents, &old.extents[..kept])?;
        }
        let mut inline = Vec::new();
        if rest.len() as u64 > INLINE {
            let written = self.write(std::iter::once(rest))?;
            memory::push(&mut extents, written)?;
        } else if !rest.is_empty() {
            memory::extend(&mut inline, rest)?;
            memory::push(&mut extents, Extent { offset: 0, len: rest.len() as u64, sum: checksum(rest) })?;
        }
        Ok(StagedValue { value: Value { extents, verified: AtomicBool::new(true) }, kept, inline })
    }

    /// The first piece that a layer may refer to: those before it are of other tokens, or of another geometry.
    pub fn first_piece_of(&self, layer: u32, geometry: Geometry) -> u32 {
        let committed = self.layer(layer).filter(|entry| entry.geometry == geometry);
        committed.map_or(self.state.pieces.len() as u32, |entry| entry.since)
    }

    /// Whether a layer may refer to a piece, and its stored bytes have this checksum.
    pub fn has_piece(&self, layer: u32, geometry: Geometry, (piece, sum): (u32, u64)) -> bool {
        let since = self.first_piece_of(layer, geometry);
        self.piece_sum(piece) == Some(sum) && self.state.tokens_of(&self.staged.pieces, layer, since, piece).is_some()
    }

    /// Sets the tokens of a layer, in physical order, and its opaque state, with the next commit.
    ///
    /// Pieces are of the layer's geometry: another geometry needs new pieces. A run follows the one before: `begin` is not read.
    pub fn set_layer(&mut self, layer: u32, geometry: Geometry, runs: &[Run], state: &[u8]) -> Result<()> {
        self.check_writable()?;
        if let Some(fault) = geometry.fault() {
            bail!(InvalidArgument, "layer {layer}: {fault}");
        }
        let committed = self.layer(layer).filter(|entry| entry.geometry == geometry);
        let is_new = committed.is_none();
        let since = self.first_piece_of(layer, geometry);
        let mut list = Vec::new();
        for run in runs {
            let tokens_of = |piece| self.state.tokens_of(&self.staged.pieces, layer, since, piece);
            if let Err(error) = runs::append(&mut list, (run.of, run.offset, run.count.into()), tokens_of) {
                bail!(InvalidArgument, "layer {layer}: {}", error.unless_out_of_memory()?.message());
            }
        }
        memory::reserve_amortized(&mut self.staged.layers, 1)?;
        let state = self.stage_value(state, |old| old.layer(layer).map(|entry| &entry.state))?;
        let is_same = |entry: &LayerEntry| !is_new && entry.runs == list && state.is(&entry.state);
        let is_same = self.layer(layer).is_some_and(is_same);
        self.drop_layer(layer);
        if !is_same {
            memory::push(&mut self.staged.layers, StagedLayer { layer, geometry, is_new, since, runs: list, state })?;
        }
        Ok(())
    }

    /// Drops what was set of a layer since the last commit.
    pub fn drop_layer(&mut self, layer: u32) {
        self.staged.layers.retain(|staged| staged.layer != layer);
    }

    /// Sets the bytes of a section with the next commit. Bytes that only grew cost what is new.
    pub fn put(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        self.check_writable()?;
        if !(1..=255).contains(&name.len()) {
            bail!(InvalidArgument, "the name of a section has {} bytes; 1 to 255 allowed", name.len());
        }
        let value = self.stage_value(bytes, |old| old.section(name))?;
        self.stage_section(name, Some(value))
    }

    /// Removes a section with the next commit. A name that has none is no error.
    pub fn remove(&mut self, name: &str) -> Result<()> {
        self.check_writable()?;
        self.stage_section(name, None)
    }

    fn stage_section(&mut self, name: &str, value: Option<StagedValue>) -> Result<()> {
        let staged = StagedSection { name: memory::text(name)?, value };
        memory::reserve_amortized(&mut self.staged.sections, 1)?;
        let is_same = match (self.state.section(name), &staged.value) {
            (Some(old), Some(new)) => new.is(old),
            (old, new) => old.is_none() && new.is_none(),
        };
        self.staged.sections.retain(|other| other.name != name);
        if !is_same {
            memory::push(&mut self.staged.sections, staged)?;
        }
        Ok(())
    }

    /// Whether there is something to commit.
    pub fn is_changed(&self) -> bool {
        !self.staged.is_empty()
    }

    /// Drops what is not committed. The numbers of its pieces are used again.
    /// IO: if a commit failed and its slot cannot be taken back, so that an opened file may have its state.
    pub fn discard(&mut self) -> Result<()> {
        self.staged = Staged::default();
        (self.cursor, self.is_sync_lost) = (self.state.end, false);
        if self.access == Access::Append {
            // A device that failed may work again.
            self.finish_slots()?;
            // Bytes behind are no part of the file.
            let _ = self.storage.truncate(self.cursor);
        }
        Ok(())
    }

    /// Makes all changes the state of the file, durably. On an error the state is as before, the changes remain, and the
    /// call may be repeated. Without changes it writes nothing.
    pub fn commit(&mut self) -> Result<()> {
        self.check_writable()?;
        self.finish_slots()?;
        if self.staged.is_empty() {
            return Ok(());
        }
        self.write_again()?;
        let record = self.staged.record(&self.state, self.cursor)?;
        let Staged { pieces, layers, sections } = &self.staged;
        self.state.reserve(pieces.len(), layers.len(), sections.len())?;
        let extent = Extent { offset: self.cursor, len: record.len() as u64, sum: checksum(&record) };
        self.storage.write_at(extent.offset, &record)?;
        if let Err(error) = self.storage.sync() {
            self.is_sync_lost = true;
            return Err(error);
        }
        let old = *self.slots.newest();
        let slot = Slot { sequence: old.sequence + 1, record: extent, ..old };
        self.write_slot(slot)?;
        std::mem::take(&mut self.staged).make(&mut self.state);
        (self.state.sequence, self.state.end, self.state.record) = (slot.sequence, extent.end(), Some(extent));
        self.cursor = self.state.end;
        // Views of the old map stay. Without a new one pieces are read.
        self.map = self.storage.map(self.state.end);
        Ok(())
    }

    /// Writes both copies of the slot of a new state.
    ///
    /// Copy 1 must be durable before copy 2 is touched: if both could be half-written at once, a killed save would look
    /// like damage, and a reader could not tell a lost state from one that never was.
    fn write_slot(&mut self, slot: Slot) -> Result<()> {
        let which = (slot.sequence % 2) as usize;
        let old = self.slots.slots[which];
        for copy in COPIES.into_iter().filter(|copy| copy.slot == which) {
            if let Err(error) = self.write_copy(copy, &slot) {
                // The bytes on the disk are not certain now. The old state is put back, copy 2 first, so that one is whole.
                self.slots.unfinished = Some(copy);
                self.slots.slots[which] = old;
                let _ = self.finish_slots();
                return Err(error);
            }
        }
        self.slots.slots[which] = slot;
        Ok(())
    }

    fn write_copy(&self, copy: Copied, slot: &Slot) -> Result<()> {
        let sector: Sector = slot.write(copy.offset());
        self.storage
            .write_at(copy.offset(), &sector)
            .and_then(|()| self.storage.sync())
            .map_err(|e| at(copy.place(), copy.offset(), &self.storage, &e))
    }

    /// Writes the copies that a failed or killed save may have left, from the second one that it began to the first.
    pub(super) fn finish_slots(&mut self) -> Result<()> {
        let Some(last) = self.slots.unfinished else { return Ok(()) };
        for copy in COPIES.into_iter().rev().filter(|copy| copy.slot == last.slot && copy.copy <= last.copy) {
            self.write_copy(copy, &self.slots.slots[copy.slot])?;
        }
        self.slots.unfinished = None;
        Ok(())
    }

    /// Writes staged bytes a second time after a sync of them failed: the system may have dropped them and reports it once.
    fn write_again(&mut self) -> Result<()> {
        if !self.is_sync_lost {
            return Ok(());
        }
        let mut buffer = Vec::new();
        for extent in self.staged.extents() {
            let len = usize::try_from(extent.len).map_err(|_| memory::out_of_memory(usize::MAX))?;
            let bytes = memory::at_least(&mut buffer, len)?;
            self.storage.read_at(extent.offset, bytes)?;
            if checksum(bytes) != extent.sum {
                return Err(error!(
                    Io,
                    "{} lost {len} bytes at offset {} that were written; discard the changes",
                    self.name(),
                    extent.offset
                ));
            }
            self.storage.write_at(extent.offset, bytes)?;
        }
        self.is_sync_lost = false;
        Ok(())
    }
}

impl Drop for Snapshot {
    /// A save that failed must not leave a full disk.
    fn drop(&mut self) {
        if self.access == Access::Append
            && self.storage.is_own()
            && self.storage.len().is_ok_and(|len| len > self.state.end)
        {
            let _ = self.discard();
        }
    }
}
