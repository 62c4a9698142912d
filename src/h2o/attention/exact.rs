//! Sums of masses in fixed point.

use super::block_sums::BlockSums;
use crate::status::{Result, bail};
use crate::sys::memory;
use xxhash_rust::xxh3::xxh3_64;

/// Fraction bits of a mass.
const FRACTION_BITS: i32 = 80;
/// A head gives less than this to a block; one per query row is usual. 65,536 such heads add up to a `u128`.
const HEAD_LIMIT: f64 = (1u64 << 32) as f64;

/// Sums over heads.
#[derive(Debug, Default)]
pub struct Sums {
    /// Heads.
    pub heads: u64,
    /// Query rows that count.
    pub rows: u64,
    /// `[block]`: the masses of the rows that count, up to the highest block seen; integers of 80 fraction bits
    /// ([`mass_to_f64`]). Where rows sum to 1, all blocks sum to `rows`.
    pub masses: Vec<u128>,
}

impl Sums {
    fn clear(&mut self) {
        (self.heads, self.rows) = (0, 0);
        self.masses.clear();
    }

    /// Covers at least `blocks` blocks.
    fn cover(&mut self, blocks: usize) -> Result<()> {
        if self.masses.len() < blocks { memory::resize(&mut self.masses, blocks) } else { Ok(()) }
    }

    /// Adds masses from a block on, which are covered. Saturates, so any order gives the same sum.
    fn add(&mut self, first_block: usize, masses: &[f64]) {
        let sums = self.masses[first_block..].iter_mut();
        sums.zip(masses).for_each(|(sum, mass)| *sum = sum.saturating_add(fixed(*mass)));
    }
}

/// Where parts of split rows begin, less where parts end, but for the first begins and the last ends of rows: a sum of
/// hashes, one for each row. It is 0 where every part that is not the last of its rows is followed by one, and every one
/// that is not the first follows one. Rows then have each of their tokens once, since a part ends behind its begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Joints(u64);

impl Joints {
    /// Adds those of other parts.
    pub fn add(&mut self, other: Joints) {
        self.0 = self.0.wrapping_add(other.0);
    }

    /// Those of a part.
    fn of(part: &BlockSums<'_>) -> Self {
        let hash = |token: u32| xxh3_64(&token.to_le_bytes());
        let begin = if part.first { 0 } else { hash(part.token_begin) };
        let end = if part.last { 0 } else { hash(part.token_end) };
        Joints(begin.wrapping_sub(end).wrapping_mul(part.rows as u64))
    }
}

/// The sums of one lane over the heads of one step of one layer.
///
/// Masses are integers, so the sum over lanes is the same to the bit whichever lane had which head.
#[derive(Default)]
pub struct Accumulator {
    block_tokens: usize,
    sums: Sums,
    /// The token after the last of all heads.
    token_end: u32,
    joints: Joints,
    /// Working memory: `[block]`, the masses of one head.
    blocks: Vec<f64>,
}

impl Accumulator {
    /// Drops all sums. Retains the memory. `block_tokens`: tokens of a block, at least 1.
    pub fn start(&mut self, block_tokens: usize) {
        (self.block_tokens, self.token_end, self.joints) = (block_tokens, 0, Joints::default());
        self.sums.clear();
    }

    /// Adds block sums of whole heads, or of parts of their rows.
    /// INVALID_ARGUMENT: if blocks have another size or an attention is NaN or negative. The masses are unchanged then.
    pub fn add(&mut self, given: &BlockSums<'_>) -> Result<()> {
        let BlockSums { heads, rows, block_tokens, first_block, blocks, .. } = *given;
        if block_tokens != self.block_tokens {
            bail!(
                InvalidArgument,
                "sums->block_tokens is {block_tokens}; {} expected, that of begin's step",
                self.block_tokens
            );
        }
        self.blocks.clear();
        memory::resize(&mut self.blocks, blocks)?;
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
        self.sums.add(first_block, &self.blocks);
        if given.last {
            self.sums.heads += heads as u64;
            self.sums.rows += rows as u64;
        }
        self.joints.add(Joints::of(given));
        self.token_end = self.token_end.max(given.token_end);
        Ok(())
    }

    /// Sums over the heads.
    pub fn sums(&self) -> &Sums {
        &self.sums
    }

    /// Those of the parts of split rows.
    pub fn joints(&self) -> Joints {
        self.joints
    }

    /// The token after the last of all heads.
    pub fn token_end(&self) -> usize {
        self.token_end as usize
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
