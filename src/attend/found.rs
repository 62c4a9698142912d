//! What a step finds beside its output: how much attention each block gets, and blocks that came from a file.

use super::block::Codes;
use super::offload::Reads;
use super::widths::Squares;
use crate::arch::attend::Running;
use crate::status::{Error, Result};
use crate::sys::memory;
use std::ops::Range;

/// The attention that a head of a block got.
#[derive(Clone, Copy, Debug)]
pub struct Mass {
    /// The block.
    pub block: u32,
    /// The KV head.
    pub head: u32,
    /// The greatest share of a row, 0 to 1.
    pub share: f32,
}

/// A head of a block that was read, and got enough attention to stay.
#[derive(Debug)]
pub struct Arrived {
    /// The block.
    pub block: u32,
    /// The KV head.
    pub head: usize,
    /// Its codes.
    pub codes: Codes,
}

/// What the parts of a step have found.
#[derive(Debug, Default)]
pub struct Found {
    /// One for each head of a block that was attended to, in each part that did. Some are missing where memory was refused.
    pub masses: Vec<Mass>,
    /// Of queries.
    pub squares: Squares,
    /// Codes that came from a file.
    pub arrived: Vec<Arrived>,
    /// Blocks and heads that the file has no more.
    pub lost: Vec<(u32, usize)>,
    /// Reads of the file.
    pub reads: Reads,
    /// Why the first read failed.
    pub failure: Option<Error>,
}

impl Found {
    /// The log of the least share of attention with which a block that was read stays in memory: 1 in 32.
    pub(super) const LEAST_SHARE: f32 = -3.47;
    /// Most blocks that a piece of the file keeps.
    pub(super) const MOST_ARRIVED: usize = 2;

    /// Nothing is found.
    pub(super) fn clear(&mut self) {
        self.masses.clear();
        self.squares.clear();
        self.arrived.clear();
        self.lost.clear();
        (self.reads, self.failure) = (Reads::default(), None);
    }

    pub(super) fn arrive(&mut self, arrived: Arrived) {
        // One that there is no memory for is read again.
        let _ = memory::push(&mut self.arrived, arrived);
    }

    /// A head of a block is in the file no more.
    pub fn lose(&mut self, block: u32, head: usize) -> Result<()> {
        memory::push(&mut self.lost, (block, head))
    }

    /// Adds what another part has found. Masses are advice: where memory is refused, they are fewer.
    pub(super) fn add(&mut self, other: Found) {
        fn append<T>(to: &mut Vec<T>, from: Vec<T>) {
            if from.is_empty() {
                return;
            }
            if to.is_empty() {
                *to = from;
            } else if memory::reserve_amortized(to, from.len()).is_ok() {
                #[expect(clippy::disallowed_methods, reason = "room is reserved")]
                to.extend(from);
            }
        }
        append(&mut self.masses, other.masses);
        self.squares.join(&other.squares);
        append(&mut self.arrived, other.arrived);
        append(&mut self.lost, other.lost);
        self.reads.add(&other.reads);
        self.failure = self.failure.take().or(other.failure);
    }
}

impl Running {
    /// Adds the softmax of other tokens, and what it has summed.
    pub(super) fn merge(&mut self, other: &Running, sums: &mut [f32], others: &[f32]) {
        let peak = self.peak.max(other.peak);
        if peak == f32::NEG_INFINITY {
            return;
        }
        let factors = [self.peak, other.peak].map(|own| if own == peak { 1.0 } else { (own - peak).exp() });
        sums.iter_mut().zip(others).for_each(|(sum, other)| *sum = *sum * factors[0] + other * factors[1]);
        let join = |own: f32, other: f32| own * factors[0] + other * factors[1];
        *self = Running { peak, sum: join(self.sum, other.sum), skipped: join(self.skipped, other.skipped) };
    }

    /// The log of the sum of `exp(logit)`; -inf without any.
    pub(super) fn log(&self) -> f32 {
        if self.sum > 0.0 { self.peak + self.sum.ln() } else { f32::NEG_INFINITY }
    }
}

/// What heads of blocks have added to the softmax of query vectors that is not complete yet.
#[derive(Debug, Default)]
pub(super) struct Shares {
    /// Block and head, and how many of `added`.
    cells: Vec<(u32, u32, u32)>,
    /// For each query vector of a head the peak, and the sum that was added in its unit.
    added: Vec<Running>,
    before: Vec<Running>,
}

impl Shares {
    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        (self.added.capacity() + self.before.capacity()) * size_of::<Running>()
            + self.cells.capacity() * size_of::<(u32, u32, u32)>()
    }

    pub(super) fn clear(&mut self) {
        self.cells.clear();
        self.added.clear();
    }

    /// A head of a block is about to be folded into these.
    pub(super) fn begin(&mut self, running: &[Running]) -> Result<()> {
        memory::resize(&mut self.before, running.len())?;
        self.before.copy_from_slice(running);
        Ok(())
    }

    /// The head has been folded.
    pub(super) fn end(&mut self, (block, head): (u32, usize), running: &[Running]) -> Result<()> {
        memory::push(&mut self.cells, (block, head as u32, running.len() as u32))?;
        memory::reserve_amortized(&mut self.added, running.len())?;
        for (before, after) in self.before.iter().zip(running) {
            let kept =
                if before.peak == after.peak { before.sum } else { before.sum * (before.peak - after.peak).exp() };
            memory::push(
                &mut self.added,
                Running { peak: after.peak, sum: (after.sum - kept).max(0.0), ..Running::default() },
            )?;
        }
        Ok(())
    }

    /// The log of the greatest share that the last head has in what is known of each vector's sum.
    pub(super) fn last(&self, known: impl ExactSizeIterator<Item = f32>) -> f32 {
        let added = &self.added[self.added.len().saturating_sub(known.len())..];
        added.iter().zip(known).fold(f32::NEG_INFINITY, |most, (added, known)| most.max(added.log() - known))
    }

    /// The shares in what each vector has summed in the end; `vectors` has those of a KV head. Nothing is left.
    pub(super) fn weigh(&mut self, vectors: impl Fn(usize) -> Range<usize>, running: &[Running], found: &mut Found) {
        let mut added = &self.added[..];
        for &(block, head, count) in &self.cells {
            let (own, rest) = added.split_at(count as usize);
            added = rest;
            let all = &running[vectors(head as usize)];
            let share = own.iter().zip(all).fold(0.0f32, |most, (own, all)| {
                if own.sum > 0.0 { most.max(own.sum * (own.peak - all.peak).exp() / all.sum) } else { most }
            });
            let _ = memory::push(&mut found.masses, Mass { block, head, share: share.min(1.0) });
        }
        self.clear();
    }
}
