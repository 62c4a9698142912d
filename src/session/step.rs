//! The open step of a layer: one object, which every thread of the host reads and nobody changes. Threads reach it without the
//! lock of the session; what they add is behind locks of its own ([`Round`], [`Sums`]).

use super::sums::{ScoredRows, Sums, Wanted};
use super::tier::Tier;
use super::tokens::{CacheLengths, Tokens};
use super::{Session, State, find};
use crate::attend::{self, Mass, Round, Shape, Source, Work};
use crate::h2o::BlockSums;
use crate::layout::{CacheRef, Rows};
use crate::status::{Error, Result, bail};
use crate::sys::storage::Storage;
use crate::sys::{Mutex, MutexGuard, Shared};
use std::time::Duration;

/// The file of blocks that are not in memory, and the longest wait for them.
pub(super) type File = (Shared<Storage>, Duration);

/// What a layer's threads share. Between steps its layer alone has it.
pub(super) struct Step {
    /// Where the tokens are, as begin left them.
    pub(super) tokens: Tokens,
    /// The rows of the cache that begin was given; `None` where it had none.
    pub(super) rows: Option<Rows>,
    /// The session attends.
    pub(super) attends: bool,
    /// Rows attend to so many tokens at most, their own included.
    pub(super) window: Option<u32>,
    /// The step finds how much attention each block gets.
    pub(super) weighs: bool,
    /// And what queries are like.
    pub(super) learns: bool,
    pub(super) file: Option<File>,
    /// How attention is summed; `None` where nothing is scored.
    pub(super) wanted: Option<Wanted>,
    /// Without lanes where nothing is scored.
    pub(super) sums: Sums,
    pub(super) round: Round,
}

impl Step {
    pub(super) fn new() -> Self {
        Step {
            tokens: Tokens::NONE,
            rows: None,
            attends: false,
            window: None,
            weighs: false,
            learns: false,
            file: None,
            wanted: None,
            sums: Sums::default(),
            round: Round::default(),
        }
    }

    /// The step has ended.
    pub(super) fn close(&mut self) {
        (self.file, self.attends) = (None, false);
        self.round.reset();
    }

    /// INVALID_ARGUMENT: if not all `queries` rows have attended, or to a cache of another length.
    pub(super) fn check(&self, layer: u32, queries: u32, kv_len: u32) -> Result<()> {
        if queries == 0 {
            return Ok(());
        }
        let (rows, attended) = self.round.done().map_err(|error| error.within(format_args!("layer {layer}")))?;
        if rows != queries as usize {
            bail!(InvalidArgument, "{rows} of {queries} rows of layer {layer} have attended (mnnkv_session_attend)");
        }
        if attended != kv_len as usize {
            bail!(InvalidArgument, "kv_len of layer {layer} is {kv_len}; its rows have attended to {attended}");
        }
        Ok(())
    }

    /// See [`Session::attend`]. `file`: that of blocks that are not in memory.
    fn attend(
        &self,
        (cache, kv_len): (&CacheRef<'_>, u32),
        (step, file): (&attend::Step<'_>, Option<&File>),
        part: (u32, u32),
        work: &mut Work,
        write: &mut dyn FnMut(usize, usize, &[f32]),
    ) -> Result<()> {
        let CacheLengths { logical, physical } = self.tokens.lengths;
        let rows = cache.layout.rows();
        if rows.is_quantised() {
            bail!(Unsupported, "the cache has {rows}; F16, BF16 or F32 expected");
        }
        if self.rows.is_some_and(|begun| begun != rows) {
            bail!(InvalidArgument, "the step has begun with other rows than {rows}, those of cache->layout");
        }
        let Some(added) = kv_len.checked_sub(physical) else {
            bail!(InvalidArgument, "kv_len is {kv_len}; {physical} or more expected, as begin left it");
        };
        if kv_len as usize > cache.layout.max_tokens() {
            bail!(InvalidArgument, "kv_len is {kv_len}; max_tokens is {}", cache.layout.max_tokens());
        }
        let blocks = &self.tokens.blocks;
        let heads = blocks.heads();
        if heads != 0 && heads != rows.heads {
            bail!(InvalidArgument, "the layer has {heads} KV heads; the layout has {}", rows.heads);
        }
        let file = file.zip(blocks.basis.as_ref());
        let tokens = attend::Tokens {
            // Of any size: one that blocks cannot have has none.
            shape: Shape { dims: rows.dims },
            blocks,
            source: file.map(|((file, wait), basis)| Source { file, basis, wait: *wait }),
            weighs: self.weighs,
            learns: self.learns,
            cache: *cache,
            raw: kv_len as usize,
            missing: self.tokens.missing(),
            positions: self.tokens.raw.pairs(),
            logical: logical + added,
        };
        let window = self.window.into_iter().chain(step.window).min();
        attend::attend(&tokens, &attend::Step { window, ..*step }, part, &self.round, work, write)
    }
}

/// Memory of steps that have ended, for the next ones.
#[derive(Default)]
pub(super) struct Spare {
    pub(super) sums: Vec<Sums>,
    pub(super) masses: Vec<Mass>,
}

impl Spare {
    /// Bytes of memory, those of sums aside.
    pub(super) fn bytes(&self) -> usize {
        self.masses.capacity() * size_of::<Mass>()
    }
}

/// The place of a layer's open step.
#[derive(Default)]
pub(super) struct Slot {
    open: Mutex<Option<Shared<Step>>>,
}

/// See [`Slot::lock`].
pub(super) type Open<'a> = MutexGuard<'a, Option<Shared<Step>>>;

impl Slot {
    /// The open step, which no thread reaches meanwhile.
    pub(super) fn lock(&self) -> Result<Open<'_>> {
        self.open.lock().map_err(|_| Error::out_of_service("the session"))
    }

    pub(super) fn is_open(&self) -> bool {
        self.lock().is_ok_and(|open| open.is_some())
    }
}

/// A step that was opened.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    /// Tokens in the cache.
    pub kv_len: u32,
    /// The host calls [`Session::attend`] in place of its own attention.
    pub attends: bool,
    /// Changes where the session warns of something new, once for all layers of a forward.
    pub warnings: u32,
    pub(super) wanted: Option<Wanted>,
}

