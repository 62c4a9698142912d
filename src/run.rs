//! Tokens that follow each other in a cache, and in what they are from.

use crate::status::Result;
use crate::sys::memory;
use std::iter;
use std::ops::Range;

/// Consecutive tokens of a cache that are consecutive tokens of something else: of a block, of a piece of a file, or of the
/// cache before an edit. In a list they ascend in the cache, and no token is in two of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run<S = ()> {
    /// What else they are tokens of.
    pub of: S,
    /// Tokens of it before the first.
    pub offset: u32,
    /// The first token in the cache.
    pub begin: u32,
    /// Tokens.
    pub count: u32,
}

impl<S: Copy + PartialEq> Run<S> {
    /// The token of the cache after the last.
    pub fn end(&self) -> u32 {
        self.begin + self.count
    }

    /// These tokens, as those of something else.
    pub fn with<T>(self, of: T) -> Run<T> {
        Run { of, offset: self.offset, begin: self.begin, count: self.count }
    }

    /// Those of its tokens that are in a range of the cache.
    pub fn part(self, range: &Range<u32>) -> Option<Self> {
        let (begin, end) = (self.begin.max(range.start), self.end().min(range.end));
        (begin < end).then(|| Run { offset: self.offset + (begin - self.begin), begin, count: end - begin, ..self })
    }

    /// Adds a run to a list, as a part of the last one where it continues it.
    pub fn push(runs: &mut Vec<Self>, run: Self) -> Result<()> {
        match runs.last_mut() {
            Some(last) if last.of == run.of && last.end() == run.begin && last.offset + last.count == run.offset => {
                last.count += run.count;
                Ok(())
            }
            _ => memory::push(runs, run),
        }
    }

    /// What is in a range of the cache.
    pub fn within(runs: &[Self], range: Range<u32>) -> impl Iterator<Item = Self> + Clone {
        let first = runs.partition_point(|run| run.end() <= range.start);
        runs[first..].iter().map_while(move |run| run.part(&range))
    }

    /// The parts of a range of the cache that no run has.
    pub fn gaps(runs: &[Self], range: Range<u32>) -> impl Iterator<Item = Range<u32>> {
        let mut at = range.start;
        let covered = Run::within(runs, range.clone()).map(|run| run.begin..run.end());
        let gaps = covered
            .chain(iter::once(range.end..range.end))
            .map(move |run| std::mem::replace(&mut at, run.end)..run.start);
        gaps.filter(|gap| !gap.is_empty())
    }

    /// Drops the tokens of the cache from `len` on.
    pub fn truncate(runs: &mut Vec<Self>, len: u32) {
        runs.retain_mut(|run| {
            run.count = run.count.min(len.saturating_sub(run.begin));
            run.count > 0
        });
    }

    /// The runs after an edit, of which `kept` has the tokens that stay: of the cache before, and now of this one.
    pub fn kept(runs: &[Self], kept: &[Run]) -> Result<Vec<Self>> {
        let mut left = Vec::new();
        for run in runs {
            let first = kept.partition_point(|stay| stay.offset + stay.count <= run.begin);
            for stay in kept[first..].iter().take_while(|stay| stay.offset < run.end()) {
                if let Some(part) = run.part(&(stay.offset..stay.offset + stay.count)) {
                    Run::push(&mut left, Run { begin: stay.begin + (part.begin - stay.offset), ..part })?;
                }
            }
        }
        Ok(left)
    }
}
