//! A disk in memory that keeps a log of its writes, and fills up when told.

use mnnkv::snapshot::{Medium, Storage};
use mnnkv::status::{Error, Result, Status};
use std::sync::{Arc, Mutex};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Write(u64, Vec<u8>),
    Sync,
}

#[derive(Default)]
struct Inner {
    bytes: Vec<u8>,
    log: Vec<Event>,
    /// Calls that still succeed; then one of them fails, or all.
    left: Option<(usize, bool)>,
}

#[derive(Clone, Default)]
pub struct Disk(Arc<Mutex<Inner>>);

impl Disk {
    pub fn of(bytes: Vec<u8>) -> Self {
        let disk = Disk::default();
        disk.0.lock().unwrap().bytes = bytes;
        disk
    }

    pub fn storage(&self) -> Storage {
        Storage::host("chat.kv", self.clone()).unwrap()
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().bytes.clone()
    }

    /// The writes and syncs since the last call.
    pub fn take_log(&self) -> Vec<Event> {
        std::mem::take(&mut self.0.lock().unwrap().log)
    }

    /// After `calls` more writes and syncs one fails, or all.
    pub fn fail_after(&self, calls: Option<(usize, bool)>) {
        self.0.lock().unwrap().left = calls;
    }
}

impl Inner {
    fn check(&mut self) -> Result<()> {
        match &mut self.left {
            Some((0, lasts)) => {
                if !*lasts {
                    self.left = None;
                }
                Err(Error::new(Status::Io, "no space left"))
            }
            Some((left, _)) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl Medium for Disk {
    fn len(&self) -> Result<u64> {
        Ok(self.0.lock().unwrap().bytes.len() as u64)
    }

    fn read_at(&self, offset: u64, to: &mut [u8]) -> Result<()> {
        let inner = self.0.lock().unwrap();
        match inner.bytes.get(offset as usize..).and_then(|rest| rest.get(..to.len())) {
            Some(from) => Ok(to.copy_from_slice(from)),
            None => Err(Error::new(Status::Io, "read behind the end")),
        }
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        let mut inner = self.0.lock().unwrap();
        let failure = inner.check().err();
        // A write that fails has written a part.
        let from = if failure.is_some() { &from[..from.len() / 2] } else { from };
        let end = offset as usize + from.len();
        if inner.bytes.len() < end {
            inner.bytes.resize(end, 0);
        }
        inner.bytes[offset as usize..end].copy_from_slice(from);
        inner.log.push(Event::Write(offset, from.to_vec()));
        failure.map_or(Ok(()), Err)
    }

    fn sync(&self) -> Result<()> {
        let mut inner = self.0.lock().unwrap();
        inner.check()?;
        inner.log.push(Event::Sync);
        Ok(())
    }

    fn truncate(&self, len: u64) -> Result<()> {
        self.0.lock().unwrap().bytes.truncate(len as usize);
        Ok(())
    }
}
