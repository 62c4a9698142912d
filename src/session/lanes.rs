//! What the host's attention threads gather while a step is under way.
//!
//! Each lane is a thread's own. Its mutex is only ever tried: a lane that is taken is a host that uses one lane from two
//! threads, and an error. So no thread waits for another.

use crate::h2o::{self, Accumulator, Tile};
use crate::status::{self, Error, Result, Status, bail};
use std::sync::{Mutex, MutexGuard, TryLockError};

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
struct Slot {
    layer: u32,
    /// `None`: the layer is not scored.
    wanted: Option<Wanted>,
    started: bool,
    sums: Accumulator,
}

#[derive(Default)]
pub(super) struct Lane {
    open: Vec<Slot>,
    /// Accumulators whose memory waits for the next step.
    spare: Vec<Accumulator>,
}

/// All lanes of a session.
pub(super) struct Lanes(Vec<Mutex<Lane>>);

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

impl Lanes {
    pub(super) fn new(lanes: u32) -> Self {
        Lanes((0..lanes).map(|_| Mutex::default()).collect())
    }

    #[inline]
    fn lane(&self, lane: usize) -> Result<MutexGuard<'_, Lane>> {
        match self.0[lane].try_lock() {
            Ok(lane) => Ok(lane),
            Err(TryLockError::WouldBlock) => bail!(InvalidArgument, "lane {lane} is in use by another thread"),
            Err(TryLockError::Poisoned(_)) => {
                Err(Error::new(Status::Internal, "the session is out of service since a bug in mnn-kv; destroy it"))
            }
        }
    }

    /// All of them at once; what is done with them cannot fail for another thread's sake.
    pub(super) fn hold(&self) -> Result<Held<'_>> {
        (0..self.0.len()).map(|lane| self.lane(lane)).collect::<Result<_>>().map(Held)
    }

    pub(super) fn add(&self, layer: u32, lane: u32, tile: &Tile<'_>) -> Result<()> {
        if lane as usize >= self.0.len() {
            bail!(InvalidArgument, "lane is {lane}; the session has {}", self.0.len());
        }
        let mut lane = self.lane(lane as usize)?;
        let Some(slot) = lane.open.iter_mut().find(|slot| slot.layer == layer) else {
            bail!(InvalidArgument, "layer {layer} is not open; scores come between begin and end");
        };
        let Some(wanted) = slot.wanted else { return Ok(()) };
        // A tile that is refused must not say how many rows count: until one is accepted each starts anew.
        if !slot.started {
            slot.sums.start(wanted.block_tokens, MOST_TOKENS, wanted.rows(tile.queries));
        }
        slot.sums.add(tile)?;
        slot.started = true;
        Ok(())
    }
}

/// Every lane of a session, held by the thread that begins and ends steps.
pub(super) struct Held<'a>(Vec<MutexGuard<'a, Lane>>);

impl Held<'_> {
    /// Takes tiles of this layer from now on.
    pub(super) fn open(&mut self, layer: u32, wanted: Option<Wanted>) {
        for lane in &mut self.0 {
            let sums = lane.spare.pop().unwrap_or_default();
            lane.open.push(Slot { layer, wanted, started: false, sums });
        }
    }

    /// Takes no more tiles of this layer, and forgets those that came.
    pub(super) fn close(&mut self, layer: u32) {
        for lane in &mut self.0 {
            if let Some(at) = lane.open.iter().position(|slot| slot.layer == layer) {
                let slot = lane.open.swap_remove(at);
                lane.spare.push(slot.sums);
            }
        }
    }

    /// Adds up what all lanes have of a layer, which stays as it is.
    pub(super) fn gather(&self, layer: u32) -> Result<Gathered> {
        let mut gathered = Gathered::default();
        let mut masses: Vec<u128> = Vec::new();
        for (number, lane) in self.0.iter().enumerate() {
            let Some(slot) = lane.open.iter().find(|slot| slot.layer == layer && slot.started) else { continue };
            if slot.sums.in_head() {
                bail!(InvalidArgument, "lane {number} has a head of layer {layer} without its last tile");
            }
            gathered.heads += slot.sums.heads();
            gathered.rows += slot.sums.rows();
            gathered.token_end = gathered.token_end.max(slot.sums.token_end());
            let sums = slot.sums.masses();
            if masses.len() < sums.len() {
                status::resize(&mut masses, sums.len())?;
            }
            masses.iter_mut().zip(sums).for_each(|(sum, mass)| *sum += mass);
        }
        status::reserve(&mut gathered.masses, masses.len())?;
        gathered.masses.extend(masses.into_iter().map(h2o::mass_to_f64));
        Ok(gathered)
    }
}
