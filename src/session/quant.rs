//! Tokens of a layer in 8 and 4 bits: blocks that have left the host's cache, and that attention reads as they are.
//!
//! [`Quant::begin`] encodes tokens that are no longer recent, and closes the cache up behind them; with a budget once the raw
//! tokens take more than the layer's share, which [`budget`](super::budget) then keeps. While a step is open its threads
//! share the blocks, and nobody changes them. Nothing here fails a step: where memory or a codec fails, tokens stay raw, and
//! a counter tells.

mod encoding;
mod saved;

pub(super) use encoding::Encoding;
pub(super) use saved::SavedQuant;

use super::Session;
use super::budget::{Kept, Share};
use super::config::{Config, QuantRules};
use super::eviction::Eviction;
use super::layer::CacheLengths;
use super::offload::Offload;
use super::pins::Pins;
use crate::attend::{self, Arrived, BLOCK, Blocks, Found, Round, Shape, Source, Step, Tokens, Unfit, Work};
use crate::layout::{Cache, CacheRef, Kind, Pair, Rows};
use crate::status::{Error, Result, bail};
use crate::store::Store;
use crate::sys::storage::Storage;
use crate::sys::{Mutex, Shared, memory};
use std::time::Duration;

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
    /// Attempts that were given up, since memory was refused.
    pub failures: u64,
    /// Nanoseconds in begin.
    pub begin_ns: u64,
}

impl Session {
    /// Runs a part of the attention of an open layer's step, over all tokens of the layer: `cache` has `kv_len` of them, and
    /// those of the step are the last. Parts run on any threads; `write` gets rows of the output: the row, its query head, and
    /// its numbers. The output is complete once all parts have returned.
    /// INVALID_ARGUMENT: if the layer is not open, the step does not fit it, a part is given twice, or a query is not finite.
    pub fn attend(
        &self,
        layer: u32,
        (cache, kv_len): (&CacheRef<'_>, u32),
        step: &Step<'_>,
        part: (u32, u32),
        write: &mut dyn FnMut(usize, usize, &[f32]),
    ) -> Result<()> {
        let Some(slot) = self.attending.get(layer as usize) else {
            bail!(InvalidArgument, "layer is {layer}; the session has {} layers", self.attending.len());
        };
        let parts = || self.parts.lock().map_err(|_| Error::out_of_service("the session"));
        let mut work = parts()?.pop().unwrap_or_default();
        let result = slot.attend((cache, kv_len), step, part, &mut work, write);
        // Working memory that there is no room for is freed.
        let _ = memory::push(&mut *parts()?, work);
        result
    }

    /// The blocks of a layer: the first position, the tokens that are left, and each head's bytes, in memory or in the file.
    #[cfg(test)]
    pub(super) fn blocks_for_tests(&self, layer: usize) -> Vec<BlockBytes> {
        let state = self.state().unwrap();
        let offload = state.budget.as_ref().and_then(|budget| budget.offload.as_ref());
        let blocks = state.layers[layer].quant.as_ref().unwrap().blocks();
        let bytes = |block: u32, head: usize| {
            let mut bytes = Vec::new();
            match &blocks.cell(block, head).offloaded {
                _ if blocks.copy(block, head, &mut bytes).unwrap() => Some(bytes),
                Some(from) => offload.unwrap().read(from, &mut bytes).map(|()| bytes).ok(),
                None => None,
            }
        };
        let all = (0..).zip(blocks.list());
        all.map(|(at, placed)| (placed.first, placed.live, (0..blocks.heads()).map(|head| bytes(at, head)).collect()))
            .collect()
    }
}

/// See [`Session::blocks_for_tests`].
#[cfg(test)]
pub(super) type BlockBytes = (u32, u64, Vec<Option<Vec<u8>>>);

/// Why a layer is raw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Raw {
    /// The cache is quantised by the host, or a head has a size that blocks cannot have.
    Layout,
    /// Codes would be too far from the numbers.
    Error,
}

/// The quantised tokens of one layer.
pub(super) struct Quant {
    rules: QuantRules,
    /// Tokens that the layer is ahead of the one whose turn comes last.
    turn: u32,
    /// `None` before the first.
    blocks: Option<Shared<Blocks>>,
    /// The piece of a chat file that has each block, and the checksum of its stored bytes.
    pieces: Vec<Option<(u32, u64)>>,
    /// First tokens of the cache, which stay there.
    held: u32,
    /// Blocks in a row that were too far from their numbers.
    poor: u32,
    raw: Option<Raw>,
    /// The last begin was refused memory.
    is_short: bool,
    counts: QuantStats,
    pub(super) kept: Kept,
}

