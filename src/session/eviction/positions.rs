//! The logical positions of the tokens of one cache, in physical order.

use crate::layout::Pair;
use crate::status::Result;
use crate::sys::memory;

/// Runs of tokens in physical order, as (first logical position, count). A run goes on where it can, and
/// runs ascend.
#[derive(Debug, Default)]
pub(super) struct PositionMap {
    runs: Vec<Pair>,
}

impl PositionMap {
    /// The map of tokens at these positions, in physical order.
    pub(super) fn of(runs: Vec<Pair>) -> Self {
        PositionMap { runs }
    }

    pub(super) fn runs(&self) -> &[Pair] {
        &self.runs
    }

    pub(super) fn into_runs(self) -> Vec<Pair> {
        self.runs
    }

    pub(super) fn clear(&mut self) {
        self.runs.clear();
    }

    /// Appends `count` tokens from position `logical` on.
    pub(super) fn append(&mut self, logical: u32, count: u32) -> Result<()> {
        push(&mut self.runs, [logical as i32, count as i32])
    }

    /// Reserves room, so that the next [`PositionMap::append`] cannot fail.
    pub(super) fn reserve(&mut self) -> Result<()> {
        memory::reserve_amortized(&mut self.runs, 1)
    }

    /// The map of the tokens at these physical ranges, which ascend and keep their logical positions.
    pub(super) fn evicted(&self, pairs: &[Pair]) -> Result<Self> {
        let mut runs = Vec::new();
        let kept = pairs.iter().map(|&[at, len]| Mapped { at, len, to: at });
        overlaps(self.by_physical(), kept, |logical, _, len| push(&mut runs, [logical, len]))?;
        Ok(PositionMap { runs })
    }

    /// The physical ranges of the tokens at these logical ones, ascending.
    pub(super) fn find(&self, logical: &[Pair]) -> Result<Vec<Pair>> {
        let mut found = Vec::new();
        overlaps(closed_up(&self.runs), closed_up(logical), |physical, _, len| push(&mut found, [physical, len]))?;
        Ok(found)
    }

    /// The map of the tokens at these logical ranges, with logical positions counted anew over the ranges.
    pub(super) fn kept(&self, logical: &[Pair]) -> Result<Self> {
        let mut runs = Vec::new();
        overlaps(closed_up(&self.runs), closed_up(logical), |_, anew, len| push(&mut runs, [anew, len]))?;
        Ok(PositionMap { runs })
    }

    /// From physical to logical positions.
    fn by_physical(&self) -> impl Iterator<Item = Mapped> {
        closed_up(&self.runs).map(|Mapped { at, len, to }| Mapped { at: to, len, to: at })
    }
}

/// `len` numbers from `at` on, mapped to as many from `to` on.
#[derive(Clone, Copy)]
struct Mapped {
    at: i32,
    len: i32,
    to: i32,
}

/// From the numbers in ranges to their places once the ranges are moved together.
fn closed_up(pairs: &[Pair]) -> impl Iterator<Item = Mapped> {
    pairs.iter().scan(0, |before, &[at, len]| {
        let to = *before;
        *before += len;
        Some(Mapped { at, len, to })
    })
}

/// Calls `visit` for each run of numbers that two ascending lists share, with its image in either and its length.
fn overlaps(
    left: impl Iterator<Item = Mapped>,
    right: impl Iterator<Item = Mapped>,
    mut visit: impl FnMut(i32, i32, i32) -> Result<()>,
) -> Result<()> {
    let (mut left, mut right) = (left.peekable(), right.peekable());
    while let (Some(&l), Some(&r)) = (left.peek(), right.peek()) {
        let (first, end) = (l.at.max(r.at), (l.at + l.len).min(r.at + r.len));
        if first < end {
            visit(l.to + first - l.at, r.to + first - r.at, end - first)?;
        }
        if l.at + l.len <= r.at + r.len {
            left.next();
        } else {
            right.next();
        }
    }
    Ok(())
}

/// Adds a run; joins it to the last where they touch.
fn push(runs: &mut Vec<Pair>, [begin, count]: Pair) -> Result<()> {
    match runs.last_mut() {
        _ if count == 0 => {}
        Some(last) if last[0] + last[1] == begin => last[1] += count,
        _ => memory::push(runs, [begin, count])?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pairs(skips: &[(i32, i32)], limit: i32) -> Vec<Pair> {
        let mut at = 0;
        let ends = skips.iter().map(|(skip, len)| {
            let pair = [at + skip, *len];
            at += skip + len;
            pair
        });
        ends.filter(|p| p[0] + p[1] <= limit).collect()
    }

    fn expand(pairs: &[Pair]) -> Vec<i32> {
        pairs.iter().flat_map(|p| p[0]..p[0] + p[1]).collect()
    }

    proptest! {
        #[test]
        fn positions_are_those_of_a_list_with_one_entry_per_token(
            steps in prop::collection::vec((0u8..3, 0i32..20, prop::collection::vec((0i32..6, 0i32..9), 0..6)), 1..30),
        ) {
            let mut positions = PositionMap::default();
            let (mut list, mut logical) = (Vec::<i32>::new(), 0);
            for (what, count, skips) in steps {
                match what {
                    0 => {
                        positions.append(logical as u32, count as u32).unwrap();
                        list.extend(logical..logical + count);
                        logical += count;
                    }
                    1 => {
                        let pairs = pairs(&skips, list.len() as i32);
                        positions = positions.evicted(&pairs).unwrap();
                        list = expand(&pairs).iter().map(|t| list[*t as usize]).collect();
                    }
                    _ => {
                        let pairs = pairs(&skips, logical);
                        let kept = expand(&pairs);
                        let found: Vec<i32> = (0..list.len() as i32).filter(|t| kept.contains(&list[*t as usize])).collect();
                        prop_assert_eq!(expand(&positions.find(&pairs).unwrap()), found);
                        positions = positions.kept(&pairs).unwrap();
                        list = list.iter().filter_map(|l| kept.iter().position(|k| k == l).map(|at| at as i32)).collect();
                        logical = kept.len() as i32;
                    }
                }
                prop_assert_eq!(&expand(positions.runs()), &list);
                prop_assert!(positions.runs().windows(2).all(|w| w[0][0] + w[0][1] != w[1][0]));
            }
        }
    }
}
