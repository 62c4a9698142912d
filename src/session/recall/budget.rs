//! The budget of a layer, and the blocks that are chosen by their estimates.

use super::blocks::Block;
use super::{Exchange, Recall};
use crate::session::config::Ratio;
use crate::session::lanes::MOST_DECODE_ROWS;
use crate::session::layer::CacheLengths;
use crate::status::Result;
use crate::sys::memory;
use std::cmp::Ordering;

impl Recall {
    /// The tokens that the limit leaves to a cache before a step of `next` tokens.
    pub(super) fn limit(&self, next: u32) -> u32 {
        self.eviction.max_tokens.map_or(u32::MAX, |most| most.saturating_sub(next))
    }

    /// The tokens that a cache may have before a step of `next` tokens.
    ///
    /// The limit holds after the step. So does the ratio, unless the step is a chunk of a prompt: the tokens of a chunk
    /// leave no room for others, and go themselves before the next one.
    pub(super) fn room(&self, logical: u32, next: u32) -> u32 {
        let limit = self.limit(next);
        let step = if next as usize > MOST_DECODE_ROWS { 0 } else { next };
        let length = logical.saturating_add(step).max(1);
        if length < self.eviction.trigger_min_tokens {
            return limit;
        }
        // In f64, less what an f32 ratio may be off: a budget of a share is never a token more.
        let tokens = match self.eviction.ratio {
            Ratio::Keep(ratio) => f64::from(ratio) * f64::from(length),
            Ratio::Lossy(ratio) => f64::from(length) / f64::from(ratio),
        };
        let tokens = (tokens * (1.0 - f64::from(f32::EPSILON))).ceil() as u32;
        tokens.saturating_sub(step).min(limit)
    }

    /// Whether a block is to be in the cache whatever its share: it is pinned, or reaches into the first or the recent tokens.
    pub(super) fn must_stay(&self, block: &Block, logical: u32) -> bool {
        block.is_pinned
            || block.begin < self.rules.sink_tokens
            || block.range().end.saturating_add(self.rules.recent_tokens) > logical
    }

    /// Whether a block may leave the cache.
    pub(super) fn may_leave(&self, block: &Block, logical: u32) -> bool {
        !block.is_away && !self.must_stay(block, logical)
    }

    /// The share of a block; 0 where none was given.
    fn share(&self, block: &Block) -> f32 {
        self.judge.as_ref().and_then(|judge| judge.estimate(block)).unwrap_or(0.0)
    }

    /// Numbers of blocks for which `which` is true, and their shares, by `order` of these; equal ones by age.
    fn ranked(
        &self,
        which: impl Fn(&Block) -> bool,
        order: impl Fn(&f32, &f32) -> Ordering,
    ) -> Result<Vec<(usize, f32)>> {
        let blocks = self.blocks.list().iter().enumerate().filter(|(_, block)| which(block));
        let mut ranked = memory::collect(blocks.map(|(at, block)| (at, self.share(block))))?;
        ranked.sort_unstable_by(|a, b| order(&a.1, &b.1).then(a.0.cmp(&b.0)));
        Ok(ranked)
    }

    /// The blocks of the lowest shares that leave, so that `room` tokens are left.
    pub(super) fn leaving(&self, lengths: CacheLengths, room: u32) -> Result<Vec<usize>> {
        let mut excess = lengths.physical.saturating_sub(room);
        let mut leaving = Vec::new();
        if excess == 0 {
            // Nearly every step: blocks need no order.
            return Ok(leaving);
        }
        for (at, _) in self.ranked(|block| self.may_leave(block, lengths.logical), f32::total_cmp)? {
            if excess == 0 {
                break;
            }
            memory::push(&mut leaving, at)?;
            excess = excess.saturating_sub(self.blocks.list()[at].count);
        }
        Ok(leaving)
    }

    /// The parked blocks that come back without another one leaving: all that must stay, and then the best, as many as may in
    /// a step.
    pub(super) fn filling(&self, lengths: CacheLengths, more: u32) -> Result<Vec<usize>> {
        let mut filling = Vec::new();
        let must_stay = |block: &Block| self.must_stay(block, lengths.logical);
        let mut left = more;
        for (at, block) in
            self.blocks.list().iter().enumerate().filter(|(_, block)| block.may_return() && must_stay(block))
        {
            memory::push(&mut filling, at)?;
            left = left.saturating_sub(block.count);
        }
        let most = filling.len() + self.rules.exchanges as usize;
        let smallest = self.blocks.list().iter().filter(|block| block.may_return()).map(|block| block.count).min();
        if smallest.is_none_or(|smallest| smallest > left) {
            return Ok(filling);
        }
        for (at, share) in self.ranked(|block| block.may_return() && !must_stay(block), |a, b| b.total_cmp(a))? {
            let count = self.blocks.list()[at].count;
            if filling.len() < most && share > 0.0 && count <= left {
                memory::push(&mut filling, at)?;
                left -= count;
            }
        }
        Ok(filling)
    }

    /// Chooses the blocks that come back in the place of others: the best parked one for the worst of equal length, as often
    /// as it is better by the hysteresis, and as may in a step.
    pub(super) fn choose(&mut self, lengths: CacheLengths) -> Result<()> {
        self.exchanges.clear();
        let Some(judge) = &self.judge else { return Ok(()) };
        for _ in 0..self.rules.exchanges {
            let chosen = |at: usize| self.exchanges.iter().any(|exchange| [exchange.out, exchange.back].contains(&at));
            let judged = self.blocks.list().iter().enumerate().filter(|(at, _)| !chosen(*at));
            let judged = judged.filter_map(|(at, block)| Some((at, block, judge.estimate(block)?)));
            // The oldest of equals.
            let back = judged.clone().filter(|(_, block, _)| block.may_return());
            let Some((back, best, gain)) = back.reduce(|best, next| if next.2 > best.2 { next } else { best }) else {
                break;
            };
            let out =
                judged.filter(|(_, block, _)| block.count == best.count && self.may_leave(block, lengths.logical));
            let Some((out, _, loss)) = out.reduce(|worst, next| if next.2 < worst.2 { next } else { worst }) else {
                break;
            };
            let nats = (f64::from(gain) / f64::from(loss)).ln();
            // NaN, of 0 and 0, is no gain.
            if nats.is_nan() || nats < self.rules.hysteresis.into() {
                break;
            }
            memory::push(&mut self.exchanges, Exchange { out, back })?;
        }
        Ok(())
    }
}
