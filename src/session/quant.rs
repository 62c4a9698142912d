//! Tokens of a layer in fewer bits: blocks that have left the host's cache, and that attention reads as they are.
//!
//! [`Layer::quantise`] encodes tokens that are no longer recent, and closes the cache up behind them; with a budget once the raw
//! tokens take more than the layer's share, which [`budget`](super::budget) then keeps. Nothing here fails a step: where memory
//! or a codec fails, tokens stay raw, and a counter tells.

mod encoding;

pub(super) use encoding::Encoding;

use super::budget::{Ladder, Share};
use super::config::{Config, QuantRules};
use super::layer::Layer;
use super::tokens::Tokens;
use crate::attend::{Arrived, BLOCK, Blocks, Format, Found, Shape, Unfit, Widths};
use crate::bytes::{Reader, push_number};
use crate::layout::{Cache, Pair, Rows};
use crate::status::{Result, bail};
use crate::store::Store;
use crate::sys::memory;
use std::time::Instant;

/// Newest tokens that stay raw, at least, of the layer whose turn comes last.
const RECENT: u32 = 32;
/// Layers take turns: a step quantises blocks of one in so many, so that none is much longer than the others.
pub(super) const TURNS: u32 = 8;
/// A layer stays raw from the block on that is the second one in a row whose codes would be too far from its numbers.
const MOST_POOR: u32 = 2;

/// Quantised tokens of a layer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QuantStats {
    /// Tokens in blocks, now.
    pub tokens: u64,
    /// Bytes of their blocks.
    pub bytes: u64,
    /// Blocks made.
    pub blocks: u64,
    /// Blocks that stayed raw, since a number is not finite or codes would be too far from the numbers.
    pub unfit: u64,
    /// Heads of blocks in k8v4 that were to have k4v4.
    pub k8v4: u64,
    /// Attempts that were given up, since memory was refused.
    pub failures: u64,
    /// Nanoseconds of making blocks.
    pub begin_ns: u64,
}

/// Why a layer is raw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WhyRaw {
    /// The cache is quantised by the host, or a head has a size that blocks cannot have.
    Layout,
    /// Codes would be too far from the numbers.
    Error,
}

/// How the tokens of one layer are quantised.
pub(super) struct Quant {
    rules: QuantRules,
    /// Tokens that the layer is ahead of the one whose turn comes last.
    turn: u32,
    /// Blocks in a row that were too far from their numbers.
    poor: u32,
    /// Of new blocks, where they fit it.
    format: Format,
    widths: Widths,
    /// `None` where blocks are made.
    stays_raw: Option<WhyRaw>,
    /// The last begin was refused memory.
    is_short: bool,
    counts: QuantStats,
    pub(super) ladder: Ladder,
}

/// What a chat file has of a layer's quantisation.
#[derive(Debug, Default)]
pub(super) struct QuantState {
    poor: u32,
    stays_raw: Option<WhyRaw>,
    /// See [`Ladder::gone`].
    gone: [u64; 2],
    format: Format,
    widths: Widths,
}

impl QuantState {
    /// Reads what [`Quant::put`] wrote.
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let poor = reader.small("blocks that were far")?;
        let stays_raw = match reader.number("why it stays raw")? {
            0 => None,
            1 => Some(WhyRaw::Layout),
            2 => Some(WhyRaw::Error),
            other => bail!(Corrupt, "{other} says why it stays raw; 0 to 2 expected"),
        };
        let gone = [reader.number("dropped tokens")?, reader.number("dropped tokens")?];
        let format = match reader.byte("the format of new blocks")? {
            0 => Format::K8V4,
            1 => Format::K4V4,
            other => bail!(Corrupt, "{other} is the format of new blocks; 0 or 1 expected"),
        };
        Ok(QuantState { poor, stays_raw, gone, format, widths: Widths::read(reader)? })
    }
}

