//! The oracle of a session's layer: every token, in f64.

use super::settings::Rules;
use crate::host::expand;
use crate::layout::Pair;

/// Scores within this relative distance may be ranked either way: the session ranks f32.
const NEAR: f64 = 1e-4;
/// A step of more rows is a prompt.
const MOST_DECODE_ROWS: usize = 64;

/// A token in the cache, with its share of its block's score.
#[derive(Clone, Copy, Default)]
struct Token {
    /// Its logical position.
    logical: u32,
    /// The moving average, or the sum, of its attention.
    value: f64,
    /// It was in the cache when a step was scored.
    scored: bool,
}

/// The tokens that the next begin keeps.
struct Plan {
    keep: Vec<bool>,
    /// Blocks that must stay or go. `None`: scores are within [`NEAR`].
    certain: Vec<Option<bool>>,
}

/// Events of a layer since the session was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) plans: u64,
    pub(super) stale: u64,
    pub(super) evictions: u64,
    pub(super) evicted: u64,
    pub(super) last_evicted: u64,
    /// Evictions whose ties the session decided the other way.
    pub(super) ties: u64,
    /// Steps whose attention changed scores.
    pub(super) scored: u64,
    /// Plans that were refused memory.
    pub(super) unplanned: u64,
    /// Plans that tokens without a score prevented or changed.
    pub(super) unscored: u64,
    /// Steps that left more tokens than the cap.
    pub(super) over: u64,
}

pub(super) struct Model {
    pub(super) rules: Option<Rules>,
    pub(super) logical: u32,
    tokens: Vec<Token>,
    /// Steps since the last plan.
    clock: usize,
    /// For each step since the reset: the tokens that it appended, and whether the layer was empty.
    added: Vec<(usize, bool)>,
    plan: Option<Plan>,
    /// By logical position, those of tokens to come as well; false behind its end.
    pinned: Vec<bool>,
    pub(super) counts: Counts,
}

