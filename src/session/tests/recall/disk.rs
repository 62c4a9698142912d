//! A disk in memory that fails when told.

use crate::snapshot::{Medium, SharedSnapshot, Snapshot, Storage};
use crate::status::{Error, Result, Status};
use std::sync::{Arc, Mutex};

pub(super) struct Inner {
    pub(super) bytes: Vec<u8>,
    pub(super) room: usize,
    pub(super) writes_fail: bool,
    pub(super) reads_fail: bool,
}

/// Clones are the same disk.
#[derive(Clone)]
pub(super) struct Disk(Arc<Mutex<Inner>>);

impl Default for Disk {
    fn default() -> Self {
        let inner = Inner { bytes: Vec::new(), room: usize::MAX, writes_fail: false, reads_fail: false };
        Disk(Arc::new(Mutex::new(inner)))
    }
}

impl Disk {
    pub(super) fn create(&self) -> SharedSnapshot {
        let storage = Storage::host("chat.kv", self.clone()).unwrap();
        SharedSnapshot::new(|| Snapshot::create(storage, b"model")).unwrap()
    }

    pub(super) fn fail(&self, how: impl FnOnce(&mut Inner)) {
        how(&mut self.0.lock().unwrap());
    }

    pub(super) fn repair(&self) {
        self.fail(|disk| (disk.room, disk.writes_fail, disk.reads_fail) = (usize::MAX, false, false));
    }
}

fn failed<T>() -> Result<T> {
    Err(Error::new(Status::Io, "a disk of tests fails"))
}

impl Medium for Disk {
    fn len(&self) -> Result<u64> {
        Ok(self.0.lock().unwrap().bytes.len() as u64)
    }

    fn read_at(&self, offset: u64, to: &mut [u8]) -> Result<()> {
        let disk = self.0.lock().unwrap();
        match disk.bytes.get(offset as usize..).and_then(|rest| rest.get(..to.len())) {
            Some(from) if !disk.reads_fail => to.copy_from_slice(from),
            _ => return failed(),
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        let mut disk = self.0.lock().unwrap();
        let end = offset as usize + from.len();
        if disk.writes_fail || end > disk.room {
            return failed();
        }
        let len = disk.bytes.len().max(end);
        disk.bytes.resize(len, 0);
        disk.bytes[offset as usize..end].copy_from_slice(from);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        if self.0.lock().unwrap().writes_fail { failed() } else { Ok(()) }
    }

    fn truncate(&self, len: u64) -> Result<()> {
        self.0.lock().unwrap().bytes.truncate(len as usize);
        Ok(())
    }
}
