//! A chat file: the tokens of a chat that are not in memory, and the saved chat. `docs/format.md` has its bytes.
//!
//! | file | job |
//! |---|---|
//! | `mod` | what is in a file, and the commit of what is next |
//! | `index` | where the tables and sections of a commit are |
//! | `sectors` | the header, and the slots that name the newest index |
//! | `space` | which bytes are free |
//! | [`raw`] | raw tokens in few bytes |
//! | [`table`] | what a file has of a layer |
//!
//! Bytes are written wherever there is room. They become part of the file by an index that leads to them, and that by a slot.
//! Until the next commit nothing is written over bytes that the newest index leads to.

mod index;
pub mod raw;
mod sectors;
mod space;
pub mod table;

pub use crate::sys::storage::{Medium, Storage};
pub use index::check_name;
pub use sectors::check_fingerprint;
pub use table::Table;

use crate::bytes::{Reader, push_number};
use crate::status::{Error, Result, Status, bail};
use crate::sys::{Shared, memory};
use index::Index;
use sectors::{COPIES, Copied, FINGERPRINT, Header, SECTOR, Sector, Slot, Slots, UNSAVED};
use space::Space;
use std::fmt;
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_64;

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To read it, beside other readers.
    Read,
    /// To read and commit, alone.
    Commit,
}

/// Bytes of a file and their checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// The first byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Their XXH3-64.
    pub sum: u64,
}

impl Extent {
    /// The byte behind the last.
    pub fn end(&self) -> u64 {
        self.offset + self.len
    }

    /// The bytes.
    pub fn range(&self) -> Range<u64> {
        self.offset..self.end()
    }

    /// Appends it to what a file has.
    pub(crate) fn put(&self, out: &mut Vec<u8>) -> Result<()> {
        push_number(out, self.offset)?;
        push_number(out, self.len)?;
        memory::extend(out, &self.sum.to_le_bytes())
    }

    /// Reads what [`Extent::put`] wrote.
    pub(crate) fn get(reader: &mut Reader<'_>, what: &str) -> Result<Self> {
        let (offset, len) = (reader.number(what)?, reader.number(what)?);
        if offset.checked_add(len).is_none() {
            bail!(Corrupt, "{what} has {len} bytes at {offset}");
        }
        Ok(Extent { offset, len, sum: reader.u64(what)? })
    }
}

