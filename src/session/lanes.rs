//! What the host's attention threads gather while a step is under way.
//!
//! Each lane is one thread's own while attention runs, and nothing is locked: a thread has its lane by `&mut`, the thread
//! that begins and ends steps has all of them.

use crate::h2o::{self, Accumulator, Tile};
use crate::status::{Result, bail};
use crate::sys::memory;
use std::mem;

/// A step of more rows than this is a prompt. Drafts of speculative decoding have fewer, prompts' chunks usually more.
pub(super) const MOST_DECODE_ROWS: usize = 64;

/// No token lies behind this one; a wild number must not become a large allocation.
const MOST_TOKENS: usize = 1 << 24;

/// How an open layer wants its tiles summed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) block_tokens: usize,
    /// The last rows of a prompt that count.
    pub(super) prompt_rows: usize,
    /// The layer was empty when its step began: whatever comes is a prompt.
    pub(super) empty: bool,
}

impl Wanted {
    /// Of `queries` rows, how many count.
    pub(super) fn rows(&self, queries: usize) -> usize {
        if self.empty || queries > MOST_DECODE_ROWS { self.prompt_rows.min(queries) } else { queries }
    }

    pub(super) fn is_prompt(&self, queries: usize) -> bool {
        self.empty || queries > MOST_DECODE_ROWS
    }
}

/// One open layer in one lane.
#[derive(Default)]
#[repr(C)]
struct Slot {
    layer: Option<u32>,
    sums: Accumulator,
    /// `None`: the layer is not scored.
    wanted: Option<Wanted>,
    started: bool,
}

/// What one attention thread gathers of the layers that are open.
#[derive(Default)]
#[repr(C)]
pub struct Lane {
    /// The layer that was opened or scored last, where a tile looks first. Without a layer its memory waits for one.
    slot: Slot,
    /// Further open layers.
    others: Vec<Slot>,
    /// Slots without a layer.
    spare: Vec<Slot>,
}

/// The sums of one layer over all lanes.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    pub(super) heads: u64,
    pub(super) rows: u64,
    /// Mass per block.
    pub(super) masses: Vec<f64>,
    /// The token after the last that was scored.
    pub(super) token_end: usize,
}

impl Lane {
    /// Takes one softmax tile of an open layer; see [`Tile`]. Tiles of one head come one after another in one lane; which
    /// lane has which heads makes no difference.
    #[inline(always)]
    pub fn scores(&mut self, layer: u32, tile: &Tile<'_>) -> Result<()> {
        if self.slot.layer == Some(layer) && self.slot.sums.add_plain(tile) {
            return Ok(());
        }
        self.add(layer, tile)
    }

    #[inline(never)]
    fn add(&mut self, layer: u32, tile: &Tile<'_>) -> Result<()> {
        if self.slot.layer != Some(layer) {
            let Some(slot) = self.others.iter_mut().find(|slot| slot.layer == Some(layer)) else {
                bail!(InvalidArgument, "layer {layer} is not open; scores come between begin and end");
            };
            mem::swap(slot, &mut self.slot);
        }
        let Slot { sums, wanted: Some(wanted), started, .. } = &mut self.slot else { return Ok(()) };
        // A tile that is refused must not say how many rows count: until one is accepted each starts anew.
        if !*started {
            sums.start(wanted.block_tokens, MOST_TOKENS, wanted.rows(tile.queries));
        }
        sums.add(tile)?;
        *started = true;
        Ok(())
    }

    fn open(&mut self, layer: u32, wanted: Option<Wanted>) {
        if self.slot.layer.is_some() {
            let free = self.spare.pop().unwrap_or_default();
            self.others.push(mem::replace(&mut self.slot, free));
        }
        let Slot { layer: slot_layer, sums, wanted: slot_wanted, started } = &mut self.slot;
        (*slot_layer, *slot_wanted, *started) = (Some(layer), wanted, false);
        // Until the first tile says how many rows count, none is plain.
        sums.start(1, 0, 0);
    }

    fn close(&mut self, layer: u32) {
        if self.slot.layer == Some(layer) {
            self.slot.layer = None;
        } else if let Some(at) = self.others.iter().position(|slot| slot.layer == Some(layer)) {
            let slot = self.others.swap_remove(at);
            self.spare.push(Slot { layer: None, ..slot });
        }
    }

    fn started(&self, layer: u32) -> Option<&Accumulator> {
        let mut slots = std::iter::once(&self.slot).chain(&self.others);
        slots.find(|slot| slot.layer == Some(layer) && slot.started).map(|slot| &slot.sums)
    }
}

/// Takes tiles of this layer from now on.
pub(super) fn open(lanes: &mut [&mut Lane], layer: u32, wanted: Option<Wanted>) {
    lanes.iter_mut().for_each(|lane| lane.open(layer, wanted));
}

/// Takes no more tiles of this layer, and forgets those that came.
pub(super) fn close(lanes: &mut [&mut Lane], layer: u32) {
    lanes.iter_mut().for_each(|lane| lane.close(layer));
}

/// Adds up what all lanes have of a layer, which stays as it is.
pub(super) fn gather(lanes: &[&mut Lane], layer: u32) -> Result<Gathered> {
    let mut gathered = Gathered::default();
    let mut masses: Vec<u128> = Vec::new();
    for (number, lane) in lanes.iter().enumerate() {
        let Some(sums) = lane.started(layer) else { continue };
        if sums.in_head() {
            bail!(InvalidArgument, "lane {number} has a head of layer {layer} without its last tile");
        }
        gathered.heads += sums.heads();
        gathered.rows += sums.rows();
        gathered.token_end = gathered.token_end.max(sums.token_end());
        let more = sums.masses();
        if masses.len() < more.len() {
            memory::resize(&mut masses, more.len())?;
        }
        masses.iter_mut().zip(more).for_each(|(sum, mass)| *sum += mass);
    }
    memory::reserve(&mut gathered.masses, masses.len())?;
    gathered.masses.extend(masses.into_iter().map(h2o::mass_to_f64));
    Ok(gathered)
}
