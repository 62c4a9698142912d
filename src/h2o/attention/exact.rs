//! Exact masses: the walk backwards over the log of a head, and sums in fixed point.

use super::Head;
use super::block_sums::BlockSums;
use super::log::Log;
use super::rows::Rows;
use crate::status::{Result, bail};
use crate::sys::memory;

/// Fraction bits of a mass.
const FRACTION_BITS: i32 = 80;
/// A head gives less than this to a block; one per query row is usual. 65,536 such heads add up to a `u128`.
const HEAD_LIMIT: f64 = (1u64 << 32) as f64;

/// Sums over finished heads.
#[derive(Debug, Default)]
pub struct Sums {
    /// Heads.
    pub heads: u64,
    /// Those whose tiles did not say how many heads they have: each may be several.
    pub unsaid: u64,
    /// Query rows that count.
    pub rows: u64,
    /// `[block]`: the masses of the rows that count, up to the highest block seen; integers of 80 fraction bits
    /// ([`mass_to_f64`]). Where rows sum to 1, all blocks sum to `rows`.
    pub masses: Vec<u128>,
}

impl Sums {
    fn clear(&mut self) {
        (self.heads, self.unsaid, self.rows) = (0, 0, 0);
        self.masses.clear();
    }

    /// Makes room for `blocks` blocks, so that [`Sums::cover`] cannot fail.
    fn reserve(&mut self, blocks: usize) -> Result<()> {
        let more = blocks.saturating_sub(self.masses.len());
        memory::reserve(&mut self.masses, more)
    }

    /// Covers at least `blocks` blocks.
    fn cover(&mut self, blocks: usize) -> Result<()> {
        if self.masses.len() < blocks { memory::resize(&mut self.masses, blocks) } else { Ok(()) }
    }

    /// Adds a head, whose blocks are covered; `heads` as its tiles say. Saturates, so any order gives the same sum.
    fn add(&mut self, heads: usize, rows: usize, masses: &[f64]) {
        self.heads += heads.max(1) as u64;
        self.unsaid += u64::from(heads == 0);
        self.rows += rows as u64;
        self.add_masses(0, masses);
    }

    /// Adds masses from a block on, which are covered.
    fn add_masses(&mut self, first_block: usize, masses: &[f64]) {
        let sums = self.masses[first_block..].iter_mut();
        sums.zip(masses).for_each(|(sum, mass)| *sum = sum.saturating_add(fixed(*mass)));
    }
}

/// The tokens and last parts that split rows lack: both numbers are 0 where each row has each of its tokens once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// Last parts less first ones, in rows.
    pub rows: i128,
    /// Tokens of all rows.
    pub tokens: i128,
}

impl Missing {
    /// Adds what other parts lack.
    pub fn add(&mut self, other: Missing) {
        self.rows += other.rows;
        self.tokens += other.tokens;
    }

    /// The gap of a part: the tokens before it or behind it, where it is not the first or the last.
    fn of(part: &BlockSums<'_>) -> Self {
        let (rows, end, tokens) = (part.rows as i128, i128::from(part.token_end), i128::from(part.tokens));
        let ends = if part.last { end } else { 0 } - if part.first { end - tokens } else { 0 };
        Missing { rows: rows * (i128::from(part.first) - i128::from(part.last)), tokens: rows * (ends - tokens) }
    }
}

/// The finished heads of a lane.
#[derive(Default)]
pub(super) struct Finished {
    pub(super) sums: Sums,
    /// Heads that are a prompt's or several, summed as the one and as the other.
    pub(super) as_prompt: Sums,
    pub(super) as_group: Sums,
    /// The token after the last of all heads.
    pub(super) token_end: u32,
    /// Those of block sums.
    pub(super) missing: Missing,

    // Working memory.
    /// `[row]`: the product of all scales after the run at hand, over the row's sum.
    factors: Vec<f64>,
    /// `[block]`: the masses of one head; then the same for all its rows, where only some count in a prompt.
    blocks: Vec<f64>,
}

impl Finished {
    pub(super) fn clear(&mut self) {
        self.token_end = 0;
        self.missing = Missing::default();
        [&mut self.sums, &mut self.as_prompt, &mut self.as_group].into_iter().for_each(Sums::clear);
    }

