//! Lanes: the block sums of the host's attention threads while steps are open.
//!
//! One thread at a time uses a lane, without locks: its claim on the lane never blocks. Calls that open or close a step
//! claim all lanes.

use crate::h2o::{self, Accumulator, BlockSums, Joints};
use crate::status::{Error, Result, bail, error};
use crate::sys::{Claim, ClaimState, Claimed, memory};
use std::mem;

/// A step of more rows per head is a prompt. Drafts of speculative decoding have fewer rows, chunks of prompts usually
/// more.
pub(super) const MOST_DECODE_ROWS: usize = 64;

/// More than any machine has threads. Bounds what a wrong number can allocate.
const MOST_LANES: u32 = 1024;

/// How the attention of an open layer is summed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) block_tokens: usize,
    /// The last rows of a prompt that count.
    pub(super) prompt_rows: usize,
    /// The layer was empty when its step began, so the step is a prompt.
    pub(super) empty: bool,
}

impl Wanted {
    /// The rows that count of a step of `queries` rows.
    pub(super) fn rows(&self, queries: usize) -> usize {
        if is_prompt(queries, self.empty) { self.prompt_rows.min(queries) } else { queries }
    }
}

/// Whether a step of `queries` rows of a layer, which was empty when it began or not, is a prompt.
pub(super) fn is_prompt(queries: usize, empty: bool) -> bool {
    queries > if empty { 0 } else { MOST_DECODE_ROWS }
}

/// The rows of a step that are scored, and the blocks of their sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScoredRows {
    /// The last rows of each head, which count.
    pub rows: u32,
    /// Tokens of a block; 0 where the layer is not scored.
    pub block_tokens: u32,
}

/// One open layer in one lane.
#[derive(Default)]
struct Slot {
    layer: Option<u32>,
    sums: Accumulator,
    /// The layer is scored.
    is_scored: bool,
}

/// The open layers of one lane.
#[derive(Default)]
struct Lane {
    /// The layer that was opened or scored last. Without a layer it is spare.
    slot: Slot,
    /// Further open layers.
    others: Vec<Slot>,
    /// Slots without a layer, for their memory. There is room for those of all open layers.
    spare: Vec<Slot>,
}

/// The sums of one layer over all lanes.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    pub(super) heads: u64,
    pub(super) rows: u64,
    /// Mass per block.
    pub(super) masses: Vec<f64>,
    /// The token after the last one that was attended to.
    pub(super) token_end: usize,
}

impl Lane {
    /// See [`Lanes::block_sums`].
    fn block_sums(&mut self, layer: u32, sums: &BlockSums<'_>) -> Result<()> {
        let slot = self.near(layer)?;
        if slot.is_scored { slot.sums.add(sums) } else { Ok(()) }
    }

    /// The slot of an open layer, which is in front from then on.
    fn near(&mut self, layer: u32) -> Result<&mut Slot> {
        if self.slot.layer != Some(layer) {
            let Some(slot) = self.others.iter_mut().find(|slot| slot.layer == Some(layer)) else {
                bail!(InvalidArgument, "layer {layer} is not open; scores come between begin and end");
            };
            mem::swap(slot, &mut self.slot);
        }
        Ok(&mut self.slot)
    }

    /// Makes room for one more open layer.
    fn reserve(&mut self) -> Result<()> {
        if self.slot.layer.is_some() {
            memory::reserve_amortized(&mut self.others, 1)?;
            memory::reserve_amortized(&mut self.spare, self.others.len() + 1)?;
        }
        Ok(())
    }

    /// There is room for it by [`Lane::reserve`].
    fn open(&mut self, layer: u32, wanted: Option<Wanted>) {
        if self.slot.layer.is_some() {
            let free = self.spare.pop().unwrap_or_default();
            #[expect(clippy::disallowed_methods, reason = "room is reserved before the step opens")]
            self.others.push(mem::replace(&mut self.slot, free));
        }
        (self.slot.layer, self.slot.is_scored) = (Some(layer), wanted.is_some());
        if let Some(wanted) = wanted {
            self.slot.sums.start(wanted.block_tokens);
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

    fn slot(&self, layer: u32) -> Option<&Slot> {
        std::iter::once(&self.slot).chain(&self.others).find(|slot| slot.layer == Some(layer))
    }

    fn sums(&self, layer: u32) -> Option<&Accumulator> {
        self.slot(layer).filter(|slot| slot.is_scored).map(|slot| &slot.sums)
    }
}

/// The lanes of a session.
pub(super) struct Lanes {
    lanes: Vec<Claim<Lane>>,
}

impl Lanes {
    pub(super) fn new(count: u32) -> Result<Self> {
        if !(1..=MOST_LANES).contains(&count) {
            bail!(InvalidArgument, "lanes is {count}; 1 to {MOST_LANES} expected");
        }
        let lanes = memory::collect((0..count).map(|_| Claim::new(Lane::default())))?;
        Ok(Lanes { lanes })
    }

    #[inline(always)]
    fn with<R>(&self, lane: u32, body: impl FnOnce(&mut Lane) -> Result<R>) -> Result<R> {
        let Some(claim) = self.lanes.get(lane as usize) else { return Err(self.no_lane(lane)) };
        match claim.with(body) {
            Some(result) => result,
            None => Err(self.in_use()),
        }
    }

    /// Adds block sums of an open layer to a lane.
    pub(super) fn block_sums(&self, layer: u32, lane: u32, sums: &BlockSums<'_>) -> Result<()> {
        self.with(lane, |lane| lane.block_sums(layer, sums))
    }

    /// Claims all lanes until the result is dropped.
    pub(super) fn all(&self) -> Result<AllLanes<'_>> {
        Claim::all(&self.lanes).map(AllLanes).ok_or_else(|| self.in_use())
    }

    #[cold]
    #[inline(never)]
    fn no_lane(&self, lane: u32) -> Error {
        error!(InvalidArgument, "lane is {lane}; the session has {}", self.lanes.len())
    }

    /// Why a claim was refused.
    #[cold]
    #[inline(never)]
    fn in_use(&self) -> Error {
        let mut states = self.lanes.iter().map(Claim::state);
        match states.clone().position(|state| state == ClaimState::InUse) {
            _ if states.any(|state| state == ClaimState::Poisoned) => Error::out_of_service("the session"),
            Some(lane) => error!(InvalidArgument, "lane {lane} is in use by another thread"),
            None => error!(InvalidArgument, "a lane was in use by another thread"),
        }
    }
}

/// All lanes of a session, claimed.
pub(super) struct AllLanes<'a>(Claimed<'a, Lane>);

