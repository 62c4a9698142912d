//! Keys that are equal but for their rotation (RoPE): in the first layer, the keys of equal tokens.
//!
//! Every row is turned back to position 0. Rows that then agree up to rounding are of one class, and each is predicted
//! from the mean of those of its class before it, turned to its own position: the mean of many is closer to the truth
//! than any one of them. A row that is merely near is predicted from a class, too, and begins its own. What is coded is the distance from the prediction in steps of the type, so the codec is exact
//! whatever the host computed with.

use super::container::{Reader, push_number};
use super::list;
use super::near::{WINDOW, Window};
use super::repeats::{self, JOINS, References, Repeats};
use super::rows::{PROBE, Savings};
use super::turn;
use super::word::{Real, Word};
use crate::gear::codec::Context;
use crate::gear::options::{Effort, Frequencies, Pairing, Positions, Rotation};
use crate::gear::zstd;
use crate::status::{Result, bail};
use crate::sys::memory;

/// Frequencies above this are a mistake, and those below its inverse turn nothing in any chat.
const MAX_FREQUENCY: f32 = 1e6;
const MAX_THETA: f32 = 1e30;

/// How the rows of a blob were rotated: known to encoder and decoder.
pub(super) struct Angles<'a> {
    pairing: Pairing,
    /// Where the frequencies came from, unless they were given.
    theta: Option<f32>,
    /// Angle per position of each pair.
    frequencies: Vec<f32>,
    /// Tokens per head.
    tokens: usize,
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
    /// The hint in numbers, when it fits `count` rows of `row_len` elements.
    pub(super) fn new(hint: &Rotation<'a>, row_len: usize, count: usize) -> Result<Self> {
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

    /// Appends what a decoder needs. `scratch` is working memory.
    pub(super) fn push(
        &self,
        zstd: &mut zstd::Compressor,
        scratch: (&mut Vec<u8>, &mut Vec<u8>),
        out: &mut Vec<u8>,
    ) -> Result<()> {
        memory::extend(out, &[self.pairing as u32 as u8])?;
        push_number(out, self.frequencies.len())?;
        memory::extend(out, &[self.theta.is_none() as u8])?;
        let numbers: &[f32] = if self.theta.is_some() { self.theta.as_slice() } else { &self.frequencies };
        memory::reserve(out, 4 * numbers.len())?;
        for number in numbers {
            memory::extend(out, &number.to_le_bytes())?;
        }
        push_number(out, self.tokens)?;
        let before = |token: usize| token.checked_sub(1).map_or(0, |token| self.positions.of(token));
        let steps = (0..self.tokens).map(|token| self.positions.of(token).wrapping_sub(before(token)));
        list::push(steps, zstd, scratch, out)
    }

    /// Reads what [`Angles::push`] wrote for `count` rows of `row_len` elements. `spare` is working memory.
    pub(super) fn read(
        body: &mut Reader<'_>,
        row_len: usize,
        count: usize,
        context: &mut Context<'_>,
        spare: &mut [u8],
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
        let tokens = body.number(count, "tokens per head")?;
        if tokens == 0 || !count.is_multiple_of(tokens) {
            bail!(Corrupt, "{count} rows of heads of {tokens} tokens");
        }
        let mut positions = Vec::new();
        context.budget.at_least(&mut positions, tokens)?;
        list::read(body, "positions", context, spare, &mut positions)?;
        let mut position = 0u32;
        for step in &mut positions {
            position = position.wrapping_add(*step);
            *step = position;
        }
        Ok(Angles { pairing, theta, frequencies, tokens, positions: Places::Read(positions) })
    }
}

/// Turns rows of one blob to and fro.
struct Turner<'a, R> {
    angles: &'a Angles<'a>,
    /// Cosines and sines of the pairs of some tokens: the first ones, and in the last place any other.
    turns: Vec<(R, R)>,
    /// Which token each place has, from 1 on.
    tokens: Vec<usize>,
}

impl<'a, R: Real> Turner<'a, R> {
    /// A turner that remembers the turns of as many tokens as `bytes` have room for, which may be none.
    fn new(angles: &'a Angles<'a>, bytes: usize) -> Result<Self> {
        let pairs = angles.frequencies.len();
        let places = (bytes / Self::bytes_per_place(pairs)).min(angles.tokens);
        let mut turns = Vec::new();
        memory::reserve(&mut turns, places * pairs)?;
        Ok(Turner { angles, turns, tokens: memory::filled(0, places)? })
    }

