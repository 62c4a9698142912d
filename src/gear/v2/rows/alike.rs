//! Rows that are like earlier ones, without rotation.
//!
//! In the first layer equal tokens have bit-equal V rows; in the next ones, similar V rows. A row is coded as the steps
//! from the words of the row that it refers to.

use super::equal::Equal;
use super::near::{WINDOW, Window};
use super::repeats::{self, References, Repeats};
use super::{PROBE, Savings};
use crate::arch;
use crate::arch::words::Word;
use crate::gear::options::Effort;
use crate::gear::v2::container::RowForm;
use crate::status::Result;
use crate::sys::memory;

/// The capacity of the window of recent rows.
fn window(effort: Effort) -> usize {
    match effort.get() {
        1..=3 => 0,
        4..=6 => PROBE,
        _ => WINDOW,
    }
}

/// The most bytes that [`find`] takes for `count` rows of `len` bytes in all.
pub(super) fn room(len: usize, count: usize, form: RowForm, effort: Effort) -> usize {
    // Numbers take up to 8 bytes.
    let window = (2 * len).min(window(effort) * form.len * 8);
    len + window + 32 * count + 16 * form.len
}

/// Finds the rows of `matrix` that are like earlier ones. Returns false, with `repeats` undefined, if that promises
/// little.
pub(super) fn find<W: Word>(matrix: &[u8], row_len: usize, effort: Effort, repeats: &mut Repeats) -> Result<bool> {
    let row_bytes = row_len * W::BYTES;
    let count = matrix.len() / row_bytes;
    // References to shorter rows cost more than they save.
    if row_bytes < 16 || count < 2 || count > u32::MAX as usize {
        return Ok(false);
    }
    repeats.start(count)?;
    let bytes_of = |number: usize| &matrix[number * row_bytes..(number + 1) * row_bytes];
    let kernels = W::kernels(arch::kernels());
    // The search for near rows takes several times as long as all the rest, and as long for short rows as for long
    // ones, so it must promise much per row.
    let capacity = window(effort);
    let worth = match effort.get() {
        1..=3 => f32::INFINITY,
        4..=6 => 80.0 / row_len as f32,
        _ => 0.2,
    };
    let mut window = match capacity {
        0 => None,
        _ => Some(Window::<W::Real>::new(kernels, row_len, (capacity, 2 * matrix.len()), count, |number, row| {
            (kernels.read)(bytes_of(number), row);
            Ok(())
        })?),
    };
    let mut equal = Equal::new(count)?;
    let mut row = memory::filled(W::Real::default(), row_len)?;
    let mut savings = Savings::new(worth);
    let mut equal_savings = Savings::new(0.75);
    for number in 0..count {
        if number == PROBE && !savings.are_worth_it(number) {
            if !equal_savings.are_worth_it(number) {
                return Ok(false);
            }
            window = None;
        }
        if let Some(before) = equal.replace(matrix, row_bytes, number)? {
            savings.add(0.0);
            equal_savings.add(0.0);
            memory::push(&mut repeats.distances, (number - before) as u32)?;
            memory::push(&mut repeats.kinds, 0)?;
            continue;
        }
        let Some(window) = &mut window else {
            memory::push(&mut repeats.distances, 0)?;
            continue;
        };
        (kernels.read)(bytes_of(number), &mut row);
        let sketch = window.sketch(&row);
        let near = window.find(&row, &sketch);
        let mut distance = 0;
        if let Some(near) = near {
            savings.add(near.distance);
            distance = number as u32 - near.owner;
            let steps = repeats.add_steps(row_bytes, matrix.len())?;
            let sum = (kernels.steps)(bytes_of(number), bytes_of(near.owner as usize), steps);
            memory::push(&mut repeats.kinds, repeats::kind(sum, row_len))?;
            window.touch(&near);
        }
        memory::push(&mut repeats.distances, distance)?;
        window.insert(&row, &sketch, number as u32)?;
    }
    Ok(count > PROBE || savings.are_worth_it(count) || equal_savings.are_worth_it(count))
}

/// The inverse of [`find`]. `matrix` has new rows and, in place of the others, their steps.
pub(super) fn expand<W: Word>(references: &References, row_len: usize, matrix: &mut [u8]) {
    let row_bytes = row_len * W::BYTES;
    let mut kinds = references.kinds().iter();
    let walk = W::kernels(arch::kernels()).walk;
    for (number, distance) in references.distances().iter().enumerate().filter(|(_, distance)| **distance > 0) {
        let (before, row) = matrix.split_at_mut(number * row_bytes);
        let row = &mut row[..row_bytes];
        let reference = &before[(number - *distance as usize) * row_bytes..][..row_bytes];
        if kinds.next().is_none_or(|kind| *kind == 0) {
            row.copy_from_slice(reference);
            continue;
        }
        walk(reference, row);
    }
}