    /// Makes room for what [`Finished::add`] writes, so that a last tile that is refused memory may be
    /// repeated.
    pub(super) fn reserve(&mut self, end: u32, block_tokens: usize, rows: usize, ambiguous: bool) -> Result<()> {
        let blocks = (self.token_end.max(end) as usize).div_ceil(block_tokens);
        self.blocks.clear();
        memory::reserve(&mut self.blocks, if ambiguous { 2 * blocks } else { blocks })?;
        self.factors.clear();
        memory::reserve(&mut self.factors, rows)?;
        if ambiguous {
            self.as_prompt.reserve(blocks)?;
            return self.as_group.reserve(blocks);
        }
        self.sums.reserve(blocks)
    }

    /// Adds a head that ends at token `end`. `kept`: the rows that its log has.
    #[inline(never)]
    pub(super) fn add(
        &mut self,
        head: &Head,
        end: u32,
        block_tokens: usize,
        row_sum: Option<&[f32]>,
        kept: &Rows,
    ) -> Result<()> {
        let (rows, counted) = (kept.counted(), head.rows.counted());
        let token_end = self.token_end.max(end);
        let blocks = (token_end as usize).div_ceil(block_tokens);
        self.blocks.clear();
        memory::resize(&mut self.blocks, if head.ambiguous { 2 * blocks } else { blocks })?;
        let (ours, group) = self.blocks.split_at_mut(blocks);
        self.factors.clear();
        memory::resize(&mut self.factors, rows)?;
        let factors = &mut self.factors[..];
        if counted > 0 {
            set_factors(factors, row_sum, kept);
            walk_back(&head.log, rows, &mut factors[rows - counted..], ours);
        }
        if let Some(block) = ours.iter().position(|mass| !is_mass(*mass)) {
            bail!(
                InvalidArgument,
                "attention to block {block} is {}; a number of 0 or more expected, about 1 per query row at most",
                ours[block]
            );
        }
        if head.ambiguous {
            self.as_prompt.cover(blocks)?;
            self.as_group.cover(blocks)?;
            set_factors(factors, row_sum, kept);
            walk_back(&head.log, rows, factors, group);
            self.as_prompt.add(0, counted, ours);
            // Rows of a prompt that do not count may hold anything; then the head is no group.
            if group.iter().all(|mass| is_mass(*mass)) {
                self.as_group.add(0, rows, group);
            }
        } else {
            self.sums.cover(blocks)?;
            self.sums.add(head.heads, counted, ours);
        }
        self.token_end = token_end;
        Ok(())
    }

    /// Adds block sums of whole heads, or of parts of their rows.
    #[inline(never)]
    pub(super) fn add_sums(&mut self, given: &BlockSums<'_>) -> Result<()> {
        let BlockSums { heads, rows, first_block, blocks, .. } = *given;
        self.blocks.clear();
        memory::resize(&mut self.blocks, blocks)?;
        self.sums.reserve(first_block + blocks)?;
        weigh(given, &mut self.blocks);
        if let Some(at) = self.blocks.iter().position(|mass| !is_mass(*mass)) {
            bail!(
                InvalidArgument,
                "attention to block {} is {}; a number of 0 or more expected, about 1 per query row at most",
                first_block + at,
                self.blocks[at]
            );
        }
        self.sums.cover(first_block + blocks)?;
        self.sums.add_masses(first_block, &self.blocks);
        if given.last {
            self.sums.heads += heads as u64;
            self.sums.rows += rows as u64;
        }
        self.missing.add(Missing::of(given));
        self.token_end = self.token_end.max(given.token_end);
        Ok(())
    }
}

/// Writes the masses of block sums: `[block]`, as many as they have.
fn weigh(given: &BlockSums<'_>, masses: &mut [f64]) {
    let BlockSums { rows, sums, factors, .. } = *given;
    if rows == 1 {
        // Most steps; a product of slices for each block would take longer than the rest.
        let factor = factors.map_or(1.0, |factors| factors[0]);
        masses.iter_mut().zip(sums).for_each(|(mass, sum)| *mass = sum * factor);
        return;
    }
    for (mass, sums) in masses.iter_mut().zip(sums.chunks_exact(rows)) {
        *mass = match factors {
            Some(factors) => sums.iter().zip(factors).map(|(sum, factor)| sum * factor).sum(),
            None => sums.iter().sum(),
        };
    }
}

