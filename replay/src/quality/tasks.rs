//! Texts that show whether a cache still has what was said: a prompt, and tokens that follow it.

use crate::error::{Error, Result};
use serde::Serialize;
use std::path::Path;

/// A way to go on behind a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// A long passage of the prompt comes again.
    Recall,
    /// Short passages, one of each segment of the prompt, come again in random order.
    Needle,
    /// The text goes on.
    Plain,
}

/// Tokens behind the prompt.
pub(super) const STEPS: usize = 160;
/// First tokens behind the prompt that are not scored, where they are one passage.
const UNSCORED: usize = 8;
/// The passage of [`Task::Recall`] begins behind so many tokens, and so many follow it.
const FILLER: [usize; 2] = [224, 384];
const SEGMENTS: usize = 8;
const SEGMENT: usize = 95;
/// Tokens of a passage of [`Task::Needle`], and the first of these that are not scored.
const NEEDLE: usize = STEPS / SEGMENTS;
const NEEDLE_UNSCORED: usize = 4;

impl Task {
    /// All tasks.
    pub const ALL: [Task; 3] = [Task::Recall, Task::Needle, Task::Plain];

    /// The name in results.
    pub fn name(self) -> &'static str {
        match self {
            Task::Recall => "recall",
            Task::Needle => "needle",
            Task::Plain => "plain",
        }
    }

    /// Tokens of the prompt.
    pub fn prompt_tokens(self) -> usize {
        match self {
            Task::Recall | Task::Plain => FILLER[0] + STEPS + FILLER[1],
            Task::Needle => SEGMENTS * SEGMENT,
        }
    }

    /// Whether the token `step` behind the prompt is scored.
    pub(super) fn is_scored(self, step: usize) -> bool {
        match self {
            Task::Recall | Task::Plain => step >= UNSCORED,
            Task::Needle => step % NEEDLE >= NEEDLE_UNSCORED,
        }
    }

    /// A text: the prompt, and [`STEPS`] more. Its passages are from elsewhere, so that only the prompt tells them.
    fn text(self, tokens: &[u32], random: &mut Random) -> Vec<u32> {
        let mut draw = |count: usize| {
            let first = random.below(tokens.len() - count + 1);
            tokens[first..first + count].to_vec()
        };
        let prompt = self.prompt_tokens();
        let mut text = draw(prompt + STEPS);
        match self {
            Task::Recall => {
                let passage = draw(STEPS);
                text[FILLER[0]..][..STEPS].copy_from_slice(&passage);
                text[prompt..].copy_from_slice(&passage);
            }
            Task::Needle => {
                let mut passages = Vec::from_iter((0..SEGMENTS).map(|_| draw(NEEDLE)));
                for (segment, passage) in text.chunks_exact_mut(SEGMENT).zip(&passages) {
                    segment[random.below(SEGMENT - NEEDLE + 1)..][..NEEDLE].copy_from_slice(passage);
                }
                (1..SEGMENTS).rev().for_each(|last| passages.swap(last, random.below(last + 1)));
                text[prompt..].copy_from_slice(&passages.concat());
            }
            Task::Plain => {}
        }
        text
    }

    /// `count` texts of pieces of `tokens` from random offsets, the same for the same seed.
    /// Fails if `tokens` is shorter than a text.
    pub(super) fn texts(self, tokens: &[u32], count: usize, seed: u64) -> std::result::Result<Vec<Vec<u32>>, String> {
        let needed = self.prompt_tokens() + STEPS;
        if tokens.len() < needed {
            return Err(format!("has {} tokens; {needed} or more expected", tokens.len()));
        }
        let mut random = Random(seed ^ (self as u64) << 32);
        Ok((0..count).map(|_| self.text(tokens, &mut random)).collect())
    }
}

/// The tokens of a file of little-endian u16. Fails if one is not below `vocabulary`.
pub fn read_tokens(path: &Path, vocabulary: usize) -> Result<Vec<u32>> {
    let fail = |text: String| Error::new(path.display(), text);
    let bytes = std::fs::read(path).map_err(|e| fail(format!("cannot be read: {e}")))?;
    let (pairs, []) = bytes.as_chunks::<2>() else {
        return Err(fail(format!("has {} bytes; 2 for each token expected", bytes.len())));
    };
    let tokens: Vec<u32> = pairs.iter().map(|pair| u16::from_le_bytes(*pair).into()).collect();
    match tokens.iter().position(|token| *token as usize >= vocabulary) {
        Some(at) => Err(fail(format!("token {at} is {}; below vocab_size {vocabulary} expected", tokens[at]))),
        None => Ok(tokens),
    }
}

/// Random numbers: SplitMix64.
pub(super) struct Random(pub(super) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens that tell where they are from.
    fn numbered() -> Vec<u32> {
        (0..40_000).collect()
    }

    #[test]
    fn what_is_scored_was_said_before_except_in_plain_text() {
        for task in Task::ALL {
            let prompt = task.prompt_tokens();
            for text in task.texts(&numbered(), 50, 7).unwrap() {
                assert_eq!(text.len(), prompt + STEPS);
                let scored: Vec<usize> = (0..STEPS).filter(|step| task.is_scored(*step)).collect();
                assert_eq!(scored.len(), if task == Task::Needle { 128 } else { 152 });
                // A scored token follows the same token as in the prompt.
                let known = scored.iter().filter(|step| {
                    let pair = &text[prompt + **step - 1..][..2];
                    text[..prompt].windows(2).any(|said| said == pair)
                });
                assert_eq!(known.count(), if task == Task::Plain { 0 } else { scored.len() }, "{}", task.name());
            }
        }
    }

    #[test]
    fn each_segment_has_a_needle_and_their_order_varies() {
        let mut orders = std::collections::BTreeSet::new();
        for text in Task::Needle.texts(&numbered(), 20, 7).unwrap() {
            let (prompt, needles) = text.split_at(Task::Needle.prompt_tokens());
            let place =
                |segment: &[u32]| needles.chunks(20).position(|needle| segment.windows(20).any(|said| said == needle));
            let places: Option<Vec<usize>> = prompt.chunks(95).map(place).collect();
            orders.insert(places.expect("a needle in each segment"));
        }
        assert!(orders.len() > 15, "{}", orders.len());
    }

    #[test]
    fn equal_seeds_draw_equal_texts() {
        let draw = |seed| Task::Recall.texts(&numbered(), 3, seed).unwrap();
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }
}