/// The tokens in the cache of a layer, and what follows those that leave it.
pub(super) struct RawTokens<'a, 'c> {
    pub(super) cache: &'a mut Cache<'c>,
    pub(super) lengths: CacheLengths,
    pub(super) eviction: &'a mut Eviction,
    pub(super) store: &'a mut Store,
}

/// What encoding leaves in the cache.
struct Rest {
    held: u32,
    poor: u32,
    unfit: u64,
}

/// A step that threads attend in.
pub(super) struct OpenStep {
    blocks: Option<Shared<Blocks>>,
    /// The file of blocks that are away, and the longest wait for them.
    file: Option<(Shared<Storage>, Duration)>,
    weighs: bool,
    positions: Vec<Pair>,
    lengths: CacheLengths,
    /// Of the cache that begin was given.
    rows: Option<Rows>,
    round: Round,
}

/// The open step of a layer, which threads reach without the lock of the session.
pub(super) struct Slot {
    layer: u32,
    /// `None` inside where memory for it was refused.
    open: Mutex<Option<Option<Shared<OpenStep>>>>,
}

/// The quantised tokens that a file has.
#[derive(Default)]
pub(super) struct Contents {
    blocks: Option<Shared<Blocks>>,
    pieces: Vec<Option<(u32, u64)>>,
    held: u32,
}

/// What an edit of the history leaves.
pub(super) struct Cut {
    /// The first position and the tokens of each block.
    left: Vec<(u32, u64)>,
    pieces: Vec<Option<(u32, u64)>>,
    held: u32,
}

impl Quant {
    /// `None` where tokens stay raw.
    pub(super) fn new(number: u32, config: &Config) -> Option<Self> {
        let rules = config.quant_of(number)?;
        Some(Quant {
            rules,
            turn: number % TURNS,
            blocks: None,
            pieces: Vec::new(),
            held: 0,
            poor: 0,
            raw: None,
            is_short: false,
            counts: QuantStats::default(),
            kept: Kept::default(),
        })
    }

    /// The blocks.
    pub(super) fn blocks(&self) -> &Blocks {
        self.blocks.as_deref().unwrap_or(&NONE)
    }

    /// The blocks, to be changed between steps.
    /// BUSY: if a thread still attends to them.
    fn blocks_mut(&mut self) -> Result<&mut Blocks> {
        let blocks = match &mut self.blocks {
            Some(blocks) => blocks,
            none => none.insert(Shared::new(Blocks::NONE)?),
        };
        match blocks.get_mut() {
            Some(blocks) => Ok(blocks),
            None => bail!(Busy, "a thread still attends to the layer's blocks"),
        }
    }

    /// Whether steps attend by the session, over a cache of numbers. Tokens that were dropped leave gaps between those of the
    /// cache, of which a host's own attention does not know.
    pub(super) fn attends(&self) -> bool {
        self.rules.always || !self.blocks().list().is_empty() || self.kept.has_dropped()
    }

    /// The quantised tokens now, and counters.
    pub(super) fn stats(&self) -> QuantStats {
        QuantStats {
            tokens: self.blocks().list().iter().map(|block| u64::from(block.tokens())).sum(),
            bytes: self.blocks().bytes() as u64,
            ..self.counts
        }
    }

    /// Why the layer is raw.
    pub(super) fn raw(&self) -> Option<Raw> {
        self.raw
    }

