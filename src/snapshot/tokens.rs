//! Pieces of a file for sessions: checksums, and bytes that are read later.

use super::{PieceBytes, Snapshot};
use crate::status::{Result, bail};

impl Snapshot {
    /// As [`Snapshot::piece`], for bytes that their decoder verifies: a mapped file is not read yet.
    pub fn piece_lazily(&self, piece: u32) -> Result<PieceBytes> {
        match self.find_piece(piece) {
            Some(found) => self.read_piece(found, false).map_err(|e| {
                let offset = found.at.offset;
                e.within(format_args!("{} at offset {offset} of {}", found.place(piece), self.name()))
            }),
            None => bail!(NotFound, "{} has no piece {piece}", self.name()),
        }
    }

    /// The checksum of a piece's stored bytes, committed or not.
    pub fn piece_sum(&self, piece: u32) -> Option<u64> {
        self.find_piece(piece).map(|found| found.at.sum)
    }
}
