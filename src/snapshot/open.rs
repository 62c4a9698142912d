//! A file to its newest state.

use super::sectors::{COPIES, Copied, Header, SECTOR, Sector, Slot, Slots, check_fingerprint};
use super::state::{Extent, RecordHead, State};
use super::{Access, Place, Snapshot, at, checksum};
use crate::bytes::Reader;
use crate::status::{Result, Status, bail, error};
use crate::sys::storage::Storage;
use crate::sys::{Shared, memory};

impl Snapshot {
    /// Opens a file at its newest state. `fingerprint`: what it must be for, at most 64 KiB; `None` takes any.
    pub fn open(storage: Storage, fingerprint: Option<&[u8]>, access: Access) -> Result<Self> {
        fingerprint.map(check_fingerprint).transpose()?;
        let file = File { len: storage.len()?, storage: &storage };
        let header = file.header()?;
        let mut found = Vec::new();
        file.checked(Place::Fingerprint, &header.fingerprint, &mut found)?;
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
        if access == Access::Append {
            header.check_writer().map_err(|e| at(Place::Header, 0, &storage, &e))?;
        }
        let slots = file.slots(&header)?;
        let state = file.state(slots.newest(), &header)?;
        let map = storage.map(state.end);
        let mut snapshot = Snapshot::new(Shared::new(storage)?, map, access, found, slots, state);
        if access == Access::Append {
            snapshot.finish_slots()?;
            if snapshot.storage.len()? > snapshot.state.end {
                snapshot.discard()?;
            }
        }
        Ok(snapshot)
    }
}

/// A file that is being read.
struct File<'a> {
    storage: &'a Storage,
    len: u64,
}

impl File<'_> {
    /// Reads bytes that must be there.
    fn read<'a>(&self, place: Place<'_>, offset: u64, len: u64, buffer: &'a mut Vec<u8>) -> Result<&'a [u8]> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            let error = error!(Corrupt, "{len} bytes; the file ends at {}", self.len);
            return Err(at(place, offset, self.storage, &error));
        }
        let len = usize::try_from(len).map_err(|_| memory::out_of_memory(usize::MAX))?;
        let bytes = memory::at_least(buffer, len)?;
        self.storage.read_at(offset, bytes).map_err(|e| at(place, offset, self.storage, &e))?;
        Ok(bytes)
    }

    /// Reads bytes that must be there and have their checksum.
    fn checked<'a>(&self, place: Place<'_>, extent: &Extent, buffer: &'a mut Vec<u8>) -> Result<&'a [u8]> {
        let bytes = self.read(place, extent.offset, extent.len, buffer)?;
        if checksum(bytes) != extent.sum {
            return Err(at(place, extent.offset, self.storage, &error!(Corrupt, "the checksum does not match")));
        }
        Ok(bytes)
    }

    fn sector(&self, place: Place<'_>, offset: u64) -> Result<Sector> {
        let mut buffer = Vec::new();
        Ok(*self.read(place, offset, SECTOR as u64, &mut buffer)?.first_chunk().expect("a sector was read"))
    }

    fn header(&self) -> Result<Header> {
        let sector = self.sector(Place::Header, 0)?;
        Header::read(&sector).map_err(|e| at(Place::Header, 0, self.storage, &e))
    }

    /// Reads a copy of a slot.
    fn copy(&self, copy: Copied) -> Result<Slot> {
        let sector = self.sector(copy.place(), copy.offset())?;
        Slot::read(&sector, copy.offset()).ok_or_else(|| {
            let error = error!(Corrupt, "the checksum does not match");
            at(copy.place(), copy.offset(), self.storage, &error)
        })
    }

    fn slots(&self, header: &Header) -> Result<Slots> {
        let mut copies = [None; 4];
        for (slot, copy) in copies.iter_mut().zip(COPIES) {
            *slot = match self.copy(copy) {
                Ok(found) => Some(found),
                // A save that was killed may have left it so.
                Err(error) if error.status() == Status::Corrupt && copy.offset() + SECTOR as u64 <= self.len => None,
                Err(error) => return Err(error),
            };
        }
        let damaged = |copy: Copied, why| at(copy.place(), copy.offset(), self.storage, &error!(Corrupt, "{why}"));
        let slots = Slots::read(&copies).map_err(|(copy, why)| damaged(copy, why))?;
        if slots.newest().fingerprint != header.fingerprint {
            return Err(damaged(COPIES[0], "the fingerprint is not that of the header"));
        }
        Ok(slots)
    }

    /// Reads the records that lead to a state, from the last to the first, and applies them from the first on.
    fn state(&self, slot: &Slot, header: &Header) -> Result<State> {
        let body = header.fingerprint.end();
        let mut buffer = Vec::new();
        let mut records = Vec::new();
        let mut next = Some(slot.record);
        let mut sequence = slot.sequence;
        while let Some(record) = next {
            let place = Place::Record(sequence);
            let mut reader = Reader::new(self.checked(place, &record, &mut buffer)?);
            let head = RecordHead::read(&mut reader, sequence, &record, body);
            next = head.map_err(|e| at(place, record.offset, self.storage, &e))?.previous;
            memory::push(&mut records, (sequence, record))?;
            sequence = sequence.saturating_sub(1);
        }
        let mut state = State::default();
        for (sequence, record) in records.into_iter().rev() {
            let place = Place::Record(sequence);
            let mut reader = Reader::new(self.checked(place, &record, &mut buffer)?);
            RecordHead::read(&mut reader, sequence, &record, body)
                .and_then(|head| state.apply(&head, record, reader))
                .map_err(|e| at(place, record.offset, self.storage, &e))?;
        }
        Ok(state)
    }
}
