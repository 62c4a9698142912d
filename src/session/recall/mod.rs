//! Recall of one layer: evicted tokens are parked in blocks, and come back when the newest queries want them.
//!
//! [`Recall::end`] judges all blocks by the queries of the step and chooses the blocks that come back; the next
//! [`Recall::begin`] exchanges them, and lets blocks leave until the budget holds. A block is judged by a summary of its
//! keys, whether it is in the cache or away. Tokens of a cache then are in any order, which the positions of the layer's
//! eviction tell.
//!
//! Nothing here fails a step: where memory, a codec or a file fails, tokens stay where they are, and a counter tells.

mod blocks;
mod budget;
mod desk;
mod judge;
mod queries;
mod saved;
mod stats;
mod vault;
mod workshop;

pub(super) use desk::Desk;
pub(super) use saved::{LoadedRecall, SavedRecall};
pub use stats::{FileCounts, RecallCounts, RecallStats};
pub(super) use vault::View;
pub(super) use workshop::Workshop;

use super::config::{Config, EvictionRules, RecallRules, Tier};
use super::eviction::Eviction;
use super::layer::CacheLengths;
use super::pins::Pins;
use crate::attend::Queries;
use crate::layout::{Cache, CacheRef, Pair, Rows};
use crate::recall::Summaries;
use crate::status::{Error, Result, bail};
use crate::store::Store;
use crate::sys::{Shared, memory};
use blocks::{Block, Blocks, Plan};
use judge::Judge;
use queries::LastRows;
use std::time::Instant;
use vault::Vault;

/// The length from which on there are summaries, unless tokens leave before.
const SUMMARY_TOKENS: u32 = 512;
/// Most keys that the directions of sketches are chosen from.
const LEARNT_KEYS: usize = 512;
/// Most parked blocks that are decoded in a step to be summarised.
const SUMMARISED_AWAY: usize = 16;
/// Most blocks that the end of a step writes to a file, unless it is a prompt's.
const WRITTEN_BLOCKS: usize = 8;

/// A step of a layer.
#[derive(Clone, Copy)]
pub(super) struct Step<'a> {
    pub(super) lengths: CacheLengths,
    /// Tokens that the step may append; at its end, the next one.
    pub(super) next: u32,
    pub(super) pins: &'a Pins,
    pub(super) is_prompt: bool,
}

/// A block that comes back, by its number.
#[derive(Debug)]
struct Exchange {
    /// The block in whose place it comes.
    out: usize,
    back: usize,
}

/// The recall of one layer.
pub(super) struct Recall {
    number: u32,
    rules: RecallRules,
    eviction: EvictionRules,
    blocks: Blocks,
    /// `None` until there are tokens.
    judge: Option<Judge>,
    vault: Vault,
    /// The queries of the open step.
    queries: LastRows,
    /// Ended since the reset.
    steps: u32,
    /// The blocks that the last end chose.
    exchanges: Vec<Exchange>,
    counts: RecallCounts,
    /// The first failure since the reset.
    failure: Option<Error>,
}

impl Recall {
    /// `None` where evicted tokens are lost, or none is evicted.
    pub(super) fn new(number: u32, config: &Config) -> Option<Self> {
        let eviction = config.eviction_of(number)?;
        let rules = eviction.recall?;
        Some(Recall {
            number,
            rules,
            eviction,
            blocks: Blocks::new(rules.sink_tokens),
            judge: None,
            vault: Vault::new(number, rules.tier),
            queries: LastRows::default(),
            steps: 0,
            exchanges: Vec::new(),
            counts: RecallCounts::default(),
            failure: None,
        })
    }

    /// The recall of the layer now, and its counters.
    pub(super) fn stats(&self) -> RecallStats {
        let tokens = |which: fn(&Block) -> bool| {
            self.blocks.list().iter().filter(|block| which(block)).map(|block| u64::from(block.count)).sum()
        };
        RecallStats {
            away_tokens: tokens(|block| block.is_away),
            lost_tokens: tokens(Block::is_lost),
            file_tokens: tokens(|block| block.copy.as_ref().is_some_and(|copy| copy.in_file().is_some())),
            parked_bytes: self.vault.bytes() as u64,
            summary_bytes: self.judge.as_ref().map_or(0, Judge::bytes) as u64,
            counts: RecallCounts { file: self.vault.counts(), ..self.counts },
        }
    }

    /// Whether there is a limit of tokens.
    pub(super) fn has_limit(&self) -> bool {
        self.eviction.max_tokens.is_some()
    }

