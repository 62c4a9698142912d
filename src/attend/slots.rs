//! Memory of codes: slots of one size in regions of their own. The last slot takes the place of one that is freed, so that
//! slots in use are dense, and the pages behind them go back to the system. On a general allocator's heap the blocks that stay
//! would hold the pages of those that leave.

use crate::arch::attend::Line;
use crate::arch::attend::lines::{bytes_mut, whole, whole_mut};
use crate::status::Result;
use crate::sys::memory;
use crate::sys::pages::{self, Region};

/// Slots of a region.
const SLOTS: usize = 32;
/// Freed slots whose pages stay for the next ones.
const SPARE: usize = 1;

/// Whose codes a slot has: the block and the KV head.
pub(super) type Owner = (u32, u32);

/// Slots, all in use.
#[derive(Debug)]
pub(super) struct Slots {
    /// Lines of a slot.
    lines: usize,
    regions: Vec<Region>,
    owners: Vec<Owner>,
    /// Slots from the first on whose pages may be in memory.
    touched: usize,
}

impl Slots {
    /// None.
    pub(super) const NONE: Slots = Slots { lines: 0, regions: Vec::new(), owners: Vec::new(), touched: 0 };

    /// Makes room for more slots of so many lines, which all have.
    pub(super) fn reserve(&mut self, lines: usize, more: usize) -> Result<()> {
        if self.owners.is_empty() && self.lines != lines {
            *self = Slots { lines, ..Slots::NONE };
        }
        memory::reserve_amortized(&mut self.owners, more)?;
        let regions = (self.owners.len() + more).div_ceil(SLOTS);
        while self.regions.len() < regions {
            // A region need not begin with a whole line.
            let region = Region::new((SLOTS * lines + 1) * size_of::<Line>())?;
            memory::push(&mut self.regions, region)?;
        }
        Ok(())
    }

    /// Bytes of a slot of so many lines.
    pub(super) const fn slot_bytes(lines: usize) -> usize {
        lines * size_of::<Line>() + size_of::<Owner>()
    }

    /// Bytes of all.
    pub(super) fn bytes(&self) -> usize {
        self.owners.len() * Slots::slot_bytes(self.lines)
    }

    /// The lines of a slot.
    pub(super) fn lines(&self, slot: u32) -> &[Line] {
        let (region, at) = (slot as usize / SLOTS, slot as usize % SLOTS);
        &whole(&self.regions[region])[at * self.lines..][..self.lines]
    }

    fn lines_mut(&mut self, slot: usize) -> &mut [Line] {
        &mut whole_mut(&mut self.regions[slot / SLOTS])[slot % SLOTS * self.lines..][..self.lines]
    }

    /// Copies lines to a new slot, for which there is room.
    pub(super) fn push(&mut self, owner: Owner, lines: &[Line]) -> u32 {
        let slot = self.owners.len();
        self.lines_mut(slot).copy_from_slice(lines);
        #[expect(clippy::disallowed_methods, reason = "Slots::reserve has made room")]
        self.owners.push(owner);
        self.touched = self.touched.max(slot + 1);
        slot as u32
    }

    /// Says whose codes a slot has.
    pub(super) fn own(&mut self, slot: u32, owner: Owner) {
        self.owners[slot as usize] = owner;
    }

    /// Frees a slot. Returns whose codes have moved there, if any have.
    pub(super) fn remove(&mut self, slot: u32) -> Option<Owner> {
        let last = self.owners.len() - 1;
        let moved = (slot as usize != last).then(|| {
            let (to, from) = (slot as usize / SLOTS, last / SLOTS);
            let (to_at, from_at) = (slot as usize % SLOTS * self.lines, last % SLOTS * self.lines);
            if to == from {
                whole_mut(&mut self.regions[to]).copy_within(from_at..from_at + self.lines, to_at);
            } else {
                let (before, after) = self.regions.split_at_mut(from);
                let from = &whole(&after[0])[from_at..][..self.lines];
                whole_mut(&mut before[to])[to_at..][..self.lines].copy_from_slice(from);
            }
            self.owners[last]
        });
        self.owners.swap_remove(slot as usize);
        moved
    }

    /// Returns the pages behind the slots in use.
    pub(super) fn give_back(&mut self) {
        let used = self.owners.len();
        if self.touched <= used + SPARE {
            return;
        }
        self.regions.truncate(used.div_ceil(SLOTS));
        if let Some(region) = self.regions.last_mut() {
            let first = used - used.saturating_sub(1) / SLOTS * SLOTS;
            pages::give_back(bytes_mut(&mut whole_mut(region)[first * self.lines..]));
        }
        self.touched = used;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn codes_are_found_wherever_they_move_and_freed_pages_are_given_back() {
        let (mut slots, mut noise) = (Slots::NONE, crate::common::Noise(3));
        let (mut at, mut next): (HashMap<Owner, u32>, u32) = (HashMap::new(), 0);
        let contents = |owner: Owner| [Line([owner.0 as u8; 64]), Line([owner.1 as u8; 64]), Line([7; 64])];
        for round in 0..4000 {
            // Up to some hundreds, then down to none.
            if (noise.wide() > 0.0) ^ (round % 800 > 500) || at.is_empty() {
                let owner = (next % 200, next / 200);
                next += 1;
                slots.reserve(3, 1).unwrap();
                at.insert(owner, slots.push(owner, &contents(owner)));
            } else {
                let owner = *at.keys().min().unwrap();
                let freed = at.remove(&owner).unwrap();
                if let Some(moved) = slots.remove(freed) {
                    at.insert(moved, freed);
                }
                slots.give_back();
                assert!(slots.touched <= at.len() + SPARE);
                assert!(slots.regions.len() <= at.len().div_ceil(SLOTS) + 1);
            }
            assert_eq!(slots.owners.len(), at.len());
            for (owner, slot) in &at {
                assert!(slots.lines(*slot) == contents(*owner), "{owner:?} at {slot} in round {round}");
            }
        }
    }
}