/// XXH3-64.
fn checksum(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// What the next commit has.
#[derive(Debug, Default)]
pub struct NewState {
    /// The bytes of each layer's table, ascending.
    pub layers: Vec<(u32, Vec<u8>)>,
    /// Sections that are new or have changed.
    pub sections: Vec<(String, Vec<u8>)>,
    /// Whether the other sections stay.
    pub keeps_sections: bool,
    /// Bytes that the session keeps for working memory.
    pub working: u64,
    /// All that the tables lead to.
    pub places: Vec<Range<u64>>,
}

/// See [`ChatFile::claimed`].
#[derive(Debug)]
pub(crate) struct Claimed(Space);

/// An open chat file.
#[derive(Debug)]
pub struct ChatFile {
    storage: Shared<Storage>,
    access: Access,
    fingerprint: Vec<u8>,
    /// `None` before the first commit.
    slots: Option<Slots>,
    index: Index,
    space: Space,
    /// Bytes that were written by [`ChatFile::write`].
    written: u64,
    /// A sync has failed: the system may have dropped what was written since the last one, and the next sync does not tell.
    is_sync_lost: bool,
}

impl ChatFile {
    /// Begins a file that has no chat yet. `fingerprint` says which model it is for.
    /// INVALID_ARGUMENT: if the fingerprint has more than 64 KiB. A file that could not be begun is removed.
    pub fn create(storage: Storage, fingerprint: &[u8]) -> Result<Self> {
        let begun = check_fingerprint(fingerprint)
            .and_then(|()| storage.truncate(0))
            .and_then(|()| storage.write_at(0, &UNSAVED))
            .and_then(|()| memory::copied(fingerprint));
        let fingerprint = begun.inspect_err(|_| storage.remove())?;
        let begin = begin(&fingerprint);
        let mut given = Some(storage);
        let storage = Shared::made(|| Ok(given.take().expect("taken once")))
            .inspect_err(|_| given.iter().for_each(Storage::remove))?;
        let (index, space) = (Index::default(), Space::used(begin, begin));
        Ok(ChatFile {
            storage,
            access: Access::Commit,
            fingerprint,
            slots: None,
            index,
            space,
            written: 0,
            is_sync_lost: false,
        })
    }

    /// Whether a session has begun this file and was killed before it saved a chat.
    pub fn is_left(storage: &Storage) -> Result<bool> {
        let mut start = [0; UNSAVED.len()];
        Ok(match storage.len()? {
            // It was killed as it began.
            0 => true,
            len if len < UNSAVED.len() as u64 => false,
            _ => storage.read_at(0, &mut start).map(|()| start == UNSAVED)?,
        })
    }

    /// Opens a file at its last commit. All of it is taken for used until [`ChatFile::take_space`] says more.
    /// `fingerprint`: what it must be for; `None` takes any.
    /// STALE: if it is for another fingerprint. CORRUPT: the text has the part that is damaged, and its offset.
    pub fn open(storage: Storage, fingerprint: Option<&[u8]>, access: Access) -> Result<Self> {
        fingerprint.map(check_fingerprint).transpose()?;
        let mut buffer = Vec::new();
        let sector = first_sector(&storage, 0, "header", &mut buffer)?;
        let header = Header::read(&sector).map_err(|e| at("header", 0, &storage, &e))?;
        let found = read(&storage, &header.fingerprint, "fingerprint")?;
        if let Some(given) = fingerprint.filter(|given| *given != found) {
            let differs = given.iter().zip(&found).position(|(a, b)| a != b).unwrap_or(given.len().min(found.len()));
            bail!(
                Stale,
                "{} is for another fingerprint: of {} bytes, {} given, byte {differs} differs first",
                storage.name(),
                found.len(),
                given.len()
            );
        }
        if access == Access::Commit {
            header.check_writer().map_err(|e| at("header", 0, &storage, &e))?;
        }
        let slots = read_slots(&storage, &header, &mut buffer)?;
        let Slot { sequence, index: place, end, .. } = *slots.newest();
        let len = storage.len()?;
        if len < end {
            bail!(Corrupt, "{} has {len} bytes; its last commit ends at {end}", storage.name());
        }
        let bytes = read(&storage, &place, "index")?;
        let index = Index::read(&bytes, sequence).map_err(|e| at("index", place.offset, &storage, &e))?;
        let space = Space::used(header.fingerprint.end(), end);
        let storage = Shared::new(storage)?;
        let slots = Some(slots);
        let mut file =
            ChatFile { storage, access, fingerprint: found, slots, index, space, written: 0, is_sync_lost: false };
        if access == Access::Commit {
            file.finish_slots()?;
            file.cut();
        }
        Ok(file)
    }

    /// The name in errors: the path.
    pub fn name(&self) -> &str {
        self.storage.name()
    }

    pub(crate) fn storage(&self) -> &Shared<Storage> {
        &self.storage
    }

    /// The fingerprint that it was made with.
    pub fn fingerprint(&self) -> &[u8] {
        &self.fingerprint
    }

    /// The number of the last commit, from 0 on; `None` before the first.
    pub fn version(&self) -> Option<u64> {
        self.slots.as_ref().map(|_| self.index.sequence)
    }

    /// Bytes of the file, with those that are not committed.
    pub fn len(&self) -> u64 {
        self.space.end()
    }

    /// Whether nothing is in it but what every file has.
    pub fn is_empty(&self) -> bool {
        self.len() == begin(&self.fingerprint)
    }

    /// Bytes between the things that are in the file.
    pub fn free_bytes(&self) -> u64 {
        self.space.free_bytes()
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.space.bytes()
    }

    /// Whether a commit cannot be trusted to keep what was written: the file is at its path no more, another program has written
    /// to it, or a sync has failed.
    pub fn is_lost(&self) -> bool {
        self.is_sync_lost || !self.is_at_path() || !self.is_whole()
    }

    /// Whether the start of the file is as it was written last, and no byte is missing of what was committed.
    pub(crate) fn is_whole(&self) -> bool {
        let is_whole = || {
            let Some(slots) = &self.slots else { return ChatFile::is_left(&self.storage) };
            let mut sector = [0; SECTOR];
            self.storage.read_at(0, &mut sector)?;
            read(&self.storage, &Header::read(&sector)?.fingerprint, "fingerprint")?;
            // A failed commit has left some, which the next one writes.
            for copy in COPIES.into_iter().filter(|_| slots.unfinished.is_none()) {
                self.storage.read_at(copy.offset(), &mut sector)?;
                if Slot::read(&sector, copy.offset()) != Some(slots.slots[copy.slot]) {
                    return Ok(false);
                }
            }
            Ok(self.storage.len()? >= slots.newest().end)
        };
        Result::unwrap_or(is_whole(), false)
    }

    /// Whether it is at its path still.
    pub(crate) fn is_at_path(&self) -> bool {
        self.storage.is_at_path()
    }

    /// Bytes that the session of the last commit has kept for working memory.
    pub(crate) fn working(&self) -> u64 {
        self.index.working
    }

    /// The layers of the last commit, ascending.
    pub fn layers(&self) -> impl Iterator<Item = u32> {
        self.index.layers.iter().map(|(layer, _)| *layer)
    }

    /// What the last commit has of a layer. NOT_FOUND: if it has nothing.
    pub fn table(&self, layer: u32) -> Result<Table> {
        let Some(at) = self.index.layer(layer) else { bail!(NotFound, "{} has no layer {layer}", self.name()) };
        let bytes = self.read(at, format_args!("table of layer {layer}"))?;
        Table::read(&bytes).map_err(|e| self::at(format_args!("table of layer {layer}"), at.offset, &self.storage, &e))
    }

    /// The names of the committed sections, ascending.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.index.sections.iter().map(|(name, _)| name.as_str())
    }

    /// The bytes of a committed section. NOT_FOUND: if there is none of this name.
    pub fn section(&self, name: &str) -> Result<Vec<u8>> {
        match self.index.section(name) {
            Some(at) => self.read(at, format_args!("section {name:?}")),
            None => bail!(NotFound, "{} has no section {name:?}", self.name()),
        }
    }

    /// Reads bytes and compares them with their checksum. `what` they are, for errors.
    pub fn read(&self, at: &Extent, what: impl fmt::Display) -> Result<Vec<u8>> {
        read(&self.storage, at, what)
    }

    /// What is used where the tables of the last commit lead to these places.
    /// CORRUPT: if two of them overlap, or one is behind the commit.
    pub(crate) fn claimed(&self, places: Vec<Range<u64>>) -> Result<Claimed> {
        let newest = self.slots.as_ref().map(Slots::newest);
        let space = self.space_of(&self.index, newest.map(|slot| &slot.index), places)?;
        if let Some(end) = newest.map(|slot| slot.end).filter(|end| space.end() > *end) {
            bail!(Corrupt, "{} leads to byte {}; its last commit ends at {end}", self.name(), space.end());
        }
        Ok(Claimed(space))
    }

    /// What is used by an index that is at a place, by all that it leads to, and by what its tables lead to.
    /// CORRUPT: if two of them overlap.
    fn space_of(&self, index: &Index, at: Option<&Extent>, mut places: Vec<Range<u64>>) -> Result<Space> {
        index.places().chain(at).try_for_each(|at| memory::push(&mut places, at.range()))?;
        Space::of(begin(&self.fingerprint), places).map_err(|error| error.within(self.name()))
    }

    /// All is free that is not claimed.
    pub(crate) fn take_space(&mut self, claimed: Claimed) {
        self.space = claimed.0;
    }

    /// A place for so many bytes, which is taken. IO: if it would end above `most`, which is kv_memory_file_mb.
    pub(crate) fn place(&mut self, len: u64, most: Option<u64>) -> Result<Range<u64>> {
        let most = most.unwrap_or(u64::MAX);
        match self.space.take(len, most) {
            Some(place) => Ok(place),
            None => bail!(Io, "{} is full: it has {} bytes of {most} (kv_memory_file_mb)", self.name(), self.len()),
        }
    }

    /// Nothing is at a place any more that no commit leads to.
    pub(crate) fn free(&mut self, place: Range<u64>) {
        self.space.give(place);
    }

    /// Writes bytes where there is room. On an error their place is free again.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<Extent> {
        if bytes.is_empty() {
            // Where they would be may be cut off.
            return Ok(Extent { offset: 0, len: 0, sum: checksum(bytes) });
        }
        let place = self.place(bytes.len() as u64, None)?;
        if let Err(error) = self.write_at(place.start, bytes) {
            self.free(place);
            return Err(error);
        }
        Ok(Extent { offset: place.start, len: bytes.len() as u64, sum: checksum(bytes) })
    }

    /// Writes bytes to a place that was taken.
    pub(crate) fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.storage.write_at(offset, bytes)?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Bytes that these have written.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Whether the last commit stands for sure: what a failed one has written is of no use.
    pub(crate) fn is_settled(&self) -> bool {
        self.slots.as_ref().is_none_or(|slots| slots.unfinished.is_none())
    }

    /// Makes a state that of the file, durably. Nothing is written where nothing has changed. On an error the last commit
    /// stands, and the call may be repeated.
    /// IO: if the file cannot be written. CORRUPT: if two places overlap.
    pub fn commit(&mut self, new: NewState) -> Result<()> {
        if self.access == Access::Read {
            bail!(InvalidArgument, "{} is open to be read", self.name());
        }
        self.finish_slots()?;
        let mut written = Vec::new();
        let committed = self.write_index(&new, &mut written).and_then(|index| self.commit_index(index, new.places));
        if let (Err(_), true) = (&committed, self.is_settled()) {
            // No slot leads to them.
            written.into_iter().for_each(|at| self.free(at.range()));
        }
        committed
    }

    /// Writes tables and sections that the file has not. Returns the index of the next commit; `None` where it would be the same.
    fn write_index(&mut self, new: &NewState, written: &mut Vec<Extent>) -> Result<Option<Index>> {
        let sequence = self.version().map_or(0, |last| last + 1);
        let mut index = Index { sequence, working: new.working, ..Index::default() };
        memory::reserve(written, new.layers.len() + new.sections.len())?;
        for (layer, bytes) in &new.layers {
            let old = self.index.layer(*layer).copied();
            memory::push(&mut index.layers, (*layer, self.write_new(bytes, old, written)?))?;
        }
        for (name, bytes) in &new.sections {
            let old = self.index.section(name).copied();
            let at = self.write_new(bytes, old, written)?;
            memory::push(&mut index.sections, (memory::text(name)?, at))?;
        }
        if new.keeps_sections {
            let stays = |name: &String| !new.sections.iter().any(|(other, _)| other == name);
            for (name, at) in self.index.sections.iter().filter(|(name, _)| stays(name)) {
                memory::push(&mut index.sections, (memory::text(name)?, *at))?;
            }
        }
        index.sections.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let is_same =
            self.slots.is_some() && index.layers == self.index.layers && index.sections == self.index.sections;
        Ok(if is_same { None } else { Some(index) })
    }

    /// Writes bytes that are not the `old` ones.
    fn write_new(&mut self, bytes: &[u8], old: Option<Extent>, written: &mut Vec<Extent>) -> Result<Extent> {
        match old.filter(|old| old.len == bytes.len() as u64 && old.sum == checksum(bytes)) {
            Some(old) => Ok(old),
            None => {
                let at = self.write(bytes)?;
                memory::push(written, at)?;
                Ok(at)
            }
        }
    }

    /// Writes an index and the slot that leads to it; then all is free that it does not lead to.
    fn commit_index(&mut self, index: Option<Index>, places: Vec<Range<u64>>) -> Result<()> {
        let Some(index) = index else { return Ok(()) };
        let at = self.write(&index.write()?)?;
        let space = self.space_of(&index, Some(&at), places);
        let header = Header::new(&self.fingerprint);
        let result = space.and_then(|space| {
            let slot = Slot { sequence: index.sequence, index: at, end: space.end(), fingerprint: header.fingerprint };
            match self.slots {
                None => self.write_first(&header, slot)?,
                Some(_) => {
                    self.sync()?;
                    self.write_slot(slot)?;
                }
            }
            Ok(space)
        });
        match result {
            Ok(space) => {
                (self.space, self.index) = (space, index);
                self.cut();
                Ok(())
            }
            Err(error) => {
                if self.is_settled() {
                    self.free(at.range());
                }
                Err(error)
            }
        }
    }

    /// The first commit.
    fn write_first(&mut self, header: &Header, slot: Slot) -> Result<()> {
        let mut start = Vec::new();
        for copy in COPIES {
            memory::extend(&mut start, &slot.write(copy.offset()))?;
        }
        memory::extend(&mut start, &self.fingerprint)?;
        self.storage.write_at(SECTOR as u64, &start)?;
        self.sync()?;
        // Last, so that no part of a file is taken for one.
        self.storage.write_at(0, &header.write())?;
        let synced = self.sync().and_then(|()| self.storage.sync_name());
        if synced.is_err() {
            // It may be there or not.
            self.storage.write_at(0, &UNSAVED)?;
        }
        synced?;
        self.slots = Some(Slots { slots: [slot; 2], unfinished: None });
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        let synced = self.storage.sync();
        self.is_sync_lost |= synced.is_err();
        synced
    }

    /// Writes both copies of the slot of a new commit.
    ///
    /// Copy 1 must be durable before copy 2 is touched: if both could be half-written at once, a killed save would look
    /// like damage, and a reader could not tell a lost commit from one that never was.
    fn write_slot(&mut self, slot: Slot) -> Result<()> {
        let Some(slots) = &mut self.slots else { bail!(Internal, "a file without a commit has no slots") };
        let which = (slot.sequence % 2) as usize;
        for copy in COPIES.into_iter().filter(|copy| copy.slot == which) {
            if let Err(error) = write_copy(&self.storage, copy, &slot) {
                // The bytes on the disk are not certain now. The old slot is put back, copy 2 first, so that one is whole.
                slots.unfinished = Some(copy);
                let _ = self.finish_slots();
                return Err(error);
            }
        }
        slots.slots[which] = slot;
        Ok(())
    }

    /// Writes the copies that a failed or killed save may have left, from the second one that it began to the first.
    fn finish_slots(&mut self) -> Result<()> {
        let Some(slots) = &mut self.slots else { return Ok(()) };
        let Some(last) = slots.unfinished else { return Ok(()) };
        for copy in COPIES.into_iter().rev().filter(|copy| copy.slot == last.slot && copy.copy <= last.copy) {
            write_copy(&self.storage, copy, &slots.slots[copy.slot])?;
        }
        slots.unfinished = None;
        Ok(())
    }

    /// Drops the bytes behind the last place. A medium that cannot do so keeps them.
    pub(crate) fn cut(&self) {
        if self.storage.len().is_ok_and(|len| len > self.len()) {
            let _ = self.storage.truncate(self.len());
        }
    }

    /// Gives the file another path, in place of what is there. BUSY: if a step reads it.
    pub(crate) fn rename(&mut self, to: &std::path::Path) -> Result<()> {
        match self.storage.get_mut() {
            Some(storage) => storage.rename(to),
            None => bail!(Busy, "{} is being read", self.name()),
        }
    }

    /// Compares all that the last commit leads to with its checksums. Calls `found` with each damage; returns the bytes read.
    pub fn verify(&self, mut found: impl FnMut(Error) -> Result<()>) -> Result<u64> {
        let mut bytes = 0;
        let mut see = |read: Result<u64>| match read {
            Ok(read) => {
                bytes += read;
                Ok(())
            }
            Err(error) => found(error.unless_out_of_memory()?),
        };
        for name in self.names() {
            see(self.section(name).map(|read| read.len() as u64))?;
        }
        for layer in self.layers() {
            match self.table(layer) {
                Ok(table) => table.verify(self, layer, &mut see)?,
                Err(error) => see(Err(error))?,
            }
        }
        Ok(bytes)
    }
}

