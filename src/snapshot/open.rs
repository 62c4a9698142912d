//! A file to its newest state.

use super::sectors::{COPIES, Copied, FINGERPRINT, Header, SECTOR, Sector, Slot, Slots, check_fingerprint};
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
        let found = file.fingerprint(&header)?;
        if let Some(given) = fingerprint {
            compare(given, &found, storage.name())?;
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

fn compare(given: &[u8], found: &[u8], name: &str) -> Result<()> {
    if given != found {
        let differs = given.iter().zip(found).position(|(a, b)| a != b).unwrap_or(given.len().min(found.len()));
        bail!(
            Stale,
            "{name} is for another fingerprint: of {} bytes, {} given, byte {differs} differs first",
            found.len(),
            given.len()
        );
    }
    Ok(())
}

/// A file that is being read.
struct File<'a> {
    storage: &'a Storage,
    len: u64,
}

impl File<'_> {
    /// Reads a range that must be there.
    fn read(&self, place: Place<'_>, offset: u64, to: &mut [u8]) -> Result<()> {
        let result = match offset.checked_add(to.len() as u64) {
            Some(end) if end <= self.len => self.storage.read_at(offset, to),
            _ => Err(error!(Corrupt, "{} bytes; the file ends at {}", to.len(), self.len)),
        };
        result.map_err(|e| at(place, offset, self.storage, &e))
    }

    fn sector(&self, place: Place<'_>, offset: u64) -> Result<Sector> {
        let mut sector = [0; SECTOR];
        self.read(place, offset, &mut sector)?;
        Ok(sector)
    }

    fn header(&self) -> Result<Header> {
        let sector = self.sector(Place::Header, 0)?;
        Header::read(&sector).map_err(|e| at(Place::Header, 0, self.storage, &e))
    }

    fn fingerprint(&self, header: &Header) -> Result<Vec<u8>> {
        let mut bytes = memory::filled(0u8, header.fingerprint_len as usize)?;
        self.read(Place::Fingerprint, FINGERPRINT, &mut bytes)?;
        if checksum(&bytes) != header.fingerprint_sum {
            let error = error!(Corrupt, "the checksum does not match");
            return Err(at(Place::Fingerprint, FINGERPRINT, self.storage, &error));
        }
        Ok(bytes)
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
        let found = slots.newest().header();
        if (found.fingerprint_len, found.fingerprint_sum) != (header.fingerprint_len, header.fingerprint_sum) {
            return Err(damaged(COPIES[0], "the fingerprint is not that of the header"));
        }
        Ok(slots)
    }

    /// Reads the records that lead to a state, from the last to the first, and applies them from the first on.
    fn state(&self, slot: &Slot, header: &Header) -> Result<State> {
        let body = FINGERPRINT + u64::from(header.fingerprint_len);
        let mut buffer = Vec::new();
        let mut records = Vec::new();
        let mut next = Some(Extent { offset: slot.record, len: slot.record_len, sum: slot.record_sum });
        let mut sequence = slot.sequence;
        while let Some(record) = next {
            let head = self.record(sequence, &record, &mut buffer).and_then(|bytes| {
                RecordHead::read(&mut Reader::new(bytes), sequence, &record, body)
                    .map_err(|e| at(Place::Record(sequence), record.offset, self.storage, &e))
            });
            next = head?.previous;
            memory::push(&mut records, (sequence, record))?;
            sequence = sequence.saturating_sub(1);
        }
        let mut state = State::default();
        for (sequence, record) in records.into_iter().rev() {
            let mut reader = Reader::new(self.record(sequence, &record, &mut buffer)?);
            RecordHead::read(&mut reader, sequence, &record, body)
                .and_then(|head| state.apply(&head, record, reader))
                .map_err(|e| at(Place::Record(sequence), record.offset, self.storage, &e))?;
        }
        Ok(state)
    }

    fn record<'a>(&self, sequence: u64, record: &Extent, buffer: &'a mut Vec<u8>) -> Result<&'a [u8]> {
        let place = Place::Record(sequence);
        if record.end() > self.len {
            let error = error!(Corrupt, "{} bytes; the file ends at {}", record.len, self.len);
            return Err(at(place, record.offset, self.storage, &error));
        }
        let len = usize::try_from(record.len).map_err(|_| memory::out_of_memory(usize::MAX))?;
        let bytes = memory::at_least(buffer, len)?;
        self.read(place, record.offset, bytes)?;
        if checksum(bytes) != record.sum {
            return Err(at(place, record.offset, self.storage, &error!(Corrupt, "the checksum does not match")));
        }
        Ok(bytes)
    }
}
