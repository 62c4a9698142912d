//! The file of `kv_memory_file`: blocks that have left memory. It is of one session, and gone with it.
//!
//! A block is written whole, once, and keeps its place until its tokens are gone. One that a session has left behind, since
//! its process was killed, is written anew by the next.

use crate::attend::{Blocks, Offloaded, Placed, SketchWork};
use crate::status::{Error, Result, Status, bail, error};
use crate::sys::storage::Storage;
use crate::sys::{Shared, files, memory};
use std::ops::Range;
use std::path::Path;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// The first bytes.
const MAGIC: &[u8; 16] = b"mnn-kv offload 1";
/// Blocks that are not tried after a write has failed.
const REST: u32 = 256;

/// The file.
pub(super) struct Offload {
    path: String,
    /// Most bytes.
    most: Option<u64>,
    wait: Duration,
    /// `None` where it could not be made, until a block is written.
    storage: Option<Shared<Storage>>,
    end: u64,
    /// Places of blocks that are gone, ascending, with none beside another.
    free: Vec<Range<u64>>,
    /// Blocks that are not tried any more.
    rest: u32,
    failure: Option<Error>,
    written: u64,
    failed: u64,
    bytes: Vec<u8>,
    sketches: SketchWork,
}

impl Drop for Offload {
    fn drop(&mut self) {
        if let Some(storage) = &self.storage {
            storage.remove();
        }
    }
}

impl Offload {
    pub(super) fn new(path: String, most: Option<u64>, wait: Duration) -> Self {
        Offload {
            path,
            most,
            wait,
            storage: None,
            end: 0,
            free: Vec::new(),
            rest: 0,
            failure: None,
            written: 0,
            failed: 0,
            bytes: Vec::new(),
            sketches: SketchWork::default(),
        }
    }

    /// Makes the file. Where that fails [`Self::failure`] is why, and blocks try again. OUT_OF_MEMORY: nothing was tried.
    pub(super) fn make(&mut self) -> Result<()> {
        if let Err(error) = self.opened() {
            self.failure = Some(error.unless_out_of_memory()?);
        }
        Ok(())
    }

    /// Its path, as the config has it.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// The file, and the longest wait for blocks; `None` where it could not be made.
    pub(super) fn source(&self) -> Option<(Shared<Storage>, Duration)> {
        Some((self.storage.clone()?, self.wait))
    }

    /// Reads the codes of a head of a block.
    /// CORRUPT: if they are not those that were written.
    pub(super) fn read(&self, from: &Offloaded, bytes: &mut Vec<u8>) -> Result<()> {
        let Some(storage) = &self.storage else { bail!(Internal, "blocks are away, and there is no file") };
        memory::resize(bytes, from.bytes())?;
        let end = from.offset + bytes.len() as u64;
        if storage.len()? < end {
            bail!(Corrupt, "{} ends before byte {end}", self.path);
        }
        storage.read_at(from.offset, bytes)?;
        if xxh3_64(bytes) != from.sum {
            bail!(Corrupt, "{} bytes at {} of {} have changed", bytes.len(), from.offset, self.path);
        }
        Ok(())
    }

    /// Bytes of the file, bytes written since create, and writes that failed.
    pub(super) fn counts(&self) -> (u64, u64, u64) {
        (self.end, self.written, self.failed)
    }

    /// Why the file could not be made, or the first write failed.
    pub(super) fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// Whether the file could not be made.
    pub(super) fn is_missing(&self) -> bool {
        self.storage.is_none() && self.failure.is_some()
    }

    /// Bytes of working memory.
    pub(super) fn working_bytes(&self) -> usize {
        self.bytes.capacity() + self.sketches.bytes() + self.free.capacity() * size_of::<Range<u64>>()
    }

    /// Writes a block that the file does not have, whose heads are in memory or nowhere. Returns false if the file does not take
    /// it; the reason of the first failure is kept. OUT_OF_MEMORY: nothing was tried.
    pub(super) fn write(&mut self, blocks: &mut Blocks, block: u32) -> Result<bool> {
        if self.rest > 0 {
            self.rest -= 1;
            return Ok(false);
        }
        match self.try_write(blocks, block) {
            Ok(()) => Ok(true),
            Err(error) => {
                let error = error.unless_out_of_memory()?;
                self.rest = REST;
                self.failed += 1;
                self.failure.get_or_insert(error);
                Ok(false)
            }
        }
    }

