//! Ascending numbers as runs: positions of tokens, or the slots of a cache that have them.

use crate::layout::{self, Pair};
use crate::status::Result;
use crate::sys::memory;
use std::ops::Range;

/// Ascending numbers as runs of (first, count), which never touch. The first number is at place 0.
#[derive(Debug, Default)]
pub(in crate::session) struct Runs {
    list: Vec<Pair>,
}

impl Runs {
    /// None.
    pub(super) const NONE: Runs = Runs { list: Vec::new() };

    /// The numbers of these ranges. INVALID_ARGUMENT: if the ranges do not ascend, or one ends above `end`.
    pub(in crate::session) fn of(ranges: &[Pair], end: u32) -> Result<Self> {
        layout::check_pairs(ranges, end)?;
        let mut runs = Runs::default();
        ranges.iter().try_for_each(|range| runs.push(*range))?;
        Ok(runs)
    }

    pub(in crate::session) fn pairs(&self) -> &[Pair] {
        &self.list
    }

    pub(in crate::session) fn into_pairs(self) -> Vec<Pair> {
        self.list
    }

    /// How many numbers there are.
    pub(in crate::session) fn count(&self) -> u32 {
        self.list.iter().map(|run| run[1] as u32).sum()
    }

    /// Makes room, so that the next [`Runs::push`] cannot fail.
    pub(in crate::session) fn reserve(&mut self) -> Result<()> {
        memory::reserve_amortized(&mut self.list, 1)
    }

    /// Adds a run behind the others.
    pub(in crate::session) fn push(&mut self, [first, count]: Pair) -> Result<()> {
        match self.list.last_mut() {
            _ if count == 0 => {}
            Some(last) if last[0] + last[1] == first => last[1] += count,
            _ => memory::push(&mut self.list, [first, count])?,
        }
        Ok(())
    }

    /// The numbers at these places.
    pub(in crate::session) fn at(&self, places: &[Pair]) -> Result<Self> {
        let mut found = Runs::default();
        let by_place = closed_up(&self.list).map(|Image { first, count, to }| Image { first: to, count, to: first });
        let places = places.iter().map(|&[first, count]| Image { first, count, to: first });
        shared(by_place, places, |number, _, count| found.push([number, count]))?;
        Ok(found)
    }

    /// The places of those of these numbers that are here.
    pub(in crate::session) fn places_of(&self, numbers: &[Pair]) -> Result<Self> {
        let mut found = Runs::default();
        shared(closed_up(&self.list), closed_up(numbers), |place, _, count| found.push([place, count]))?;
        Ok(found)
    }

    /// What is left of the numbers once only these stay, which are counted anew from 0.
    pub(in crate::session) fn renumbered(&self, left: &[Pair]) -> Result<Self> {
        let mut found = Runs::default();
        shared(closed_up(&self.list), closed_up(left), |_, anew, count| found.push([anew, count]))?;
        Ok(found)
    }

    /// These numbers, with those of a range, which ends by 2^31 - 1, or without them.
    pub(in crate::session) fn with(&self, range: Range<u32>, on: bool) -> Result<Self> {
        let mut runs = Runs::default();
        let own = || self.list.iter().map(numbers);
        let below = own().map(|run| run.start..run.end.min(range.start));
        let above = own().map(|run| run.start.max(range.end)..run.end);
        let all = below.chain(on.then_some(range.clone())).chain(above);
        all.filter(|run| !run.is_empty()).try_for_each(|run| runs.push([run.start as i32, run.len() as i32]))?;
        Ok(runs)
    }

    /// Whether a number of the range is here.
    pub(in crate::session) fn overlaps(&self, range: Range<u32>) -> bool {
        let next = self.list.partition_point(|run| numbers(run).end <= range.start);
        !range.is_empty() && self.list.get(next).is_some_and(|run| numbers(run).start < range.end)
    }
}

