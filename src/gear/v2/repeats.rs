//! Rows that are predicted from earlier rows, and how far off the predictions were.

use super::container::{Reader, push_bytes};
use super::form::RowForm;
use super::list;
use super::planes::{self, Options};
use super::steps;
use crate::gear::zstd::{self, Search};
use crate::status::{Result, bail};
use crate::sys::memory;

/// What the finders find out about the rows of a blob. The vectors are as the wire has them.
#[derive(Default)]
pub(super) struct Repeats {
    /// Rows are predicted from classes of rows turned back to position 0, not from rows as they are.
    pub(super) is_rotated: bool,
    /// For every row: 0 when it is new, else how many rows before it the one lies that it refers to.
    pub(super) distances: Vec<u32>,
    /// For every row that refers to another: [`kind`], and [`JOINS`] if so.
    pub(super) kinds: Vec<u8>,
    /// For every row of a kind above 0: the residual words.
    pub(super) steps: Vec<u8>,
}

/// With the kind: the row belongs to the class of the row it refers to.
pub(super) const JOINS: u8 = 0x80;
/// Kinds up to this are coded as small steps.
const SMALL: u8 = 2;
/// No kind is above this: 32 bits of steps.
const MAX_KIND: u8 = 33;

/// The size of a row's steps: 0 when all are 0, else one more than the bits of their mean.
pub(super) fn kind(sum: u64, row_len: usize) -> u8 {
    if sum == 0 { 0 } else { 65 - (sum / row_len as u64).leading_zeros() as u8 }
}

impl Repeats {
    /// Makes room for what is found out about other rows.
    pub(super) fn start(&mut self, is_rotated: bool) {
        self.is_rotated = is_rotated;
        self.distances.clear();
        self.kinds.clear();
        self.steps.clear();
    }

    /// Where each row of `steps` goes when they are coded: by kind, so that rows of like size lie together. Returns
    /// how many of them are small, too.
    fn order(&self) -> Result<(Vec<u32>, usize)> {
        let mut starts = [0u32; MAX_KIND as usize + 2];
        let coded = || self.kinds.iter().map(|kind| (kind & !JOINS) as usize).filter(|kind| *kind > 0);
        for kind in coded() {
            starts[kind + 1] += 1;
        }
        for kind in 1..starts.len() {
            starts[kind] += starts[kind - 1];
        }
        let small = starts[SMALL as usize + 1] as usize;
        let mut order = Vec::new();
        memory::reserve(&mut order, coded().count())?;
        order.extend(coded().map(|kind| {
            starts[kind] += 1;
            starts[kind] - 1
        }));
        Ok((order, small))
    }
}

/// Working memory of [`push`] and [`read`].
#[derive(Default)]
pub(super) struct Scratch {
    rows: Vec<u8>,
    planes: Vec<u8>,
    small: (Vec<u8>, Vec<u8>),
}

/// Appends `repeats`.
pub(super) fn push(
    repeats: &Repeats,
    form: RowForm,
    options: &Options,
    zstd: &mut zstd::Compressor,
    planes_scratch: &mut planes::Scratch,
    scratch: &mut Scratch,
    out: &mut Vec<u8>,
) -> Result<()> {
    list::push(&repeats.distances, zstd, &mut scratch.small, out)?;
    let kinds = memory::at_least(&mut scratch.small.1, zstd::bound(repeats.kinds.len()))?;
    let len = zstd.encode(&repeats.kinds, Search::Level(3), kinds)?;
    push_bytes(out, &kinds[..len])?;

    let row_bytes = form.bytes();
    let (order, small) = repeats.order()?;
    let rows = memory::at_least(&mut scratch.rows, repeats.steps.len())?;
    for (row, place) in repeats.steps.chunks_exact(row_bytes).zip(&order) {
        rows[*place as usize * row_bytes..][..row_bytes].copy_from_slice(row);
    }
    let (small_shape, large_shape) = (form.shape(small), form.shape(order.len() - small));
    let (small_rows, large_rows) = rows.split_at(small * row_bytes);
    let planes = memory::at_least(&mut scratch.planes, rows.len())?;
    let (small_planes, large_planes) = planes.split_at_mut(small * row_bytes);
    if small > 0 {
        form.to_planes(small_rows, small_planes);
        steps::encode(small_planes, &small_shape, options, zstd, planes_scratch, out)?;
    }
    if large_shape.rows > 0 {
        form.to_planes(large_rows, large_planes);
        planes::encode(large_planes, &large_shape, options, zstd, planes_scratch, out)?;
    }
    Ok(())
}

/// Replaces `repeats` by what [`push`] wrote for `count` rows; returns how many of them are new.
pub(super) fn read(
    body: &mut Reader<'_>,
    form: RowForm,
    count: usize,
    zstd: &mut zstd::Decompressor,
    planes_scratch: &mut planes::DecodeScratch,
    scratch: &mut Scratch,
    repeats: &mut Repeats,
) -> Result<usize> {
    memory::resize(&mut repeats.distances, count)?;
    list::read(body, "distances of rows", zstd, &mut scratch.small.0, &mut repeats.distances)?;
    if let Some(number) = (0..count).find(|number| repeats.distances[*number] as usize > *number) {
        bail!(Corrupt, "row {number} refers to one {} rows before it", repeats.distances[number]);
    }
    let new = repeats.distances.iter().filter(|distance| **distance == 0).count();
    memory::resize(&mut repeats.kinds, count - new)?;
    zstd.decode(body.bytes("kinds of rows")?, &mut repeats.kinds)?;
    let flags = if repeats.is_rotated { JOINS } else { 0 };
    if let Some(kind) = repeats.kinds.iter().find(|kind| **kind & !flags > MAX_KIND) {
        bail!(Corrupt, "a row of kind {kind}; at most {MAX_KIND} expected");
    }

    let row_bytes = form.bytes();
    let (order, small) = repeats.order()?;
    let (small_shape, large_shape) = (form.shape(small), form.shape(order.len() - small));
    let len = order.len() * row_bytes;
    let (small_planes, large_planes) = memory::at_least(&mut scratch.planes, len)?.split_at_mut(small * row_bytes);
    let rows = memory::at_least(&mut scratch.rows, len)?;
    let (small_rows, large_rows) = rows.split_at_mut(small * row_bytes);
    if small > 0 {
        steps::decode(body, &small_shape, zstd, planes_scratch, small_planes)?;
        form.to_rows(small_planes, small_rows);
    }
    if large_shape.rows > 0 {
        planes::decode(body, &large_shape, zstd, planes_scratch, large_planes)?;
        form.to_rows(large_planes, large_rows);
    }
    memory::resize(&mut repeats.steps, len)?;
    for (row, place) in repeats.steps.chunks_exact_mut(row_bytes).zip(&order) {
        row.copy_from_slice(&rows[*place as usize * row_bytes..][..row_bytes]);
    }
    Ok(new)
}
