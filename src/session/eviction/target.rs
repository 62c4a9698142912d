//! The target of a plan: how many tokens the rules keep of a cache, and the length from which on they evict any.

use crate::h2o::{MAX_TOKENS, PlanConfig, Target};
use crate::layout::Pair;
use crate::session::config::{EvictionRules, Ratio};
use crate::status::Result;

/// Lengths that [`EvictionRules::first_eviction`] tries one by one before it takes larger steps.
const NEAR: u32 = 1 << 18;

/// The lengths of a cache that a plan is made for.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlanInput<'a> {
    /// The length that the ratio is of.
    pub(super) length: u32,
    /// Tokens in the cache.
    pub(super) physical: u32,
    /// Tokens at its end that no scored row has seen, and that stay.
    pub(super) unscored: u32,
    /// The next step may exceed the limit.
    pub(super) over: bool,
    /// Tokens that steps usually append.
    pub(super) usual: u32,
    /// First tokens that stay even where the rules protect fewer.
    pub(super) least_sink: u32,
    /// Pinned tokens in the cache, as physical ranges; ascending.
    pub(super) pinned: &'a [Pair],
}

impl EvictionRules {
    /// Whether a cache of `physical` tokens exceeds the limit after a step of `next` tokens.
    pub(super) fn is_over(&self, physical: u32, next: u32) -> bool {
        self.max_tokens.is_some_and(|cap| physical.saturating_add(next) > cap)
    }

    /// The tokens that a plan may leave, so that rounding up to blocks and the steps until the next plan stay below the
    /// limit. Never fewer than the protected tokens with the rest of their blocks.
    fn room(&self, usual: u32) -> Option<u32> {
        let most_protected =
            (self.sink_tokens).saturating_add(self.recent_tokens).saturating_add(2 * self.block_tokens);
        let ahead = self.update_interval.max(usual).saturating_add(self.block_tokens);
        self.max_tokens.map(|cap| cap.saturating_sub(ahead).max(most_protected))
    }

    /// The tokens that a plan protects, and its target.
    pub(super) fn plan_config(&self, input: &PlanInput<'_>) -> Result<PlanConfig> {
        let room = self.room(input.usual);
        let ratio = match self.ratio {
            Ratio::Keep(ratio) => Target::KeepRatio(ratio),
            Ratio::Lossy(ratio) => Target::LossyRatio(ratio),
        };
        let target = ratio.tokens(input.length.max(1))?.min(room.unwrap_or(u32::MAX));
        let config = PlanConfig {
            block_tokens: self.block_tokens,
            sink_tokens: self.sink_tokens.max(input.least_sink),
            recent_tokens: self.recent_tokens.max(input.unscored),
            target: Target::Tokens(target),
        };
        let Some(room) = room.filter(|_| input.over && input.physical > 0) else { return Ok(config) };
        let amounts = config.amounts(input.physical, input.pinned)?;
        if !amounts.floor_dominates() {
            return Ok(config);
        }
        // Below the limit the floor may be more than the ratio keeps. Near the limit all other tokens go, even where pins
        // alone exceed it.
        Ok(PlanConfig { target: Target::Tokens(room.max(amounts.least_with_pins())), ..config })
    }

    /// Whether a plan evicts from a chat of `len` tokens, each of which was a scored step and none of which was evicted.
    fn evicts_at(&self, len: u32) -> bool {
        let over = self.is_over(len, 1);
        let input = PlanInput { length: len, physical: len, unscored: 0, over, usual: 1, least_sink: 0, pinned: &[] };
        let evicts =
            || self.plan_config(&input).and_then(|config| config.amounts(len, &[])).is_ok_and(|a| a.evicts(len));
        (over || len >= self.trigger_min_tokens) && evicts()
    }

