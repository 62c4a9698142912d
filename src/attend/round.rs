//! The parts of a step that have begun and ended, on any threads. None waits for another: the last to end merges.

use super::found::{Found, Shares};
use crate::arch::attend::Running;
use crate::status::{Error, Result, bail};
use crate::sys::{Mutex, MutexGuard, memory};
use std::fmt;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Most parts of a step.
pub const MOST_PARTS: u32 = 64;

/// A part's share of `count` things.
pub(super) fn share(count: usize, (part, parts): (usize, usize)) -> Range<usize> {
    let at = |part: usize| (count as u128 * part as u128 / parts as u128) as usize;
    at(part)..at(part + 1)
}

/// What a part leaves: pieces, each of which is the softmax of one KV head's query vectors over some of its tokens. Which
/// tokens make a piece does not depend on the number of parts.
#[derive(Default)]
pub(super) struct Partial {
    pub(super) part: u32,
    /// The KV head of each piece, in the order of the tokens.
    pub(super) heads: Vec<u32>,
    /// Pieces of tokens in memory; blocks of a file follow.
    pub(super) here: usize,
    /// Of each piece the query vectors of its head.
    pub(super) running: Vec<Running>,
    pub(super) sums: Vec<f32>,
    pub(super) shares: Shares,
}

impl Partial {
    /// Nothing is left; the memory stays.
    pub(super) fn clear(&mut self) {
        self.heads.clear();
        self.running.clear();
        self.sums.clear();
        self.shares.clear();
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        (self.heads.capacity() + self.sums.capacity()) * size_of::<u32>()
            + self.running.capacity() * size_of::<Running>()
            + self.shares.bytes()
    }
}

/// What all parts of a round must have alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RoundShape {
    pub(super) rows: usize,
    /// Query heads.
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) dims: usize,
    /// The length of the cache.
    pub(super) kv_len: usize,
}

impl fmt::Display for RoundShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RoundShape { heads, kv_heads, dims, kv_len, .. } = self;
        write!(f, "{heads} heads, {kv_heads} KV heads of {dims} and kv_len {kv_len}")
    }
}

/// The parts of one step that have ended.
#[derive(Default)]
pub struct Round(Mutex<Ended>);

#[derive(Default)]
struct Ended {
    /// Parts of the round under way; 0 = none is.
    parts: u32,
    begun: u64,
    ended: u64,
    shape: RoundShape,
    partials: Vec<Partial>,
    /// Rows of all rounds that are complete, and the longest cache that they have attended to.
    done: usize,
    kv_len: usize,
    /// When parts of the round under way end to wait for a file.
    deadline: Option<Instant>,
    found: Found,
}

impl Round {
    /// Rows of the rounds that are complete, and the longest cache that they have attended to.
    /// INVALID_ARGUMENT: if a round is not.
    pub fn done(&self) -> Result<(usize, usize)> {
        let ended = self.lock()?;
        if ended.parts > 0 {
            let missing = (!ended.ended).trailing_zeros();
            bail!(InvalidArgument, "part {missing} of {} has not attended", ended.parts);
        }
        Ok((ended.done, ended.kv_len))
    }

    fn lock(&self) -> Result<MutexGuard<'_, Ended>> {
        self.0.lock().map_err(|_| Error::out_of_service("the step"))
    }

    /// A part begins, of a round that waits so long for a file. Returns when the wait is over.
    pub(super) fn begin(&self, (part, parts): (u32, u32), shape: RoundShape, wait: Duration) -> Result<Instant> {
        let mut now = self.lock()?;
        if now.parts == 0 {
            memory::reserve(&mut now.partials, parts as usize)?;
            (now.parts, now.shape, now.begun, now.ended) = (parts, shape, 0, 0);
            now.deadline = None;
        }
        if (parts, shape.rows) != (now.parts, now.shape.rows) {
            bail!(
                InvalidArgument,
                "parts is {parts} and rows {}; the step has begun with {} parts and {} rows",
                shape.rows,
                now.parts,
                now.shape.rows
            );
        }
        if shape != now.shape {
            bail!(InvalidArgument, "a part has {shape}; the step has begun with {}", now.shape);
        }
        if now.begun >> part & 1 == 1 {
            bail!(InvalidArgument, "part {part} of {parts} is given twice");
        }
        now.begun |= 1 << part;
        Ok(*now.deadline.get_or_insert_with(|| Instant::now() + wait))
    }

    /// A part has failed; it may be given again.
    pub(super) fn failed(&self, part: u32) -> Result<()> {
        let mut now = self.lock()?;
        now.begun &= !(1 << part);
        if now.begun == 0 {
            now.parts = 0;
        }
        Ok(())
    }

    /// A part has ended. To the last one `all`, a list without any, becomes what all parts have left to merge, in their order.
    pub(super) fn end(&self, part: u32, partial: Option<Partial>, found: Found, all: &mut Vec<Partial>) -> Result<()> {
        let mut now = self.lock()?;
        now.found.add(found);
        if let Some(partial) = partial {
            // In the order of parts, so that sums do not depend on which thread was faster.
            let at = now.partials.partition_point(|other| other.part < partial.part);
            #[expect(clippy::disallowed_methods, reason = "begin has made room for all parts")]
            now.partials.insert(at, partial);
        }
        now.ended |= 1 << part;
        if now.ended.count_ones() == now.parts {
            now.done += now.shape.rows;
            now.kv_len = now.kv_len.max(now.shape.kv_len);
            now.parts = 0;
            std::mem::swap(&mut now.partials, all);
        }
        Ok(())
    }
}