/// What encoding leaves in the cache.
struct Rest {
    /// The slots of the tokens that stay: those that are held, blocks that are unfit, and all behind.
    slots: Vec<Pair>,
    held: u32,
    poor: u32,
    unfit: u64,
    k8v4: u64,
}

impl Quant {
    /// `None` where tokens stay raw.
    pub(super) fn new(number: u32, config: &Config) -> Option<Self> {
        let rules = config.quant_of(number)?;
        Some(Quant {
            rules,
            turn: number % TURNS,
            poor: 0,
            format: rules.always.unwrap_or_default(),
            widths: Widths::default(),
            stays_raw: None,
            is_short: false,
            counts: QuantStats::default(),
            ladder: Ladder::new(number),
        })
    }

    /// Whether steps over these tokens attend by the session, in a cache of numbers. Tokens that are gone leave gaps between
    /// those of the cache, of which a host's own attention does not know.
    pub(super) fn attends(&self, tokens: &Tokens) -> bool {
        self.has_begun(tokens) || tokens.passed > 0
    }

    /// Whether tokens are quantised that are no longer recent.
    fn has_begun(&self, tokens: &Tokens) -> bool {
        self.rules.always.is_some() || !tokens.blocks.list().is_empty() || self.ladder.has_dropped()
    }

    /// Appends what a chat file keeps: nothing of a layer that stays raw.
    pub(super) fn put(quant: Option<&Quant>, out: &mut Vec<u8>) -> Result<()> {
        let (poor, stays_raw, gone) =
            quant.map_or((0, None, [0; 2]), |quant| (quant.poor, quant.stays_raw, quant.ladder.gone()));
        let why = match stays_raw {
            None => 0,
            Some(WhyRaw::Layout) => 1,
            Some(WhyRaw::Error) => 2,
        };
        let [dropped, let_go] = gone;
        [poor.into(), why, dropped, let_go].into_iter().try_for_each(|number| push_number(out, number))?;
        memory::push(out, quant.map_or(Format::K8V4, |quant| quant.format) as u8)?;
        quant.map_or(&Widths::default(), |quant| &quant.widths).put(out)
    }

    /// Takes what a chat file has.
    pub(super) fn take(&mut self, state: QuantState) {
        (self.poor, self.stays_raw) = (state.poor, state.stays_raw);
        self.widths = state.widths;
        if self.rules.is_bounded {
            self.format = self.format.max(state.format).min(self.rules.fewest);
        }
        self.ladder.take_gone(state.gone);
    }

    /// Takes what steps have found. Returns the blocks that came from the file.
    pub(super) fn see(&mut self, blocks: &mut Blocks, found: &mut Found) -> Vec<Arrived> {
        self.widths.queries.join(&found.squares);
        found.squares.clear();
        self.ladder.see(blocks, found)
    }

    /// Bytes that blocks save once all have the fewest bits that they may have.
    pub(super) fn spared(&self, blocks: &Blocks) -> usize {
        if self.fewest() == Format::K4V4 { blocks.narrowing().1 } else { 0 }
    }

    /// Gives blocks fewer bits until all take `most` bytes, and new ones from then on.
    pub(super) fn narrow(&mut self, blocks: &mut Blocks, most: usize) -> Result<()> {
        let may = self.fewest() == Format::K4V4;
        if may && blocks.bytes() > most && self.ladder.narrow(blocks, most, &mut self.widths)? {
            self.format = Format::K4V4;
        }
        Ok(())
    }

    /// The fewest bits that a block may have.
    pub(super) fn fewest(&self) -> Format {
        self.rules.fewest
    }

    /// Whether steps find what queries are like.
    pub(super) fn learns(&self) -> bool {
        let may = self.stays_raw.is_none() && self.fewest() == Format::K4V4;
        may && (self.weighs() || self.format == Format::K4V4) && self.widths.learns()
    }

    /// Whether steps find how much attention each block gets.
    pub(super) fn weighs(&self) -> bool {
        self.rules.is_bounded
    }