    /// The rules of the budget.
    pub(super) fn budget_rules(&self) -> &EvictionRules {
        &self.eviction
    }

    /// The most bytes that a session writes to a file, if blocks are to be there.
    pub(super) fn file_rules(&self) -> Option<Option<u64>> {
        (self.rules.tier == Tier::File).then_some(self.rules.max_write_bytes)
    }

    /// Sets where blocks are written. Must come before the first step.
    pub(super) fn set_desk(&mut self, desk: Shared<Desk>) {
        self.vault.set_desk(desk);
    }

    /// Whether blocks are in memory that were to be in a file, and there is none.
    pub(super) fn lacks_file(&self) -> bool {
        self.vault.has_waiting() && self.vault.desk().is_some_and(|desk| !desk.has_file())
    }

    /// The first failure since the reset.
    pub(super) fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// Whether tokens left by their age alone, since no query came.
    pub(super) fn lacks_queries(&self) -> bool {
        self.counts.left > 0 && self.counts.rows == 0
    }

    /// Takes the last query rows of the open step. On an error nothing has changed.
    pub(super) fn queries(&mut self, queries: &Queries<'_>) -> Result<()> {
        self.queries.take(queries, self.rules.query_window as usize).map_err(|e| e.within("queries"))
    }

    /// Marks the blocks that have a pinned token.
    fn pin(&mut self, pins: &Pins) {
        for block in self.blocks.list_mut() {
            block.is_pinned = !pins.runs().is_empty() && pins.overlaps(block.range());
        }
    }

    /// Makes blocks of the tokens that are no longer recent.
    fn grow(&mut self, logical: u32, pins: &Pins) {
        let grown = self.blocks.grow(self.rules.block_tokens, logical.saturating_sub(self.rules.recent_tokens));
        self.count(grown);
        self.pin(pins);
    }

    /// Exchanges the blocks that the last end chose, and lets blocks leave so that the step holds the budget. Returns the
    /// lengths afterwards.
    pub(super) fn begin(
        &mut self,
        cache: &mut Cache<'_>,
        mut store: Option<&mut Store>,
        eviction: &mut Eviction,
        step: &Step<'_>,
        work: &mut Workshop,
    ) -> CacheLengths {
        let start = Instant::now();
        let Step { mut lengths, next, pins, .. } = *step;
        self.pin(pins);
        let room = self.room(lengths.logical, next);
        for Exchange { out, back } in std::mem::take(&mut self.exchanges) {
            if !self.may_leave(&self.blocks.list()[out], lengths.logical) {
                // Pinned since.
                continue;
            }
            let exchanged = self.exchange((out, back), cache, lengths.physical, store.as_deref_mut(), eviction, work);
            self.count(exchanged);
        }
        // Blocks that must be in the cache come back; others make room for them.
        let due =
            self.blocks.list().iter().filter(|block| block.may_return() && self.must_stay(block, lengths.logical));
        let due: u32 = due.map(|block| block.count).sum();
        if lengths.physical > room.saturating_sub(due) {
            let left = self.leave(lengths, room.saturating_sub(due), cache, store.as_deref_mut(), eviction, work);
            lengths.physical = self.count(left).unwrap_or(lengths.physical);
        }
        if lengths.physical > self.limit(next) {
            // Tokens that were loaded are in no block yet.
            self.grow(lengths.logical, pins);
            let left = self.leave(lengths, self.limit(next), cache, store, eviction, work);
            lengths.physical = self.count(left).unwrap_or(lengths.physical);
        }
        let taken = lengths.physical.saturating_add(next);
        let space = [cache.layout.max_tokens() as u32, self.limit(next).saturating_add(next)];
        let space = space.map(|most| most.saturating_sub(taken));
        let more = room.saturating_sub(lengths.physical);
        let filled = self.fill(more, space, lengths, cache, eviction, work);
        lengths.physical += self.count(filled).unwrap_or(0);
        self.counts.begin_ns += start.elapsed().as_nanos() as u64;
        lengths
    }

