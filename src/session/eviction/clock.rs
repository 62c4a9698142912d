//! The clock of one layer: steps since its last plan, and how many tokens steps append.

use crate::session::sums::MOST_DECODE_ROWS;

/// A step, as the clock counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tick {
    /// Without attention. The clock stands still.
    Unattended,
    /// Rows of a prompt. The clock stands still; once some of them are scored, a plan is due.
    Prompt {
        /// The layer got block sums.
        scored: bool,
    },
    /// Any other step.
    Decode,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clock {
    /// Decode steps since the last plan.
    since_plan: u32,
    /// Tokens that the last two steps appended, the last one first.
    last: [u32; 2],
    /// Tokens that the largest step since the reset appended that was no prompt.
    largest_draft: u32,
}

impl Clock {
    /// The numbers of a clock.
    pub(super) const NUMBERS: usize = 4;

    /// Its numbers, for [`Clock::of`].
    pub(super) fn numbers(&self) -> [u32; Self::NUMBERS] {
        [self.since_plan, self.last[0], self.last[1], self.largest_draft]
    }

    pub(super) fn of([since_plan, last, before, largest_draft]: [u32; Self::NUMBERS]) -> Self {
        Clock { since_plan, last: [last, before], largest_draft }
    }

    /// Counts the tokens that a step appended. `empty`: to an empty layer.
    pub(super) fn see(&mut self, added: u32, empty: bool) {
        self.last = [added, self.last[0]];
        if !empty && added as usize <= MOST_DECODE_ROWS {
            self.largest_draft = self.largest_draft.max(added);
        }
    }

    /// Advances the clock; returns whether a plan is due, given one every `interval` decode steps.
    pub(super) fn tick(&mut self, tick: Tick, interval: u32) -> bool {
        match tick {
            Tick::Unattended => false,
            Tick::Prompt { scored } => scored,
            Tick::Decode => {
                self.since_plan = self.since_plan.saturating_add(1);
                self.since_plan >= interval
            }
        }
    }

    /// A plan was made.
    pub(super) fn planned(&mut self) {
        self.since_plan = 0;
    }

    /// Tokens that the next step may append: those of the largest draft, or of another chunk of a prompt.
    pub(super) fn next_step(&self) -> u32 {
        self.largest_draft.max(self.last[0]).max(1)
    }

    /// As [`Clock::next_step`], but a large step counts as a chunk only after another one: after a prompt in one piece,
    /// room for a second prompt would evict tokens that decoding still needs.
    pub(super) fn usual_step(&self) -> u32 {
        self.largest_draft.max(self.last[0].min(self.last[1]))
    }
}
