//! Committing: blocks that equal the cache replace its raw bytes.

use super::block::{Block, BlockState};
use super::{Store, gather};
use crate::layout::{self, Cache, TokenRange};
use crate::status::Result;
use crate::sys::{memory, pages};

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
        let Ok(at) = self.layer_at(layer) else { return Ok(Committed::default()) };
        let entry = &mut self.layers[at];
        let mut fresh = Vec::new();
        memory::reserve(&mut fresh, entry.blocks.len())?;
        for block in entry.blocks.iter_mut().filter(|block| block.state == BlockState::Resident) {
            let range = block.range_in(cache.layout).filter(|_| block.shape.rows == cache.layout.rows());
            block.verified = match range {
                Some(_) if block.verified && writes == Writes::None => true,
                Some(range) => {
                    gather(&mut self.rows, &cache.as_ref(), range)?;
                    self.rows.digest() == block.shape.digest
                }
                None => false,
            };
            if let (Some(range), true) = (range, block.verified) {
                memory::push(&mut fresh, range)?;
            }
        }
        let is_stale = |block: &Block| block.state == BlockState::Resident && !block.verified;
        let stale = entry.blocks.iter().filter(|block| is_stale(block)).count();
        entry.stats.stale_blocks += stale as u64;
        if stale > 0 {
            self.retain(layer, |block| !is_stale(block));
        }
        fresh.sort_unstable_by_key(|range| range.begin());
        let released_bytes = if fresh.is_empty() { 0 } else { self.release(at, cache, &fresh)? };
        Ok(Committed { released_blocks: fresh.len() as u64, released_bytes, stale_blocks: stale as u64 })
    }

    /// Releases every resident block of a layer. Returns to the system the memory of the runs that `fresh` (ascending) has
    /// made larger.
    fn release(&mut self, at: usize, mut cache: Cache<'_>, fresh: &[TokenRange]) -> Result<u64> {
        let entry = &mut self.layers[at];
        let is_fresh = |block: &Block| block.state == BlockState::Resident;
        let runs = entry.runs(cache.layout, |block| block.is_released() || is_fresh(block))?;
        // Nothing below fails: blocks are released together or not at all.
        self.refusals = 0;
        for block in entry.blocks.iter_mut().filter(|block| is_fresh(block)) {
            self.unclaimed_bytes -= if block.claimed { 0 } else { block.blob_bytes() };
            (block.state, block.claimed) = (BlockState::Released, true);
        }
        let mut released = 0;
        for run in runs {
            let next = fresh.partition_point(|f| f.begin() < run.begin());
            if fresh.get(next).is_some_and(|f| f.end() <= run.end()) {
                released += layout::release(&mut cache, run, &mut pages::give_back);
            }
        }
        entry.stats.released_bytes += released;
        Ok(released)
    }
}
