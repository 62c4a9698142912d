//! Rows predicted from earlier rows, and the steps from the predictions: encoder's and decoder's books and the wire.

use super::steps;
use crate::bytes::{Reader, push_bytes};
use crate::gear::budget::held;
use crate::gear::codec::Context;
use crate::gear::v2::container::{RowForm, push_list, read_list};
use crate::gear::v2::planes::{self, Coder};
use crate::gear::zstd::{self, Search};
use crate::status::{Result, bail};
use crate::sys::memory;

/// The result of a search, with vectors in the order of the wire.
#[derive(Default)]
pub(in crate::gear::v2) struct Repeats {
    /// For every row: 0 if it is new, else the distance to the earlier row that it refers to.
    pub(in crate::gear::v2) distances: Vec<u32>,
    /// For every row that refers to another: its [`kind`], with [`JOINS`] if it joins.
    pub(in crate::gear::v2) kinds: Vec<u8>,
    /// For every row of a kind above 0: the residual words.
    pub(in crate::gear::v2) steps: Vec<u8>,
}

/// The bit beside a kind: the row joins the class of the row it refers to.
pub(super) const JOINS: u8 = 0x80;
/// Kinds up to this are coded as small steps.
const SMALL: u8 = 2;
/// No kind is above this: 32 bits of steps.
const MAX_KIND: u8 = 33;

/// The order of rows of a kind above 0 on the wire: by kind, so that rows of like size lie together, then by number.
struct Order {
    /// The place of the first row of each kind, and last the number of rows.
    starts: [u32; MAX_KIND as usize + 2],
}

impl Order {
    fn new(kinds: &[u8]) -> Self {
        let mut starts = [0; MAX_KIND as usize + 2];
        for kind in kinds.iter().map(|kind| kind & !JOINS).filter(|kind| *kind > 0) {
            starts[kind as usize + 1] += 1;
        }
        for kind in 1..starts.len() {
            starts[kind] += starts[kind - 1];
        }
        Order { starts }
    }

    /// The number of rows with steps.
    fn count(&self) -> usize {
        self.starts[MAX_KIND as usize + 1] as usize
    }

    /// The number of rows with small steps; they come first.
    fn small(&self) -> usize {
        self.starts[SMALL as usize + 1] as usize
    }
}

/// The size of a row's steps: 0 if all are 0, else one more than the bits of their mean.
pub(super) fn kind(sum: u64, row_len: usize) -> u8 {
    if sum == 0 { 0 } else { 65 - (sum / row_len as u64).leading_zeros() as u8 }
}

impl Repeats {
    /// Clears the books and makes room for `count` rows.
    pub(super) fn start(&mut self, count: usize) -> Result<()> {
        memory::cleared(&mut self.distances, count)?;
        memory::cleared(&mut self.kinds, count)?;
        self.steps.clear();
        Ok(())
    }

    /// Appends room for the steps of a row. All rows have at most `most` bytes of them.
    pub(super) fn add_steps(&mut self, row_bytes: usize, most: usize) -> Result<&mut [u8]> {
        let len = self.steps.len();
        if self.steps.capacity() < len + row_bytes {
            memory::reserve(&mut self.steps, most.max(len + row_bytes) - len)?;
        }
        memory::resize(&mut self.steps, len + row_bytes)?;
        Ok(&mut self.steps[len..])
    }

    /// Bytes that are held.
    pub(in crate::gear::v2) fn held(&self) -> usize {
        held(&self.distances) + held(&self.kinds) + held(&self.steps)
    }

    /// Copies the rows of `steps` with the places `from..to` of the order to `out`.
    fn put_in_order(&self, order: &Order, row_bytes: usize, from: usize, to: usize, out: &mut [u8]) {
        let mut next = order.starts;
        let kinds = self.kinds.iter().map(|kind| (kind & !JOINS) as usize).filter(|kind| *kind > 0);
        for (row, kind) in self.steps.chunks_exact(row_bytes).zip(kinds) {
            let place = next[kind] as usize;
            next[kind] += 1;
            if (from..to).contains(&place) {
                out[(place - from) * row_bytes..][..row_bytes].copy_from_slice(row);
            }
        }
    }
}

/// Appends `repeats`. `planes` and `packed` are working memory.
pub(in crate::gear::v2) fn push(
    repeats: &Repeats,
    form: RowForm,
    coder: &mut Coder<'_>,
    (planes, packed): (&mut Vec<u8>, &mut Vec<u8>),
    out: &mut Vec<u8>,
) -> Result<()> {
    push_list(repeats.distances.iter().copied(), coder.zstd, (&mut *coder.grouped, &mut *planes), out)?;
    let frame = memory::at_least(planes, zstd::bound(repeats.kinds.len()))?;
    let len = coder.zstd.encode(&repeats.kinds, Search::Level(3), frame)?;
    push_bytes(out, &frame[..len])?;

    let row_bytes = form.bytes();
    let order = Order::new(&repeats.kinds);
    let (small, count) = (order.small(), order.count());
    for (from, to) in [(0, small), (small, count)] {
        if from == to {
            continue;
        }
        let len = (to - from) * row_bytes;
        let shape = form.shape(to - from);
        let rows = memory::at_least(coder.grouped, len)?;
        repeats.put_in_order(&order, row_bytes, from, to, rows);
        let planes = memory::at_least(planes, planes::room(len))?;
        form.to_planes(rows, &mut planes[..len]);
        if from == 0 && small > 0 {
            steps::encode(&planes[..len], &shape, coder, packed, out)?;
        } else {
            coder.encode(planes, &shape, out)?;
        }
    }
    Ok(())
}

