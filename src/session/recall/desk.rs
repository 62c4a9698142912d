//! The file that a session parks blocks in, and the bounds of what is written to it.

use crate::snapshot::{ParkedPiece, SharedSnapshot};
use crate::status::{Error, Result, bail, error};
use crate::sys::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Bytes and blobs that may wait in memory to be written, whichever is more.
const WAITING_BYTES: usize = if cfg!(test) { 1 << 10 } else { 4 << 20 };
const WAITING_BLOBS: usize = 8;
/// Most bytes of the length of a part in a piece, and of a share of the number of parts.
const LENGTH: usize = 10;

/// One per session with the tier `file`. Used behind the session's mutex alone; its layers share it.
pub(in crate::session) struct Desk {
    file: Mutex<Option<SharedSnapshot>>,
    /// Most bytes that are written.
    most: Option<u64>,
    written: AtomicU64,
    /// Bytes of blobs in memory that no file has.
    waiting: AtomicUsize,
    bound: AtomicUsize,
    /// The last write failed, or the snapshot was in use. No other is tried in this step.
    is_stuck: AtomicBool,
    /// A blob has more bytes, beside those that wait, than may still be written: no further one waits.
    is_spent: AtomicBool,
    /// A blob that waits has more bytes than may still be written.
    is_closed: AtomicBool,
}

impl Desk {
    pub(in crate::session) fn new(most: Option<u64>) -> Self {
        Desk {
            file: Mutex::new(None),
            most,
            written: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            bound: AtomicUsize::new(WAITING_BYTES),
            is_stuck: AtomicBool::new(false),
            is_spent: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
        }
    }

    fn file(&self) -> Result<MutexGuard<'_, Option<SharedSnapshot>>> {
        self.file.lock().map_err(|_| Error::out_of_service("the session"))
    }

    /// Parks further blocks in another file; `None`: in memory.
    pub(in crate::session) fn set_file(&self, file: Option<SharedSnapshot>) -> Result<()> {
        *self.file()? = file;
        self.is_stuck.store(false, Relaxed);
        Ok(())
    }

    /// Whether blocks are parked in a file.
    pub(in crate::session) fn has_file(&self) -> bool {
        self.file().is_ok_and(|file| file.is_some())
    }

    /// A step ends: a write may succeed again.
    pub(super) fn try_again(&self) {
        self.is_stuck.store(false, Relaxed);
    }

    /// Whether a write may be tried.
    pub(super) fn may_write(&self) -> bool {
        self.has_file() && !self.is_stuck.load(Relaxed) && !self.is_closed.load(Relaxed)
    }

    /// Whether as much waits as may.
    pub(super) fn is_full(&self) -> bool {
        self.has_file() && self.waiting.load(Relaxed) >= self.bound.load(Relaxed)
    }

    /// BUSY: if no further blob may wait to be written.
    pub(super) fn check_room(&self) -> Result<()> {
        if !self.has_file() {
            return Ok(());
        }
        if self.is_spent.load(Relaxed) {
            return Err(self.spent());
        }
        if self.is_full() {
            bail!(
                Busy,
                "{} bytes wait to be written to the snapshot: further blocks stay in the cache",
                self.waiting.load(Relaxed)
            );
        }
        Ok(())
    }

    fn spent(&self) -> Error {
        error!(
            Busy,
            "{} bytes are written, and kv_recall_max_write_bytes is {}: further blocks stay in the cache",
            self.written.load(Relaxed),
            self.most.unwrap_or(0)
        )
    }

    /// BUSY: if a blob of `len` bytes, beside those that wait, is more than may be written.
    pub(super) fn check_budget(&self, len: usize) -> Result<()> {
        let waiting = self.waiting.load(Relaxed).saturating_add(len) as u64;
        let is_over = |most| self.written.load(Relaxed).saturating_add(waiting) > most;
        if self.has_file() && self.most.is_some_and(is_over) {
            self.is_spent.store(true, Relaxed);
        }
        self.check_room()
    }

    /// A blob waits.
    pub(super) fn add(&self, len: usize) {
        self.waiting.fetch_add(len, Relaxed);
        self.bound.fetch_max(len.saturating_mul(WAITING_BLOBS), Relaxed);
    }

    /// Blobs of `len` bytes in all are written, or gone.
    pub(super) fn remove(&self, len: usize) {
        self.waiting.fetch_sub(len, Relaxed);
    }

    /// Writes the parts of a blob. `None`: if there is no file, or a call has the snapshot. BUSY: if no more may be written.
    pub(super) fn write(&self, layer: u32, tokens: u32, parts: &[&[u8]], sum: u64) -> Result<Option<ParkedPiece>> {
        let Some(file) = &*self.file()? else { return Ok(None) };
        // Blobs from before there was a file are in no budget yet. A piece has the length of each part.
        let len: usize = parts.iter().map(|part| part.len() + LENGTH).sum();
        if self.most.is_some_and(|most| self.written.load(Relaxed).saturating_add(len as u64) > most) {
            self.is_spent.store(true, Relaxed);
            self.is_closed.store(true, Relaxed);
            return Err(self.spent());
        }
        let written = file.park(layer, tokens, parts, sum);
        match &written {
            Ok(Some(piece)) => drop(self.written.fetch_add(piece.stored_len(), Relaxed)),
            Ok(None) | Err(_) => self.is_stuck.store(true, Relaxed),
        }
        written
    }
}