/// False for NaN, too.
fn is_mass(mass: f64) -> bool {
    (0.0..HEAD_LIMIT).contains(&mass)
}

/// Writes the factors of a head's last tile, for each row that is kept.
fn set_factors(factors: &mut [f64], row_sum: Option<&[f32]>, kept: &Rows) {
    factors.fill(1.0);
    let Some(sums) = row_sum else { return };
    let sums = kept.ranges().flat_map(|range| &sums[range]);
    factors.iter_mut().zip(sums).for_each(|(factor, sum)| *factor = 1.0 / f64::from(*sum));
}

/// Adds the masses of a head to `blocks` (`[block]`), by the last of its `rows` rows: as many as there are `factors`
/// (`[row]`). The factors are those of the last tile and become those of the first.
fn walk_back(log: &Log, rows: usize, factors: &mut [f64], blocks: &mut [f64]) {
    let first = rows - factors.len();
    log.for_each_backwards(rows, |run, scales, mut sums| {
        for mass in &mut blocks[run.first_block as usize..][..run.pieces as usize] {
            let piece;
            (piece, sums) = sums.split_at(rows);
            *mass += weighted(&piece[first..], factors);
        }
        for (factor, scale) in factors.iter_mut().zip(scales.iter().skip(first)) {
            *factor *= f64::from(*scale);
        }
    });
}

/// The dot product of two slices of equal length.
fn weighted(sums: &[f32], factors: &[f64]) -> f64 {
    const WIDTH: usize = 8;
    let (sums, last_sums) = sums.as_chunks::<WIDTH>();
    let (factors, last_factors) = factors.as_chunks::<WIDTH>();
    let mut total = 0.0;
    for (sum, factor) in last_sums.iter().zip(last_factors) {
        total += f64::from(*sum) * factor;
    }
    if !sums.is_empty() {
        let mut elements = [0.0; WIDTH];
        for (sums, factors) in sums.iter().zip(factors) {
            for ((element, sum), factor) in elements.iter_mut().zip(sums).zip(factors) {
                *element += f64::from(*sum) * factor;
            }
        }
        total += elements.iter().sum::<f64>();
    }
    total
}

/// A number from 0 to below [`HEAD_LIMIT`] with [`FRACTION_BITS`], rounded down. Computed from its bits: a conversion
/// would be a call.
fn fixed(mass: f64) -> u128 {
    const MANTISSA_BITS: i32 = 52;
    let bits = mass.to_bits();
    let exponent = (bits >> MANTISSA_BITS) as i32 & 0x7ff;
    // Denormals are far below the last fraction bit, so every number may have the hidden bit.
    let mantissa = bits & ((1 << MANTISSA_BITS) - 1) | 1 << MANTISSA_BITS;
    let shift = exponent - 1023 - MANTISSA_BITS + FRACTION_BITS;
    if shift >= 0 { u128::from(mantissa) << shift } else { u128::from(mantissa >> shift.unsigned_abs().min(63)) }
}

/// Converts a mass to a number: attention summed over rows and heads.
pub fn mass_to_f64(mass: u128) -> f64 {
    mass as f64 / (1u128 << FRACTION_BITS) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mass_is_exact_to_its_last_bit() {
        for (number, expected) in [
            (0.0, 0),
            (-0.0, 0),
            (1.0, 1 << 80),
            (1.5, 3 << 79),
            (2f64.powi(-80), 1),
            (2f64.powi(-80) * 1.999, 1),
            (2f64.powi(-81), 0),
            (f64::MIN_POSITIVE / 2.0, 0),
            (2f64.powi(31) + 2f64.powi(-21), (1 << 111) + (1 << 59)),
            (HEAD_LIMIT - 2f64.powi(-21), (1 << 112) - (1 << 59)),
        ] {
            assert_eq!(fixed(number), expected, "{number:e}");
        }
        assert_eq!(mass_to_f64(fixed(0.1)), 0.1);
        assert_eq!(mass_to_f64(fixed(12345.678)), 12345.678);
    }
}