    fn bytes_per_place(pairs: usize) -> usize {
        pairs * size_of::<(R, R)>() + size_of::<usize>()
    }

    /// Turns `row` by its token's angles, or back.
    fn apply(&mut self, number: usize, back: bool, row: &mut [R]) -> Result<()> {
        let Turner { angles, turns, tokens } = self;
        let pairs = angles.frequencies.len();
        let token = number % angles.tokens;
        let position = angles.positions.of(token);
        let computed = angles.frequencies.iter().map(|f| {
            let turn = turn::turn(position, if *f < 1.0 / MAX_FREQUENCY / 1e6 { 0.0 } else { *f });
            (R::from_f64(turn.cos), R::from_f64(turn.sin))
        });
        let Some(last) = tokens.len().checked_sub(1) else {
            turn_row(angles.pairing, back, pairs, computed, row);
            return Ok(());
        };
        let place = token.min(last);
        if tokens[place] != token + 1 {
            tokens[place] = token + 1;
            // Tokens come in order, at first.
            if turns.len() < (place + 1) * pairs {
                memory::resize(turns, (place + 1) * pairs)?;
            }
            turns[place * pairs..][..pairs].iter_mut().zip(computed).for_each(|(place, turn)| *place = turn);
        }
        turn_row(angles.pairing, back, pairs, turns[place * pairs..][..pairs].iter().copied(), row);
        Ok(())
    }
}

fn turn_row<R: Real>(pairing: Pairing, back: bool, pairs: usize, turns: impl Iterator<Item = (R, R)>, row: &mut [R]) {
    let turn = |(a, b): (&mut R, &mut R), (cos, sin): (R, R)| {
        let (x, y) = (*a, *b);
        (*a, *b) = if back { (x * cos + y * sin, y * cos - x * sin) } else { (x * cos - y * sin, y * cos + x * sin) };
    };
    let (rotated, _) = row.split_at_mut(2 * pairs);
    match pairing {
        Pairing::Half => {
            let (a, b) = rotated.split_at_mut(pairs);
            a.iter_mut().zip(b).zip(turns).for_each(|(pair, t)| turn(pair, t));
        }
        Pairing::Adjacent => {
            let (pairs, _) = rotated.as_chunks_mut::<2>();
            pairs.iter_mut().zip(turns).for_each(|([a, b], t)| turn((a, b), t));
        }
    }
}

/// Sums of rows turned back to position 0, class by class. Kept in pieces, so that growth never copies them.
struct Classes<R> {
    row_len: usize,
    pieces: Vec<Vec<R>>,
    counts: Vec<u32>,
}

/// Classes of one piece.
const PIECE: usize = 64;

impl<R: Real> Classes<R> {
    /// No classes yet; there will be at most `limit`.
    fn new(row_len: usize, limit: usize) -> Result<Self> {
        let (mut pieces, mut counts) = (Vec::new(), Vec::new());
        memory::reserve(&mut pieces, limit.div_ceil(PIECE))?;
        memory::reserve(&mut counts, limit)?;
        Ok(Classes { row_len, pieces, counts })
    }

    fn add_class(&mut self, row: &[R], limit: usize) -> Result<usize> {
        let class = self.counts.len();
        if class.is_multiple_of(PIECE) {
            let mut piece = Vec::new();
            memory::reserve(&mut piece, PIECE.min(limit - class) * self.row_len)?;
            memory::push(&mut self.pieces, piece)?;
        }
        memory::extend(&mut self.pieces[class / PIECE], row)?;
        memory::push(&mut self.counts, 1)?;
        Ok(class)
    }

    fn sum(&self, class: usize) -> &[R] {
        &self.pieces[class / PIECE][class % PIECE * self.row_len..][..self.row_len]
    }

    fn add_row(&mut self, class: usize, row: &[R]) {
        let sum = &mut self.pieces[class / PIECE][class % PIECE * self.row_len..][..self.row_len];
        sum.iter_mut().zip(row).for_each(|(s, x)| *s = *s + *x);
        self.counts[class] += 1;
    }

    fn mean(&self, class: usize, out: &mut [R]) {
        let part = R::from_f64(1.0 / self.counts[class] as f64);
        out.iter_mut().zip(self.sum(class)).for_each(|(o, s)| *o = *s * part);
    }
}

