//! Keys that are equal but for their rotation (RoPE): in the first layer, the keys of equal tokens.
//!
//! Every row is turned back to position 0. Rows that then agree up to rounding are of one class, and each is predicted
//! from the mean of those of its class before it, turned to its own position: the mean of many is closer to the truth
//! than any one of them. A row that is merely near is predicted from a class, too, and begins its own. What is coded is the distance from the prediction in steps of the type, so the codec is exact
//! whatever the host computed with.

use super::container::{Reader, push_number};
use super::list;
use super::near::{CALIBRATION, WINDOW, Window};
use super::repeats::{self, JOINS, Repeats};
use super::rows::{PROBE, Savings};
use super::turn;
use super::word::{Real, Word};
use crate::gear::options::{Effort, Frequencies, Pairing, Positions, Rotation};
use crate::gear::zstd;
use crate::status::{Result, bail};
use crate::sys::memory;

/// Frequencies above this are a mistake, and those below its inverse turn nothing in any chat.
const MAX_FREQUENCY: f32 = 1e6;
const MAX_THETA: f32 = 1e30;

/// How the rows of a blob were rotated: known to encoder and decoder.
pub(super) struct Angles {
    pairing: Pairing,
    /// Where the frequencies came from, unless they were given.
    theta: Option<f32>,
    /// Angle per position of each pair.
    frequencies: Vec<f32>,
    /// Position of each token of a head.
    positions: Vec<u32>,
}

impl Angles {
    /// The hint in numbers, when it fits `count` rows of `row_len` elements.
    pub(super) fn new(hint: &Rotation<'_>, row_len: usize, count: usize) -> Result<Self> {
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
                (Some(theta), turn::frequencies(theta, dims / 2))
            }
            Frequencies::Theta(theta) => bail!(InvalidArgument, "rope_theta is {theta}; 1 to {MAX_THETA} expected"),
            Frequencies::Given(given) if given.len() == dims / 2 => (None, given.to_vec()),
            Frequencies::Given(given) => {
                bail!(InvalidArgument, "{} rope_inv_freq given; {} expected", given.len(), dims / 2)
            }
        };
        if let Some(i) = frequencies.iter().position(|f| !(0.0..=MAX_FREQUENCY).contains(f)) {
            bail!(InvalidArgument, "rope_inv_freq[{i}] is {}; 0 to {MAX_FREQUENCY} expected", frequencies[i]);
        }
        let positions = match positions {
            Positions::Counting { first } => (0..tokens).map(|t| first.wrapping_add(t as u32)).collect(),
            Positions::Given(given) if given.len() == tokens => given.to_vec(),
            Positions::Given(given) => {
                bail!(InvalidArgument, "{} rope_positions given; {tokens} expected", given.len())
            }
        };
        Ok(Angles { pairing, theta, frequencies, positions })
    }

    /// Appends what a decoder needs.
    pub(super) fn push(
        &self,
        zstd: &mut zstd::Compressor,
        scratch: &mut (Vec<u8>, Vec<u8>),
        out: &mut Vec<u8>,
    ) -> Result<()> {
        out.push(self.pairing as u32 as u8);
        push_number(out, self.frequencies.len());
        out.push(self.theta.is_none() as u8);
        let numbers: &[f32] = if self.theta.is_some() { self.theta.as_slice() } else { &self.frequencies };
        memory::reserve(out, 4 * numbers.len())?;
        out.extend(numbers.iter().flat_map(|f| f.to_le_bytes()));
        push_number(out, self.positions.len());
        let steps = self.positions.iter().scan(0u32, |last, p| Some(p.wrapping_sub(std::mem::replace(last, *p))));
        list::push(&steps.collect::<Vec<u32>>(), zstd, scratch, out)
    }

    /// Reads what [`Angles::push`] wrote for `count` rows of `row_len` elements.
    pub(super) fn read(
        body: &mut Reader<'_>,
        row_len: usize,
        count: usize,
        zstd: &mut zstd::Decompressor,
        scratch: &mut Vec<u8>,
    ) -> Result<Self> {
        let pairing = match body.byte("pairing")? {
            1 => Pairing::Half,
            2 => Pairing::Adjacent,
            p => bail!(Unsupported, "rotation with pairing {p}; 1 and 2 are known"),
        };
        let pairs = body.number(row_len / 2, "rotated pairs")?;
        if pairs == 0 {
            bail!(Corrupt, "rotated pairs are 0");
        }
        let is_given = match body.byte("source of frequencies")? {
            0 => false,
            1 => true,
            s => bail!(Unsupported, "rotation with frequencies of source {s}; 0 and 1 are known"),
        };
        let numbers = body.take(if is_given { 4 * pairs } else { 4 }, "frequencies")?;
        let numbers: Vec<f32> = numbers.as_chunks::<4>().0.iter().map(|f| f32::from_le_bytes(*f)).collect();
        let limits = if is_given { 0.0..=MAX_FREQUENCY } else { 1.0..=MAX_THETA };
        if let Some(number) = numbers.iter().find(|number| !limits.contains(number)) {
            bail!(Corrupt, "theta or frequency of {number}; {limits:?} expected");
        }
        let (theta, frequencies) =
            if is_given { (None, numbers) } else { (Some(numbers[0]), turn::frequencies(numbers[0], pairs)) };
        let tokens = body.number(count, "tokens per head")?;
        if tokens == 0 || !count.is_multiple_of(tokens) {
            bail!(Corrupt, "{count} rows of heads of {tokens} tokens");
        }
        let mut positions = Vec::new();
        memory::resize(&mut positions, tokens)?;
        list::read(body, "positions", zstd, scratch, &mut positions)?;
        let mut position = 0u32;
        for step in &mut positions {
            position = position.wrapping_add(*step);
            *step = position;
        }
        Ok(Angles { pairing, theta, frequencies, positions })
    }
}

