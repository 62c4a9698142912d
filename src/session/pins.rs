//! Pinned tokens of one layer, by logical position.

use crate::layout::{self, Pair};
use crate::status::Result;
use crate::sys::memory;
use std::ops::Range;

/// The position behind the last.
const END: u32 = i32::MAX as u32;

/// Runs of pinned positions: ascending, never touching. Positions from the length of the chat on are those of tokens to
/// come.
#[derive(Debug, Default)]
pub(super) struct Pins {
    runs: Vec<Pair>,
}

impl Pins {
    /// Pins at these ranges. INVALID_ARGUMENT: if they do not ascend.
    pub(super) fn of(ranges: &[Pair]) -> Result<Self> {
        layout::check_pairs(ranges, END)?;
        let mut pins = Pins::default();
        ranges.iter().try_for_each(|range| pins.push(positions(range)))?;
        Ok(pins)
    }

    /// The runs, as (first position, count).
    pub(super) fn runs(&self) -> &[Pair] {
        &self.runs
    }

    pub(super) fn clear(&mut self) {
        self.runs.clear();
    }

    /// Whether a token of the range is pinned.
    pub(super) fn overlaps(&self, range: Range<u32>) -> bool {
        self.overlapping(range).next().is_some()
    }

    /// These pins, with those of a range set or cleared. The range must end by 2^31 - 1.
    pub(super) fn with(&self, range: Range<u32>, on: bool) -> Result<Self> {
        let mut pins = Pins::default();
        let runs = || self.runs.iter().map(positions);
        let below = runs().map(|run| run.start..run.end.min(range.start));
        let above = runs().map(|run| run.start.max(range.end)..run.end);
        below.chain(on.then_some(range.clone())).chain(above).try_for_each(|run| pins.push(run))?;
        Ok(pins)
    }

    /// The pins once only the tokens at these logical ranges stay, with positions counted anew. Pins behind the last of them
    /// stay at their distance from it: a step that is undone loses none.
    pub(super) fn kept(&self, logical: &[Pair]) -> Result<Self> {
        let (mut pins, mut to) = (Pins::default(), 0);
        let end = logical.iter().map(positions).rfind(|range| !range.is_empty()).map_or(0, |range| range.end);
        for range in logical.iter().map(positions).chain(std::iter::once(end..END)) {
            for run in self.overlapping(range.clone()) {
                pins.push(run.start - range.start + to..run.end - range.start + to)?;
            }
            to += range.end - range.start;
        }
        Ok(pins)
    }

    /// The parts of the runs that are in the range.
    fn overlapping(&self, range: Range<u32>) -> impl Iterator<Item = Range<u32>> {
        let first = self.runs.partition_point(|run| positions(run).end <= range.start);
        let parts = self.runs[first..].iter().map(positions).take_while({
            let end = range.end;
            move |run| run.start < end
        });
        parts.map(move |run| run.start.max(range.start)..run.end.min(range.end)).filter(|run| !run.is_empty())
    }

    /// Adds a run behind the others; joins it to the last where they touch.
    fn push(&mut self, run: Range<u32>) -> Result<()> {
        match self.runs.last_mut() {
            _ if run.is_empty() => Ok(()),
            Some(last) if positions(last).end == run.start => {
                last[1] += run.len() as i32;
                Ok(())
            }
            _ => memory::push(&mut self.runs, [run.start as i32, run.len() as i32]),
        }
    }
}

fn positions(pair: &Pair) -> Range<u32> {
    pair[0] as u32..(pair[0] + pair[1]) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::expand;
    use proptest::prelude::*;

    /// Positions that the list has.
    const ROOM: u32 = 200;

    proptest! {
        #[test]
        fn pins_are_those_of_a_list_with_one_flag_per_position(
            len in 0u32..80,
            steps in prop::collection::vec((any::<bool>(), 0u32..100, 0u32..30, prop::collection::vec(any::<bool>(), 80)), 1..20),
        ) {
            let (mut pins, mut list, mut len) = (Pins::default(), vec![false; ROOM as usize], len);
            for (on, first, count, stays) in steps {
                pins = pins.with(first..first + count, on).unwrap();
                list[first as usize..(first + count) as usize].fill(on);
                if count % 5 == 0 {
                    let logical: Vec<Pair> = (0..len).filter(|l| stays[*l as usize]).map(|l| [l as i32, 1]).collect();
                    pins = pins.kept(&logical).unwrap();
                    let mut left: Vec<bool> = logical.iter().map(|pair| list[pair[0] as usize]).collect();
                    let end = logical.last().map_or(0, |pair| pair[0] + 1);
                    left.extend(&list[end as usize..]);
                    left.resize(ROOM as usize, false);
                    (list, len) = (left, logical.len() as u32);
                }
                prop_assert!(expand(pins.runs()).eq((0..ROOM).filter(|l| list[*l as usize])), "{:?}", pins);
                prop_assert!(pins.runs().windows(2).all(|w| w[0][0] + w[0][1] < w[1][0]), "{:?}", pins);
                let again = Pins::of(pins.runs()).unwrap();
                prop_assert_eq!(again.runs(), pins.runs());
            }
        }
    }
}