/// Rows nearer to the mean of their class than this are of the class. Much more than a 16-bit type's rounding, as hosts
/// differ in how they compute angles.
const SAME: f32 = 1.0 / 128.0;

/// The bytes that [`find`] takes for `count` rows of `len` bytes in all, at most: steps, a window, sums, turns, and
/// what is known of each row.
pub(super) fn room(len: usize, count: usize) -> usize {
    len + len + 2 * len + len / 2 + 24 * count + 4 * len / count.max(1)
}

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
    // Of shorter rows, references are not worth their distances.
    if row_bytes < 16 || !(2..=MAX_ROWS).contains(&count) {
        return Ok(false);
    }
    repeats.start(true, count)?;
    let heads = count / angles.tokens;
    let mut turner = Turner::<W::Real>::new(angles, if heads > 1 { matrix.len() / 2 } else { 4 * row_bytes + 64 })?;
    let mut classes = Classes::<W::Real>::new(row_len, count)?;
    let mut window = Window::new(row_len, (WINDOW, matrix.len()), count, |number, row: &mut [W::Real]| {
        let words = matrix[number * row_bytes..][..row_bytes].chunks_exact(W::BYTES);
        row.iter_mut().zip(words).for_each(|(r, word)| *r = W::real(W::bits(word)));
        turner.apply(number, true, row)
    })?;
    // The last row of each class.
    let mut last: Vec<u32> = Vec::new();
    memory::reserve(&mut last, count)?;
    let mut row = memory::filled(W::Real::default(), row_len)?;
    let mut prediction = memory::filled(W::Real::default(), row_len)?;
    let mut savings = Savings::new(if effort.get() < 7 { 1.0 } else { 0.2 });
    for (number, bytes) in matrix.chunks_exact(row_bytes).enumerate() {
        if number == PROBE && !savings.are_worth_it(number) {
            return Ok(false);
        }
        let words = bytes.chunks_exact(W::BYTES).map(W::bits);
        if !words.clone().all(W::is_moderate) {
            memory::push(&mut repeats.distances, 0)?;
            continue;
        }
        row.iter_mut().zip(words.clone()).for_each(|(r, w)| *r = W::real(w));
        turner.apply(number, true, &mut row)?;
        let sketch = window.sketch(&row);
        let Some(near) = window.find(&row, &sketch) else {
            memory::push(&mut repeats.distances, 0)?;
            memory::push(&mut last, number as u32)?;
            window.insert(&row, &sketch, classes.add_class(&row, count)? as u32)?;
            continue;
        };
        savings.add(near.distance);
        let class = near.owner as usize;
        classes.mean(class, &mut prediction);
        turner.apply(number, false, &mut prediction)?;
        let mut sum = 0;
        let out = repeats.add_steps(row_bytes, matrix.len())?;
        for ((word, predicted), out) in words.zip(&prediction).zip(out.chunks_exact_mut(W::BYTES)) {
            let steps = W::steps(word, W::nearest(*predicted));
            sum += steps as u64;
            out.copy_from_slice(&steps.to_le_bytes()[..W::BYTES]);
        }
        let kind = repeats::kind(sum, row_len);
        if kind == 0 {
            repeats.steps.truncate(repeats.steps.len() - row_bytes);
        }
        let joins = near.distance < SAME;
        memory::push(&mut repeats.kinds, if joins { kind | JOINS } else { kind })?;
        memory::push(&mut repeats.distances, number as u32 - last[class])?;
        window.touch(&near);
        if joins {
            classes.add_row(class, &row);
            last[class] = number as u32;
        } else {
            memory::push(&mut last, number as u32)?;
            window.insert(&row, &sketch, classes.add_class(&row, count)? as u32)?;
        }
    }
    Ok(count > PROBE || savings.are_worth_it(count))
}

/// More rows than this are never rotated: their numbers take 31 bits.
const MAX_ROWS: usize = (1 << 31) - 1;

/// What a row is predicted from, in place of its distance: the row that began the class, whether the row joins it, or
/// nothing.
#[derive(Clone, Copy)]
struct Target(u32);

impl Target {
    const NONE: Target = Target(u32::MAX >> 1);
    const JOINS: u32 = 1 << 31;

    fn class(self) -> usize {
        (self.0 & !Self::JOINS) as usize
    }