fn numbers(run: &Pair) -> Range<u32> {
    run[0] as u32..(run[0] + run[1]) as u32
}

/// `count` numbers from `first` on, and as many from `to` on that stand for them.
#[derive(Clone, Copy)]
struct Image {
    first: i32,
    count: i32,
    to: i32,
}

/// The numbers of ranges, and their places.
fn closed_up(ranges: &[Pair]) -> impl Iterator<Item = Image> {
    ranges.iter().scan(0, |before, &[first, count]| {
        let to = *before;
        *before += count;
        Some(Image { first, count, to })
    })
}

/// Calls `visit` for each run of numbers that two ascending lists share, with its image in either and its count.
fn shared(
    left: impl Iterator<Item = Image>,
    right: impl Iterator<Item = Image>,
    mut visit: impl FnMut(i32, i32, i32) -> Result<()>,
) -> Result<()> {
    let (mut left, mut right) = (left.peekable(), right.peekable());
    while let (Some(&l), Some(&r)) = (left.peek(), right.peek()) {
        let (first, end) = (l.first.max(r.first), (l.first + l.count).min(r.first + r.count));
        if first < end {
            visit(l.to + first - l.first, r.to + first - r.first, end - first)?;
        }
        if l.first + l.count <= r.first + r.count {
            left.next();
        } else {
            right.next();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::expand;
    use proptest::prelude::*;

    /// Ranges by the gap before each and its length, as far as they end by `limit`.
    fn ranges(skips: &[(i32, i32)], limit: i32) -> Vec<Pair> {
        let mut at = 0;
        let ranges = skips.iter().map(|(skip, count)| {
            at += skip + count;
            [at - count, *count]
        });
        ranges.filter(|range| range[0] + range[1] <= limit).collect()
    }

    proptest! {
        #[test]
        fn runs_are_a_list_of_numbers(
            steps in prop::collection::vec((0u8..5, 0u32..60, 0u32..20, prop::collection::vec((0i32..6, 0i32..9), 0..6)), 1..30),
        ) {
            let (mut runs, mut list) = (Runs::default(), Vec::<u32>::new());
            for (what, first, count, skips) in steps {
                let end = list.last().map_or(0, |last| last + 1);
                match what {
                    0 => {
                        runs.push([(end + first) as i32, count as i32]).unwrap();
                        list.extend(end + first..end + first + count);
                    }
                    1 => {
                        let places = ranges(&skips, list.len() as i32);
                        runs = runs.at(&places).unwrap();
                        list = expand(&places).map(|place| list[place as usize]).collect();
                    }
                    2 => {
                        let left = ranges(&skips, end as i32);
                        let numbers: Vec<u32> = expand(&left).collect();
                        let places: Vec<u32> = (0..list.len() as u32).filter(|at| numbers.contains(&list[*at as usize])).collect();
                        prop_assert!(expand(runs.places_of(&left).unwrap().pairs()).eq(places));
                        runs = runs.renumbered(&left).unwrap();
                        list = list.iter().filter_map(|l| numbers.iter().position(|n| n == l).map(|at| at as u32)).collect();
                    }
                    on => {
                        let range = first..first + count;
                        prop_assert_eq!(runs.overlaps(range.clone()), list.iter().any(|l| range.contains(l)));
                        runs = runs.with(range.clone(), on == 3).unwrap();
                        list.retain(|l| !range.contains(l));
                        list.extend(range.filter(|_| on == 3));
                        list.sort_unstable();
                    }
                }
                prop_assert!(expand(runs.pairs()).eq(list.iter().copied()), "{:?}", runs);
                prop_assert_eq!(runs.count() as usize, list.len());
                prop_assert!(runs.pairs().windows(2).all(|w| w[0][0] + w[0][1] < w[1][0]), "{:?}", runs);
                let again = Runs::of(runs.pairs(), 2000).unwrap();
                prop_assert_eq!(again.pairs(), runs.pairs());
            }
        }
    }
}
