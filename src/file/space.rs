//! Which bytes of a file are free.

use crate::status::{Result, bail};
use crate::sys::memory;
use std::ops::Range;

/// The places of a file that something is at, and those between them.
#[derive(Debug)]
pub(super) struct Space {
    begin: u64,
    end: u64,
    /// Ascending, with none beside another, and none at the end.
    free: Vec<Range<u64>>,
}

impl Space {
    /// Something is everywhere up to `end`, and nothing behind. Places begin at `begin`.
    pub(super) fn used(begin: u64, end: u64) -> Self {
        Space { begin, end: end.max(begin), free: Vec::new() }
    }

    /// Something is at these places alone. CORRUPT: if two overlap, or one begins before `begin`.
    pub(super) fn of(begin: u64, mut places: Vec<Range<u64>>) -> Result<Self> {
        places.retain(|place| !place.is_empty());
        places.sort_unstable_by_key(|place| place.start);
        let (mut end, mut free) = (begin, Vec::new());
        for place in places {
            if place.start < end {
                bail!(Corrupt, "two things are at offset {}", place.start);
            }
            if place.start > end {
                memory::push(&mut free, end..place.start)?;
            }
            end = place.end;
        }
        Ok(Space { begin, end, free })
    }

    /// Behind all places.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Bytes between places that are free.
    pub(super) fn free_bytes(&self) -> u64 {
        self.free.iter().map(|free| free.end - free.start).sum()
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        self.free.capacity() * size_of::<Range<u64>>()
    }

    /// A place of a length, which is taken: the first that is free, or behind all. `None`: it would end above `most`.
    pub(super) fn take(&mut self, len: u64, most: u64) -> Option<Range<u64>> {
        if let Some(at) = self.free.iter().position(|free| free.end - free.start >= len) {
            let start = self.free[at].start;
            self.free[at].start += len;
            if self.free[at].is_empty() {
                self.free.remove(at);
            }
            return Some(start..start + len);
        }
        let place = self.end..self.end.checked_add(len)?;
        if place.end > most {
            return None;
        }
        self.end = place.end;
        Some(place)
    }

    /// Nothing is at a place any more. One that there is no memory for stays taken.
    pub(super) fn give(&mut self, place: Range<u64>) {
        if place.is_empty() {
            return;
        }
        let at = self.free.partition_point(|free| free.start < place.start);
        if at > 0 && self.free[at - 1].end == place.start {
            self.free[at - 1].end = place.end;
            if self.free.get(at).is_some_and(|next| next.start == place.end) {
                self.free[at - 1].end = self.free.remove(at).end;
            }
        } else if let Some(next) = self.free.get_mut(at).filter(|next| next.start == place.end) {
            next.start = place.start;
        } else if memory::push(&mut self.free, place).is_ok() {
            self.free[at..].rotate_right(1);
        }
        if let Some(last) = self.free.pop_if(|last| last.end == self.end) {
            self.end = last.start.max(self.begin);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BEGIN: u64 = 7;
    const MOST: u64 = 600;

    proptest! {
        /// Against a map of the file's bytes: things of any lengths come and go.
        #[test]
        fn a_thing_gets_the_first_place_that_has_room(lengths in prop::collection::vec(1..90u64, 1..120), order in any::<u64>()) {
            let mut space = Space::used(BEGIN, 0);
            let (mut used, mut things) = ([false; MOST as usize], Vec::<Range<u64>>::new());
            used[..BEGIN as usize].fill(true);
            for (at, len) in lengths.into_iter().enumerate() {
                if at % 3 == 2 && !things.is_empty() {
                    let gone = things.swap_remove((order >> (at % 50)) as usize % things.len());
                    used[gone.start as usize..gone.end as usize].fill(false);
                    space.give(gone);
                } else {
                    let fits = |from: &usize| used[*from..].iter().take(len as usize).all(|used| !used);
                    let first = (0..=(MOST - len) as usize).find(fits);
                    let place = space.take(len, MOST);
                    prop_assert_eq!(place.as_ref().map(|place| place.start as usize), first);
                    if let Some(place) = place {
                        prop_assert_eq!(place.end - place.start, len);
                        used[place.start as usize..place.end as usize].fill(true);
                        things.push(place);
                    }
                }
                let end = used.iter().rposition(|used| *used).map_or(0, |last| last as u64 + 1);
                prop_assert_eq!(space.end(), end);
                let free = used[..end as usize].iter().filter(|used| !**used).count();
                prop_assert_eq!(space.free_bytes(), free as u64);
                let again = Space::of(BEGIN, things.clone()).unwrap();
                prop_assert_eq!((again.end, &again.free), (space.end, &space.free));
            }
        }
    }

    #[test]
    fn things_that_overlap_are_damage() {
        for second in [19..30, 6..10] {
            assert!(
                Space::of(BEGIN, vec![8..20, second]).unwrap_err().message().starts_with("two things are at offset")
            );
        }
    }
}
