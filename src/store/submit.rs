//! Submitting: cold tokens are copied out of a cache and queued, or encoded at once without workers.

use super::block::{Block, BlockState};
use super::codec::BlockShape;
use super::kv::KvBytes;
use super::queue::Urgency;
use super::runner::{Done, Job, Outcome, Work};
use super::{Purpose, Store, gather, tokens};
use crate::layout::{CacheRef, TokenRange};
use crate::status::{Error, Result, Status, bail, error};

/// Refusals in a row after which unclaimed blobs make way; two more for each layer. A layer claims its blobs in its next
/// step, and every other layer may be refused once before that.
const MOST_REFUSALS: u32 = 64;

/// The result of [`Store::submit`], with the ticket of the block where there is one.
#[derive(Debug, PartialEq, Eq)]
pub enum Submitted {
    /// A block has this range with this content already.
    Known(u64),
    /// A copy waits for a worker.
    Queued(u64),
    /// The block is encoded.
    Encoded(u64),
    /// The block was encoded and its tokens stay raw: the blobs are not smaller, or were only measured.
    Raw(u64),
    /// The queue is full, or the bytes under way are at their bound; counted in `busy_blocks`.
    /// The tokens stay raw.
    Full(Error),
    /// Encoding failed; counted in `failed_blocks`. The tokens stay raw.
    Failed(Error),
}

impl Submitted {
    /// The ticket. BUSY: if the queue is full. Any other error: encoding failed.
    pub fn ticket(self) -> Result<u64> {
        match self {
            Submitted::Known(ticket)
            | Submitted::Queued(ticket)
            | Submitted::Encoded(ticket)
            | Submitted::Raw(ticket) => Ok(ticket),
            Submitted::Full(error) | Submitted::Failed(error) => Err(error),
        }
    }
}

impl Store {
    /// Copies a range of tokens, to be encoded. The cache is only read. Never blocks.
    ///
    /// Released tokens must be restored before. The same range with the same content keeps its block. A block that
    /// overlaps the range and no longer equals the cache is dropped and counted as stale. On an error nothing has changed.
    /// INVALID_ARGUMENT: if the range is empty, overlaps released tokens, or overlaps another block that still equals the
    /// cache.
    pub fn submit(
        &mut self,
        layer: u32,
        cache: &CacheRef<'_>,
        range: TokenRange,
        purpose: Purpose,
    ) -> Result<Submitted> {
        if range.is_empty() {
            bail!(InvalidArgument, "count is 0; at least one token expected");
        }
        self.collect();
        self.layer_or_new(layer)?.reserve(1)?;
        if let Some(ticket) = self.same_block(layer, cache, range)? {
            return Ok(Submitted::Known(ticket));
        }
        let rows = cache.layout.rows();
        let (key_len, value_len) = (rows.key_bytes(range.count()), rows.value_bytes(range.count()));
        if let Some(refusal) = self.refuse(layer, key_len + value_len) {
            return Ok(Submitted::Full(refusal));
        }
        let mut raw = KvBytes::new(key_len, value_len)?;
        gather(&mut raw, cache, range)?;
        let ticket = self.next_ticket;
        let shape = BlockShape { ticket, rows, tokens: range.count(), digest: raw.digest() };
        let block = Block::new(shape, shape.all_from(range.begin() as u32)?);
        let job = Job { layer, shape, work: Work::Encode { raw, purpose } };
        let outcome = match &self.runner {
            Some(runner) => {
                let urgency = if purpose == Purpose::KeepSoon { Urgency::Soon } else { Urgency::Later };
                runner.queue.push(job, urgency)?;
                None
            }
            None => {
                let outcome = job.run(&mut self.codec, &self.settings.encoding);
                match outcome.done {
                    Done::Encoded(Err(error)) if error.status() == Status::OutOfMemory => return Err(error),
                    done => Some(Outcome { done, ..outcome }),
                }
            }
        };

        // Nothing below fails but the encoder.
        if self.layers.get_mut(&layer).is_some_and(|entry| entry.count_stale(&tokens(range))) {
            self.retain(layer, |block| !block.overlaps(&tokens(range)));
        }
        self.next_ticket += 1;
        self.encoding += 1;
        self.staged_bytes += shape.raw_len();
        let queued = self.encoding as u64;
        if let Some(entry) = self.layers.get_mut(&layer) {
            entry.push(block);
            entry.stats.queue_peak = entry.stats.queue_peak.max(queued);
        }
        Ok(match outcome.map(|outcome| self.book(outcome)) {
            None => Submitted::Queued(ticket),
            Some(Ok(true)) => Submitted::Encoded(ticket),
            Some(Ok(false)) => Submitted::Raw(ticket),
            Some(Err(error)) => Submitted::Failed(error),
        })
    }

    /// The ticket of the block of exactly this range with this content. INVALID_ARGUMENT: if the range overlaps released
    /// tokens, or another block that still equals the cache.
    fn same_block(&mut self, layer: u32, cache: &CacheRef<'_>, range: TokenRange) -> Result<Option<u64>> {
        let Some(entry) = self.layers.get(&layer) else { return Ok(None) };
        let (first, last) = (range.begin(), range.end() - 1);
        for block in entry.blocks_in(tokens(range)) {
            let ticket = block.ticket();
            if block.is_released() {
                bail!(
                    InvalidArgument,
                    "tokens {first} to {last} of layer {layer} overlap block {ticket}, which is released; restore the \
                     layer first"
                );
            }
            let same_range = block.is_whole_at(range);
            let Some(its_range) = block.range_in(cache.layout).filter(|_| same_range || block.has_content()) else {
                continue;
            };
            if block.shape.rows != cache.layout.rows() {
                continue;
            }
            gather(&mut self.rows, cache, its_range)?;
            if self.rows.digest() != block.shape.digest {
                continue;
            }
            if same_range {
                return Ok(Some(ticket));
            }
            bail!(
                InvalidArgument,
                "tokens {first} to {last} of layer {layer} overlap block {ticket} (tokens {} to {}), which still \
                 equals the cache; submit its range or tokens outside it",
                its_range.begin(),
                its_range.end() - 1
            );
        }
        Ok(None)
    }

    /// The BUSY error when `bytes` more may not be under way.
    fn refuse(&mut self, layer: u32, bytes: usize) -> Option<Error> {
        self.runner.as_ref()?;
        let bound = self.settings.pending_bytes;
        let pending = self.staged_bytes + if bound > 0 { self.unclaimed_bytes } else { 0 };
        let (waiting, most) = (self.encoding, self.settings.max_queue);
        let full = waiting >= most;
        if !full && (bound == 0 || pending == 0 || pending + bytes <= bound) {
            return None;
        }
        self.refusals += 1;
        if self.refusals > self.most_refusals() && self.encoding == 0 {
            // Unclaimed blobs are of layers without further steps; their raw bytes are in the caches.
            for entry in self.layers.values_mut() {
                entry.retain(|block| block.state != BlockState::Resident || block.claimed);
            }
            (self.unclaimed_bytes, self.refusals) = (0, 0);
            return None;
        }
        if let Some(entry) = self.layers.get_mut(&layer) {
            entry.stats.busy_blocks += 1;
        }
        Some(if full {
            error!(Busy, "{waiting} blocks wait to be encoded; max_queue is {most}")
        } else {
            error!(Busy, "{bytes} bytes more than the {pending} that are pending; pending_bytes is {bound}")
        })
    }

    pub(super) fn most_refusals(&self) -> u32 {
        MOST_REFUSALS + 2 * self.layers.len() as u32
    }
}
