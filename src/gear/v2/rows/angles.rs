//! The rotation of the rows of a blob: its angles on the wire, and rows turned by them.

use super::turn;
use crate::arch::RowKernels;
use crate::arch::words::Real;
use crate::bytes::{Reader, push_number};
use crate::gear::codec::Context;
use crate::gear::options::{Frequencies, Pairing, Positions, Rotation};
use crate::gear::v2::container::{push_list, read_list};
use crate::gear::zstd;
use crate::status::{Result, bail};
use crate::sys::memory;
use std::slice;

/// Frequencies above this are refused.
const MAX_FREQUENCY: f32 = 1e6;
const MAX_THETA: f32 = 1e30;

/// The rotation of the rows of a blob, the same for encoder and decoder.
pub(in crate::gear::v2) struct Angles<'a> {
    pairing: Pairing,
    /// The origin of the frequencies, unless they were given.
    theta: Option<f32>,
    /// Angle per position of each pair.
    frequencies: Vec<f32>,
    /// Tokens per head.
    pub(super) tokens: usize,
    positions: Places<'a>,
}

/// The position of each token of a head.
enum Places<'a> {
    Given(Positions<'a>),
    Read(Vec<u32>),
}

impl Places<'_> {
    fn of(&self, token: usize) -> u32 {
        match self {
            Places::Given(Positions::Counting { first }) => first.wrapping_add(token as u32),
            Places::Given(Positions::Given(list)) => list[token],
            Places::Read(list) => list[token],
        }
    }
}

impl<'a> Angles<'a> {
    /// The angles of a hint. Fails unless it fits `count` rows of `row_len` elements.
    pub(in crate::gear::v2) fn new(hint: &Rotation<'a>, row_len: usize, count: usize) -> Result<Self> {
        let Rotation { pairing, dims, frequencies, tokens, positions } = *hint;
        if dims == 0 || dims % 2 != 0 || dims > row_len {
            bail!(InvalidArgument, "rope_dims is {dims}; an even number from 2 to head_dim ({row_len}) expected");
        }
        let tokens = if tokens == 0 { count } else { tokens };
        if !count.is_multiple_of(tokens) {
            bail!(InvalidArgument, "rope_tokens is {tokens}; src holds {count} rows, which is no multiple of it");
        }
        let (theta, frequencies) = match frequencies {
            Frequencies::Theta(theta) if (1.0..=MAX_THETA).contains(&theta) => {
                (Some(theta), memory::collect(turn::frequencies(theta, dims / 2))?)
            }
            Frequencies::Theta(theta) => bail!(InvalidArgument, "rope_theta is {theta}; 1 to {MAX_THETA} expected"),
            Frequencies::Given(given) if given.len() == dims / 2 => (None, memory::copied(given)?),
            Frequencies::Given(given) => {
                bail!(InvalidArgument, "{} rope_inv_freq given; {} expected", given.len(), dims / 2)
            }
        };
        if let Some(i) = frequencies.iter().position(|f| !(0.0..=MAX_FREQUENCY).contains(f)) {
            bail!(InvalidArgument, "rope_inv_freq[{i}] is {}; 0 to {MAX_FREQUENCY} expected", frequencies[i]);
        }
        if let Positions::Given(given) = positions
            && given.len() != tokens
        {
            bail!(InvalidArgument, "{} rope_positions given; {tokens} expected", given.len());
        }
        Ok(Angles { pairing, theta, frequencies, tokens, positions: Places::Given(positions) })
    }

    /// Appends the angles. `scratch` is working memory.
    pub(in crate::gear::v2) fn push(
        &self,
        zstd: &mut zstd::Compressor,
        scratch: (&mut Vec<u8>, &mut Vec<u8>),
        out: &mut Vec<u8>,
    ) -> Result<()> {
        memory::extend(out, &[self.pairing as u32 as u8])?;
        push_number(out, self.frequencies.len() as u64)?;
        memory::extend(out, &[self.theta.is_none() as u8])?;
        let numbers: &[f32] = if self.theta.is_some() { self.theta.as_slice() } else { &self.frequencies };
        memory::reserve(out, 4 * numbers.len())?;
        for number in numbers {
            memory::extend(out, &number.to_le_bytes())?;
        }
        push_number(out, self.tokens as u64)?;
        let before = |token: usize| token.checked_sub(1).map_or(0, |token| self.positions.of(token));
        let steps = (0..self.tokens).map(|token| self.positions.of(token).wrapping_sub(before(token)));
        push_list(steps, zstd, scratch, out)
    }

