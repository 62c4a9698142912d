//! Keys that are alike but for their rotation (RoPE): in the first layer, the keys of equal tokens.
//!
//! Every row is turned back to position 0. Rows that then agree up to rounding are of one class. A row is predicted from
//! the mean of the rows of its class before it, turned to its own position; the mean of many is more exact than any one
//! of them. A row that is merely near is predicted from a class, too, and begins its own. Coded are the steps from the
//! prediction to the word, so the codec is exact for any arithmetic of the host.

use super::angles::{Angles, Turner};
use super::near::{WINDOW, Window};
use super::repeats::{self, JOINS, References, Repeats};
use super::{PROBE, Savings};
use crate::arch;
use crate::arch::words::{Real, Word};
use crate::gear::codec::Context;
use crate::gear::options::Effort;
use crate::status::{Result, bail};
use crate::sys::memory;

/// Sums of rows turned back to position 0, one for each class, in pieces that never move.
struct Classes<R> {
    row_len: usize,
    pieces: Vec<Vec<R>>,
    counts: Vec<u32>,
}

/// Classes of one piece.
const PIECE: usize = 64;

impl<R: Real> Classes<R> {
    /// No classes, with room for the books of `limit`.
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

/// Rows nearer to the mean of a class than this are of the class. Much more than the rounding of a 16-bit type, because
/// hosts compute angles differently.
const SAME: f32 = 1.0 / 128.0;

/// The most bytes that [`find`] takes for `count` rows of `len` bytes in all: steps, a window, sums, turns, and the
/// books of each row.
pub(super) fn room(len: usize, count: usize) -> usize {
    len + len + 2 * len + len / 2 + 24 * count + 5 * len / count.max(1)
}

/// Finds rows that are like earlier ones but for their rotation. Returns false, with `repeats` undefined, if that
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
    // References to shorter rows cost more than they save.
    if row_bytes < 16 || !(2..=MAX_ROWS).contains(&count) {
        return Ok(false);
    }
    repeats.start(count)?;
    let heads = count / angles.tokens;
    let kernels = W::kernels(arch::kernels());
    let turns = if heads > 1 { matrix.len() / 2 } else { 4 * row_bytes + 64 };
    let mut turner = Turner::<W::Real>::new(kernels, angles, turns)?;
    let mut classes = Classes::<W::Real>::new(row_len, count)?;
    let mut window = Window::new(kernels, row_len, (WINDOW, matrix.len()), count, |number, row: &mut [W::Real]| {
        (kernels.read)(&matrix[number * row_bytes..][..row_bytes], row);
        turner.apply(number, true, row)
    })?;
    // The last row of each class.
    let mut last: Vec<u32> = Vec::new();
    memory::reserve(&mut last, count)?;
    let mut row = memory::filled(W::Real::default(), row_len)?;
    let mut prediction = memory::filled(W::Real::default(), row_len)?;
    let mut predicted = memory::filled(0, row_bytes)?;
    let mut savings = Savings::new(if effort.get() < 7 { 1.0 } else { 0.2 });
    for (number, bytes) in matrix.chunks_exact(row_bytes).enumerate() {
        if number == PROBE && !savings.are_worth_it(number) {
            return Ok(false);
        }
        if !(kernels.are_moderate)(bytes) {
            memory::push(&mut repeats.distances, 0)?;
            continue;
        }
        (kernels.read)(bytes, &mut row);
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
        (kernels.nearest)(&prediction, &mut predicted);
        let sum = (kernels.steps)(bytes, &predicted, repeats.add_steps(row_bytes, matrix.len())?);
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

/// The prediction of a row, in place of its distance: the row that began the class and whether the row joins it, or
/// none.
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

/// See [`super::expand`]. Keeps the sums of classes that a row joins. In other classes the row that began them is turned
/// back again.
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
    let needed = (stored + 1) * row_len * real + row_bytes + stored * size_of::<u32>();
    if needed > context.budget.left() {
        context.budget.release(spare);
    }
    context.budget.take(needed)?;
    let mut row = memory::filled(W::Real::default(), row_len)?;
    let mut predicted = memory::filled(0, row_bytes)?;
    let mut sums = memory::filled(W::Real::default(), stored * row_len)?;
    let mut counts = memory::filled(0u32, stored)?;
    let kernels = W::kernels(arch::kernels());
    let mut turner = Turner::<W::Real>::new(kernels, angles, context.budget.left())?;
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
                    (kernels.read)(&before[class * row_bytes..][..row_bytes], &mut row);
                    turner.apply(class, true, &mut row)?;
                    let part = W::Real::from_f64(1.0);
                    row.iter_mut().for_each(|o| *o = *o * part);
                }
            }
            turner.apply(number, false, &mut row)?;
            if kinds.next().is_none_or(|kind| kind & !JOINS == 0) {
                bytes.fill(0);
            }
            (kernels.nearest)(&row, &mut predicted);
            (kernels.walk)(&predicted, bytes);
        }
        if let Some(stored) = (classes_of[target.own_class(number)] as usize).checked_sub(1) {
            (kernels.read)(bytes, &mut row);
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