    fn try_write(&mut self, blocks: &mut Blocks, block: u32) -> Result<()> {
        if blocks.basis.is_none() {
            blocks.learn()?;
        }
        let Some(basis) = &blocks.basis else { bail!(Internal, "sketches have no directions") };
        let mut heads = Vec::new();
        memory::reserve(&mut heads, blocks.heads())?;
        self.bytes.clear();
        for head in 0..blocks.heads() {
            let offset = self.bytes.len();
            blocks.copy(block, head, &mut self.bytes)?;
            let place = (offset as u64, &self.bytes[offset..]);
            let offloaded = match blocks.view(block, head, &[]) {
                Some(codes) => Some(Offloaded::new(&codes, place, (basis, head), &mut self.sketches)?),
                None => None,
            };
            memory::push(&mut heads, offloaded)?;
        }
        let len = self.bytes.len() as u64;
        let storage = self.opened()?;
        let place = self.place(len)?;
        storage.write_at(place.start, &self.bytes)?;
        self.take(&place);
        self.written += len;
        heads.iter_mut().flatten().for_each(|offloaded| offloaded.offset += place.start);
        blocks.written(block, place, heads);
        Ok(())
    }

    /// The file, which is made if there is none.
    fn opened(&mut self) -> Result<Shared<Storage>> {
        if let Some(storage) = &self.storage {
            return Ok(storage.clone());
        }
        let path = Path::new(&self.path);
        let made = match Storage::create(path) {
            Ok(made) => made,
            // Its file would stay when the session removes the link.
            Err(_) if files::is_link(path) => {
                bail!(InvalidArgument, "kv_memory_file is {}, which is a symbolic link: it is left alone", self.path)
            }
            Err(refused) => {
                // What another session has left.
                let left = Storage::edit(path).map_err(|e| if e.status() == Status::NotFound { refused } else { e })?;
                let (mut magic, len) = ([0; MAGIC.len()], left.len()?.min(MAGIC.len() as u64) as usize);
                // One that was killed before all of it was there is of a session, too.
                if left.read_at(0, &mut magic[..len]).is_err() || magic[..len] != MAGIC[..len] {
                    bail!(
                        InvalidArgument,
                        "kv_memory_file is {}, which exists and is no file of blocks: it is left alone",
                        self.path
                    );
                }
                left.truncate(0)?;
                left
            }
        };
        if let Err(error) = made.write_at(0, MAGIC) {
            made.remove();
            return Err(error);
        }
        made.expect_random_reads();
        let storage = Shared::new(made)?;
        (self.storage, self.end) = (Some(storage.clone()), MAGIC.len() as u64);
        Ok(storage)
    }

    /// A place of a length: the first that is free, or after all blocks.
    fn place(&self, len: u64) -> Result<Range<u64>> {
        if let Some(free) = self.free.iter().find(|free| free.end - free.start >= len) {
            return Ok(free.start..free.start + len);
        }
        let last = self.free.last().filter(|free| free.end == self.end);
        let start = last.map_or(self.end, |free| free.start);
        let place = start..start + len;
        match self.most {
            Some(most) if place.end > most => Err(error!(
                Busy,
                "{} has {} bytes, and kv_memory_file_mb is {}",
                self.path,
                self.end,
                most as f64 / 1e6
            )),
            _ => Ok(place),
        }
    }

    /// A block is at a place.
    fn take(&mut self, place: &Range<u64>) {
        self.end = self.end.max(place.end);
        if let Some(at) = self.free.iter().position(|free| free.start == place.start) {
            self.free[at].start = place.end;
            if self.free[at].is_empty() {
                self.free.remove(at);
            }
        }
    }

    /// The tokens of a block are gone.
    pub(super) fn free(&mut self, placed: &Placed) {
        placed.place.iter().for_each(|place| self.free_place(place.clone()));
    }

    /// Nothing is at a place any more.
    pub(super) fn free_place(&mut self, place: Range<u64>) {
        let at = self.free.partition_point(|free| free.start < place.start);
        if at > 0 && self.free[at - 1].end == place.start {
            self.free[at - 1].end = place.end;
            if self.free.get(at).is_some_and(|next| next.start == place.end) {
                self.free[at - 1].end = self.free.remove(at).end;
            }
        } else if let Some(next) = self.free.get_mut(at).filter(|next| next.start == place.end) {
            next.start = place.start;
        } else if memory::push(&mut self.free, place).is_ok() {
            // One that there is no memory for is lost until the file is gone.
            self.free[at..].rotate_right(1);
        }
        // The file may have had no room but this.
        self.rest = 0;
    }
}

#[cfg(test)]
mod tests;
