//! What a session asks of the pieces of a file.

use super::Snapshot;

impl Snapshot {
    /// The checksum of a piece's stored bytes, committed or not.
    pub fn piece_sum(&self, piece: u32) -> Option<u64> {
        self.find_piece(piece).map(|found| found.at.sum)
    }
}
