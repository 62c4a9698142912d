//! Which logical token each physical one is.

use crate::layout::Pair;
use crate::status::{self, Result};

/// Runs of tokens in physical order, as (first logical position, count): ascending, never touching.
#[derive(Debug, Default)]
pub(super) struct Positions {
    runs: Vec<Pair>,
}

impl Positions {
    pub(super) fn runs(&self) -> &[Pair] {
        &self.runs
    }

    pub(super) fn clear(&mut self) {
        self.runs.clear();
    }

    /// `count` tokens from position `logical` on come behind the others.
    pub(super) fn append(&mut self, logical: u32, count: u32) -> Result<()> {
        push(&mut self.runs, [logical as i32, count as i32])
    }

    /// When only the tokens at these physical ranges are left; they keep their logical positions.
    pub(super) fn evicted(&self, pairs: &[Pair]) -> Result<Self> {
        let mut runs = Vec::new();
        meet(&self.runs, pairs, |run| push(&mut runs, run))?;
        Ok(Positions { runs })
    }

    /// Physical ranges of the tokens at these logical ones.
    pub(super) fn find(&self, logical: &[Pair]) -> Result<Vec<Pair>> {
        let mut found = Vec::new();
        let mut physical = 0;
        let mut pairs = logical.iter().copied().peekable();
        for [begin, count] in &self.runs {
            while let Some([offset, len]) = pairs.peek().copied() {
                let (first, end) = (offset.max(*begin), (offset + len).min(begin + count));
                if first < end {
                    push(&mut found, [physical + first - begin, end - first])?;
                }
                if offset + len > begin + count {
                    break;
                }
                pairs.next();
            }
            physical += count;
        }
        Ok(found)
    }

    /// When only these logical ranges are left, and logical positions are counted anew over them.
    pub(super) fn kept(&self, logical: &[Pair]) -> Result<Self> {
        let mut runs = Vec::new();
        let mut before = 0;
        for [offset, len] in logical {
            for [begin, count] in &self.runs {
                let (first, end) = ((*begin).max(*offset), (begin + count).min(offset + len));
                if first < end {
                    push(&mut runs, [before + first - offset, end - first])?;
                }
            }
            before += len;
        }
        Ok(Positions { runs })
    }
}

/// Calls `visit` with the logical runs of the tokens at physical ranges.
fn meet(runs: &[Pair], physical: &[Pair], mut visit: impl FnMut(Pair) -> Result<()>) -> Result<()> {
    let mut at = 0;
    let mut pairs = physical.iter().copied().peekable();
    for [logical, count] in runs {
        while let Some([offset, len]) = pairs.peek().copied() {
            let (first, end) = (offset.max(at), (offset + len).min(at + count));
            if first < end {
                visit([logical + first - at, end - first])?;
            }
            if offset + len > at + count {
                break;
            }
            pairs.next();
        }
        at += count;
    }
    Ok(())
}

/// Adds a run, joined to the last where they touch.
fn push(runs: &mut Vec<Pair>, [begin, count]: Pair) -> Result<()> {
    match runs.last_mut() {
        _ if count == 0 => {}
        Some(last) if last[0] + last[1] == begin => last[1] += count,
        _ => {
            status::reserve_amortized(runs, 1)?;
            runs.push([begin, count]);
        }
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
            let mut positions = Positions::default();
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
                prop_assert!(positions.runs().windows(2).all(|w| w[0][0] + w[0][1] < w[1][0]));
            }
        }
    }
}
