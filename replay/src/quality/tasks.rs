//! Built-in texts that show whether a cache still has what was said: a prompt, and tokens that follow it.

use super::Item;
use crate::dumps::read_small;
use crate::error::{Error, Result};
use std::path::Path;

/// A way to go on behind a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// A long passage of the prompt comes again.
    Recall,
    /// Short passages, one of each segment of the prompt, come again in random order.
    Needle,
    /// The text goes on.
    Plain,
}

/// The largest file of tokens in bytes.
const MAX_TOKENS: u64 = 1 << 30;
/// Tokens behind the prompt.
pub const STEPS: usize = 160;
/// The usual tokens of a prompt.
pub const PROMPT: usize = 2592;
/// The shortest prompt.
pub const MIN_PROMPT: usize = 512;
/// First tokens behind the prompt that are not scored, where they are one passage.
const UNSCORED: usize = 8;
/// The share of the prompt's other tokens that come before the passage of [`Task::Recall`].
const BEFORE: (usize, usize) = (7, 19);
const SEGMENTS: usize = 8;
/// Segments have a multiple of so many tokens.
const SEGMENT_STEP: usize = 16;
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

    /// Tokens of a prompt of at most `prompt` tokens.
    fn prompt_tokens(self, prompt: usize) -> usize {
        match self {
            Task::Recall | Task::Plain => prompt,
            Task::Needle => SEGMENTS * segment(prompt),
        }
    }

    /// Whether the token `step` behind the prompt is scored.
    fn is_scored(self, step: usize) -> bool {
        match self {
            Task::Recall | Task::Plain => step >= UNSCORED,
            Task::Needle => step % NEEDLE >= NEEDLE_UNSCORED,
        }
    }

    /// A text: the prompt, and [`STEPS`] more. Its passages are from elsewhere, so that only the prompt tells them.
    fn text(self, tokens: &[u32], prompt: usize, random: &mut Random) -> Vec<u32> {
        let mut draw = |count: usize| {
            let first = random.below(tokens.len() - count + 1);
            tokens[first..first + count].to_vec()
        };
        let mut text = draw(prompt + STEPS);
        match self {
            Task::Recall => {
                let passage = draw(STEPS);
                text[(prompt - STEPS) * BEFORE.0 / BEFORE.1..][..STEPS].copy_from_slice(&passage);
                text[prompt..].copy_from_slice(&passage);
            }
            Task::Needle => {
                let segment = prompt / SEGMENTS;
                let mut passages = Vec::from_iter((0..SEGMENTS).map(|_| draw(NEEDLE)));
                for (segment_tokens, passage) in text.chunks_exact_mut(segment).zip(&passages) {
                    segment_tokens[random.below(segment - NEEDLE + 1)..][..NEEDLE].copy_from_slice(passage);
                }
                (1..SEGMENTS).rev().for_each(|last| passages.swap(last, random.below(last + 1)));
                text[prompt..].copy_from_slice(&passages.concat());
            }
            Task::Plain => {}
        }
        text
    }

    /// `count` texts of pieces of `tokens` from random offsets, the same for the same seed, with prompts of about `prompt`
    /// tokens, [`MIN_PROMPT`] or more, behind the first token that the model wants.
    ///
    /// Fails if `tokens` is shorter than a text.
    pub fn items(
        self,
        tokens: &[u32],
        first: Option<u32>,
        prompt: usize,
        count: usize,
        seed: u64,
    ) -> std::result::Result<Vec<Item>, String> {
        let prompt = self.prompt_tokens(prompt);
        let needed = prompt + STEPS;
        if tokens.len() < needed {
            return Err(format!("has {} tokens; {needed} or more expected", tokens.len()));
        }
        let mut random = Random(seed ^ (self as u64) << 32);
        let question_from = prompt + first.iter().len();
        let item = |number: usize| Item {
            kind: self.name().into(),
            id: format!("{}-{number:03}", self.name()),
            tokens: first.into_iter().chain(self.text(tokens, prompt, &mut random)).collect(),
            question_from,
            scored: (0..STEPS).filter(|step| self.is_scored(*step)).map(|step| question_from + step).collect(),
        };
        Ok((0..count).map(item).collect())
    }
}

/// Tokens of a segment of [`Task::Needle`].
fn segment(prompt: usize) -> usize {
    prompt / SEGMENTS / SEGMENT_STEP * SEGMENT_STEP
}

/// The tokens of a file of little-endian u16, or u32 if its name ends so. Fails if one is not below `vocabulary`.
pub fn read_tokens(path: &Path, vocabulary: usize) -> Result<Vec<u32>> {
    let fail = |text: String| Error::new(path.display(), text);
    let bytes = read_small(path, MAX_TOKENS)?;
    let width = if path.extension().is_some_and(|ending| ending == "u32") { 4 } else { 2 };
    if !bytes.len().is_multiple_of(width) {
        return Err(fail(format!("has {} bytes; {width} for each token expected", bytes.len())));
    }
    let token = |bytes: &[u8]| bytes.iter().rev().fold(0, |token, byte| token << 8 | u32::from(*byte));
    let tokens: Vec<u32> = bytes.chunks_exact(width).map(token).collect();
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
        (0..65_000).collect()
    }

    #[test]
    fn what_is_scored_was_said_before_except_in_plain_text() {
        let cases = Task::ALL.into_iter().flat_map(|task| [(task, 2592, None), (task, 768, Some(65_001))]);
        for (task, prompt, first) in cases {
            for item in task.items(&numbered(), first, prompt, 20, 7).unwrap() {
                let expected = if task == Task::Needle { prompt / 128 * 128 } else { prompt };
                let expected = if first.is_some() { expected + 1 } else { expected };
                assert_eq!(item.tokens.iter().position(|token| Some(*token) == first), first.map(|_| 0));
                assert_eq!((item.question_from, item.tokens.len()), (expected, expected + 160));
                assert_eq!(item.scored.len(), if task == Task::Needle { 128 } else { 152 });
                // A scored token follows the same token as in the prompt.
                let known = item.scored.iter().filter(|at| {
                    let pair = &item.tokens[**at - 1..=**at];
                    item.prompt().windows(2).any(|said| said == pair)
                });
                assert_eq!(known.count(), if task == Task::Plain { 0 } else { item.scored.len() }, "{}", item.id);
            }
        }
    }
}
