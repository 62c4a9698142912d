//! Booking: outcomes of jobs become states of blocks.

use super::Store;
use super::block::BlockState;
use super::runner::{Done, Encoded, Outcome};
use crate::status::{Result, Status};

impl Store {
    /// Books the outcomes that workers have handed in. Never blocks.
    pub(super) fn collect(&mut self) {
        while let Some(outcome) = self.runner.as_ref().and_then(|runner| runner.queue.outcome()) {
            // A failure to encode is counted in `failed_blocks`. After one to decode `restore` decodes the block itself and
            // returns its error.
            drop(self.book(outcome));
        }
    }

    /// Books an outcome; returns whether it is blobs, which the block has now. That of a block that is gone is only counted.
    pub(super) fn book(&mut self, outcome: Outcome) -> Result<bool> {
        let Outcome { layer, shape, encode_ns, decode_ns, done } = outcome;
        let (ticket, raw_bytes) = (shape.ticket, shape.raw_len());
        if let Done::Encoded(_) = done {
            self.encoding -= 1;
            self.staged_bytes -= raw_bytes;
        }
        let Some(entry) = self.layers.get_mut(&layer) else { return Ok(false) };
        let at = entry.find(ticket);
        let (block, stats) = (at.map(|at| &mut entry.blocks[at]), &mut entry.stats);
        stats.encode_ns += encode_ns;
        stats.decode_ns += decode_ns;
        let is_decoded = match &done {
            Done::Encoded(_) => decode_ns > 0,
            Done::Decoded(rows) => rows.is_ok() && block.is_some(),
        };
        if is_decoded {
            stats.decoded_bytes += raw_bytes as u64;
        }
        let (bytes, blob) = match done {
            Done::Decoded(rows) => {
                if let Some(block) = block {
                    block.decoding = false;
                    // OUT_OF_MEMORY: the rows are decoded again.
                    let _ = self.decoded.insert_ahead(layer, ticket, rows?);
                }
                return Ok(false);
            }
            Done::Encoded(Ok(Encoded::Smaller(blob))) => (blob.len(), Some(blob)),
            Done::Encoded(Ok(Encoded::Sampled { bytes })) => (bytes, None),
            Done::Encoded(Ok(Encoded::NoGain)) => {
                stats.no_gain_blocks += 1;
                (raw_bytes, None)
            }
            Done::Encoded(Err(error)) => {
                stats.failed_blocks += 1;
                if error.status() == Status::OutOfMemory {
                    // The tokens may be submitted again.
                    entry.retain(|block| block.ticket() != ticket);
                } else if let Some(block) = block {
                    block.state = BlockState::Raw;
                }
                return Err(error);
            }
        };
        stats.submitted_blocks += 1;
        stats.encoded_bytes += raw_bytes as u64;
        stats.encoded_to_bytes += bytes as u64;
        let is_kept = blob.is_some();
        if let Some(block) = block {
            (block.state, block.blob) = (if is_kept { BlockState::Resident } else { BlockState::Raw }, blob);
            self.unclaimed_bytes += block.blob_bytes();
        }
        Ok(is_kept)
    }
}