    /// The least length at which a chat that grows token by token loses some; `None` where it never does.
    pub(in crate::session) fn first_eviction(&self) -> Option<u32> {
        let start = self.trigger_min_tokens.min(self.max_tokens.unwrap_or(MAX_TOKENS)).max(1);
        let near = start.saturating_add(NEAR).min(MAX_TOKENS);
        if let Some(found) = (start..near).find(|len| self.evicts_at(*len)) {
            return Some(found);
        }
        // For each offset in a block, all lengths from some length on evict: bisect by blocks.
        let size = self.block_tokens;
        let lengths = |block: u32| near + block * size..MAX_TOKENS.min(near + block * size + (size - 1)) + 1;
        let (mut none, mut some) = (0, (MAX_TOKENS - near) / size + 1);
        while none < some {
            let middle = none + (some - none) / 2;
            if lengths(middle).any(|len| self.evicts_at(len)) {
                some = middle;
            } else {
                none = middle + 1;
            }
        }
        if some > (MAX_TOKENS - near) / size { None } else { lengths(some).find(|len| self.evicts_at(*len)) }
    }
}

#[cfg(test)]
mod tests {
    use crate::session::config::{EvictionRules, Ratio};
    use proptest::prelude::*;

    fn rules(block: u32, sink: u32, recent: u32, ratio: Ratio, trigger: u32, cap: Option<u32>) -> EvictionRules {
        EvictionRules {
            first_layer: 0,
            end_layer: 1,
            block_tokens: block,
            sink_tokens: sink,
            recent_tokens: recent,
            ratio,
            max_tokens: cap,
            trigger_min_tokens: trigger,
            update_interval: 16,
            ema_alpha: 0.9,
            prefill_queries: 0,
            evict_unscored: false,
            log_stats: false,
        }
    }

    #[test]
    fn the_first_eviction_comes_when_the_ratio_keeps_more_than_is_protected() {
        // By default: the target is 1016 / 3.5 = 291 tokens; 32 + 256 are whole blocks of 8. With 1015 tokens the rest of a
        // block is 7 tokens more.
        assert_eq!(rules(8, 32, 256, Ratio::Lossy(3.5), 512, None).first_eviction(), Some(1016));
        // The target is 1152 / 3.5 = 330 tokens; 32 + 256 with the rest of their blocks are 320. With 1151 tokens the rest
        // is 63 tokens more.
        assert_eq!(rules(64, 32, 256, Ratio::Lossy(3.5), 512, None).first_eviction(), Some(1152));
    }

    #[test]
    fn a_ratio_of_1_never_evicts_but_for_the_limit() {
        for ratio in [Ratio::Lossy(1.0), Ratio::Keep(1.0)] {
            assert_eq!(rules(64, 32, 256, ratio, 512, None).first_eviction(), None);
            // 1000 less an interval and a block may stay: of 984 tokens the protected 344 and 9 blocks, of 983 one more.
            assert_eq!(rules(64, 32, 256, ratio, 512, Some(1000)).first_eviction(), Some(984));
        }
    }

    proptest! {
        #[test]
        fn the_first_eviction_is_the_first_of_all_lengths_and_far_ones_are_found(
            block in 1u32..200, sink in 0u32..500, recent in 0u32..500, keep in 0f32..=1.0, trigger in 0u32..2000,
            cap in prop::option::of(1u32..3000), far in 1u32..1000,
        ) {
            let least = sink + recent + 3 * block + 16;
            let rules = rules(block, sink, recent, Ratio::Keep(keep), trigger, cap.map(|cap| cap + least));
            let first = rules.first_eviction();
            let lengths = (1..first.unwrap_or(20_000).min(20_000)).all(|len| !rules.evicts_at(len));
            prop_assert!(lengths && first.is_none_or(|first| rules.evicts_at(first)), "{:?}", first);

            // A trigger beyond the lengths that are tried one by one: the length found must be as good as the first.
            let recent = (1 << 18) + far * 1000;
            let ratio = Ratio::Keep(0.5);
            let rules = EvictionRules { recent_tokens: recent, max_tokens: None, trigger_min_tokens: 1, ratio, ..rules };
            let first = rules.first_eviction().unwrap();
            prop_assert!(rules.evicts_at(first) && !rules.evicts_at(first - 1), "{}", first);
            prop_assert!((1..2 * block).all(|back| !rules.evicts_at(first - back)), "{}", first);
        }
    }
}