    /// Judges the blocks of a cache by the queries of the step, and chooses those that come back.
    pub(super) fn end(&mut self, cache: &CacheRef<'_>, eviction: &Eviction, step: &Step<'_>, work: &mut Workshop) {
        let start = Instant::now();
        let Step { lengths, next: expected, pins, is_prompt } = *step;
        self.steps = self.steps.wrapping_add(1);
        if is_prompt || (self.steps % self.rules.interval + self.number).is_multiple_of(self.rules.interval) {
            self.grow(lengths.logical, pins);
            let judged = self.judge(cache, eviction, lengths, expected, work);
            self.count(judged);
        }
        self.queries.clear();
        self.counts.over_steps += u64::from(lengths.physical > self.limit(0));
        let parked = self.park_ahead(cache, eviction, lengths, expected, is_prompt, work);
        self.count(parked);
        if let Some(desk) = self.vault.desk() {
            desk.try_again();
            self.write_behind(&cache.layout.rows(), if is_prompt { usize::MAX } else { WRITTEN_BLOCKS });
        }
        self.counts.end_ns += start.elapsed().as_nanos() as u64;
    }

    /// The step failed.
    pub(super) fn abort(&mut self) {
        self.queries.clear();
    }

    /// The cache was cleared.
    pub(super) fn reset(&mut self) {
        self.blocks = Blocks::new(self.rules.sink_tokens);
        self.judge = None;
        self.vault.clear();
        self.queries.clear();
        self.exchanges = Vec::new();
        self.steps = 0;
        self.failure = None;
    }

    /// The tokens that an edit of the history leaves, which keeps these logical ranges. A plan for [`Recall::keep`].
    pub(super) fn cut(&self, logical: &[Pair]) -> Result<Plan> {
        self.blocks.cut(logical)
    }

    /// Applies an edit of the history.
    pub(super) fn keep(&mut self, plan: Plan) {
        let Recall { blocks, judge, vault, .. } = self;
        blocks.apply(plan, self.rules.sink_tokens, |block| {
            drop_known(block, judge, vault, block.count == 0);
        });
        self.exchanges.clear();
    }

    /// The host has written these tokens of the cache in place.
    pub(super) fn rewritten(&mut self, physical: Pair, eviction: &Eviction) -> Result<()> {
        let written = eviction.positions_of(&[physical])?;
        let Recall { blocks, judge, vault, .. } = self;
        for block in blocks.list_mut().iter_mut().filter(|block| !block.is_away) {
            let is_written =
                |&[begin, count]: &Pair| (begin as u32) < block.range().end && block.begin < (begin + count) as u32;
            if !written.iter().any(is_written) {
                continue;
            }
            drop_known(block, judge, vault, true);
        }
        self.exchanges.clear();
        Ok(())
    }

    /// Counts a failure.
    fn count<T>(&mut self, result: Result<T>) -> Option<T> {
        result
            .map_err(|error| {
                self.counts.failed += 1;
                self.failure.get_or_insert(error);
            })
            .ok()
    }

    /// Parks a block that is in the cache, unless there is a copy.
    fn park(&mut self, at: usize, cache: &CacheRef<'_>, eviction: &Eviction, work: &mut Workshop) -> Result<()> {
        let block = &self.blocks.list()[at];
        if block.copy.is_some() {
            return Ok(());
        }
        let (count, pair, rows) = (block.count, block.pair(), cache.layout.rows());
        if self.vault.desk().is_some_and(Desk::is_full) {
            self.write_behind(&rows, usize::MAX);
        }
        work.gather(cache, &eviction.places(&[pair])?)?;
        let copy = self.vault.put(&rows, count, work)?;
        self.counts.parked += 1;
        self.blocks.list_mut()[at].copy = Some(copy);
        Ok(())
    }