/// Turns rows of one blob, token after token, to and fro.
struct Turner<'a, R> {
    angles: &'a Angles,
    /// Cosines and sines of the pairs of each token met so far.
    turns: Vec<(R, R)>,
}

impl<'a, R: Real> Turner<'a, R> {
    fn new(angles: &'a Angles) -> Self {
        Turner { angles, turns: Vec::new() }
    }

    /// The turns of the token in row `number`. Rows come in order, at first.
    fn turns(&mut self, number: usize) -> Result<&[(R, R)]> {
        let pairs = self.angles.frequencies.len();
        let token = number % self.angles.positions.len();
        while self.turns.len() <= token * pairs {
            let position = self.angles.positions[self.turns.len() / pairs];
            memory::reserve_amortized(&mut self.turns, pairs)?;
            self.turns.extend(self.angles.frequencies.iter().map(|f| {
                let turn = turn::turn(position, if *f < 1.0 / MAX_FREQUENCY / 1e6 { 0.0 } else { *f });
                (R::from_f64(turn.cos), R::from_f64(turn.sin))
            }));
        }
        Ok(&self.turns[token * pairs..(token + 1) * pairs])
    }

    /// Turns `row` by its token's angles, or back.
    fn apply(&mut self, number: usize, back: bool, row: &mut [R]) -> Result<()> {
        let pairing = self.angles.pairing;
        let turns = self.turns(number)?;
        let turn = |(a, b): (&mut R, &mut R), (cos, sin): &(R, R)| {
            let (x, y) = (*a, *b);
            (*a, *b) = if back {
                (x * *cos + y * *sin, y * *cos - x * *sin)
            } else {
                (x * *cos - y * *sin, y * *cos + x * *sin)
            };
        };
        let (rotated, _) = row.split_at_mut(2 * turns.len());
        match pairing {
            Pairing::Half => {
                let (a, b) = rotated.split_at_mut(turns.len());
                a.iter_mut().zip(b).zip(turns).for_each(|(pair, t)| turn(pair, t));
            }
            Pairing::Adjacent => {
                let (pairs, _) = rotated.as_chunks_mut::<2>();
                pairs.iter_mut().zip(turns).for_each(|([a, b], t)| turn((a, b), t));
            }
        }
        Ok(())
    }
}

