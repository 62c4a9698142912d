//! A disk in memory: it keeps a log of its writes, what would survive a power failure, and fails when told.

use crate::status::{Error, Result, Status};
use crate::sys::storage::{Medium, Storage};
use std::sync::{Arc, Mutex};

#[derive(Clone, Debug)]
pub enum Event {
    Write(usize, Vec<u8>),
    Sync,
}

#[derive(Default)]
struct Inner {
    bytes: Vec<u8>,
    durable: Vec<u8>,
    dirty: Vec<(usize, Vec<u8>)>,
    log: Vec<Event>,
    /// Writes and syncs that still succeed, and how many fail then.
    failing: Option<(usize, usize)>,
}

/// Clones are the same disk.
#[derive(Clone, Default)]
pub struct Disk(Arc<Mutex<Inner>>);

impl Disk {
    pub fn of(bytes: &[u8]) -> Self {
        let disk = Disk::default();
        *disk.0.lock().unwrap() = Inner { bytes: bytes.to_vec(), durable: bytes.to_vec(), ..Inner::default() };
        disk
    }

    pub fn storage(&self) -> Storage {
        Storage::host("chat.kv", self.clone()).unwrap()
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().bytes.clone()
    }

    /// The bytes after a power failure that loses all that was not synced.
    pub fn durable(&self) -> Vec<u8> {
        self.0.lock().unwrap().durable.clone()
    }

    /// The writes and syncs since the last call.
    pub fn take_log(&self) -> Vec<Event> {
        std::mem::take(&mut self.0.lock().unwrap().log)
    }

    /// After `calls` more writes and syncs, `failures` of them fail.
    pub fn fail_after(&self, calls: usize, failures: usize) {
        self.0.lock().unwrap().failing = Some((calls, failures));
    }

    /// Returns whether a call has failed, and lets all succeed from now on.
    pub fn repair(&self) -> bool {
        matches!(self.0.lock().unwrap().failing.take(), Some((0, _)))
    }
}

/// Writes `from` at `offset`, behind zeros where the bytes end before.
pub fn write(bytes: &mut Vec<u8>, offset: usize, from: &[u8]) {
    let end = offset + from.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[offset..end].copy_from_slice(from);
}

impl Inner {
    fn fails(&mut self) -> bool {
        match &mut self.failing {
            Some((0, 0)) | None => false,
            Some((0, failures)) => {
                *failures -= 1;
                true
            }
            Some((calls, _)) => {
                *calls -= 1;
                false
            }
        }
    }
}

fn full() -> Result<()> {
    Err(Error::new(Status::Io, "no space left"))
}

impl Medium for Disk {
    fn len(&self) -> Result<u64> {
        Ok(self.0.lock().unwrap().bytes.len() as u64)
    }

    fn read_at(&self, offset: u64, to: &mut [u8]) -> Result<()> {
        let inner = &mut *self.0.lock().unwrap();
        match inner.bytes.get(offset as usize..).and_then(|rest| rest.get(..to.len())) {
            Some(from) => to.copy_from_slice(from),
            None => return Err(Error::new(Status::Io, "the bytes end before")),
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        let inner = &mut *self.0.lock().unwrap();
        let fails = inner.fails();
        // A write that fails has written a part.
        let written = &from[..if fails { from.len() / 2 } else { from.len() }];
        write(&mut inner.bytes, offset as usize, written);
        inner.dirty.push((offset as usize, written.to_vec()));
        inner.log.push(Event::Write(offset as usize, written.to_vec()));
        if fails { full() } else { Ok(()) }
    }

    /// A sync that fails has lost what was written since the last one, and the next one does not tell.
    fn sync(&self) -> Result<()> {
        let inner = &mut *self.0.lock().unwrap();
        let dirty = std::mem::take(&mut inner.dirty);
        if inner.fails() {
            return full();
        }
        dirty.iter().for_each(|(offset, from)| write(&mut inner.durable, *offset, from));
        inner.log.push(Event::Sync);
        Ok(())
    }

    fn truncate(&self, len: u64) -> Result<()> {
        let inner = &mut *self.0.lock().unwrap();
        inner.bytes.truncate(len as usize);
        inner.durable.truncate(len as usize);
        Ok(())
    }
}