    /// Writes blocks that are parked in memory to the file, at most `most`, until it takes no more.
    fn write_behind(&mut self, rows: &Rows, most: usize) {
        let waiting = |block: &&mut Block| block.copy.as_ref().is_some_and(|copy| copy.in_file().is_none());
        let may_write = || self.vault.has_waiting() && self.vault.desk().is_some_and(Desk::may_write);
        if !may_write() {
            return;
        }
        for block in self.blocks.list_mut().iter_mut().filter(waiting).take(most) {
            let Some(copy) = &mut block.copy else { continue };
            match self.vault.write(rows, copy) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    self.failure.get_or_insert(error);
                    return;
                }
            }
        }
    }

    /// Puts a parked block in the place of another one, which is parked.
    fn exchange(
        &mut self,
        (out, back): (usize, usize),
        cache: &mut Cache<'_>,
        len: u32,
        store: Option<&mut Store>,
        eviction: &mut Eviction,
        work: &mut Workshop,
    ) -> Result<()> {
        self.park(out, &cache.as_ref(), eviction, work)?;
        let rows = cache.layout.rows();
        let Some(copy) = &mut self.blocks.list_mut()[back].copy else { return Ok(()) };
        self.vault.fetch(&rows, copy, work)?;
        let list = self.blocks.list();
        let places = eviction.places(&[list[out].pair()])?;
        work.fit_places(&rows, &places)?;
        if let Some(store) = store {
            for &[begin, count] in &places {
                store.rewritten(self.number, begin as u32..(begin + count) as u32)?;
            }
        }
        eviction.replace(&places, list[back].begin)?;
        // Cannot fail: there is room, and the places are those of tokens.
        work.scatter(cache, &places, len)?;
        self.set_away(out, true);
        self.set_away(back, false);
        self.counts.left += 1;
        self.counts.returned += 1;
        Ok(())
    }

    fn set_away(&mut self, at: usize, is_away: bool) {
        let block = &mut self.blocks.list_mut()[at];
        block.is_away = is_away;
        if let Some(copy) = block.copy.take_if(|copy| !is_away && !self.vault.keeps(copy)) {
            self.vault.remove(copy);
        }
    }

    /// Lets the worst blocks leave until `room` tokens are left, or none may leave. Returns the tokens that are left.
    fn leave(
        &mut self,
        lengths: CacheLengths,
        room: u32,
        cache: &mut Cache<'_>,
        store: Option<&mut Store>,
        eviction: &mut Eviction,
        work: &mut Workshop,
    ) -> Result<u32> {
        let mut leaving = self.leaving(lengths, room)?;
        let mut ranges = Vec::new();
        memory::reserve(&mut ranges, leaving.len())?;
        for at in std::mem::take(&mut leaving) {
            // Those that cannot be parked stay.
            let parked = self.park(at, &cache.as_ref(), eviction, work);
            if self.count(parked).is_some() {
                memory::push(&mut leaving, at)?;
                memory::push(&mut ranges, self.blocks.list()[at].pair())?;
            }
        }
        if leaving.is_empty() {
            return Ok(lengths.physical);
        }
        ranges.sort_unstable();
        let after = eviction.evict(&ranges, cache, store, lengths)?;
        for at in leaving {
            self.set_away(at, true);
            self.counts.left += 1;
        }
        Ok(after.physical)
    }

    /// Puts parked blocks behind the tokens of the cache, for which the budget has room for `more` tokens, and buffers and
    /// limit for `space`. Blocks that must stay may exceed the limit. Returns their tokens.
    fn fill(
        &mut self,
        more: u32,
        [buffers, limit]: [u32; 2],
        lengths: CacheLengths,
        cache: &mut Cache<'_>,
        eviction: &mut Eviction,
        work: &mut Workshop,
    ) -> Result<u32> {
        let mut added = 0;
        for at in self.filling(lengths, more)? {
            let block = &self.blocks.list()[at];
            let (count, most) =
                (block.count, if self.must_stay(block, lengths.logical) { buffers } else { buffers.min(limit) });
            if added + count > most {
                continue;
            }
            // Those that cannot be read stay away.
            let returned = self.append(at, lengths.physical + added, cache, eviction, work);
            if self.count(returned).is_some() {
                added += count;
            }
        }
        Ok(added)
    }

    /// Puts a parked block behind the `len` tokens of the cache. On an error nothing has changed.
    fn append(
        &mut self,
        at: usize,
        len: u32,
        cache: &mut Cache<'_>,
        eviction: &mut Eviction,
        work: &mut Workshop,
    ) -> Result<()> {
        let rows = cache.layout.rows();
        let block = &mut self.blocks.list_mut()[at];
        let (begin, count) = (block.begin, block.count);
        let Some(copy) = &mut block.copy else { bail!(Internal, "block {at} is away and not parked") };
        self.vault.fetch(&rows, copy, work)?;
        cache.layout.range(len, count)?;
        eviction.append(begin, count)?;
        // Cannot fail: the place was checked.
        work.scatter(cache, &[[len as i32, count as i32]], len + count)?;
        self.set_away(at, false);
        self.counts.returned += 1;
        Ok(())
    }

    /// Gives the blocks their shares of the step's queries, and chooses exchanges.
    fn judge(
        &mut self,
        cache: &CacheRef<'_>,
        eviction: &Eviction,
        lengths: CacheLengths,
        expected: u32,
        work: &mut Workshop,
    ) -> Result<()> {
        self.exchanges.clear();
        let is_due = lengths.logical >= SUMMARY_TOKENS || lengths.physical > self.room(lengths.logical, expected);
        if self.blocks.list().is_empty() || !(is_due || self.judge.is_some()) {
            return Ok(());
        }
        self.summarise(cache, eviction, lengths, work)?;
        let Some(judge) = self.judge.as_mut().filter(|_| self.queries.rows().next().is_some()) else { return Ok(()) };
        let outside = eviction.places(&self.blocks.outside(lengths.logical))?;
        judge.see(&self.queries, cache, &outside, work)?;
        self.counts.rows += self.queries.rows().count() as u64;
        self.choose(lengths)
    }

    /// Parks blocks that the next begin lets leave: all after a prompt, otherwise as many as may be exchanged, and one more.
    /// Layers have equal lengths, so that blocks of all of them leave in the same step: before, each parks its own in a step
    /// of its own.
    fn park_ahead(
        &mut self,
        cache: &CacheRef<'_>,
        eviction: &Eviction,
        lengths: CacheLengths,
        expected: u32,
        is_prompt: bool,
        work: &mut Workshop,
    ) -> Result<()> {
        let most = if is_prompt { usize::MAX } else { self.rules.exchanges as usize + 1 };
        let mut leaving = memory::collect(self.exchanges.iter().map(|exchange| exchange.out))?;
        let size = self.rules.block_tokens;
        let soon = if (lengths.logical % size + self.number % size).is_multiple_of(size) { size } else { 0 };
        let room = self.room(lengths.logical, expected).saturating_sub(soon);
        memory::extend(&mut leaving, &self.leaving(lengths, room)?)?;
        leaving.retain(|at| self.blocks.list()[*at].copy.is_none());
        for at in leaving.into_iter().take(most) {
            self.park(at, cache, eviction, work)?;
        }
        Ok(())
    }

    /// Gives blocks without a summary one. Those in the cache come first.
    fn summarise(
        &mut self,
        cache: &CacheRef<'_>,
        eviction: &Eviction,
        lengths: CacheLengths,
        work: &mut Workshop,
    ) -> Result<()> {
        let rows = cache.layout.rows();
        if self.judge.is_none() {
            let summaries = Summaries::new(rows.heads, rows.dims, self.rules.block_tokens as usize);
            let mut judge = Judge::new(summaries, self.rules.query_window as usize);
            let (keys, count) = work.keys(cache, &spread(lengths.physical)?)?;
            judge.learn(keys, count)?;
            self.judge = Some(judge);
        }
        let Some(judge) = &mut self.judge else { return Ok(()) };
        let mut away = 0;
        let lacking = self.blocks.list_mut().iter_mut().filter(|block| block.slot.is_none() && !block.is_lost());
        for block in lacking {
            let count = block.count as usize;
            let keys = match &mut block.copy {
                Some(copy) if block.is_away => {
                    away += 1;
                    if away > SUMMARISED_AWAY {
                        continue;
                    }
                    if let Err(error) = self.vault.fetch(&rows, copy, work) {
                        // Blocks that cannot be read have no share.
                        self.counts.failed += 1;
                        self.failure.get_or_insert(error);
                        continue;
                    }
                    work.keys_of_rows(&rows, count)?
                }
                _ => work.keys(cache, &eviction.places(&[block.pair()])?)?.0,
            };
            block.slot = Some(judge.insert(keys, count)?);
        }
        Ok(())
    }
}

/// Drops the summary of a block, and its copy where that is of no use either.
fn drop_known(block: &mut Block, judge: &mut Option<Judge>, vault: &mut Vault, with_copy: bool) {
    if let Some((slot, judge)) = block.slot.take().zip(judge.as_mut()) {
        judge.remove(slot);
    }
    if let Some(copy) = block.copy.take_if(|_| with_copy) {
        vault.remove(copy);
    }
}

/// At most [`LEARNT_KEYS`] of `len` tokens, evenly spread.
fn spread(len: u32) -> Result<Vec<Pair>> {
    let count = len.min(LEARNT_KEYS as u32);
    let at = |i: u32| (u64::from(i) * u64::from(len) / u64::from(count)) as i32;
    memory::collect((0..count).map(|i| [at(i), 1]))
}

#[cfg(test)]
impl Recall {
    /// Mean and directions of a head, once blocks are judged.
    pub(super) fn basis_for_tests(&self, head: usize) -> Option<(&[f32], &[[f32; 16]])> {
        self.judge.as_ref()?.basis_for_tests(head)
    }
}