/// Sums of rows turned back to position 0, class by class.
struct Classes<R> {
    row_len: usize,
    sums: Vec<R>,
    counts: Vec<u32>,
}

impl<R: Real> Classes<R> {
    fn new(row_len: usize) -> Self {
        Classes { row_len, sums: Vec::new(), counts: Vec::new() }
    }

    fn add_class(&mut self, row: &[R]) -> Result<usize> {
        memory::reserve_amortized(&mut self.sums, row.len())?;
        memory::reserve_amortized(&mut self.counts, 1)?;
        self.sums.extend_from_slice(row);
        self.counts.push(1);
        Ok(self.counts.len() - 1)
    }

    fn add_row(&mut self, class: usize, row: &[R]) {
        let sum = &mut self.sums[class * self.row_len..(class + 1) * self.row_len];
        sum.iter_mut().zip(row).for_each(|(s, x)| *s = *s + *x);
        self.counts[class] += 1;
    }

    fn mean(&self, class: usize, out: &mut [R]) {
        let sum = &self.sums[class * self.row_len..(class + 1) * self.row_len];
        let part = R::from_f64(1.0 / self.counts[class] as f64);
        out.iter_mut().zip(sum).for_each(|(o, s)| *o = *s * part);
    }
}

/// Rows nearer to the mean of their class than this are of the class. Much more than a 16-bit type's rounding, as hosts
/// differ in how they compute angles.
const SAME: f32 = 1.0 / 128.0;

/// Finds rows that are like earlier ones but for their rotation. Returns false, with `repeats` undefined, when that
/// promises little.
pub(super) fn find<W: Word>(
    matrix: &[u8],
    row_len: usize,
    angles: &Angles,
    effort: Effort,
    repeats: &mut Repeats,
) -> Result<bool> {
    let row_bytes = row_len * W::BYTES;
    let count = matrix.len() / row_bytes;
    if count < 2 || count > u32::MAX as usize {
        return Ok(false);
    }
    repeats.start(true);
    memory::reserve(&mut repeats.distances, count)?;
    let mut turner = Turner::<W::Real>::new(angles);
    let mut classes = Classes::<W::Real>::new(row_len);
    let sample = &matrix[..CALIBRATION.min(count) * row_bytes];
    let mut sample: Vec<_> = sample.chunks_exact(W::BYTES).map(|word| W::real(W::bits(word))).collect();
    for (number, row) in sample.chunks_exact_mut(row_len).enumerate() {
        turner.apply(number, true, row)?;
    }
    let mut window = Window::new(row_len, WINDOW, &sample)?;
    // The last row of each class.
    let mut last: Vec<u32> = Vec::new();
    let mut row = vec![W::Real::default(); row_len];
    let mut prediction = row.clone();
    let mut savings = Savings::new(if effort.get() < 7 { 1.0 } else { 0.2 });
    for (number, bytes) in matrix.chunks_exact(row_bytes).enumerate() {
        if number == PROBE && !savings.are_worth_it(number) {
            return Ok(false);
        }
        let words = bytes.chunks_exact(W::BYTES).map(W::bits);
        if !words.clone().all(W::is_moderate) {
            repeats.distances.push(0);
            continue;
        }
        row.iter_mut().zip(words.clone()).for_each(|(r, w)| *r = W::real(w));
        turner.apply(number, true, &mut row)?;
        let sketch = window.sketch(&row);
        let Some(near) = window.find(&row, &sketch) else {
            repeats.distances.push(0);
            memory::reserve_amortized(&mut last, 1)?;
            last.push(number as u32);
            window.insert(&row, &sketch, classes.add_class(&row)? as u32);
            continue;
        };
        savings.add(near.distance);
        let class = near.owner as usize;
        classes.mean(class, &mut prediction);
        turner.apply(number, false, &mut prediction)?;
        memory::reserve_amortized(&mut repeats.steps, row_bytes)?;
        let mut sum = 0;
        let start = repeats.steps.len();
        for (word, predicted) in words.zip(&prediction) {
            let steps = W::steps(word, W::nearest(*predicted));
            sum += steps as u64;
            repeats.steps.extend_from_slice(&steps.to_le_bytes()[..W::BYTES]);
        }
        let kind = repeats::kind(sum, row_len);
        if kind == 0 {
            repeats.steps.truncate(start);
        }
        let joins = near.distance < SAME;
        memory::reserve_amortized(&mut repeats.kinds, 1)?;
        repeats.kinds.push(if joins { kind | JOINS } else { kind });
        repeats.distances.push(number as u32 - last[class]);
        window.touch(&near);
        if joins {
            classes.add_row(class, &row);
            last[class] = number as u32;
        } else {
            memory::reserve_amortized(&mut last, 1)?;
            last.push(number as u32);
            window.insert(&row, &sketch, classes.add_class(&row)? as u32);
        }
    }
    Ok(count > PROBE || savings.are_worth_it(count))
}

