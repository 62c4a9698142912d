//! The tier below memory: the chat file of a session, and the thread that writes blocks to it.
//!
//! A block is written whole, once, and keeps its place until its tokens are gone. Its heads leave memory once it is there. A
//! step waits for a write as long as for a read at most: what the queue has no room for then is tried again by a later one.

mod writer;

pub(super) use writer::Sketching;

use crate::attend::{Blocks, GROUP, Offloaded, Place, Placed};
use crate::file::{Access, ChatFile};
use crate::status::{Error, Result, Status, bail};
use crate::sys::storage::Storage;
use crate::sys::{Shared, files, memory};
use std::path::{Path, PathBuf};
use std::time::Duration;
use writer::{Directions, Job, Writer, Written};
use xxhash_rust::xxh3::xxh3_64;

/// A save writes a file anew of which more than half is free, from so many free bytes on.
const LEAST_FREE: u64 = if cfg!(test) { 1 << 12 } else { 1 << 20 };
/// What the name of a file ends with that takes the place of the chat's.
const NEW: &str = ".mnnkv-new";
/// Blocks that are not tried after a write has failed.
const REST: u32 = 256;
/// Most bytes of blocks that are on their way, of a chat without a budget.
const MOST_WAITING: usize = 4 << 20;

/// What comes of an attempt to write a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// It is on its way.
    Queued,
    /// A later step tries again.
    Later,
    /// The file does not take it.
    Refused,
}

/// The file of a session, and its writes.
pub(super) struct Tier {
    /// Its thread ends before the file is closed.
    writer: Writer,
    /// From the root on: the process may change its working folder.
    path: PathBuf,
    fingerprint: Vec<u8>,
    /// Most bytes of the file.
    most: Option<u64>,
    /// Longest wait for it, for each token of a step; the budget sets it.
    pub(super) wait: Duration,
    /// `None` where it could not be made, until a block is written.
    pub(super) file: Option<ChatFile>,
    /// Most bytes of blocks that are on their way, or one block; the budget sets it.
    pub(super) most_waiting: usize,
    /// Writes that have ended.
    ended: Vec<Written>,
    last_ticket: u64,
    /// Blocks that are not tried any more.
    rest: u32,
    /// A file that would have been smaller could not be written: this one is kept, with what is free in it.
    is_kept: bool,
    /// The file has a name that a power failure may undo.
    is_renamed: bool,
    failure: Option<Error>,
    written: u64,
    /// The end of the last block that was written.
    end: u64,
    failed: u64,
    late: u64,
}

impl Tier {
    /// Makes the file, or takes the one that is there. Where that fails [`Self::failure`] is why, and blocks try again.
    /// OUT_OF_MEMORY: nothing was tried.
    pub(super) fn new(path: &str, fingerprint: &[u8], most: Option<u64>) -> Result<Self> {
        let mut tier = Tier { most, ..Tier::without_file(files::absolute(Path::new(path))?, fingerprint)? };
        if let Err(error) = tier.opened() {
            tier.failure = Some(error.unless_out_of_memory()?);
        }
        Ok(tier)
    }