    /// The quantised tokens now, and counters.
    pub(super) fn stats(&self, tokens: &Tokens) -> QuantStats {
        QuantStats {
            tokens: tokens.blocks.list().iter().map(|block| u64::from(block.tokens())).sum(),
            bytes: tokens.blocks.bytes() as u64,
            ..self.counts
        }
    }

    /// Why the layer is raw.
    pub(super) fn stays_raw(&self) -> Option<WhyRaw> {
        self.stays_raw
    }

    /// Tokens that stay raw since 8 and 4 bits do not hold their blocks.
    pub(super) fn unfit_tokens(&self, tokens: &Tokens) -> u32 {
        tokens.held.saturating_sub(self.rules.sink_tokens)
    }

    /// Whether raw tokens wait for memory to be quantised.
    pub(super) fn is_short(&self) -> bool {
        self.is_short
    }

    /// Newest tokens that stay raw, at least.
    fn recent(&self) -> u32 {
        RECENT - self.turn
    }

    /// The least tokens of a cache that stay raw: the first ones, and those behind the last whole block.
    pub(super) fn least_raw(&self) -> u32 {
        least_raw(self.rules.sink_tokens)
    }

    /// The cache was cleared.
    pub(super) fn reset(&mut self) {
        self.ladder.reset();
        (self.poor, self.stays_raw, self.is_short) = (0, None, false);
        (self.format, self.widths) = (self.rules.always.unwrap_or_default(), Widths::default());
    }

    /// The first tokens of a chat stay raw, from before its first block on.
    pub(super) fn hold(&self, tokens: &mut Tokens) {
        if tokens.blocks.list().is_empty() && tokens.passed == 0 {
            tokens.held = tokens.held.max(self.rules.sink_tokens.min(tokens.lengths.physical));
        }
    }

    /// Whether more of the first tokens are to stay raw: blocks, and tiles of raw tokens, begin behind them.
    pub(super) fn is_holding(&self, tokens: &Tokens) -> bool {
        tokens.blocks.list().is_empty() && tokens.passed == 0 && tokens.held < self.rules.sink_tokens
    }

    /// The shape of the blocks that are due; `None` where all raw tokens stay.
    fn due(&mut self, tokens: &Tokens, rows: &Rows, share: Option<&Share>) -> Option<Shape> {
        let physical = tokens.lengths.physical;
        let is_long = physical.saturating_sub(tokens.held) >= self.recent() + BLOCK as u32;
        let fits = || !self.has_begun(tokens) && share.is_none_or(|share| share.holds_raw(physical + self.turn));
        if !is_long || self.stays_raw.is_some() || fits() {
            return None;
        }
        let shape = shape(rows);
        if shape.is_none() {
            self.stays_raw = Some(WhyRaw::Layout);
        }
        shape
    }