impl Model {
    pub(super) fn new(rules: Option<&Rules>) -> Self {
        let rules = rules.cloned();
        Model {
            rules,
            logical: 0,
            tokens: Vec::new(),
            clock: 0,
            added: Vec::new(),
            plan: None,
            pinned: Vec::new(),
            counts: Counts::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    pub(super) fn evicts(&self) -> bool {
        self.rules.is_some()
    }

    pub(super) fn positions(&self) -> Vec<u32> {
        self.tokens.iter().map(|t| t.logical).collect()
    }

    pub(super) fn reset(&mut self) {
        let counts = self.counts;
        *self = Model { counts, ..Model::new(self.rules.as_ref()) };
    }

    /// Whether a step of `queries` rows is a prompt now.
    pub(super) fn is_prompt(&self, queries: usize) -> bool {
        self.logical == 0 || queries > MOST_DECODE_ROWS
    }

    /// The number of a step's rows that are scored.
    pub(super) fn counted(&self, queries: usize) -> usize {
        let rules = self.rules.as_ref().expect("only layers with rules are scored");
        if self.is_prompt(queries) { rules.prompt_rows.min(queries) } else { queries }
    }

    /// Applies the plan. `kept`: logical positions after the session's begin. Returns the mask of tokens that stay.
    pub(super) fn begin(&mut self, kept: &[u32]) -> Vec<bool> {
        let Some(plan) = self.plan.take() else { return vec![true; self.len()] };
        let block = self.rules.as_ref().unwrap().block;
        let stays: Vec<bool> = self.tokens.iter().map(|t| kept.binary_search(&t.logical).is_ok()).collect();
        let whole = stays.chunks(block).all(|b| b.iter().all(|kept| *kept == b[0]));
        assert!(whole, "a block was torn: {kept:?} of {:?}", self.positions());
        let open = |(b, kept): (usize, &[bool])| plan.certain[b].is_none_or(|must| must == kept[0]);
        assert!(
            stays.chunks(block).enumerate().all(open) && count(&stays) == count(&plan.keep),
            "wrong blocks stay: {stays:?} instead of {:?} by scores {:?}",
            plan.keep,
            self.scores()
        );
        self.counts.evictions += 1;
        self.counts.last_evicted = (stays.len() - count(&stays)) as u64;
        self.counts.evicted += self.counts.last_evicted;
        self.counts.ties += u64::from(stays != plan.keep);
        self.edit(&stays);
        stays
    }

    /// Ends a step of `queries` rows (0: it failed) that appended `added` tokens. `masses`: the masses of tokens over all
    /// heads, and the heads, if it was scored. `planned`: the session had memory for a plan. Returns whether one was due.
    pub(super) fn end(&mut self, added: u32, queries: usize, masses: Option<(&[f64], usize)>, planned: bool) -> bool {
        let prompt = self.is_prompt(queries);
        let counted = if self.evicts() { self.counted(queries) } else { 0 };
        let new = (self.logical..self.logical + added).map(|logical| Token { logical, ..Token::default() });
        self.tokens.extend(new);
        self.added.push((added as usize, self.logical == 0));
        self.logical += added;
        let Some(rules) = self.rules.clone() else { return false };
        let masses = masses.filter(|_| counted > 0);
        if let Some((masses, heads)) = masses {
            self.counts.scored += 1;
            self.fold(&rules, masses, heads, counted);
            self.tokens.iter_mut().for_each(|token| token.scored = true);
        }
        let due = if queries == 0 {
            false
        } else if prompt {
            masses.is_some()
        } else {
            self.clock += 1;
            self.clock >= rules.interval
        };
        self.counts.over += u64::from(rules.cap.is_some_and(|cap| self.len() > cap));
        let wanted = due && self.logical as usize >= rules.trigger || self.is_over(&rules);
        wanted && self.plan_if(planned, &rules)
    }

    /// The last tokens, which have no score and must stay.
    fn unscored(&self, rules: &Rules) -> usize {
        let unscored = self.tokens.iter().rev().take_while(|token| !token.scored).count();
        if rules.evict_unscored { 0 } else { unscored }
    }

    /// The most tokens of a step that was no prompt.
    fn largest_draft(&self) -> usize {
        let drafts = self.added.iter().filter(|(added, empty)| !empty && *added <= MOST_DECODE_ROWS);
        drafts.map(|(added, _)| *added).max().unwrap_or(0)
    }

    /// Whether a step like the last, or like the largest draft, would exceed the cap.
    fn is_over(&self, rules: &Rules) -> bool {
        let last = self.added.last().map_or(0, |(added, _)| *added);
        rules.cap.is_some_and(|cap| self.len() + last.max(self.largest_draft()).max(1) > cap)
    }

    /// The tokens that a plan may keep below the cap, with room for the usual steps.
    fn room(&self, rules: &Rules, cap: usize) -> usize {
        let chunk = match self.added[..] {
            [.., (a, _), (b, _)] => a.min(b),
            _ => 0,
        };
        let ahead = rules.interval.max(chunk).max(self.largest_draft()) + rules.block;
        cap.saturating_sub(ahead).max(rules.sink + rules.recent + 2 * rules.block)
    }

    fn fold(&mut self, rules: &Rules, masses: &[f64], heads: usize, rows: usize) {
        for (token, mass) in self.tokens.iter_mut().zip(masses) {
            token.value = rules.alpha * token.value + (1.0 - rules.alpha) * mass / (heads * rows) as f64;
        }
    }

    /// By block.
    fn scores(&self) -> Vec<f64> {
        let rules = self.rules.as_ref().unwrap();
        self.tokens.chunks(rules.block).map(|tokens| tokens.iter().map(|token| token.value).sum()).collect()
    }

    /// Makes a plan if the session had memory for one (`planned`). Returns false if no token has a score.
    fn plan_if(&mut self, planned: bool, rules: &Rules) -> bool {
        if self.len() > 0 && self.unscored(rules) == self.len() {
            self.counts.unscored += 1;
            self.clock = 0;
            return false;
        }
        if planned {
            self.make_plan(rules);
        } else {
            self.counts.unplanned += 1;
        }
        true
    }

    fn make_plan(&mut self, rules: &Rules) {
        self.counts.plans += 1;
        self.clock = 0;
        self.plan = None;
        let (len, size) = (self.len(), rules.block);
        if len == 0 {
            return;
        }
        let tokens = |b: usize| b * size..len.min((b + 1) * size);
        let blocks = len.div_ceil(size);
        let recent = rules.recent.max(self.unscored(rules));
        self.counts.unscored += u64::from(recent > rules.recent);
        let first_recent = len.saturating_sub(recent) / size;
        let mut keep: Vec<bool> = (0..blocks).map(|b| b * size < rules.sink || b >= first_recent).collect();
        let held = |keep: &[bool]| (0..blocks).filter(|b| keep[*b]).map(|b| tokens(b).len()).sum::<usize>();
        let unpinned = held(&keep);
        for (at, token) in self.tokens.iter().enumerate() {
            keep[at / size] |= self.pinned.get(token.logical as usize).is_some_and(|pinned| *pinned);
        }
        let floor = held(&keep);

        let basis = (self.logical as usize).max(1);
        let mut target = ((rules.ratio * basis as f32).ceil() as usize).clamp(1, basis);
        if let Some(cap) = rules.cap {
            target = target.min(self.room(rules, cap));
        }
        let mut target = target.clamp(1, len);
        if floor >= target {
            // Protected tokens exceed the ratio's target. Only the cap may evict, and where pins exceed it, all but a block.
            let Some(cap) = rules.cap.filter(|_| self.is_over(rules)) else { return };
            target = self.room(rules, cap).max(if floor > unpinned { floor + 1 } else { 0 }).clamp(1, len);
            if floor >= target {
                return;
            }
        }
        let goal = len.min(floor + (target - floor).div_ceil(size) * size);
        let scores = self.scores();
        let mut ranked: Vec<usize> = (0..blocks).filter(|b| !keep[*b]).collect();
        ranked.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
        let mut chosen = 0;
        while held(&keep) < goal {
            keep[ranked[chosen]] = true;
            chosen += 1;
        }
        let mut certain: Vec<Option<bool>> = keep.iter().copied().map(Some).collect();
        if let (Some(last), Some(next)) = (ranked[..chosen].last(), ranked.get(chosen)) {
            let near = |a: f64, b: f64| (a - b).abs() <= NEAR * a.abs().max(b.abs()) && (a, b) != (0.0, 0.0);
            for b in &ranked {
                let rival = if keep[*b] { next } else { last };
                if near(scores[*b], scores[*rival]) {
                    certain[*b] = None;
                }
            }
        }
        let keep: Vec<bool> = (0..len).map(|t| keep[t / size]).collect();
        self.plan = keep.contains(&false).then_some(Plan { keep, certain });
    }

    /// Edits the history. `planned` as in [`Model::end`]. Returns the mask of tokens that stay.
    pub(super) fn keep(&mut self, pairs: &[Pair], planned: bool) -> Vec<bool> {
        let stays: Vec<u32> = expand(pairs).collect();
        if stays.len() == self.logical as usize {
            return vec![true; self.len()];
        }
        let mask: Vec<bool> = self.tokens.iter().map(|t| stays.contains(&t.logical)).collect();
        self.edit(&mask);
        let end = stays.last().map_or(0, |last| *last as usize + 1);
        let to_come = self.pinned.split_off(self.pinned.len().min(end));
        self.pinned.resize(end, false);
        self.pinned = stays.iter().map(|l| self.pinned[*l as usize]).chain(to_come).collect();
        for token in &mut self.tokens {
            token.logical = stays.iter().position(|l| *l == token.logical).unwrap() as u32;
        }
        self.logical = stays.len() as u32;
        self.plan_anew(planned);
        mask
    }

    /// Pins or unpins tokens. `planned` as in [`Model::end`].
    pub(super) fn pin(&mut self, first: usize, count: usize, on: bool, planned: bool) {
        if count == 0 {
            return;
        }
        self.pinned.resize(self.pinned.len().max(first + count), false);
        self.pinned[first..first + count].fill(on);
        self.plan_anew(planned);
    }

    /// Makes a waiting plan anew.
    fn plan_anew(&mut self, planned: bool) {
        if self.plan.take().is_some() {
            self.counts.stale += 1;
            let rules = self.rules.clone().unwrap();
            if self.logical as usize >= rules.trigger || self.is_over(&rules) {
                self.plan_if(planned, &rules);
            }
        }
    }

    /// Gives every token an equal share of its block's score, then removes tokens with their shares.
    fn edit(&mut self, stays: &[bool]) {
        if let Some(rules) = &self.rules {
            for block in self.tokens.chunks_mut(rules.block) {
                let count = block.len() as f64;
                let value: f64 = block.iter().map(|t| t.value).sum();
                block.iter_mut().for_each(|t| t.value = value / count);
            }
        }
        let mut stays = stays.iter();
        self.tokens.retain(|_| *stays.next().unwrap());
    }
}

fn count(mask: &[bool]) -> usize {
    mask.iter().filter(|kept| **kept).count()
}
