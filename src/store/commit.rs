//! Committing: blocks that equal the cache replace its raw bytes.

use super::block::{Block, BlockState};
use super::{Store, gather, tokens};
use crate::layout::{self, Cache};
use crate::status::Result;
use crate::sys::pages;

/// How tokens may have changed since they last equalled their blobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// In any way: every block is compared before it is released.
    Possible,
    /// Not at all, by contract: only blocks that were never compared are.
    None,
}

/// The result of [`Store::commit`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Committed {
    /// Blocks released.
    pub released_blocks: u64,
    /// Bytes returned to the system.
    pub released_bytes: u64,
    /// Blocks dropped, since they no longer equal the cache.
    pub stale_blocks: u64,
}

impl Store {
    /// Releases every resident block of the layer that equals the cache: its whole pages return to the system.
    ///
    /// Blocks are compared first, as `writes` says. A block that differs (the host wrote to its tokens without a report, or
    /// the cache shrank) is dropped and counted in `stale_blocks`; its tokens stay raw. OUT_OF_MEMORY: no block is
    /// released.
    pub fn commit(&mut self, layer: u32, cache: Cache<'_>, writes: Writes) -> Result<Committed> {
        self.collect();
        let Some(entry) = self.layers.get_mut(&layer) else { return Ok(Committed::default()) };
        let is_resident = |block: &Block| block.state == BlockState::Resident;
        let mut committed = Committed::default();
        for block in entry.blocks.iter_mut().filter(|block| is_resident(block)) {
            let range = block.range_in(cache.layout).filter(|_| block.shape.rows == cache.layout.rows());
            block.verified = match range {
                Some(_) if block.verified && writes == Writes::None => true,
                Some(range) => {
                    gather(&mut self.rows, &cache.as_ref(), range)?;
                    self.rows.digest() == block.shape.digest
                }
                None => false,
            };
            let count = if block.verified { &mut committed.released_blocks } else { &mut committed.stale_blocks };
            *count += 1;
        }
        entry.stats.stale_blocks += committed.stale_blocks;
        if committed.stale_blocks > 0 {
            self.retain(layer, |block| !is_resident(block) || block.verified);
        }
        if committed.released_blocks > 0 {
            committed.released_bytes = self.release(layer, cache)?;
        }
        Ok(committed)
    }

    /// Releases every resident block of a layer. Returns to the system the memory of the runs that these have made larger.
    fn release(&mut self, layer: u32, mut cache: Cache<'_>) -> Result<u64> {
        let Some(entry) = self.layers.get_mut(&layer) else { return Ok(0) };
        let is_fresh = |block: &Block| block.state == BlockState::Resident;
        let mut runs = entry.runs(cache.layout, |block| block.is_released() || is_fresh(block))?;
        runs.retain(|run| entry.blocks_in(tokens(*run)).any(is_fresh));
        // Nothing below fails: blocks are released together or not at all.
        self.refusals = 0;
        for block in entry.blocks.iter_mut().filter(|block| is_fresh(block)) {
            self.unclaimed_bytes -= if block.claimed { 0 } else { block.blob_bytes() };
            (block.state, block.claimed) = (BlockState::Released, true);
        }
        let mut released = 0;
        for run in runs {
            released += layout::release(&mut cache, run, &mut pages::give_back);
        }
        entry.stats.released_bytes += released;
        Ok(released)
    }
}