impl Drop for ChatFile {
    /// A file without a commit goes, and any other is cut back to its last one.
    fn drop(&mut self) {
        if self.access == Access::Read || !self.storage.is_own() {
            return;
        }
        match &self.slots {
            None => self.storage.remove(),
            Some(slots) => {
                let end = slots.newest().end;
                let is_longer = self.storage.len().is_ok_and(|len| len > end);
                // A slot that is not finished may lead behind.
                if is_longer && self.finish_slots().is_ok() {
                    let _ = self.storage.truncate(end);
                }
            }
        }
    }
}

/// Where the first thing of a file may be.
fn begin(fingerprint: &[u8]) -> u64 {
    FINGERPRINT + fingerprint.len() as u64
}

/// The error of a part of a file.
fn at(what: impl fmt::Display, offset: u64, storage: &Storage, error: &Error) -> Error {
    error.within(format_args!("{what} at offset {offset} of {}", storage.name()))
}

/// Reads bytes that must be there and have their checksum.
fn read(storage: &Storage, place: &Extent, what: impl fmt::Display) -> Result<Vec<u8>> {
    let read = || {
        let (len, end) = (storage.len()?, place.end());
        if end > len {
            bail!(Corrupt, "{} bytes; the file ends at {len}", place.len);
        }
        let room = usize::try_from(place.len).map_err(|_| memory::out_of_memory(usize::MAX))?;
        let mut bytes = memory::filled(0u8, room)?;
        storage.read_at(place.offset, &mut bytes)?;
        if checksum(&bytes) != place.sum {
            bail!(Corrupt, "the checksum of {} bytes does not match", place.len);
        }
        Ok(bytes)
    };
    read().map_err(|error| at(what, place.offset, storage, &error))
}