    /// Tokens that stay raw since 8 and 4 bits do not hold their blocks.
    pub(super) fn unfit_tokens(&self) -> u32 {
        self.held.saturating_sub(self.rules.sink_tokens)
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

    /// The cache was cleared. Blocks that a thread still attends to go with it.
    pub(super) fn reset(&mut self, offload: Option<&mut Offload>) {
        if let Some(offload) = offload {
            self.blocks().list().iter().for_each(|placed| offload.free(placed));
        }
        self.blocks = None;
        self.kept.reset();
        (self.pieces, self.held, self.poor, self.raw) = (Vec::new(), 0, 0, None);
    }

    /// Encodes tokens that are no longer recent; they leave the cache. Returns the lengths afterwards.
    pub(super) fn begin(
        &mut self,
        mut tokens: RawTokens<'_, '_>,
        encoding: &mut Encoding,
        share: Option<&Share>,
    ) -> CacheLengths {
        let start = std::time::Instant::now();
        let after = self.try_begin(&mut tokens, encoding, share);
        self.is_short = after.is_err();
        self.counts.failures += u64::from(self.is_short);
        self.counts.begin_ns += start.elapsed().as_nanos() as u64;
        after.unwrap_or(tokens.lengths)
    }

    fn try_begin(
        &mut self,
        tokens: &mut RawTokens<'_, '_>,
        encoding: &mut Encoding,
        share: Option<&Share>,
    ) -> Result<CacheLengths> {
        let (lengths, rows) = (tokens.lengths, tokens.cache.layout.rows());
        if self.blocks().list().is_empty() {
            self.held = self.held.max(self.rules.sink_tokens.min(lengths.physical));
        }
        let count = lengths.physical.saturating_sub(self.held + self.recent()) / BLOCK as u32;
        let fits = || !self.attends() && share.is_none_or(|share| share.holds_raw(lengths.physical + self.turn));
        if count == 0 || self.raw.is_some() || fits() {
            return Ok(lengths);
        }
        let Some(shape) = shape(&rows) else {
            self.raw = Some(Raw::Layout);
            return Ok(lengths);
        };
        let before = self.blocks().list().len();
        self.blocks_mut()?.reserve(shape, rows.heads, count as usize)?;
        let taken = self.encode(shape, tokens, encoding);
        let made = self.blocks().list().len() - before;
        match taken {
            Ok((after, rest)) => {
                (self.held, self.poor) = (rest.held, rest.poor);
                self.counts.blocks += made as u64;
                self.counts.unfit += rest.unfit;
                if rest.poor == MOST_POOR {
                    self.raw = Some(Raw::Error);
                }
                Ok(after)
            }
            Err(error) => {
                // The tokens are still in the cache.
                self.blocks_mut()?.truncate(before);
                self.pieces.truncate(before);
                Err(error)
            }
        }
    }

    /// Encodes blocks of tokens that are no longer recent, and takes these out of the cache.
    fn encode(
        &mut self,
        shape: Shape,
        tokens: &mut RawTokens<'_, '_>,
        encoding: &mut Encoding,
    ) -> Result<(CacheLengths, Rest)> {
        let RawTokens { cache, lengths, eviction, store } = tokens;
        let mut rest = Rest { held: self.held, poor: self.poor, unfit: 0 };
        // Tokens that stay: those that are held, blocks that are unfit, and all behind.
        let (mut left, mut made) = (Vec::new(), 0);
        memory::push(&mut left, [0, self.held as i32])?;
        let mut next = self.held;
        while lengths.physical - next >= self.recent() + BLOCK as u32 && rest.poor < MOST_POOR {
            let place = [next as i32, BLOCK as i32];
            let [first, BLOCK_TOKENS] = eviction.positions_of(&[place])?[..].first().copied().unwrap_or_default()
            else {
                // Not one run: what an edit has left between them stays.
                break;
            };
            match encoding.encode(shape, &cache.as_ref(), next)? {
                Ok(block) => {
                    self.blocks_mut()?.push(block, first as u32, u64::MAX)?;
                    memory::push(&mut self.pieces, None)?;
                    made += 1;
                    rest.poor = 0;
                }
                Err(why) => {
                    memory::push(&mut left, place)?;
                    rest.held += BLOCK as u32;
                    rest.unfit += 1;
                    rest.poor = if why == Unfit::Error { rest.poor + 1 } else { 0 };
                }
            }
            next += BLOCK as u32;
        }
        memory::push(&mut left, [next as i32, (lengths.physical - next) as i32])?;
        let after = if made > 0 { eviction.take_out(&left, cache, store, *lengths)? } else { *lengths };
        Ok((after, rest))
    }

    /// The tokens that an edit of the history leaves, which keeps these logical ranges.
    pub(super) fn cut(&mut self, logical: &[Pair], eviction: &Eviction) -> Result<Cut> {
        if !self.blocks().list().is_empty() {
            self.blocks_mut()?;
        }
        let (mut left, mut pieces) = (Vec::new(), Vec::new());
        memory::reserve(&mut left, self.blocks().list().len())?;
        memory::reserve(&mut pieces, self.blocks().list().len())?;
        // From old positions to new ones.
        let mut kept = 0;
        let mut ranges = memory::collect(logical.iter().map(|&[begin, count]| {
            let to = kept;
            kept += count as u32;
            (begin as u32, count as u32, to)
        }))?
        .into_iter()
        .peekable();
        for (placed, piece) in self.blocks().list().iter().zip(&self.pieces) {
            let (mut live, mut first, mut at) = (0u64, None, placed.first);
            for token in (0..BLOCK).filter(|token| placed.live >> token & 1 == 1) {
                while ranges.next_if(|(begin, count, _)| begin + count <= at).is_some() {}
                if let Some((begin, _, to)) = ranges.peek().filter(|(begin, ..)| *begin <= at) {
                    live |= 1 << token;
                    first.get_or_insert(to + (at - begin));
                }
                at += 1;
            }
            memory::push(&mut left, (first.unwrap_or_default(), live))?;
            if live != 0 {
                memory::push(&mut pieces, *piece)?;
            }
        }
        let held = eviction.positions_of(&[[0, self.held as i32]])?;
        let held = held.iter().flat_map(|held| logical.iter().map(move |kept| overlap(*held, *kept))).sum();
        Ok(Cut { left, pieces, held })
    }

    /// Applies an edit.
    pub(super) fn apply(&mut self, cut: Cut, offload: Option<&mut Offload>) {
        // Not shared: `cut` has seen it under the same lock.
        if let Some(blocks) = self.blocks.as_mut().and_then(Shared::get_mut) {
            if let Some(offload) = offload {
                let gone = blocks.list().iter().zip(&cut.left).filter(|(_, (_, live))| *live == 0);
                gone.for_each(|(placed, _)| offload.free(placed));
            }
            blocks.cut(&cut.left);
        }
        (self.pieces, self.held) = (cut.pieces, cut.held);
    }

    /// Takes what a file has. Tokens that are in no place were dropped before it was saved.
    pub(super) fn take(&mut self, contents: Contents, rows: &Rows, lengths: CacheLengths) {
        (self.blocks, self.pieces, self.held) = (contents.blocks, contents.pieces, contents.held);
        self.kept.loaded(self.blocks.as_deref().unwrap_or(&NONE), rows.heads, lengths);
    }

    /// The step that threads attend in; `None` where memory is refused.
    pub(super) fn open(
        &self,
        positions: &[Pair],
        lengths: CacheLengths,
        rows: Option<Rows>,
        offload: Option<&Offload>,
    ) -> Option<Shared<OpenStep>> {
        let positions = memory::copied(positions).ok()?;
        let file = offload.and_then(Offload::source);
        let (blocks, weighs) = (self.blocks.clone(), self.rules.is_bounded);
        Shared::new(OpenStep { blocks, file, weighs, positions, lengths, rows, round: Round::default() }).ok()
    }

    /// Counts a step that ended above the share.
    pub(super) fn see_share(&mut self, share: &Share, raw_tokens: u32) {
        let is_over = share.is_exceeded(raw_tokens, self.blocks().bytes());
        self.kept.ended(is_over);
    }

    /// Takes what a step has found, and lets the least wanted blocks leave until the share holds.
    pub(super) fn fit(
        &mut self,
        found: Found,
        share: Option<&Share>,
        raw_tokens: u32,
        pins: &Pins,
        offload: Option<&mut Offload>,
    ) {
        let Some(blocks) = self.blocks.as_mut().and_then(Shared::get_mut) else { return };
        let arrived = self.kept.see(blocks, found);
        if let Some(share) = share {
            self.leave(&arrived, share.for_blocks(raw_tokens), pins, offload);
        }
    }

    /// Drops what the file of the budget has no more.
    pub(super) fn lose(&mut self, lost: Found, pins: &Pins, offload: Option<&mut Offload>) {
        if let Some(blocks) = self.blocks.as_mut().and_then(Shared::get_mut) {
            self.kept.see(blocks, lost);
            self.leave(&[], usize::MAX, pins, offload);
        }
    }

    /// Lets blocks leave until they take `most` bytes, and removes those that no head has.
    fn leave(&mut self, arrived: &[Arrived], most: usize, pins: &Pins, offload: Option<&mut Offload>) {
        let Some(blocks) = self.blocks.as_mut().and_then(Shared::get_mut) else { return };
        if self.kept.fit(blocks, arrived, most, pins, offload) {
            let mut list = blocks.list().iter();
            self.pieces.retain(|_| list.next().is_some_and(|placed| !placed.is_gone()));
            blocks.remove_gone();
        }
    }
}

const BLOCK_TOKENS: i32 = BLOCK as i32;
static NONE: Blocks = Blocks::NONE;

/// The least tokens of a cache that stay raw.
pub(super) fn least_raw(sink_tokens: u32) -> u32 {
    sink_tokens.saturating_add(RECENT + BLOCK as u32 - 1)
}

/// The shape of blocks of such rows; `None` where they stay raw.
pub(super) fn shape(rows: &Rows) -> Option<Shape> {
    Shape::new(rows.dims).ok().filter(|_| is_float(rows))
}

/// Whether the host keeps numbers, and no codes.
pub(super) fn is_float(rows: &Rows) -> bool {
    matches!((rows.key, rows.value), (Kind::Float(_), Kind::Float(_)))
}

/// Numbers that two ranges share.
fn overlap(a: Pair, b: Pair) -> u32 {
    ((a[0] + a[1]).min(b[0] + b[1]) - a[0].max(b[0])).max(0) as u32
}

impl Slot {
    pub(super) fn new(layer: u32) -> Self {
        Slot { layer, open: Mutex::default() }
    }

