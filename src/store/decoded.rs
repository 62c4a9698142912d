//! Decoded rows beside the caches: rows decoded ahead, and rows kept so that the next restore need not decode them.
//!
//! All layers have equal shares of one budget in bytes, so that no layer can push out another. Within its share a layer
//! drops the block that was used least recently, but none that the current restore has used: a host reads all blocks of
//! a layer in the same order in every step, and plain LRU would always drop the next one.
//!
//! The key is a block's ticket, which is never used twice. So rows that are found are the rows that were encoded,
//! whatever was evicted, renumbered or reset since.

use super::kv::KvBytes;
use crate::status::Result;
use crate::sys::memory;
use std::collections::HashMap;

struct DecodedRows {
    layer: u32,
    rows: KvBytes,
    last_used: u64,
    /// Decoded ahead and not used yet: outside the budget, bounded by the size of the next layer.
    ahead: bool,
}

/// How rows came to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hit {
    /// A worker decoded them for this restore.
    Prefetched,
    /// An earlier restore kept them.
    Kept,
}

#[derive(Default)]
pub(super) struct Decoded {
    entries: HashMap<u64, DecodedRows>,
    /// Layer and ticket of every entry that is `ahead`, and of some that no longer are.
    ahead: Vec<(u32, u64)>,
    /// Bytes, all layers together.
    budget: usize,
    /// Number of the current restore.
    pass: u64,
    /// Tickets that the current restore may drop, the least recently used last; `None` until they are needed.
    victims: Option<Vec<u64>>,
    /// Bytes kept of the restored layer; valid while `victims` is some.
    held: usize,
}

impl Decoded {
    pub(super) fn set_budget(&mut self, bytes: usize) {
        self.budget = bytes;
    }

    /// Starts a restore: rows that it uses are not dropped before the next.
    pub(super) fn next_pass(&mut self) {
        self.pass += 1;
        self.victims = None;
    }

    /// Bytes of the rows of one layer, or of all.
    pub(super) fn bytes(&self, layer: Option<u32>) -> usize {
        self.entries.values().filter(|e| layer.is_none_or(|l| l == e.layer)).map(|e| e.rows.len()).sum()
    }

    pub(super) fn contains(&self, ticket: u64) -> bool {
        self.entries.contains_key(&ticket)
    }

    /// Takes rows that a worker decoded ahead. OUT_OF_MEMORY: the rows are dropped.
    #[expect(clippy::disallowed_methods, reason = "room is reserved first")]
    pub(super) fn insert_ahead(&mut self, layer: u32, ticket: u64, rows: KvBytes) -> Result<()> {
        memory::reserve_map(&mut self.entries, 1)?;
        memory::push(&mut self.ahead, (layer, ticket))?;
        self.entries.insert(ticket, DecodedRows { layer, rows, last_used: self.pass, ahead: true });
        Ok(())
    }

    pub(super) fn get(&mut self, ticket: u64) -> Option<(&KvBytes, Hit)> {
        let entry = self.entries.get_mut(&ticket)?;
        entry.last_used = self.pass;
        Some((&entry.rows, if entry.ahead { Hit::Prefetched } else { Hit::Kept }))
    }

    /// The ticket of a block of the layer that was decoded ahead and is not used yet.
    pub(super) fn first_ahead(&mut self, layer: u32) -> Option<u64> {
        let entries = &self.entries;
        let is_ahead = |ticket: &u64| entries.get(ticket).is_some_and(|entry| entry.ahead);
        while let Some(at) = self.ahead.iter().rposition(|(of, _)| *of == layer) {
            let ticket = self.ahead[at].1;
            if is_ahead(&ticket) {
                return Some(ticket);
            }
            self.ahead.swap_remove(at);
        }
        None
    }

    pub(super) fn remove(&mut self, ticket: u64) -> Option<KvBytes> {
        let rows = self.entries.remove(&ticket).map(|entry| entry.rows);
        if self.entries.is_empty() {
            self.ahead.clear();
        }
        rows
    }