fn first_sector(storage: &Storage, offset: u64, what: &str, buffer: &mut Vec<u8>) -> Result<Sector> {
    let len = storage.len()?;
    let bytes = memory::at_least(buffer, SECTOR)?;
    if offset + SECTOR as u64 > len {
        // Of a file that is shorter, what it is.
        let there = len.saturating_sub(offset).min(8) as usize;
        storage.read_at(offset, &mut bytes[..there])?;
        let why =
            if offset == 0 && bytes[..there] == UNSAVED { "no chat was saved in it yet" } else { "the file ends" };
        return Err(at(what, offset, storage, &Error::formatted(Status::Corrupt, format_args!("{why} at {len}"))));
    }
    storage.read_at(offset, bytes).map_err(|e| at(what, offset, storage, &e))?;
    Ok(*bytes.first_chunk().expect("a sector was read"))
}

fn read_slots(storage: &Storage, header: &Header, buffer: &mut Vec<u8>) -> Result<Slots> {
    let mut copies = [None; 4];
    for (slot, copy) in copies.iter_mut().zip(COPIES) {
        // A save that was killed may have left one damaged.
        *slot = Slot::read(&first_sector(storage, copy.offset(), copy.name(), buffer)?, copy.offset());
    }
    let damaged = |copy: Copied, why| {
        at(copy.name(), copy.offset(), storage, &Error::formatted(Status::Corrupt, format_args!("{why}")))
    };
    let slots = Slots::read(&copies).map_err(|(copy, why)| damaged(copy, why))?;
    if slots.newest().fingerprint != header.fingerprint {
        return Err(damaged(COPIES[0], "the fingerprint is not that of the header"));
    }
    Ok(slots)
}

fn write_copy(storage: &Storage, copy: Copied, slot: &Slot) -> Result<()> {
    let sector: Sector = slot.write(copy.offset());
    let written = storage.write_at(copy.offset(), &sector).and_then(|()| storage.sync());
    written.map_err(|e| at(copy.name(), copy.offset(), storage, &e))
}

#[cfg(test)]
pub(crate) mod tests;