impl AllLanes<'_> {
    /// Makes room for one more open layer.
    pub(super) fn reserve(&mut self) -> Result<()> {
        self.0.iter_mut().try_for_each(Lane::reserve)
    }

    /// Opens a layer. There is room for it by [`AllLanes::reserve`].
    pub(super) fn open(&mut self, layer: u32, wanted: Option<Wanted>) {
        self.0.iter_mut().for_each(|lane| lane.open(layer, wanted));
    }

    /// Closes a layer, if it is open, and drops its sums.
    pub(super) fn close(&mut self, layer: u32) {
        self.0.iter_mut().for_each(|lane| lane.close(layer));
    }

    /// Returns the sums of an open layer over all lanes, which keep them.
    pub(super) fn gather(&self, layer: u32) -> Result<Gathered> {
        let mut gathered = Gathered::default();
        let mut masses: Vec<u128> = Vec::new();
        let mut joints = Joints::default();
        for lane in self.0.iter() {
            let Some(lane) = lane.sums(layer) else { continue };
            gathered.token_end = gathered.token_end.max(lane.token_end());
            joints.add(lane.joints());
            let sums = lane.sums();
            gathered.heads += sums.heads;
            gathered.rows += sums.rows;
            if masses.len() < sums.masses.len() {
                memory::resize(&mut masses, sums.masses.len())?;
            }
            masses.iter_mut().zip(&sums.masses).for_each(|(sum, mass)| *sum = sum.saturating_add(*mass));
        }
        if joints != Joints::default() {
            bail!(
                InvalidArgument,
                "parts of split rows of layer {layer} lack a token or have one twice: for each part without LAST (2) in its \
                 flags, one without FIRST (1) expected that begins where it ends, and no others"
            );
        }
        gathered.masses = memory::collect(masses.into_iter().map(h2o::mass_to_f64))?;
        Ok(gathered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::h2o::SumFields;
    use crate::status::Status;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// Calls of a lane and of all lanes.
    fn statuses(lanes: &Lanes, lane: u32) -> [Option<Status>; 2] {
        let fields =
            SumFields { flags: 3, heads: 1, rows: 1, block_tokens: 1, blocks: 1, token_begin: 0, token_end: 1 };
        let one = lanes.block_sums(7, lane, &BlockSums::new(fields, &[1.0], None));
        [one.err(), lanes.all().err()].map(|error| error.map(|error| error.status()))
    }

    #[test]
    fn lanes_in_use_or_past_the_last_are_refused_and_poisoned_ones_are_out_of_service() {
        let lanes = Lanes::new(2).unwrap();
        let mut all = lanes.all().unwrap();
        all.reserve().unwrap();
        all.open(7, None);
        let (invalid, internal) = (Some(Status::InvalidArgument), Some(Status::Internal));
        assert_eq!(statuses(&lanes, 1), [invalid, invalid]);
        drop(all);
        assert_eq!(statuses(&lanes, 1), [None, None]);
        assert_eq!(statuses(&lanes, 2), [invalid, None]);
        lanes.lanes[1]
            .with(|_| assert_eq!([statuses(&lanes, 0), statuses(&lanes, 1)], [[None, invalid], [invalid, invalid]]));
        assert!(catch_unwind(AssertUnwindSafe(|| lanes.lanes[1].with(|_| panic!("a bug")))).is_err());
        assert_eq!([statuses(&lanes, 0), statuses(&lanes, 1)], [[None, internal], [internal, internal]]);
        assert!(Lanes::new(0).is_err() && Lanes::new(1025).is_err());
    }
}
