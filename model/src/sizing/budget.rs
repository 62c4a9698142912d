//! The longest context of a byte budget.

use super::sizer::{MAX_TOKENS, Sizer};

/// The longest context that fits a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Longest {
    /// Tokens of each sequence; one more does not fit.
    pub tokens: u64,
    /// Their bytes on a rank at the peak of a step.
    pub bytes: u64,
    /// False: every length up to [`MAX_TOKENS`] fits.
    pub bounded: bool,
}

impl Sizer {
    /// The longest context whose cache takes at most `budget` bytes on a rank at the peak of a step
    /// ([`super::Bytes::peak`]). Exists always, since no tokens take no bytes.
    pub fn longest(&self, budget: u64) -> Longest {
        // Bytes that exceed 64 bits exceed the budget.
        let peak = |tokens| self.bytes(tokens).ok().map(|bytes| bytes.peak).filter(|peak| *peak <= budget);
        if let Some(bytes) = peak(MAX_TOKENS) {
            return Longest { tokens: MAX_TOKENS, bytes, bounded: false };
        }
        // Bytes are monotonic in length. Invariant: `tokens` fits, `too_many` does not.
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
