//! The longest chat that a budget of bytes holds.

use super::sizer::{MAX_TOKENS, Sizer};

/// What fits a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Longest {
    /// Tokens of each sequence: these fit, and one more would not.
    pub tokens: u64,
    /// Their bytes on a rank at the peak of a step.
    pub bytes: u64,
    /// False: every length up to [`MAX_TOKENS`] fits, because the layers hold a bounded number of tokens or the
    /// budget is vast.
    pub bounded: bool,
}

impl Sizer {
    /// The longest context whose cache never takes more than `budget` bytes on a rank, at the peak of a step
    /// ([`super::Bytes::peak`]). No tokens take no bytes, so there always is one.
    pub fn longest(&self, budget: u64) -> Longest {
        // What does not fit 64 bits does not fit the budget.
        let peak = |tokens| self.bytes(tokens).ok().map(|bytes| bytes.peak).filter(|peak| *peak <= budget);
        if let Some(bytes) = peak(MAX_TOKENS) {
            return Longest { tokens: MAX_TOKENS, bytes, bounded: false };
        }
        // Bytes never fall with length: `tokens` fits all the time, `too_many` never.
        let (mut tokens, mut bytes, mut too_many) = (0, 0, MAX_TOKENS);
        while too_many - tokens > 1 {
            let middle = tokens + (too_many - tokens) / 2;
            match peak(middle) {
                Some(fits) => (tokens, bytes) = (middle, fits),
                None => too_many = middle,
            }
        }
        Longest { tokens, bytes, bounded: true }
    }
}