    /// Drops older rows of the layer until `bytes` more fit its share of the budget, which `layers` have in common.
    /// Returns false when they cannot fit.
    pub(super) fn has_room(&mut self, layer: u32, bytes: usize, layers: usize) -> bool {
        let share = self.budget / layers.max(1);
        if bytes > share {
            return false;
        }
        if self.victims.is_none() && self.look_for_victims(layer).is_err() {
            return false;
        }
        let Some(victims) = &mut self.victims else { return false };
        while self.held + bytes > share {
            let Some(ticket) = victims.pop() else { return false };
            if let Some(entry) = self.entries.get(&ticket).filter(|e| e.last_used < self.pass && !e.ahead) {
                self.held -= entry.rows.len();
                self.entries.remove(&ticket);
            }
        }
        true
    }

    fn look_for_victims(&mut self, layer: u32) -> Result<()> {
        let kept = || self.entries.iter().filter(|(_, e)| e.layer == layer && !e.ahead);
        let mut victims = memory::collect(kept().filter(|(_, e)| e.last_used < self.pass).map(|(ticket, _)| *ticket))?;
        victims.sort_unstable_by_key(|ticket| std::cmp::Reverse((self.entries[ticket].last_used, *ticket)));
        self.held = kept().map(|(_, e)| e.rows.len()).sum();
        self.victims = Some(victims);
        Ok(())
    }

    /// Keeps rows for the next restore; [`Decoded::has_room`] must come before. OUT_OF_MEMORY: the rows are dropped.
    #[expect(clippy::disallowed_methods, reason = "room is reserved first")]
    pub(super) fn keep(&mut self, layer: u32, ticket: u64, rows: KvBytes) -> Result<()> {
        memory::reserve_map(&mut self.entries, 1)?;
        self.held += rows.len();
        self.entries.insert(ticket, DecodedRows { layer, rows, last_used: self.pass, ahead: false });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(bytes: usize) -> KvBytes {
        KvBytes::new(bytes, 0).unwrap()
    }

    /// Restores a layer's blocks in order; returns the number that was found.
    fn restore(cache: &mut Decoded, layer: u32, tickets: std::ops::Range<u64>, layers: usize) -> usize {
        cache.next_pass();
        let mut hits = 0;
        for ticket in tickets {
            if cache.get(ticket).is_some() {
                hits += 1;
            } else if cache.has_room(layer, 100, layers) {
                cache.keep(layer, ticket, rows(100)).unwrap();
            }
            assert!(cache.bytes(None) <= 1000);
        }
        hits
    }

    #[test]
    fn blocks_read_in_the_same_order_are_found_up_to_the_share() {
        let mut cache = Decoded::default();
        cache.set_budget(1000);
        assert_eq!(restore(&mut cache, 0, 0..8, 2), 0);
        assert_eq!(restore(&mut cache, 1, 100..108, 2), 0);
        for _ in 0..3 {
            assert_eq!(restore(&mut cache, 0, 0..8, 2), 5);
            assert_eq!(restore(&mut cache, 1, 100..108, 2), 5);
        }
    }

    #[test]
    fn blocks_that_are_no_longer_used_make_room() {
        let mut cache = Decoded::default();
        cache.set_budget(300);
        restore(&mut cache, 0, 0..3, 1);
        assert_eq!(restore(&mut cache, 0, 10..13, 1), 0);
        assert_eq!(restore(&mut cache, 0, 10..13, 1), 3);
        assert!(!cache.contains(0));
    }

    #[test]
    fn the_least_recently_used_block_goes_first() {
        let mut cache = Decoded::default();
        cache.set_budget(300);
        restore(&mut cache, 0, 0..3, 1);
        restore(&mut cache, 0, 1..3, 1);
        restore(&mut cache, 0, 2..3, 1);
        for (new, left) in [(10, [1, 2, 10]), (11, [2, 10, 11])] {
            restore(&mut cache, 0, new..new + 1, 1);
            assert!(left.iter().all(|t| cache.contains(*t)) && cache.entries.len() == 3, "{:?}", cache.entries.keys());
        }
    }

    #[test]
    fn rows_decoded_ahead_are_outside_the_budget() {
        let mut cache = Decoded::default();
        cache.insert_ahead(3, 7, rows(5000)).unwrap();
        cache.next_pass();
        assert_eq!(cache.get(7).unwrap().1, Hit::Prefetched);
        cache.set_budget(100);
        assert!(cache.has_room(3, 100, 1) && cache.contains(7));
        cache.set_budget(0);
        assert_eq!(cache.remove(7).unwrap().len(), 5000);
        assert!(!cache.has_room(3, 1, 1), "no budget, nothing is kept");
    }
}
