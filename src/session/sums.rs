//! Block sums of an open step, which the host's attention threads add up: each in a lane of its own, without waiting.

use crate::h2o::{self, Accumulator, BlockSums, Joints};
use crate::status::{Error, Result, bail};
use crate::sys::{Claim, ClaimState, memory};

/// A step of more rows per head is a prompt. Drafts of speculative decoding have fewer rows, chunks of prompts usually
/// more.
pub(super) const MOST_DECODE_ROWS: usize = 64;

/// More than any machine has threads. Bounds what a wrong number can allocate.
pub(super) const MOST_LANES: u32 = 1024;

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

/// The attention of a step's scored rows.
#[derive(Debug, Default)]
pub(super) struct Attention {
    /// Mass per block, summed over heads and rows.
    pub(super) masses: Vec<f64>,
    /// Rows that count, the last of the step.
    pub(super) rows: u32,
}

/// The sums of a step, by lane.
#[derive(Default)]
pub(super) struct Sums {
    lanes: Vec<Claim<Accumulator>>,
}

impl Sums {
    /// Nothing is summed; memory comes now.
    pub(super) fn new(lanes: u32) -> Result<Self> {
        Ok(Sums { lanes: memory::collect((0..lanes).map(|_| Claim::new(Accumulator::default())))? })
    }

    /// Whether there are no lanes.
    pub(super) fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// Nothing is summed yet, by blocks of so many tokens.
    pub(super) fn start(&mut self, block_tokens: usize) {
        self.lanes.iter_mut().for_each(|lane| lane.get_mut().start(block_tokens));
    }

    /// Whether a thread has panicked inside.
    pub(super) fn is_poisoned(&self) -> bool {
        self.lanes.iter().any(|lane| lane.state() == ClaimState::Poisoned)
    }

    /// Adds block sums in a lane.
    pub(super) fn add(&self, lane: u32, sums: &BlockSums<'_>) -> Result<()> {
        let Some(claim) = self.lanes.get(lane as usize) else { bail!(Internal, "lane {lane} of {}", self.lanes.len()) };
        match claim.with(|own| own.add(sums)) {
            Some(result) => result,
            None if claim.state() == ClaimState::Poisoned => Err(Error::out_of_service("the step")),
            None => bail!(InvalidArgument, "lane {lane} is in use by another thread"),
        }
    }

    /// Adds up the lanes of a layer, which keep their sums. `None` if none came.
    /// INVALID_ARGUMENT: if they are not those of `heads` heads and `rows` rows, or one reaches beyond `kv_len`.
    pub(super) fn gather(&mut self, layer: u32, heads: u32, rows: u32, kv_len: u32) -> Result<Option<Attention>> {
        if self.is_poisoned() {
            return Err(Error::out_of_service("the step"));
        }
        let (mut masses, mut joints): (Vec<u128>, _) = (Vec::new(), Joints::default());
        let (mut given_heads, mut given_rows, mut token_end) = (0, 0, 0);
        for lane in &mut self.lanes {
            let lane = lane.get_mut();
            token_end = token_end.max(lane.token_end());
            joints.add(lane.joints());
            let sums = lane.sums();
            given_heads += sums.heads;
            given_rows += sums.rows;
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
        if given_heads == 0 {
            return Ok(None);
        }
        if given_heads != u64::from(heads) || given_rows != u64::from(heads) * u64::from(rows) {
            bail!(
                InvalidArgument,
                "{given_heads} heads and {given_rows} rows of layer {layer} came with block sums; {heads} heads of {rows} rows \
                 expected"
            );
        }
        if token_end > kv_len as usize {
            bail!(InvalidArgument, "sums of layer {layer} reached token {}; kv_len is {kv_len}", token_end - 1);
        }
        let masses = memory::collect(masses.into_iter().map(h2o::mass_to_f64))?;
        Ok(Some(Attention { masses, rows }))
    }
}
