//! The eviction of a layer in a chat file, so that a chat that was loaded evicts as one that never stopped.

use super::Eviction;
use super::clock::Clock;
use crate::bytes::{Reader, push_number};
use crate::h2o::{BlockScores, SavedScores};
use crate::layout::{self, Pair};
use crate::session::tokens::{CacheLengths, Runs};
use crate::status::{Result, bail};
use crate::sys::memory;

/// Bits of the flags.
const KEEPS_FIRST: u8 = 1;
const HAS_PLAN: u8 = 2;
const HAS_SCORES: u8 = 4;
const HAS_PINS: u8 = 8;

/// The positions, pins and eviction of a layer as a chat file has them.
pub(in crate::session) struct SavedEviction {
    /// The positions of the raw tokens.
    pub(in crate::session) positions: Vec<Pair>,
    /// Empty in files of versions without pins.
    pub(in crate::session) pins: Runs,
    clock: Clock,
    least_sink: u32,
    plan: Option<Vec<Pair>>,
    scores: Option<SavedScores>,
}

/// Appends what a chat file keeps. `eviction`: `None` where tokens are not evicted.
pub(in crate::session) fn save(
    eviction: Option<&Eviction>,
    positions: &Runs,
    pins: &Runs,
    out: &mut Vec<u8>,
) -> Result<()> {
    put_pairs(out, positions.pairs())?;
    for number in eviction.map_or(Clock::default(), |eviction| eviction.clock).numbers() {
        push_number(out, number.into())?;
    }
    let scores = eviction.map(|eviction| eviction.scores.saved()).transpose()?;
    let plan = eviction.and_then(|eviction| eviction.plan.as_deref());
    let flag = |is_set, flag| if is_set { flag } else { 0 };
    let flags = flag(eviction.is_some_and(|eviction| eviction.least_sink > 0), KEEPS_FIRST)
        | flag(plan.is_some(), HAS_PLAN)
        | flag(scores.is_some(), HAS_SCORES)
        | flag(!pins.pairs().is_empty(), HAS_PINS);
    memory::push(out, flags)?;
    if let Some(plan) = plan {
        put_pairs(out, plan)?;
    }
    if let Some(scores) = &scores {
        put_scores(out, scores)?;
    }
    if !pins.pairs().is_empty() {
        put_pairs(out, pins.pairs())?;
    }
    Ok(())
}

impl Eviction {
    /// The scores that a file has, as a layer with these rules has them.
    pub(in crate::session) fn loaded(&self, saved: &SavedEviction, physical: u32) -> Result<BlockScores> {
        let (alpha, block_tokens) = (self.rules.ema_alpha, self.rules.block_tokens);
        match &saved.scores {
            Some(saved) => BlockScores::with_saved(alpha, block_tokens, saved, physical),
            None => BlockScores::unknown(alpha, block_tokens, physical),
        }
    }

    /// Takes the state of a file.
    pub(in crate::session) fn take(&mut self, saved: SavedEviction, scores: BlockScores) {
        (self.clock, self.plan, self.scores, self.least_sink) = (saved.clock, saved.plan, scores, saved.least_sink);
    }
}

impl SavedEviction {
    /// CORRUPT: if positions and plan are not those of a layer of these lengths.
    pub(in crate::session) fn check(&self, CacheLengths { logical, physical }: CacheLengths) -> Result<()> {
        let tokens = match layout::check_pairs(&self.positions, logical) {
            Ok(tokens) => tokens,
            Err(error) => bail!(Corrupt, "positions: {error}"),
        };
        if tokens != physical {
            bail!(Corrupt, "{tokens} tokens have positions; the layer has {physical}");
        }
        match self.plan.as_deref().map(|plan| layout::check_pairs(plan, physical)) {
            Some(Err(error)) => bail!(Corrupt, "plan: {error}"),
            _ => Ok(()),
        }
    }

    /// Reads what [`save`] wrote.
    pub(in crate::session) fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let positions = read_pairs(reader, "positions")?;
        let mut numbers = [0; Clock::NUMBERS];
        for number in &mut numbers {
            *number = reader.small("the clock")?;
        }
        let flags = reader.byte("flags")?;
        let known = KEEPS_FIRST | HAS_PLAN | HAS_SCORES | HAS_PINS;
        if flags & !known != 0 {
            bail!(Unsupported, "flags are {flags:#x}; {known:#x} are known");
        }
        let plan = if flags & HAS_PLAN != 0 { Some(read_pairs(reader, "the plan")?) } else { None };
        let scores = if flags & HAS_SCORES != 0 { Some(read_scores(reader)?) } else { None };
        let pins = if flags & HAS_PINS != 0 {
            Runs::of(&read_pairs(reader, "pins")?, i32::MAX as u32)?
        } else {
            Runs::default()
        };
        let (clock, least_sink) = (Clock::of(numbers), u32::from(flags & KEEPS_FIRST != 0));
        Ok(SavedEviction { positions, pins, clock, least_sink, plan, scores })
    }
}

/// The number of ranges, and of each the gap before it and its length.
fn put_pairs(out: &mut Vec<u8>, pairs: &[Pair]) -> Result<()> {
    push_number(out, pairs.len() as u64)?;
    let mut end = 0;
    for [begin, count] in pairs {
        push_number(out, (begin - end) as u64)?;
        push_number(out, *count as u64)?;
        end = begin + count;
    }
    Ok(())
}

fn read_pairs(reader: &mut Reader<'_>, what: &str) -> Result<Vec<Pair>> {
    let (count, mut pairs, mut end) = (reader.small(what)?, Vec::new(), 0i64);
    for _ in 0..count {
        let (gap, len) = (reader.small(what)?, reader.small(what)?);
        let begin = end + i64::from(gap);
        end = begin + i64::from(len);
        match (i32::try_from(begin), i32::try_from(len)) {
            (Ok(begin), Ok(len)) if end <= i32::MAX.into() => memory::push(&mut pairs, [begin, len])?,
            _ => bail!(Corrupt, "{what}: a range ends at {end}"),
        }
    }
    Ok(pairs)
}

fn put_scores(out: &mut Vec<u8>, saved: &SavedScores) -> Result<()> {
    memory::extend(out, &saved.alpha.to_le_bytes())?;
    for number in [saved.block_tokens, saved.scored, saved.blocks.len() as u32] {
        push_number(out, number.into())?;
    }
    saved.blocks.iter().try_for_each(|score| memory::extend(out, &score.to_le_bytes()))
}

fn read_scores(reader: &mut Reader<'_>) -> Result<SavedScores> {
    let alpha = f32::from_le_bytes(reader.array("alpha")?);
    let (block_tokens, scored) = (reader.small("block_tokens")?, reader.small("scored tokens")?);
    let (count, mut blocks) = (reader.small("the number of blocks")?, Vec::new());
    for _ in 0..count {
        memory::push(&mut blocks, f64::from_bits(reader.u64("a score")?))?;
    }
    Ok(SavedScores { alpha, block_tokens, scored, blocks })
}