    /// The file of a chat that has one.
    pub(super) fn given(tier: &mut Option<Tier>) -> Result<&mut Tier> {
        match tier {
            Some(tier) => Ok(tier),
            None => bail!(Internal, "the chat has no file"),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Where its bytes are; `None` where it could not be made.
    pub(super) fn storage(&self) -> Option<&Storage> {
        Some(self.file.as_ref()?.storage())
    }

    /// The file, and the longest wait for blocks; `None` where it could not be made.
    pub(super) fn source(&self) -> Option<(Shared<Storage>, Duration)> {
        Some((self.file.as_ref()?.storage().clone(), self.wait))
    }

    /// Bytes of the file, bytes written since create, writes that failed, and blocks that came too late for a step.
    pub(super) fn counts(&self) -> [u64; 4] {
        [self.file.as_ref().map_or(0, ChatFile::len), self.written, self.failed, self.late]
    }

    /// Why the file could not be made, or the first write failed.
    pub(super) fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// Whether the file could not be made.
    pub(super) fn is_missing(&self) -> bool {
        self.file.is_none() && self.failure.is_some()
    }

    /// Bytes of blocks that are on their way.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.writer.bytes()
    }

    /// Bytes of memory beside those blocks.
    pub(super) fn bytes(&self) -> usize {
        self.file.as_ref().map_or(0, ChatFile::bytes)
    }

    /// Begins a new file at a path. As [`create`].
    pub(super) fn create(path: PathBuf, fingerprint: &[u8]) -> Result<Self> {
        Tier::of(create(&path, fingerprint, Storage::create)?, path, fingerprint, None)
    }

    /// Takes a file, with the settings of another one.
    pub(super) fn of(file: ChatFile, path: PathBuf, fingerprint: &[u8], before: Option<&Tier>) -> Result<Self> {
        let most = before.and_then(|before| before.most);
        let [_, written, failed, late] = before.map_or([0; 4], Tier::counts);
        let file = Some(file);
        Ok(Tier { most, file, written, failed, late, ..Tier::without_file(path, fingerprint)? })
    }

    /// One without limits that has written nothing.
    fn without_file(path: PathBuf, fingerprint: &[u8]) -> Result<Self> {
        Ok(Tier {
            path,
            fingerprint: memory::copied(fingerprint)?,
            most: None,
            wait: Duration::ZERO,
            file: None,
            writer: Writer::new()?,
            most_waiting: MOST_WAITING,
            ended: Vec::new(),
            last_ticket: 0,
            rest: 0,
            is_kept: false,
            is_renamed: false,
            failure: None,
            written: 0,
            end: 0,
            failed: 0,
            late: 0,
        })
    }

    /// A file that takes the place of this one, where this one cannot be trusted or more than half of it is free.
    /// INVALID_ARGUMENT: if another file has taken its path.
    pub(super) fn anew(&mut self) -> Result<Option<ChatFile>> {
        let Some(file) = &self.file else { return Ok(None) };
        if file.is_lost() {
            if !file.is_at_path() && files::kind(&self.path).is_ok() {
                bail!(InvalidArgument, "another file has taken the place of {}: it is left alone", self.path.display());
            }
            return self.create_new().map(Some);
        }
        // Elsewhere a file that is open cannot be replaced; a link would be, and not what it leads to.
        let may_be_replaced = cfg!(unix) && !self.is_kept && !files::is_link(&self.path);
        if !may_be_replaced || file.free_bytes() < LEAST_FREE.max(file.len() / 2) {
            return Ok(None);
        }
        match self.create_new() {
            Ok(made) => Ok(Some(made)),
            Err(error) => {
                error.unless_out_of_memory()?;
                self.is_kept = true;
                Ok(None)
            }
        }
    }

    /// The file that is to take the place of this one, with the rights of this one.
    fn create_new(&self) -> Result<ChatFile> {
        let path = PathBuf::from(files::text(&[self.path.as_os_str(), NEW.as_ref()], 0)?);
        let create = || create(&path, &self.fingerprint, Storage::create_private);
        let made = create().or_else(|refused| {
            // What a save has left that was killed behind its commit.
            drop(ChatFile::open(edit(&path, refused)?, Some(&self.fingerprint), Access::Read)?);
            files::remove(&path).map_err(|e| files::failed("remove", &path, &e))?;
            create()
        })?;
        self.storage().into_iter().for_each(|own| made.storage().take_rights(own));
        Ok(made)
    }

    /// Whether a save that could not write another file can write to this one.
    pub(super) fn keeps(&mut self) -> bool {
        self.is_kept = self.file.as_ref().is_some_and(|file| !file.is_lost());
        self.is_kept
    }

    /// A file that has been committed takes the place of this one, at its path. On an error this one stays.
    pub(super) fn replace(&mut self, mut file: ChatFile) -> Result<()> {
        file.rename(&self.path).inspect_err(|_| file.storage().remove())?;
        self.take_file(file);
        self.is_renamed = true;
        Ok(())
    }

    /// A file that has been committed at another path is the chat's from now on.
    pub(super) fn move_to(&mut self, file: ChatFile, path: PathBuf) {
        self.path = path;
        self.take_file(file);
    }

    fn take_file(&mut self, file: ChatFile) {
        (self.failure, self.end, self.is_kept, self.is_renamed) = (None, 0, false, false);
        self.file = Some(file);
    }

    /// A power failure does not bring back the file that was replaced, from now on.
    pub(super) fn sync_name(&mut self) -> Result<()> {
        if let (Some(file), true) = (&self.file, self.is_renamed) {
            file.storage().sync_name()?;
        }
        self.is_renamed = false;
        Ok(())
    }

    /// Whether another program has written to the file, or cut it.
    pub(super) fn is_harmed(&self) -> bool {
        // Behind `end` are at most places that were given away.
        let is_short = |file: &ChatFile| file.storage().len().is_ok_and(|len| len < file.len().min(self.end));
        self.file.as_ref().is_some_and(|file| is_short(file) || !file.is_whole())
    }

    /// Reads the codes of a head of a block, if the file has it.
    /// CORRUPT: if they are not those that were written.
    pub(super) fn read(&self, blocks: &Blocks, at: (u32, usize), bytes: &mut Vec<u8>) -> Result<bool> {
        self.file.as_ref().map_or(Ok(false), |file| read(file, blocks, at, bytes))
    }

    /// Queues a block that the file does not have, whose heads are in memory or nowhere. A block that the file does not take has
    /// a reason, of which the first is kept. OUT_OF_MEMORY: nothing was tried.
    pub(super) fn write(&mut self, layer: u32, blocks: &mut Blocks, block: u32) -> Result<Taken> {
        if self.rest > 0 {
            self.rest -= 1;
            return Ok(Taken::Refused);
        }
        match self.try_write(layer, blocks, block) {
            Ok(taken) => Ok(taken),
            Err(error) => self.fail(error.unless_out_of_memory()?),
        }
    }

    /// A write has failed.
    fn fail(&mut self, error: Error) -> Result<Taken> {
        self.rest = REST;
        self.failed += 1;
        self.failure.get_or_insert(error);
        Ok(Taken::Refused)
    }

    fn try_write(&mut self, layer: u32, blocks: &mut Blocks, block: u32) -> Result<Taken> {
        if !self.has_room() {
            return Ok(Taken::Later);
        }
        let directions = match &blocks.basis {
            Some(basis) => Directions::Known(basis.clone()),
            // They are being chosen.
            None if blocks.list().iter().any(|placed| placed.ticket > 0) => return Ok(Taken::Later),
            None => {
                let (keys, tokens) = blocks.samples()?;
                Directions::Of(keys, tokens)
            }
        };
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        memory::reserve(&mut ends, blocks.heads())?;
        for head in 0..blocks.heads() {
            blocks.copy(block, head, &mut bytes)?;
            memory::push(&mut ends, bytes.len())?;
        }
        self.opened()?;
        let Some(file) = &mut self.file else { bail!(Internal, "the file was opened") };
        let (len, storage, shape) = (bytes.len() as u64, file.storage().clone(), blocks.shape());
        let (size, most) = (blocks.size(), self.most);
        let sketches = blocks.group.next(GROUP, size, |len| Ok(file.place(len, most)?.start))?;
        let place = Place { codes: file.place(len, self.most)?, sketches };
        let ticket = self.last_ticket + 1;
        let job = Job { layer, ticket, storage, place: place.clone(), shape, bytes, ends, directions };
        if let Err(error) = self.writer.push(job) {
            file.free(place.codes);
            return Err(error);
        }
        blocks.writes(block, place, ticket);
        blocks.group.advance(shape.dims);
        self.last_ticket = ticket;
        Ok(Taken::Queued)
    }

    /// A block stays in memory since it is not in the file yet.
    pub(super) fn see_late(&mut self) {
        self.late += 1;
    }

    /// Whether the queue takes a block.
    pub(super) fn has_room(&self) -> bool {
        let waiting = self.writer.bytes();
        waiting == 0 || waiting < self.most_waiting
    }

    /// Whether nothing is on its way, and all that has ended is taken note of.
    pub(super) fn is_idle(&self) -> bool {
        self.ended.is_empty() && self.writer.is_idle()
    }

    /// Takes note of the writes of a layer that have ended.
    pub(super) fn collect(&mut self, layer: u32, blocks: &mut Blocks) -> Result<()> {
        self.writer.take(&mut self.ended)?;
        let mut at = 0;
        while at < self.ended.len() {
            if self.ended[at].layer != layer {
                at += 1;
                continue;
            }
            let Written { ticket, heads, basis, .. } = self.ended.swap_remove(at);
            // Of a block that is gone nothing is wanted: it may be another chat's.
            let Some(block) = blocks.written(ticket) else { continue };
            if let Some(basis) = basis {
                blocks.set_basis(basis);
            }
            match heads {
                Ok(heads) => {
                    let place = &blocks.list()[block as usize].place;
                    for range in place.iter().flat_map(|place| place.ranges(blocks.size())) {
                        self.written += range.end - range.start;
                        self.end = self.end.max(range.end);
                    }
                    blocks.end_write(block, Some(heads));
                }
                Err(error) => {
                    let place = blocks.list()[block as usize].place.clone();
                    blocks.end_write(block, None);
                    place.into_iter().for_each(|place| self.free_place(&place, blocks.size(), false));
                    if error.status() != Status::OutOfMemory {
                        let _ = self.fail(error);
                    }
                }
            }
        }
        Ok(())
    }

    /// Waits until nothing is on its way.
    pub(super) fn drain(&self) -> Result<()> {
        self.writer.drain()
    }

    /// Opens the file, or makes it, if it is not open.
    pub(super) fn opened(&mut self) -> Result<&mut ChatFile> {
        let file = match self.file.take() {
            Some(file) => file,
            None => open_or_create(&self.path, &self.fingerprint)?,
        };
        file.storage().expect_random_reads();
        Ok(self.file.insert(file))
    }

    /// All blocks of a layer are gone.
    pub(super) fn free_all(&mut self, blocks: &Blocks) {
        blocks.list().iter().for_each(|placed| self.free(placed, blocks.size()));
        if let Some(file) = &mut self.file {
            blocks.group.rest(blocks.size()).for_each(|range| file.free(range));
        }
    }

    /// The tokens of a block of so many heads and dims are gone.
    pub(super) fn free(&mut self, placed: &Placed, size: (usize, usize)) {
        placed.place.iter().for_each(|place| self.free_place(place, size, placed.tile.is_some()));
    }

    /// Nothing is at a place any more; what a saved chat has stays until the next save.
    pub(super) fn free_place(&mut self, place: &Place, size: (usize, usize), is_saved: bool) {
        if let Some(file) = self.file.as_mut().filter(|_| !is_saved) {
            place.ranges(size).for_each(|range| file.free(range));
        }
        // The file may have had no room but this.
        self.rest = 0;
    }
}

/// Reads the codes of a head of a block, if a file has it.
/// CORRUPT: if they are not those that were written.
pub(super) fn read(file: &ChatFile, blocks: &Blocks, (block, head): (u32, usize), bytes: &mut Vec<u8>) -> Result<bool> {
    let Some((from, offset)) = blocks.in_file(block, head) else { return Ok(false) };
    read_at(file, offset - from.bytes().start, from, bytes).map(|()| true)
}

/// Reads the codes of a head of a block that begins at an offset. CORRUPT: as [`read`].
pub(super) fn read_at(file: &ChatFile, offset: u64, from: &Offloaded, bytes: &mut Vec<u8>) -> Result<()> {
    let range = from.bytes();
    let (offset, len) = (offset + range.start, (range.end - range.start) as usize);
    memory::resize(bytes, len)?;
    let end = offset + len as u64;
    if file.storage().len()? < end {
        bail!(Corrupt, "{} ends before byte {end}", file.name());
    }
    file.storage().read_at(offset, bytes)?;
    if xxh3_64(bytes) != from.sum {
        bail!(Corrupt, "{len} bytes at {offset} of {} have changed", file.name());
    }
    Ok(())
}

/// A new file at a path, which `make` makes, or one in place of what a session has left that was killed. IO: if another file is
/// there.
pub(super) fn create(at: &Path, fingerprint: &[u8], make: fn(&Path) -> Result<Storage>) -> Result<ChatFile> {
    let made = make(at).or_else(|refused| {
        let left = Storage::edit(at).ok().filter(|_| !files::is_link(at));
        left.filter(|found| ChatFile::is_left(found) == Ok(true)).ok_or(refused)
    })?;
    ChatFile::create(made, fingerprint)
}

/// The file at a path: one with a chat, or a new one in place of what a session has left that was killed.
/// INVALID_ARGUMENT: if a symbolic link is there. BUSY: if it is open. STALE: if its chat is of another model. CORRUPT: if it is
/// no chat file.
fn open_or_create(at: &Path, fingerprint: &[u8]) -> Result<ChatFile> {
    create(at, fingerprint, Storage::create).or_else(|refused| {
        let path = at.display();
        if files::is_link(at) {
            // Its file would stay when the session removes the link.
            bail!(InvalidArgument, "{path} is a symbolic link: it is left alone");
        }
        ChatFile::open(edit(at, refused)?, Some(fingerprint), Access::Commit)
            .map_err(|error| error.within(format_args!("{path} exists and is left alone")))
    })
}

/// The file at a path where none could be made; `refused` is why, if there is none.
fn edit(at: &Path, refused: Error) -> Result<Storage> {
    Storage::edit(at).map_err(|error| if error.status() == Status::NotFound { refused } else { error })
}

#[cfg(test)]
mod tests;