/// The references between the rows of a blob.
#[derive(Default)]
pub(in crate::gear::v2) struct References {
    rows: usize,
    referring: usize,
    distances: Vec<u32>,
    kinds: Vec<u8>,
}

/// Working memory of [`References::read`].
pub(in crate::gear::v2) struct Spare<'a> {
    /// As long as the matrix.
    pub(in crate::gear::v2) matrix: &'a mut [u8],
    pub(in crate::gear::v2) unit_groups: &'a mut Vec<u8>,
    pub(in crate::gear::v2) large: &'a mut Vec<u8>,
}

impl References {
    /// For every row: 0 if it is new, else the distance to the earlier row that it refers to.
    pub(super) fn distances(&self) -> &[u32] {
        &self.distances[..self.rows]
    }

    /// For every row that refers to another: its [`kind`], with [`JOINS`] if it joins.
    pub(super) fn kinds(&self) -> &[u8] {
        &self.kinds[..self.referring]
    }

    /// The distances, which may be overwritten, and the kinds.
    pub(super) fn parts_mut(&mut self) -> (&mut [u32], &[u8]) {
        (&mut self.distances[..self.rows], &self.kinds[..self.referring])
    }

    /// The number of new rows.
    pub(in crate::gear::v2) fn new_rows(&self) -> usize {
        self.rows - self.referring
    }

    /// Bytes that are held.
    pub(in crate::gear::v2) fn held(&self) -> usize {
        held(&self.distances) + held(&self.kinds)
    }

    /// Reads the references of `count` rows, and the steps to the start of `rows`. Returns the length of the steps.
    pub(in crate::gear::v2) fn read(
        &mut self,
        body: &mut Reader<'_>,
        form: RowForm,
        (count, is_rotated): (usize, bool),
        context: &mut Context<'_>,
        spare: &mut Spare<'_>,
        rows: &mut [u8],
    ) -> Result<usize> {
        let distances = context.budget.at_least(&mut self.distances, count)?;
        read_list(body, "distances of rows", context, spare.matrix, distances)?;
        if let Some(number) = (0..count).find(|number| distances[*number] as usize > *number) {
            bail!(Corrupt, "row {number} refers to one {} rows before it", distances[number]);
        }
        let referring = distances.iter().filter(|distance| **distance > 0).count();
        (self.rows, self.referring) = (count, referring);
        let kinds = context.budget.at_least(&mut self.kinds, referring)?;
        context.unzstd(body.bytes("kinds of rows")?, kinds)?;
        let flags = if is_rotated { JOINS } else { 0 };
        if let Some(kind) = kinds.iter().find(|kind| **kind & !flags > MAX_KIND) {
            bail!(Corrupt, "a row of kind {kind}; at most {MAX_KIND} expected");
        }

        let order = Order::new(kinds);
        let len = order.count() * form.bytes();
        let (small_rows, wide_rows) = rows[..len].split_at_mut(order.small() * form.bytes());
        if !small_rows.is_empty() {
            let planes = &mut spare.matrix[..small_rows.len()];
            let shape = form.shape(order.small());
            steps::decode(body, &shape, context, spare.unit_groups, spare.large, small_rows, planes)?;
            form.to_rows(planes, small_rows);
        }
        if !wide_rows.is_empty() {
            let shape = form.shape(order.count() - order.small());
            planes::decode(body, &shape, context, spare.unit_groups, wide_rows, spare.matrix)?;
            let matrix = &mut spare.matrix[..wide_rows.len()];
            form.to_rows(wide_rows, matrix);
            wide_rows.copy_from_slice(matrix);
        }
        Ok(len)
    }

    /// Moves rows to their places in `matrix`, which begins with the new rows. `steps` are those of
    /// [`References::read`]. Rows without steps have undefined contents.
    pub(in crate::gear::v2) fn spread(&self, steps: &[u8], row_bytes: usize, matrix: &mut [u8]) {
        let mut ends = Order::new(self.kinds()).starts;
        let mut kinds = self.kinds().iter().rev();
        let mut new = self.new_rows();
        // The last row is moved first, so no new row is overwritten before it was moved.
        for (number, distance) in self.distances().iter().enumerate().rev() {
            let at = number * row_bytes;
            if *distance == 0 {
                new -= 1;
                matrix.copy_within(new * row_bytes..(new + 1) * row_bytes, at);
            } else if let Some(kind @ 1..) = kinds.next().map(|kind| (kind & !JOINS) as usize) {
                ends[kind + 1] -= 1;
                let place = ends[kind + 1] as usize * row_bytes;
                matrix[at..at + row_bytes].copy_from_slice(&steps[place..place + row_bytes]);
            }
        }
    }
}
