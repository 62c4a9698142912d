//! Rows that repeat earlier ones: found by the encoder, left out of the planes, completed by the decoder.
//!
//! [`alike`] finds rows that are equal ([`equal`]) or near ([`near`]) to earlier ones. [`rotated`] does the same for keys,
//! after they were turned back to position 0 by their [`angles`]. Both fill in [`Repeats`], and complete a matrix from
//! [`References`].

mod alike;
mod angles;
mod equal;
mod near;
mod repeats;
mod rotated;
mod steps;
mod turn;

pub(super) use angles::Angles;
pub(super) use repeats::{References, Repeats, Spare, push as push_repeats};

use super::container::RowForm;
use crate::arch::words::{Bf16, F16, F32, Int8};
use crate::dtype::Dtype;
use crate::gear::codec::Context;
use crate::gear::options::Effort;
use crate::status::{Result, bail};

/// Finds the rows of `matrix` that repeat earlier ones: with angles those that do when turned back, else those that do
/// as they are. Returns false, with `repeats` undefined, if that promises little.
pub(super) fn find(
    matrix: &[u8],
    form: RowForm,
    angles: Option<&Angles<'_>>,
    effort: Effort,
    repeats: &mut Repeats,
) -> Result<bool> {
    match (form.dtype, angles) {
        (Dtype::F16, Some(angles)) => rotated::find::<F16>(matrix, form.len, angles, effort, repeats),
        (Dtype::Bf16, Some(angles)) => rotated::find::<Bf16>(matrix, form.len, angles, effort, repeats),
        (Dtype::F32, Some(angles)) => rotated::find::<F32>(matrix, form.len, angles, effort, repeats),
        (Dtype::Int8, Some(_)) => bail!(InvalidArgument, "INT8 words take no rotation hint"),
        (Dtype::F16, None) => alike::find::<F16>(matrix, form.len, effort, repeats),
        (Dtype::Bf16, None) => alike::find::<Bf16>(matrix, form.len, effort, repeats),
        (Dtype::F32, None) => alike::find::<F32>(matrix, form.len, effort, repeats),
        (Dtype::Int8, None) => alike::find::<Int8>(matrix, form.len, effort, repeats),
    }
}

/// The most bytes that [`find`] takes for `count` rows of `len` bytes in all.
pub(super) fn room(len: usize, count: usize, form: RowForm, is_rotated: bool, effort: Effort) -> usize {
    if is_rotated { rotated::room(len, count) } else { alike::room(len, count, form, effort) }
}

/// The inverse of [`find`]. `matrix` has new rows and, in place of the others, their steps. `spare` is freed when its
/// memory is needed, and `numbers` is working memory.
pub(super) fn expand(
    references: &mut References,
    form: RowForm,
    angles: Option<&Angles<'_>>,
    context: &mut Context<'_>,
    (spare, numbers): (&mut Vec<u8>, &mut Vec<u32>),
    matrix: &mut [u8],
) -> Result<()> {
    let RowForm { dtype, len } = form;
    let Some(angles) = angles else {
        match dtype {
            Dtype::F16 => alike::expand::<F16>(references, len, matrix),
            Dtype::Bf16 => alike::expand::<Bf16>(references, len, matrix),
            Dtype::F32 => alike::expand::<F32>(references, len, matrix),
            Dtype::Int8 => alike::expand::<Int8>(references, len, matrix),
        }
        return Ok(());
    };
    match dtype {
        Dtype::F16 => rotated::expand::<F16>(references, len, angles, context, (spare, numbers), matrix),
        Dtype::Bf16 => rotated::expand::<Bf16>(references, len, angles, context, (spare, numbers), matrix),
        Dtype::F32 => rotated::expand::<F32>(references, len, angles, context, (spare, numbers), matrix),
        Dtype::Int8 => bail!(Corrupt, "rotated rows of INT8 words"),
    }
}

/// Writes the new rows of `matrix` to the start of `out`; returns their length.
pub(super) fn keep_new(matrix: &[u8], row_bytes: usize, distances: &[u32], out: &mut [u8]) -> usize {
    let mut len = 0;
    for (row, distance) in matrix.chunks_exact(row_bytes).zip(distances) {
        if *distance == 0 {
            out[len..len + row_bytes].copy_from_slice(row);
            len += row_bytes;
        }
    }
    len
}

/// Rows after which a search ends that promises little.
const PROBE: usize = 256;

/// An estimate of the bits per element that references save.
struct Savings {
    bits: f32,
    worth: f32,
}

impl Savings {
    /// `worth` bits per element are worth the time of a search.
    fn new(worth: f32) -> Self {
        Savings { bits: 0.0, worth }
    }

    /// Adds a row at `distance` from the row it refers to, relative to its size. Unrelated rows are about 0.7 apart.
    fn add(&mut self, distance: f32) {
        self.bits += log2(0.7 / distance.max(1e-4));
    }

    fn are_worth_it(&self, rows: usize) -> bool {
        self.bits >= self.worth * rows as f32
    }
}

/// log2, at most 0.09 too low and the same on every machine: exponent and mantissa read as one number.
fn log2(x: f32) -> f32 {
    x.to_bits() as f32 / (1 << 23) as f32 - 127.0
}