    /// Reads the angles of `count` rows of `row_len` elements. `spare` is working memory.
    pub(in crate::gear::v2) fn read(
        body: &mut Reader<'_>,
        row_len: usize,
        count: usize,
        context: &mut Context<'_>,
        spare: &mut [u8],
    ) -> Result<Self> {
        let code = body.byte("pairing")?;
        let Some(pairing) = Pairing::from_code(code.into()) else {
            bail!(Unsupported, "rotation with pairing {code}; 1 and 2 are known");
        };
        let pairs = body.number_within(row_len / 2, "rotated pairs")?;
        if pairs == 0 {
            bail!(Corrupt, "rotated pairs are 0");
        }
        let is_given = match body.byte("source of frequencies")? {
            0 => false,
            1 => true,
            s => bail!(Unsupported, "rotation with frequencies of source {s}; 0 and 1 are known"),
        };
        let numbers = body.take(if is_given { 4 * pairs } else { 4 }, "frequencies")?;
        let numbers = numbers.as_chunks::<4>().0.iter().map(|f| f32::from_le_bytes(*f));
        let limits = if is_given { 0.0..=MAX_FREQUENCY } else { 1.0..=MAX_THETA };
        if let Some(number) = numbers.clone().find(|number| !limits.contains(number)) {
            bail!(Corrupt, "theta or frequency of {number}; {limits:?} expected");
        }
        let theta = numbers.clone().next().filter(|_| !is_given);
        let mut frequencies = Vec::new();
        let places = context.budget.at_least(&mut frequencies, pairs)?.iter_mut();
        match theta {
            Some(theta) => places.zip(turn::frequencies(theta, pairs)).for_each(|(place, f)| *place = f),
            None => places.zip(numbers).for_each(|(place, f)| *place = f),
        }
        let tokens = body.number_within(count, "tokens per head")?;
        if tokens == 0 || !count.is_multiple_of(tokens) {
            bail!(Corrupt, "{count} rows of heads of {tokens} tokens");
        }
        let mut positions = Vec::new();
        context.budget.at_least(&mut positions, tokens)?;
        read_list(body, "positions", context, spare, &mut positions)?;
        let mut position = 0u32;
        for step in &mut positions {
            position = position.wrapping_add(*step);
            *step = position;
        }
        Ok(Angles { pairing, theta, frequencies, tokens, positions: Places::Read(positions) })
    }
}

/// Turns rows of one blob to position 0 and back.
pub(super) struct Turner<'a, R: 'static> {
    kernels: &'static RowKernels<R>,
    angles: &'a Angles<'a>,
    /// For each place the cosines, then the sines of the pairs of a token: the first tokens, and any other in the last
    /// place.
    turns: Vec<R>,
    /// One more than the token of each place; 0 for none.
    tokens: Vec<usize>,
}

/// Pairs that are turned at once where no turns are kept.
const ABREAST: usize = 32;

impl<'a, R: Real> Turner<'a, R> {
    /// A turner that keeps the turns of as many tokens as `bytes` have room for, which may be none.
    pub(super) fn new(kernels: &'static RowKernels<R>, angles: &'a Angles<'a>, bytes: usize) -> Result<Self> {
        let pairs = angles.frequencies.len();
        let places = (bytes / (2 * pairs * size_of::<R>() + size_of::<usize>())).min(angles.tokens);
        let mut turns = Vec::new();
        memory::reserve(&mut turns, 2 * places * pairs)?;
        Ok(Turner { kernels, angles, turns, tokens: memory::filled(0, places)? })
    }

    /// Turns row `number` by its token's angles, or back.
    pub(super) fn apply(&mut self, number: usize, back: bool, row: &mut [R]) -> Result<()> {
        let Turner { kernels, angles, turns, tokens } = self;
        let frequencies = &angles.frequencies[..];
        let pairs = frequencies.len();
        let token = number % angles.tokens;
        let position = angles.positions.of(token);
        let Some(last) = tokens.len().checked_sub(1) else {
            let mut computed = [[R::default(); ABREAST]; 2];
            for (i, part) in frequencies.chunks(ABREAST).enumerate() {
                let [cos, sin] = computed.each_mut().map(|turns| &mut turns[..part.len()]);
                (kernels.turns)(position, part, cos, sin);
                turn_row(kernels, angles.pairing, back, (pairs, i * ABREAST), cos, sin, row);
            }
            return Ok(());
        };
        let place = token.min(last);
        if tokens[place] != token + 1 {
            tokens[place] = token + 1;
            // The first tokens come in order.
            if turns.len() < 2 * (place + 1) * pairs {
                memory::resize(turns, 2 * (place + 1) * pairs)?;
            }
            let (cos, sin) = turns[2 * place * pairs..][..2 * pairs].split_at_mut(pairs);
            (kernels.turns)(position, frequencies, cos, sin);
        }
        let (cos, sin) = turns[2 * place * pairs..][..2 * pairs].split_at(pairs);
        turn_row(kernels, angles.pairing, back, (pairs, 0), cos, sin, row);
        Ok(())
    }
}

/// Turns as many of a row's pairs as there are turns, from pair `first` on.
fn turn_row<R: Real>(
    kernels: &RowKernels<R>,
    pairing: Pairing,
    back: bool,
    (pairs, first): (usize, usize),
    cos: &[R],
    sin: &[R],
    row: &mut [R],
) {
    match pairing {
        Pairing::Half => {
            let (a, b) = row.split_at_mut(pairs);
            (kernels.turn)(back, &mut a[first..][..cos.len()], &mut b[first..][..cos.len()], cos, sin);
        }
        Pairing::Adjacent => {
            let pairs = &mut row.as_chunks_mut::<2>().0[first..][..cos.len()];
            for ([a, b], (cos, sin)) in pairs.iter_mut().zip(cos.iter().zip(sin)) {
                (kernels.turn)(
                    back,
                    slice::from_mut(a),
                    slice::from_mut(b),
                    slice::from_ref(cos),
                    slice::from_ref(sin),
                );
            }
        }
    }
}
