//! The nearest earlier row: a window of recent rows, compared by sketches of eight numbers first.

use crate::arch::words::Real;
use crate::arch::{self, ABREAST, RowKernels, SKETCH, SketchBlock};
use crate::status::Result;
use crate::sys::memory;

/// The most rows of a window. More find more, and every row is compared with every sketch.
pub(super) const WINDOW: usize = 1024;
/// Rows whose average and spread scale the sketches of all.
const CALIBRATION: usize = 64;
/// Numbers below 32, so that the sum of their differences fits a byte. Each is a signed sum over an eighth of the
/// channels.
pub(super) type Sketch = [u8; SKETCH];
/// Parts of the window whose best rows are compared in full.
const PARTS: usize = 4;
/// The least distance, relative to the size of a row, of rows that are not near.
const NEAR: f32 = 0.35;

/// Recent rows. A row that served as a reference gets a second chance when its place is needed (the clock algorithm).
pub(super) struct Window<R: 'static> {
    kernels: &'static RowKernels<R>,
    row_len: usize,
    capacity: usize,
    centre: [f32; SKETCH],
    scale: f32,
    sketches: Vec<SketchBlock>,
    rows: Vec<R>,
    /// The caller's number of each row.
    owners: Vec<u32>,
    /// Whether a row served since the hand passed it.
    used: Vec<bool>,
    hand: usize,
}

/// A row that was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Near {
    pub(super) owner: u32,
    /// Sum of absolute differences, relative to the row's size.
    pub(super) distance: f32,
    slot: usize,
}

impl<R: Real> Window<R> {
    /// A window of at most `capacity` rows and about `bytes`, for `count` rows, which `fill` reads by number.
    pub(super) fn new(
        kernels: &'static RowKernels<R>,
        row_len: usize,
        (capacity, bytes): (usize, usize),
        count: usize,
        mut fill: impl FnMut(usize, &mut [R]) -> Result<()>,
    ) -> Result<Self> {
        let capacity = capacity.min(bytes / size_of::<R>() / row_len).min(count).next_multiple_of(ABREAST);
        let mut all = [[0.0; SKETCH]; CALIBRATION];
        let all = &mut all[..count.min(CALIBRATION)];
        let mut row = memory::filled(R::default(), row_len)?;
        for (number, s) in all.iter_mut().enumerate() {
            fill(number, &mut row)?;
            *s = (kernels.sums)(&row);
        }
        let n = all.len().max(1) as f32;
        let centre: [f32; SKETCH] = std::array::from_fn(|i| all.iter().map(|s| s[i]).sum::<f32>() / n);
        let spread = |s: &[f32; SKETCH]| (0..SKETCH).map(|i| (s[i] - centre[i]).abs()).sum::<f32>();
        let spread = all.iter().map(spread).sum::<f32>() / (n * SKETCH as f32);
        // A mean deviation is 5 steps, so that 3 of them fit on either side.
        let scale = if spread > 1e-30 { 5.0 / spread } else { 0.0 };
        let mut window = Window {
            kernels,
            row_len,
            capacity,
            centre,
            scale,
            sketches: Vec::new(),
            rows: Vec::new(),
            owners: Vec::new(),
            used: Vec::new(),
            hand: 0,
        };
        memory::reserve(&mut window.sketches, capacity / ABREAST)?;
        memory::reserve(&mut window.rows, capacity * row_len)?;
        memory::reserve(&mut window.owners, capacity)?;
        memory::reserve(&mut window.used, capacity)?;
        Ok(window)
    }

    /// The sketch of a row, for [`Window::find`] and [`Window::insert`].
    pub(super) fn sketch(&self, row: &[R]) -> Sketch {
        let sums = (self.kernels.sums)(row);
        std::array::from_fn(|i| (((sums[i] - self.centre[i]) * self.scale + 16.0) as u8).min(31))
    }

    /// The nearest of the rows with the closest sketches, if it is near.
    pub(super) fn find(&self, row: &[R], sketch: &Sketch) -> Option<Near> {
        let size = (self.kernels.size)(row);
        let closest = arch::kernels().closest;
        let part_len = self.sketches.len().div_ceil(PARTS).max(1);
        let near = self.sketches.chunks(part_len).enumerate().filter_map(|(part, blocks)| {
            let slot = part * part_len * ABREAST + closest(blocks, sketch)?;
            let other = &self.rows[slot * self.row_len..(slot + 1) * self.row_len];
            Some(Near { owner: self.owners[slot], distance: (self.kernels.distance)(row, other) / size, slot })
        });
        near.min_by(|a, b| a.distance.total_cmp(&b.distance)).filter(|near| near.distance < NEAR)
    }

    /// Marks a row that served as a reference.
    pub(super) fn touch(&mut self, near: &Near) {
        self.used[near.slot] = true;
    }

    /// Adds a row.
    pub(super) fn insert(&mut self, row: &[R], sketch: &Sketch, owner: u32) -> Result<()> {
        let mut slot = self.owners.len();
        if slot < self.capacity {
            if slot.is_multiple_of(ABREAST) {
                memory::push(&mut self.sketches, [[u8::MAX; ABREAST]; SKETCH])?;
            }
            memory::extend(&mut self.rows, row)?;
            memory::push(&mut self.owners, owner)?;
            memory::push(&mut self.used, false)?;
        } else {
            while std::mem::take(&mut self.used[self.hand]) {
                self.hand = (self.hand + 1) % self.capacity;
            }
            slot = self.hand;
            self.rows[slot * self.row_len..(slot + 1) * self.row_len].copy_from_slice(row);
            self.owners[slot] = owner;
            self.hand = (slot + 1) % self.capacity;
        }
        let block = &mut self.sketches[slot / ABREAST];
        block.iter_mut().zip(sketch).for_each(|(numbers, number)| numbers[slot % ABREAST] = *number);
        Ok(())
    }
}
