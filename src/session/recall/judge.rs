//! The judge of a layer's blocks: their summaries, and the shares that the last query rows gave them.

use super::blocks::Block;
use super::queries::LastRows;
use super::workshop::Workshop;
use crate::layout::{CacheRef, Pair};
use crate::recall::{Summaries, log_masses};
use crate::status::Result;
use crate::sys::memory;

/// Summaries and shares, by slot.
pub(super) struct Judge {
    summaries: Summaries,
    /// Rows that an estimate is the mean of.
    window: usize,
    /// The shares that each of the last rows gave each slot, `[slot][window]`, the next one at `turn`.
    shares: Vec<f32>,
    /// Shares of a slot that were given since it was taken, at most `window`.
    given: Vec<u8>,
    turn: usize,
    /// Working memory.
    row_shares: Vec<f32>,
    protected: Vec<f32>,
}

impl Judge {
    pub(super) fn new(summaries: Summaries, window: usize) -> Self {
        let (shares, given, row_shares, protected) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Judge { summaries, window, shares, given, turn: 0, row_shares, protected }
    }

    /// Chooses the directions of sketches from keys `[head][token][dim]`.
    pub(super) fn learn(&mut self, keys: &[f32], tokens: usize) -> Result<()> {
        self.summaries.learn(keys, tokens)
    }

    /// Bytes of the summaries and shares.
    pub(super) fn bytes(&self) -> usize {
        self.summaries.bytes() + self.shares.capacity() * size_of::<f32>() + self.given.capacity()
    }

    /// Summarises keys `[head][token][dim]` of a block; returns its slot.
    pub(super) fn insert(&mut self, keys: &[f32], tokens: usize) -> Result<u32> {
        let slot = self.summaries.insert(keys, tokens)?;
        let slots = self.summaries.slots();
        let room = memory::resize_amortized(&mut self.shares, slots * self.window)
            .and_then(|()| memory::resize_amortized(&mut self.given, slots))
            .and_then(|()| memory::resize_amortized(&mut self.row_shares, slots));
        if let Err(error) = room {
            self.summaries.remove(slot);
            return Err(error);
        }
        self.given[slot as usize] = 0;
        Ok(slot)
    }

    pub(super) fn remove(&mut self, slot: u32) {
        self.summaries.remove(slot);
    }

    /// Adds the shares that query rows give the blocks beside the tokens at these physical places, which are in none.
    pub(super) fn see(
        &mut self,
        queries: &LastRows,
        cache: &CacheRef<'_>,
        others: &[Pair],
        work: &mut Workshop,
    ) -> Result<()> {
        let kv_heads = cache.layout.rows().heads;
        let (_, tokens) = work.keys(cache, others)?;
        let (keys, scratch) = work.keys_and_scratch(kv_heads * tokens * cache.layout.rows().dims);
        memory::resize(&mut self.protected, queries.heads())?;
        let slots = self.summaries.slots();
        for row in queries.rows() {
            self.protected.fill(f32::NEG_INFINITY);
            log_masses(row, queries.scale(), keys, tokens, kv_heads, &mut self.protected);
            let shares = &mut self.row_shares[..slots];
            self.summaries.estimate(row, queries.scale(), &self.protected, scratch, shares)?;
            for (slot, share) in shares.iter().enumerate() {
                self.shares[slot * self.window + self.turn] = *share;
                self.given[slot] = (self.given[slot] + 1).min(self.window as u8);
            }
            self.turn = (self.turn + 1) % self.window;
        }
        Ok(())
    }

    /// The mean share of a block's last rows; `None` where none was given since it has a summary.
    pub(super) fn estimate(&self, block: &Block) -> Option<f32> {
        let slot = block.slot? as usize;
        let given = usize::from(self.given[slot]);
        let shares = &self.shares[slot * self.window..][..self.window];
        // The newest first.
        let newest = (1..=given).map(|back| shares[(self.turn + self.window - back) % self.window]);
        (given > 0).then(|| newest.sum::<f32>() / given as f32)
    }
}

#[cfg(test)]
impl Judge {
    /// Mean and directions of a head.
    pub(super) fn basis_for_tests(&self, head: usize) -> Option<(&[f32], &[[f32; 16]])> {
        self.summaries.basis_for_tests(head)
    }
}