impl Round {
    /// Adds what the last part finds.
    pub(super) fn find(&self, body: impl FnOnce(&mut Found)) -> Result<()> {
        body(&mut self.lock()?.found);
        Ok(())
    }

    /// What the parts of all rounds have found; they have ended.
    pub fn all_found(&mut self) -> &mut Found {
        &mut self.own().found
    }

    /// No round has begun.
    pub fn reset(&mut self) {
        let now = self.own();
        (now.parts, now.done, now.kv_len) = (0, 0, 0);
        now.partials.clear();
        now.found.clear();
    }

    fn own(&mut self) -> &mut Ended {
        if self.0.get_mut().is_err() {
            // A part has panicked.
            *self = Round::default();
        }
        match self.0.get_mut() {
            Ok(now) => now,
            Err(poisoned) => poisoned.into_inner(),
        }
    }
}

/// All interleavings of parts; `make test` runs them.
#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    fn rows(rows: usize) -> RoundShape {
        RoundShape { rows, ..RoundShape::default() }
    }

    /// Ends a part. Returns how many it merges.
    fn end(round: &Round, part: u32) -> usize {
        let (partial, mut all) = (Partial { part, sums: vec![part as f32], ..Partial::default() }, Vec::new());
        round.end(part, Some(partial), Found::default(), &mut all).unwrap();
        all.len()
    }

    #[test]
    fn the_last_part_to_end_gets_what_all_have_left() {
        loom::model(|| {
            let round = Arc::new(Round::default());
            let threads: Vec<_> = (0..2)
                .map(|part| {
                    let round = round.clone();
                    thread::spawn(move || {
                        round.begin((part, 3), rows(1), Duration::ZERO).unwrap();
                        end(&round, part)
                    })
                })
                .collect();
            round.begin((2, 3), rows(1), Duration::ZERO).unwrap();
            let own = end(&round, 2);
            let mut all: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            all.push(own);
            all.sort_unstable();
            assert_eq!(all, [0, 0, 3]);
            assert_eq!(round.done().unwrap().0, 1);
        });
    }

    #[test]
    fn a_part_that_fails_may_be_given_again_beside_another() {
        loom::model(|| {
            let round = Arc::new(Round::default());
            let other = {
                let round = round.clone();
                thread::spawn(move || {
                    round.begin((1, 2), rows(4), Duration::ZERO).unwrap();
                    end(&round, 1)
                })
            };
            round.begin((0, 2), rows(4), Duration::ZERO).unwrap();
            round.failed(0).unwrap();
            // Where the other has not begun, the round begins anew.
            round.begin((0, 2), rows(4), Duration::ZERO).unwrap();
            let own = end(&round, 0);
            assert_eq!(own + other.join().unwrap(), 2);
            assert_eq!(round.done().unwrap().0, 4);
        });
    }

    #[test]
    fn one_of_two_threads_that_give_the_same_part_is_refused() {
        loom::model(|| {
            let round = Arc::new(Round::default());
            let other = {
                let round = round.clone();
                thread::spawn(move || round.begin((0, 2), rows(1), Duration::ZERO).is_ok())
            };
            let own = round.begin((0, 2), rows(1), Duration::ZERO).is_ok();
            assert!(own != other.join().unwrap());
            assert!(round.done().is_err());
        });
    }
}