    /// A step begins; `None` where memory was refused.
    pub(super) fn open(&self, step: Option<Shared<OpenStep>>) {
        if let Ok(mut slot) = self.open.lock() {
            *slot = Some(step);
        }
    }

    /// The step has ended. Returns what its threads have found.
    pub(super) fn close(&self) -> Found {
        let step = self.open.lock().map_or(None, |mut slot| slot.take());
        step.flatten().map_or_else(Found::default, |step| step.round.take_found())
    }

    fn step(&self) -> Result<Shared<OpenStep>> {
        let layer = self.layer;
        match &*self.open.lock().map_err(|_| Error::out_of_service("the session"))? {
            Some(Some(step)) => Ok(step.clone()),
            Some(None) => bail!(OutOfMemory, "layer {layer} cannot attend, since memory was refused; abort the step"),
            None => {
                bail!(
                    InvalidArgument,
                    "layer {layer} is not open, or its host attends: mnnkv_step::attends of begin is 0"
                )
            }
        }
    }

    /// INVALID_ARGUMENT: if not all `queries` rows of the open step have attended, or to a cache of another length.
    pub(super) fn check(&self, queries: u32, kv_len: u32) -> Result<()> {
        let (layer, step) = (self.layer, self.step()?);
        if queries == 0 {
            return Ok(());
        }
        let (rows, attended) = step.round.done().map_err(|error| error.within(format_args!("layer {layer}")))?;
        if rows != queries as usize {
            bail!(InvalidArgument, "{rows} of {queries} rows of layer {layer} have attended (mnnkv_session_attend)");
        }
        if attended != kv_len as usize {
            bail!(InvalidArgument, "kv_len of layer {layer} is {kv_len}; its rows have attended to {attended}");
        }
        Ok(())
    }