/// Writes all rows from the new ones and the steps of the others: the inverse of [`find`].
pub(super) fn expand<W: Word>(
    new: &[u8],
    repeats: &Repeats,
    row_len: usize,
    angles: &Angles,
    matrix: &mut [u8],
) -> Result<()> {
    const NONE: u32 = u32::MAX;
    let row_bytes = row_len * W::BYTES;
    let (mut new, mut steps) = (new.chunks_exact(row_bytes), repeats.steps.chunks_exact(row_bytes));
    let mut kinds = repeats.kinds.iter();
    let mut turner = Turner::<W::Real>::new(angles);
    let mut classes = Classes::<W::Real>::new(row_len);
    // Which rows a later one refers to; then the class of each such row.
    let mut class_of: Vec<u32> = Vec::new();
    memory::resize(&mut class_of, repeats.distances.len())?;
    class_of.fill(NONE);
    for (number, distance) in repeats.distances.iter().enumerate().filter(|(_, d)| **d > 0) {
        class_of[number - *distance as usize] = 0;
    }
    let zeros = vec![0; row_bytes];
    let mut row = vec![W::Real::default(); row_len];
    for (number, (bytes, distance)) in matrix.chunks_exact_mut(row_bytes).zip(&repeats.distances).enumerate() {
        let is_needed = class_of[number] != NONE;
        let mut joined = None;
        if *distance == 0 {
            bytes.copy_from_slice(new.next().expect("as many as there are zeros"));
        } else {
            let class = class_of[number - *distance as usize];
            let kind = *kinds.next().expect("as many as there are distances");
            joined = (kind & JOINS != 0).then_some(class);
            classes.mean(class as usize, &mut row);
            turner.apply(number, false, &mut row)?;
            let steps = match kind & !JOINS {
                0 => &zeros[..],
                _ => steps.next().expect("as many as there are kinds above 0"),
            };
            let targets = bytes.chunks_exact_mut(W::BYTES).zip(steps.chunks_exact(W::BYTES));
            for ((word, steps), predicted) in targets.zip(&row) {
                let bits = W::walk(W::bits(steps), W::nearest(*predicted));
                word.copy_from_slice(&bits.to_le_bytes()[..W::BYTES]);
            }
        }
        if is_needed || joined.is_some() {
            row.iter_mut().zip(bytes.chunks_exact(W::BYTES)).for_each(|(r, w)| *r = W::real(W::bits(w)));
            turner.apply(number, true, &mut row)?;
            class_of[number] = match joined {
                Some(class) => {
                    classes.add_row(class as usize, &row);
                    class
                }
                None => classes.add_class(&row)? as u32,
            };
        }
    }
    Ok(())
}