impl Begun {
    /// The rows and blocks that a host sums where the step has `queries` rows per head.
    pub fn scored_rows(&self, queries: u32) -> ScoredRows {
        self.wanted.map_or(ScoredRows::default(), |wanted| ScoredRows {
            rows: wanted.rows(queries as usize) as u32,
            block_tokens: wanted.block_tokens as u32,
        })
    }
}

impl Session {
    /// Runs a part of the attention of an open layer's step, over all tokens of the layer: `cache` has `kv_len` of them, and
    /// those of the step are the last. Parts run on any threads; `write` gets rows of the output: the row, its query head, and
    /// its numbers. The output is complete once all parts have returned. Where the layer is closed, rows of another layer that
    /// reads it attend to what its end has left.
    /// INVALID_ARGUMENT: if the layer has not begun, the step does not fit it, a part is given twice, or a query is not finite.
    pub fn attend(
        &self,
        layer: u32,
        cache: (&CacheRef<'_>, u32),
        step: &attend::Step<'_>,
        part: (u32, u32),
        write: &mut dyn FnMut(usize, usize, &[f32]),
    ) -> Result<()> {
        let (shared, file) = match self.open_step(layer)? {
            Some(open) if !open.attends => {
                bail!(InvalidArgument, "the host attends in layer {layer}: mnnkv_step::attends of begin is 0");
            }
            Some(open) => {
                let file = open.file.clone();
                (open, file)
            }
            None => self.closed_step(layer, cache.1)?,
        };
        let mut work = self.parts()?.take();
        let result = shared.attend(cache, (step, file.as_ref()), part, &mut work, write);
        self.parts()?.give(work);
        result.map_err(|error| error.within(format_args!("layer {layer}")))
    }

    /// Adds block sums of an open layer to a lane. Does not wait for calls that open or close other layers. One thread at a time
    /// may use a lane. Which lane has which head changes no result.
    pub fn block_sums(&self, layer: u32, lane: u32, sums: &BlockSums<'_>) -> Result<()> {
        if lane >= self.lanes {
            bail!(InvalidArgument, "lane is {lane}; the session has {}", self.lanes);
        }
        let Some(open) = self.open_step(layer)? else {
            bail!(InvalidArgument, "layer {layer} is not open; scores come between begin and end");
        };
        if open.wanted.is_some() { open.sums.add(lane, sums) } else { Ok(()) }
    }

    /// The step of a closed layer of `kv_len` tokens in its cache, and the file of its blocks.
    /// INVALID_ARGUMENT: if it has none to attend to by the session, or another length.
    fn closed_step(&self, layer: u32, kv_len: u32) -> Result<(Shared<Step>, Option<File>)> {
        let mut state = self.state()?;
        let State { layers, tier, .. } = &mut *state;
        let found = find(layers, layer)?;
        found.check_length(kv_len)?;
        if !found.attends() || found.rows.is_none() || found.tokens().in_file.is_away {
            bail!(
                InvalidArgument,
                "layer {layer} is not open, and has no tokens that the session attends to: begin comes first"
            );
        }
        Ok((found.step.clone(), tier.as_ref().and_then(Tier::source)))
    }

    /// The open step of a layer. INVALID_ARGUMENT: if the layer is out of range.
    fn open_step(&self, layer: u32) -> Result<Option<Shared<Step>>> {
        let Some(slot) = self.slots.get(layer as usize) else {
            bail!(InvalidArgument, "layer is {layer}; the session has {} layers", self.slots.len());
        };
        Ok(slot.lock()?.clone())
    }
}