    /// Encodes blocks of tokens that are no longer recent; these are in the cache still.
    fn encode(
        &mut self,
        shape: Shape,
        tokens: &mut Tokens,
        cache: &Cache<'_>,
        encoding: &mut Encoding,
    ) -> Result<Rest> {
        let (physical, held) = (tokens.lengths.physical, tokens.held);
        let mut rest = Rest { slots: Vec::new(), held, poor: self.poor, unfit: 0, k8v4: 0 };
        memory::push(&mut rest.slots, [0, held as i32])?;
        let (mut next, count) = (held, (physical - held - self.recent()) / BLOCK as u32);
        tokens.blocks.reserve(shape, cache.layout.rows().heads, count as usize)?;
        while physical - next >= self.recent() + BLOCK as u32 && rest.poor < MOST_POOR {
            let slots = [next as i32, BLOCK as i32];
            let positions = tokens.raw.at(&[slots])?;
            let Some(&[first, count]) = positions.pairs().first() else { break };
            if count < BLOCK as i32 {
                // Others are missing between them, which an edit or an eviction has taken.
                memory::push(&mut rest.slots, [next as i32, count])?;
                rest.held += count as u32;
                next += count as u32;
                continue;
            }
            let widths = (self.format == Format::K4V4).then_some(&mut self.widths);
            match encoding.encode(shape, widths, &cache.as_ref(), next)? {
                Ok(block) => {
                    tokens.blocks.push(block, first as u32, u64::MAX)?;
                    if self.format == Format::K4V4 {
                        let wide = block.heads().iter().filter(|codes| codes.format(shape) == Some(Format::K8V4));
                        rest.k8v4 += wide.count() as u64;
                    }
                    rest.poor = 0;
                }
                Err(why) => {
                    memory::push(&mut rest.slots, slots)?;
                    rest.held += BLOCK as u32;
                    rest.unfit += 1;
                    rest.poor = if why == Unfit::Error { rest.poor + 1 } else { 0 };
                }
            }
            next += BLOCK as u32;
        }
        memory::push(&mut rest.slots, [next as i32, (physical - next) as i32])?;
        Ok(rest)
    }
}

impl Layer {
    /// Encodes tokens that are no longer recent; they leave the cache.
    pub(super) fn quantise(
        &mut self,
        cache: &mut Cache<'_>,
        store: &mut Store,
        encoding: &mut Encoding,
        share: Option<&Share>,
    ) {
        let (Some(quant), Some(step)) = (&mut self.quant, self.step.get_mut()) else { return };
        quant.is_short = false;
        let Some(shape) = quant.due(&step.tokens, &cache.layout.rows(), share) else { return };
        let (start, before) = (Instant::now(), step.tokens.blocks.list().len());
        let encoded = quant.encode(shape, &mut step.tokens, cache, encoding);
        let result = encoded.and_then(|rest| self.take_out(rest, before, cache, store));
        let (Some(quant), Some(step)) = (&mut self.quant, self.step.get_mut()) else { return };
        if result.is_err() {
            // The tokens are still in the cache.
            step.tokens.blocks.truncate(before);
            quant.is_short = true;
            quant.counts.failures += 1;
        }
        quant.counts.begin_ns += start.elapsed().as_nanos() as u64;
    }

    /// The tokens of the blocks from the `before`th on leave the cache.
    fn take_out(&mut self, rest: Rest, before: usize, cache: &mut Cache<'_>, store: &mut Store) -> Result<()> {
        let made = self.step.tokens.blocks.list().len() - before;
        if made > 0 {
            let edit = self.step.tokens.left_in(&rest.slots)?;
            self.apply(edit, Some(cache), store, None)?;
        }
        let Some(quant) = &mut self.quant else { return Ok(()) };
        quant.poor = rest.poor;
        quant.counts.blocks += made as u64;
        quant.counts.unfit += rest.unfit;
        quant.counts.k8v4 += rest.k8v4;
        if rest.poor == MOST_POOR {
            quant.stays_raw = Some(WhyRaw::Error);
        }
        self.step_mut().map(|step| step.tokens.held = rest.held)
    }
}

/// Adds to the line of what a session does the layers that keep k8v4.
pub(super) fn describe(layers: &[Layer], text: &mut String) -> Result<()> {
    match layers.iter().filter(|layer| layer.fewest() == Format::K8V4).count() {
        0 => Ok(()),
        count => memory::append(text, format_args!("; {count} of {} layers keep K in 8 bits", layers.len())),
    }
}

/// The least tokens of a cache that stay raw.
pub(super) fn least_raw(sink_tokens: u32) -> u32 {
    sink_tokens.saturating_add(RECENT + BLOCK as u32 - 1)
}

/// The shape of blocks of such rows; `None` where they stay raw.
pub(super) fn shape(rows: &Rows) -> Option<Shape> {
    Shape::new(rows.dims).ok().filter(|_| !rows.is_quantised())
}