    /// See [`Session::attend`](super::Session::attend).
    pub(super) fn attend(
        &self,
        (cache, kv_len): (&CacheRef<'_>, u32),
        step: &Step<'_>,
        part: (u32, u32),
        work: &mut Work,
        write: &mut dyn FnMut(usize, usize, &[f32]),
    ) -> Result<()> {
        let (layer, open) = (self.layer, self.step()?);
        let CacheLengths { logical, physical } = open.lengths;
        let rows = cache.layout.rows();
        if !is_float(&rows) {
            bail!(Unsupported, "layer {layer} has {rows}; F16, BF16 or F32 expected");
        }
        if open.rows.is_some_and(|begun| begun != rows) {
            bail!(InvalidArgument, "layer {layer} has begun with other rows than {rows}, those of cache->layout");
        }
        // Of any size: one that blocks cannot have has none.
        let shape = Shape { dims: rows.dims };
        let Some(added) = kv_len.checked_sub(physical) else {
            bail!(
                InvalidArgument,
                "kv_len of layer {layer} is {kv_len}; {physical} or more expected, as begin left it"
            );
        };
        if kv_len as usize > cache.layout.max_tokens() {
            bail!(InvalidArgument, "kv_len of layer {layer} is {kv_len}; max_tokens is {}", cache.layout.max_tokens());
        }
        let blocks = open.blocks.as_deref().unwrap_or(&NONE);
        let heads = blocks.heads();
        if heads != 0 && heads != rows.heads {
            bail!(InvalidArgument, "layer {layer} has {heads} KV heads; the layout has {}", rows.heads);
        }
        let source = open.file.as_ref().zip(blocks.basis.as_ref()).map(|((file, wait), basis)| Source {
            file,
            basis,
            wait: *wait,
        });
        let tokens = Tokens {
            shape,
            blocks,
            source,
            weighs: open.weighs,
            cache: *cache,
            raw: kv_len as usize,
            positions: &open.positions,
            logical: logical + added,
        };
        attend::attend(&tokens, step, part, &open.round, work, write)
            .map_err(|error| error.within(format_args!("layer {layer}")))
    }
}
