//! Booking: outcomes of jobs become states of blocks.

use super::Store;
use super::block::BlockState;
use super::runner::{DecodeOutcome, EncodeOutcome, Encoded, Outcome};
use crate::status::{Result, Status};

impl Store {
    /// Books the outcomes that workers have handed in. Never blocks.
    pub(super) fn collect(&mut self) {
        while let Some(outcome) = self.runner.as_ref().and_then(|runner| runner.queue().outcome()) {
            match outcome {
                // A failure is counted in `failed_blocks`.
                Outcome::Encoded(outcome) => drop(self.book_encoded(outcome)),
                Outcome::Decoded(outcome) => self.book_decoded(outcome),
            }
        }
    }

    /// Books an encoded block; returns whether it has blobs now. The outcome of a block that is gone is only counted.
    pub(super) fn book_encoded(&mut self, outcome: EncodeOutcome) -> Result<bool> {
        let EncodeOutcome { layer, ticket, raw_bytes, result, encode_ns, decode_ns } = outcome;
        self.encoding -= 1;
        self.staged_bytes -= raw_bytes;
        let Some(entry) = self.layers.get_mut(&layer) else { return Ok(false) };
        let stats = &mut entry.stats;
        stats.encode_ns += encode_ns;
        if decode_ns > 0 {
            stats.decode_ns += decode_ns;
            stats.decoded_bytes += raw_bytes as u64;
        }
        let (bytes, blob) = match result {
            Ok(Encoded::Smaller(blob)) => (blob.len(), Some(blob)),
            Ok(Encoded::Sampled { bytes }) => (bytes, None),
            Ok(Encoded::NoGain) => {
                stats.no_gain_blocks += 1;
                (raw_bytes, None)
            }
            Err(error) => {
                stats.failed_blocks += 1;
                if error.status() == Status::OutOfMemory {
                    // The tokens may be submitted again.
                    entry.retain(|block| block.ticket() != ticket);
                } else if let Some(block) = entry.block_mut(ticket) {
                    block.state = BlockState::Raw;
                }
                return Err(error);
            }
        };
        stats.submitted_blocks += 1;
        stats.encoded_bytes += raw_bytes as u64;
        stats.encoded_to_bytes += bytes as u64;
        let is_kept = blob.is_some();
        if let Some(block) = entry.block_mut(ticket) {
            (block.state, block.blob) = (if is_kept { BlockState::Resident } else { BlockState::Raw }, blob);
            self.unclaimed_bytes += block.blob_bytes();
        }
        Ok(is_kept)
    }

    /// Books rows that were decoded ahead. After a failure [`Store::restore`] decodes the block itself and returns its
    /// error.
    fn book_decoded(&mut self, outcome: DecodeOutcome) {
        let DecodeOutcome { layer, ticket, result, decode_ns } = outcome;
        let Some(entry) = self.layers.get_mut(&layer) else { return };
        entry.stats.decode_ns += decode_ns;
        let Some(block) = entry.block_mut(ticket) else { return };
        block.decoding = false;
        if let Ok(rows) = result {
            entry.stats.decoded_bytes += rows.len() as u64;
            // OUT_OF_MEMORY: the rows are decoded again.
            let _ = self.decoded.insert_ahead(layer, ticket, rows);
        }
    }
}
