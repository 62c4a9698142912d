//! A snapshot with several owners, and pieces that sessions park in it: [`Snapshot::discard`] keeps them.

use super::state::{Extent, Piece};
use super::{Snapshot, at, checksum, part_ends};
use crate::status::{Error, Result, bail};
use crate::sys::storage::Storage;
use crate::sys::{Mutex, Shared, memory};
use std::sync::TryLockError;
use std::sync::atomic::AtomicBool;

/// The stored bytes of a piece that was lost before it was durable: one part without bytes.
const LOST: [u8; 2] = [1, 0];

/// A snapshot of its handle and of sessions. The file is open until the last owner is dropped.
#[derive(Clone, Debug)]
pub struct SharedSnapshot(Shared<Mutex<Snapshot>>);

impl SharedSnapshot {
    /// Shares what `make` returns. Memory comes first: what `make` returns may have left a file.
    pub fn new(make: impl FnOnce() -> Result<Snapshot>) -> Result<Self> {
        Shared::made(|| Ok(Mutex::new(make()?))).map(SharedSnapshot)
    }

    /// Runs `body` on the snapshot. INTERNAL: if a call has panicked.
    pub fn with<R>(&self, body: impl FnOnce(&mut Snapshot) -> Result<R>) -> Result<R> {
        body(&mut *self.0.lock().map_err(|_| Error::out_of_service("snapshot"))?)
    }

    /// Must come before [`SharedSnapshot::park`]. INVALID_ARGUMENT: if the access is not [`super::Access::Append`].
    pub fn prepare_parks(&self) -> Result<()> {
        self.with(|snapshot| {
            snapshot.check_writable()?;
            snapshot.storage.expect_random_reads();
            Ok(())
        })
    }

    /// Writes a piece as [`Snapshot::add_piece`] does. Never blocks on another call: returns `None` while one has the
    /// snapshot, which is then unchanged.
    pub fn park(&self, layer: u32, tokens: u32, parts: &[&[u8]], raw_checksum: u64) -> Result<Option<ParkedPiece>> {
        let mut snapshot = match self.0.try_lock() {
            Ok(snapshot) => snapshot,
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Poisoned(_)) => return Err(Error::out_of_service("snapshot")),
        };
        let piece = snapshot.add_piece(layer, tokens, parts, raw_checksum)?;
        snapshot.parked = snapshot.staged.pieces.len();
        let parked = snapshot.parked_piece(piece)?;
        snapshot.storage.write_behind(parked.at.offset..parked.at.end());
        Ok(Some(parked))
    }
}

/// A piece that is read by position, without its snapshot. Keeps the file open.
#[derive(Clone, Debug)]
pub struct ParkedPiece {
    storage: Shared<Storage>,
    layer: u32,
    tokens: u32,
    piece: u32,
    at: Extent,
}

impl ParkedPiece {
    /// The number of the piece.
    pub fn piece(&self) -> u32 {
        self.piece
    }

    /// The checksum of its stored bytes.
    pub fn sum(&self) -> u64 {
        self.at.sum
    }

    /// The bytes that it takes in the file.
    pub fn stored_len(&self) -> u64 {
        self.at.len
    }

    /// Reads the stored bytes, and where each part ends behind the returned place in them. The system drops its copy of
    /// them. CORRUPT: if they are not those that were written.
    pub fn read(&self, bytes: &mut Vec<u8>, ends: &mut Vec<usize>) -> Result<usize> {
        let Extent { offset, len, sum } = self.at;
        let mut read = || {
            memory::resize(bytes, usize::try_from(len).map_err(|_| memory::out_of_memory(usize::MAX))?)?;
            self.storage.read_once(offset, bytes)?;
            if checksum(bytes) != sum {
                bail!(Corrupt, "the checksum of {len} bytes does not match");
            }
            part_ends(bytes, ends)
        };
        read().map_err(|e| {
            let place = super::Place::Piece { layer: self.layer, piece: self.piece, tokens: self.tokens };
            at(place, offset, &self.storage, &e)
        })
    }
}

impl Snapshot {
    /// A piece, committed or not, to be read by position.
    pub fn parked_piece(&self, piece: u32) -> Result<ParkedPiece> {
        match self.find_piece(piece) {
            Some(&Piece { layer, tokens, at, .. }) => {
                Ok(ParkedPiece { storage: self.storage.clone(), layer, tokens, piece, at })
            }
            None => bail!(NotFound, "{} has no piece {piece}", self.name()),
        }
    }

    /// Keeps the staged pieces up to the last parked one, and no other change.
    ///
    /// A parked piece that a failed sync has lost becomes an empty one in its place, so that the numbers of the others
    /// stay and a commit can succeed.
    pub(super) fn keep_parked(&mut self) {
        let mut pieces = std::mem::take(&mut self.staged).pieces;
        pieces.truncate(self.parked);
        self.cursor = pieces.last().map_or(self.state.end, |piece| piece.at.end());
        self.is_sync_lost &= !pieces.is_empty();
        if self.is_sync_lost {
            let mut buffer = Vec::new();
            for piece in &mut pieces {
                let bytes = memory::at_least(&mut buffer, piece.at.len as usize);
                let is_read = bytes.and_then(|bytes| {
                    self.storage.read_at(piece.at.offset, bytes)?;
                    Ok(checksum(bytes) == piece.at.sum)
                });
                if let Ok(false) = is_read
                    && self.storage.write_at(piece.at.offset, &LOST).is_ok()
                {
                    piece.at = Extent { len: LOST.len() as u64, sum: checksum(&LOST), ..piece.at };
                    (piece.raw_sum, piece.verified) = (0, AtomicBool::new(false));
                }
            }
        }
        self.staged.pieces = pieces;
    }
}