    fn joins(self) -> bool {
        self.0 & Self::JOINS != 0
    }

    /// The class of row `number`, which has this target.
    fn own_class(self, number: usize) -> usize {
        if self.joins() { self.class() } else { number }
    }
}

/// Completes a matrix of new rows and, in the places of the others, their steps: the inverse of [`find`]. `spare` is
/// freed when its room is needed, and `numbers` is working memory.
///
/// Only the sums of classes with a row that joined are kept: of others, the row that began them is turned back again.
pub(super) fn expand<W: Word>(
    references: &mut References,
    row_len: usize,
    angles: &Angles<'_>,
    context: &mut Context<'_>,
    (spare, numbers): (&mut Vec<u8>, &mut Vec<u32>),
    matrix: &mut [u8],
) -> Result<()> {
    let row_bytes = row_len * W::BYTES;
    let (targets, kinds) = references.parts_mut();
    let count = targets.len();
    if count > MAX_ROWS {
        bail!(Unsupported, "{count} rotated rows; at most {MAX_ROWS} are read");
    }
    // For each row that began a class with more than one row: the number of the class, from 1 on.
    let classes_of = context.budget.at_least(numbers, count)?;
    classes_of.fill(0);
    let mut all_kinds = kinds.iter();
    let mut stored = 0;
    for number in 0..count {
        let distance = targets[number] as usize;
        targets[number] = Target::NONE.0;
        if distance > 0 {
            let class = Target(targets[number - distance]).own_class(number - distance);
            targets[number] = class as u32;
            if all_kinds.next().is_some_and(|kind| kind & JOINS != 0) {
                targets[number] |= Target::JOINS;
                if classes_of[class] == 0 {
                    stored += 1;
                    classes_of[class] = stored;
                }
            }
        }
    }

    let stored = stored as usize;
    let real = size_of::<W::Real>();
    let needed = (stored + 1) * row_len * real + stored * size_of::<u32>();
    if needed > context.budget.left() {
        context.budget.release(spare);
    }
    context.budget.take(needed)?;
    let mut row = memory::filled(W::Real::default(), row_len)?;
    let mut sums = memory::filled(W::Real::default(), stored * row_len)?;
    let mut counts = memory::filled(0u32, stored)?;
    let mut turner = Turner::<W::Real>::new(angles, context.budget.left())?;
    let read = |bytes: &[u8], row: &mut [W::Real]| {
        row.iter_mut().zip(bytes.chunks_exact(W::BYTES)).for_each(|(r, w)| *r = W::real(W::bits(w)));
    };
    let mut kinds = kinds.iter();
    for (number, target) in targets.iter().map(|target| Target(*target)).enumerate() {
        let (before, bytes) = matrix.split_at_mut(number * row_bytes);
        let bytes = &mut bytes[..row_bytes];
        if target.0 != Target::NONE.0 {
            let class = target.class();
            match (classes_of[class] as usize).checked_sub(1) {
                Some(stored) if counts[stored] > 0 => {
                    let part = W::Real::from_f64(1.0 / counts[stored] as f64);
                    row.iter_mut().zip(&sums[stored * row_len..]).for_each(|(o, s)| *o = *s * part);
                }
                _ => {
                    read(&before[class * row_bytes..][..row_bytes], &mut row);
                    turner.apply(class, true, &mut row)?;
                    let part = W::Real::from_f64(1.0);
                    row.iter_mut().for_each(|o| *o = *o * part);
                }
            }
            turner.apply(number, false, &mut row)?;
            if kinds.next().is_none_or(|kind| kind & !JOINS == 0) {
                bytes.fill(0);
            }
            for (word, predicted) in bytes.chunks_exact_mut(W::BYTES).zip(&row) {
                let bits = W::walk(W::bits(word), W::nearest(*predicted));
                word.copy_from_slice(&bits.to_le_bytes()[..W::BYTES]);
            }
        }
        if let Some(stored) = (classes_of[target.own_class(number)] as usize).checked_sub(1) {
            read(bytes, &mut row);
            turner.apply(number, true, &mut row)?;
            let sum = &mut sums[stored * row_len..][..row_len];
            if counts[stored] == 0 {
                sum.copy_from_slice(&row);
            } else {
                sum.iter_mut().zip(&row).for_each(|(s, x)| *s = *s + *x);
            }
            counts[stored] += 1;
        }
    }
    Ok(())
}
