//! When a layer loses tokens, and how many: what a config says about lengths alone.

use super::config::{H2o, Ratio};
use super::lanes::MOST_TOKENS;
use crate::h2o::{PlanConfig, Target};
use crate::status::Result;

/// Lengths that are tried one by one before [`H2o::first_eviction`] takes larger steps.
const NEAR: u32 = 1 << 18;

/// No token beyond is scored.
const MOST: u32 = MOST_TOKENS as u32;

/// A cache whose plan is to be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due {
    /// The length that the ratio is of.
    pub(super) length: u32,
    /// Tokens in the cache.
    pub(super) physical: u32,
    /// The last of them, which no scored row has seen and which stay.
    pub(super) unscored: u32,
    /// The next step might exceed the limit.
    pub(super) over: bool,
    /// Tokens that steps usually append.
    pub(super) usual: u32,
}

impl H2o {
    /// Whether a step of `next` tokens may be too many for a cache of `physical`.
    pub(super) fn is_over(&self, physical: u32, next: u32) -> bool {
        self.max_tokens.is_some_and(|cap| physical.saturating_add(next) > cap)
    }

    /// What a plan leaves so that rounding up to blocks and the steps until the next plan fit below the limit. It is
    /// more than the protected tokens can be, or nothing would go at all.
    fn room(&self, usual: u32) -> Option<u32> {
        let most_protected =
            (self.sink_tokens).saturating_add(self.recent_tokens).saturating_add(2 * self.block_tokens);
        let ahead = self.update_interval.max(usual).saturating_add(self.block_tokens);
        self.max_tokens.map(|cap| cap.saturating_sub(ahead).max(most_protected))
    }

    /// What a plan protects and aims at.
    pub(super) fn plan_config(&self, due: &Due) -> Result<PlanConfig> {
        let room = self.room(due.usual);
        let ratio = match self.ratio {
            Ratio::Keep(ratio) => Target::KeepRatio(ratio),
            Ratio::Lossy(ratio) => Target::LossyRatio(ratio),
        };
        let target = ratio.tokens(due.length.max(1))?.min(room.unwrap_or(u32::MAX));
        let config = PlanConfig {
            block_tokens: self.block_tokens,
            sink_tokens: self.sink_tokens,
            recent_tokens: self.recent_tokens.max(due.unscored),
            target: Target::Tokens(target),
        };
        match room.filter(|_| due.over && due.physical > 0) {
            // The floor may be more than the ratio asks for, but what may go has to go before the limit is exceeded.
            Some(room) if config.amounts(due.physical)?.floor_dominates() => {
                Ok(PlanConfig { target: Target::Tokens(room), ..config })
            }
            _ => Ok(config),
        }
    }

    /// Whether a chat of so many tokens, of which none is evicted yet and each was a scored step, loses some.
    fn evicts_at(&self, len: u32) -> bool {
        let over = self.is_over(len, 1);
        let due = Due { length: len, physical: len, unscored: 0, over, usual: 1 };
        let evicts = || self.plan_config(&due).and_then(|config| config.amounts(len)).is_ok_and(|a| a.evicts(len));
        (over || len >= self.trigger_min_tokens) && evicts()
    }

    /// The least length at which a chat that grows token by token loses some; `None` where that never happens.
    pub(super) fn first_eviction(&self) -> Option<u32> {
        let start = self.trigger_min_tokens.min(self.max_tokens.unwrap_or(MOST)).max(1);
        let near = start.saturating_add(NEAR).min(MOST);
        if let Some(found) = (start..near).find(|len| self.evicts_at(*len)) {
            return Some(found);
        }
        // At each place in a block all lengths evict from some length on.
        let size = self.block_tokens;
        let lengths = |block: u32| near + block * size..MOST.min(near + block * size + (size - 1)) + 1;
        let (mut none, mut some) = (0, (MOST - near) / size + 1);
        while none < some {
            let middle = none + (some - none) / 2;
            if lengths(middle).any(|len| self.evicts_at(len)) {
                some = middle;
            } else {
                none = middle + 1;
            }
        }
        if some > (MOST - near) / size { None } else { lengths(some).find(|len| self.evicts_at(*len)) }
    }
}

#[cfg(test)]
mod tests {
    use crate::h2o::Aggregation;
    use crate::session::config::{Basis, H2o, Ratio};
    use proptest::prelude::*;

    fn h2o(block: u32, sink: u32, recent: u32, ratio: Ratio, trigger: u32, cap: Option<u32>) -> H2o {
        H2o {
            first_layer: 0,
            end_layer: 1,
            block_tokens: block,
            sink_tokens: sink,
            recent_tokens: recent,
            ratio,
            basis: Basis::Logical,
            max_tokens: cap,
            trigger_min_tokens: trigger,
            update_interval: 16,
            aggregation: Aggregation::Sum,
            prefill_queries: 0,
            evict_unscored: false,
            log_stats: false,
        }
    }

    #[test]
    fn the_default_config_evicts_first_at_1152_tokens() {
        // 1152 / 3.5 = 330 tokens are aimed at, and 32 + 256 with the rest of their blocks are 320; 1151 of them have a
        // rest of 63 tokens more.
        assert_eq!(h2o(64, 32, 256, Ratio::Lossy(3.5), 512, None).first_eviction(), Some(1152));
    }

    #[test]
    fn a_ratio_of_1_never_evicts_but_for_the_limit() {
        for ratio in [Ratio::Lossy(1.0), Ratio::Keep(1.0)] {
            assert_eq!(h2o(64, 32, 256, ratio, 512, None).first_eviction(), None);
            // 1000 less an interval and a block are to stay: of 984 tokens the protected 344 and 9 blocks, of 983 one more.
            assert_eq!(h2o(64, 32, 256, ratio, 512, Some(1000)).first_eviction(), Some(984));
        }
    }

    proptest! {
        #[test]
        fn the_first_eviction_is_the_first_of_all_lengths_and_far_ones_are_found(
            block in 1u32..200, sink in 0u32..500, recent in 0u32..500, keep in 0f32..=1.0, trigger in 0u32..2000,
            cap in prop::option::of(1u32..3000), far in 1u32..1000,
        ) {
            let least = sink + recent + 3 * block + 16;
            let h2o = h2o(block, sink, recent, Ratio::Keep(keep), trigger, cap.map(|cap| cap + least));
            let first = h2o.first_eviction();
            let lengths = (1..first.unwrap_or(20_000).min(20_000)).all(|len| !h2o.evicts_at(len));
            prop_assert!(lengths && first.is_none_or(|first| h2o.evicts_at(first)), "{:?}", first);

            // A trigger beyond the lengths that are tried one by one: what is found must be as good as the first.
            let recent = (1 << 18) + far * 1000;
            let h2o = H2o { recent_tokens: recent, max_tokens: None, trigger_min_tokens: 1, ratio: Ratio::Keep(0.5), ..h2o };
            let first = h2o.first_eviction().unwrap();
            prop_assert!(h2o.evicts_at(first) && !h2o.evicts_at(first - 1), "{}", first);
            prop_assert!((1..2 * block).all(|back| !h2o.evicts_at(first - back)), "{}", first);
        }
    }
}
