//! What the host's attention threads gather while a step is under way.
//!
//! Each lane is one thread's own while attention runs, and nothing is locked: a thread has its lane by `&mut`, the thread
//! that begins and ends steps has all of them.

use crate::h2o::{self, Accumulator, Tile};
use crate::status::{Result, bail};
use crate::sys::memory;
use std::mem;

/// A step of more rows per head than this is a prompt. Drafts of speculative decoding have fewer, prompts' chunks usually
/// more.
pub(super) const MOST_DECODE_ROWS: usize = 64;

/// No token lies behind this one; a wild number must not become a large allocation.
pub(super) const MOST_TOKENS: usize = 1 << 24;

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
    /// Of a step's `queries` rows, how many count.
    pub(super) fn rows(&self, queries: usize) -> usize {
        if self.is_prompt(queries) { self.prompt_rows.min(queries) } else { queries }
    }

    pub(super) fn is_prompt(&self, queries: usize) -> bool {
        queries > self.most_decode_rows()
    }

    fn most_decode_rows(&self) -> usize {
        if self.empty { 0 } else { MOST_DECODE_ROWS }
    }
}

/// One open layer in one lane.
#[derive(Default)]
#[repr(C)]
struct Slot {
    layer: Option<u32>,
    sums: Accumulator,
    /// The layer is scored.
    is_scored: bool,
}

/// What one attention thread gathers of the layers that are open.
#[derive(Default)]
#[repr(C)]
pub struct Lane {
    /// The layer that was opened or scored last, where a tile looks first. Without a layer its memory waits for one.
    slot: Slot,
    /// Further open layers.
    others: Vec<Slot>,
    /// Slots without a layer. There is room for those of all open layers.
    spare: Vec<Slot>,
}

/// The sums of one layer over all lanes.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    pub(super) heads: u64,
    /// Tiles did not say of all heads how many they are: there may be more.
    pub(super) may_be_more: bool,
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
        if self.slot.is_scored { self.slot.sums.add(tile) } else { Ok(()) }
    }

    /// Makes room for one more open layer.
    fn reserve(&mut self) -> Result<()> {
        if self.slot.layer.is_some() {
            memory::reserve_amortized(&mut self.others, 1)?;
            memory::reserve_amortized(&mut self.spare, self.others.len() + 1)?;
        }
        Ok(())
    }

    /// There is room for it.
    fn open(&mut self, layer: u32, wanted: Option<Wanted>) {
        if self.slot.layer.is_some() {
            let free = self.spare.pop().unwrap_or_default();
            #[expect(clippy::disallowed_methods, reason = "room is reserved before the step opens")]
            self.others.push(mem::replace(&mut self.slot, free));
        }
        (self.slot.layer, self.slot.is_scored) = (Some(layer), wanted.is_some());
        match wanted {
            Some(wanted) => {
                let (prompt_rows, most_decode_rows) = (wanted.prompt_rows, wanted.most_decode_rows());
                self.slot.sums.start_step(wanted.block_tokens, MOST_TOKENS, prompt_rows, most_decode_rows);
            }
            None => self.slot.sums.start(1, 0, 0),
        }
    }

    fn close(&mut self, layer: u32) {
        if self.slot.layer == Some(layer) {
            self.slot.layer = None;
        } else if let Some(at) = self.others.iter().position(|slot| slot.layer == Some(layer)) {
            let slot = self.others.swap_remove(at);
            #[expect(clippy::disallowed_methods, reason = "room is reserved before the step opens")]
            self.spare.push(Slot { layer: None, ..slot });
        }
    }

    fn sums(&self, layer: u32) -> Option<&Accumulator> {
        let mut slots = std::iter::once(&self.slot).chain(&self.others);
        slots.find(|slot| slot.layer == Some(layer) && slot.is_scored).map(|slot| &slot.sums)
    }
}

/// Makes room in all lanes for one more open layer.
pub(super) fn reserve(lanes: &mut [&mut Lane]) -> Result<()> {
    lanes.iter_mut().try_for_each(|lane| lane.reserve())
}

/// Takes tiles of this layer from now on. There is room for it by [`reserve`].
pub(super) fn open(lanes: &mut [&mut Lane], layer: u32, wanted: Option<Wanted>) {
    lanes.iter_mut().for_each(|lane| lane.open(layer, wanted));
}

/// Takes no more tiles of this layer, and forgets those that came.
pub(super) fn close(lanes: &mut [&mut Lane], layer: u32) {
    lanes.iter_mut().for_each(|lane| lane.close(layer));
}

/// Adds up what all lanes have of a layer, which stays as it is. `prompt`: the step is one.
pub(super) fn gather(lanes: &[&mut Lane], layer: u32, prompt: bool) -> Result<Gathered> {
    let mut gathered = Gathered::default();
    let mut masses: Vec<u128> = Vec::new();
    for (number, lane) in lanes.iter().enumerate() {
        let Some(sums) = lane.sums(layer) else { continue };
        if sums.in_head() {
            bail!(InvalidArgument, "lane {number} has a head of layer {layer} without its last tile");
        }
        gathered.token_end = gathered.token_end.max(sums.token_end());
        for sums in [sums.sure(), sums.unsure(prompt)] {
            gathered.heads += sums.heads;
            gathered.may_be_more |= sums.unsaid > 0;
            gathered.rows += sums.rows;
            if masses.len() < sums.masses.len() {
                memory::resize(&mut masses, sums.masses.len())?;
            }
            masses.iter_mut().zip(&sums.masses).for_each(|(sum, mass)| *sum = sum.saturating_add(*mass));
        }
    }
    gathered.masses = memory::collect(masses.into_iter().map(h2o::mass_to_f64))?;
    Ok(gathered)
}
