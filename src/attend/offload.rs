//! Heads of blocks that are in a file alone: a step chooses by their sketches which it reads.
//!
//! A step of a few rows reads those that may get a share of attention that counts; one of many rows, a part of a prompt,
//! reads all. What the system has in memory is read at once. The rest is asked for, attention goes on meanwhile, and what has
//! not come by a deadline is left out of the step, and counted.

use super::basis::Basis;
use super::block::Shape;
use super::blocks::Blocks;
use super::sketch::{self, Sketch};
use crate::arch::attend::lines::bytes_mut;
use crate::arch::attend::{BLOCK, HeadBlock, Line};
use crate::arch::estimates::{LANES, ROWS_ABREAST, SketchRow};
use crate::arch::{self, prefetch};
use crate::status::{Error, Result, Status};
use crate::sys::storage::Storage;
use crate::sys::{self, memory};
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64;

/// The log of the least estimated share of a head's attention for which a block is read: 1 in 8,000, since a sketch may be
/// far too low for the one block that a query asks for.
const LEAST_SHARE: f32 = -9.0;
/// A step reads at least so many of the best blocks of a head, if they may count.
const LEAST_READS: usize = 8;
/// With what it reads a step attends to half of the blocks of a head, or to so many, if so many reads do, or reads of one block
/// in [`READ_SHARE`].
const ATTENDED: usize = 32;
/// See [`ATTENDED`].
const READ_SHARE: usize = 3;
/// Sketches that memory is asked for ahead of the one at hand.
const AHEAD: usize = 2;
/// Between two looks at blocks that have not come yet.
const PAUSE: Duration = Duration::from_micros(30);

/// Where a head of a block is in the file, and what its keys are like.
#[derive(Debug)]
pub struct Offloaded {
    /// The first byte.
    pub offset: u64,
    /// XXH3-64 of the bytes.
    pub sum: u64,
    /// Lines of 64 bytes.
    pub lines: u32,
    /// Of its keys.
    pub sketch: Sketch,
}

/// Working memory of sketches.
#[derive(Default)]
pub struct SketchWork {
    panels: Vec<[f32; LANES]>,
    values: Vec<[f32; LANES]>,
    keys: Vec<f32>,
    centred: Vec<f32>,
}

impl SketchWork {
    /// The keys of codes, `[token][dim]`.
    pub(super) fn keys(&mut self, codes: &HeadBlock<'_>) -> Result<&[f32]> {
        let dims = codes.dims;
        memory::resize(&mut self.panels, BLOCK / LANES * dims)?;
        memory::resize(&mut self.values, Shape { dims }.groups() * 2 * BLOCK)?;
        memory::resize(&mut self.keys, BLOCK * dims)?;
        (arch::attend_kernels().decode)(codes, &mut self.panels, &mut self.values);
        for (panel, rows) in self.panels.chunks_exact(dims).zip(self.keys.chunks_exact_mut(LANES * dims)) {
            for (token, row) in rows.chunks_exact_mut(dims).enumerate() {
                row.iter_mut().zip(panel).for_each(|(x, lanes)| *x = lanes[token]);
            }
        }
        Ok(&self.keys)
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        (self.panels.capacity() + self.values.capacity()) * size_of::<[f32; LANES]>()
            + (self.keys.capacity() + self.centred.capacity()) * size_of::<f32>()
    }
}

impl Offloaded {
    /// Bytes in the file.
    pub fn bytes(&self) -> usize {
        self.lines as usize * size_of::<Line>()
    }

    /// A head of a block whose codes have these bytes at `offset`.
    pub fn new(
        codes: &HeadBlock<'_>,
        (offset, bytes): (u64, &[u8]),
        (basis, head): (&Basis, usize),
        work: &mut SketchWork,
    ) -> Result<Box<Self>> {
        work.keys(codes)?;
        memory::resize(&mut work.centred, codes.dims)?;
        let sketch = sketch::sketch(&work.keys, basis, head, &mut work.centred);
        let lines = (bytes.len() / size_of::<Line>()) as u32;
        memory::boxed(Offloaded { offset, sum: xxh3_64(bytes), lines, sketch })
    }
}

impl Reads {
    /// Adds others.
    pub fn add(&mut self, other: &Reads) {
        self.read += other.read;
        self.late += other.late;
        self.failed += other.failed;
        self.wait_ns += other.wait_ns;
    }
}

/// The file of the heads that are away.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// The file.
    pub file: &'a Storage,
    /// The directions of sketches.
    pub basis: &'a Basis,
    /// Longest wait for blocks, for each row of the step.
    pub wait: Duration,
}

/// A head of a block that a step reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) block: u32,
    pub(super) head: usize,
    /// The log of its share.
    pub(super) share: f32,
}

/// Reads of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// Heads of blocks that were read.
    pub read: u64,
    /// Heads of blocks that the step did without, since they came too late.
    pub late: u64,
    /// Reads that failed.
    pub failed: u64,
    /// Nanoseconds in waits.
    pub wait_ns: u64,
}

/// What has become of a read.
#[derive(Debug)]
pub(super) enum Read {
    Done,
    /// Not in memory; the system was asked for it.
    Later,
    /// Not the bytes that were written, or none.
    Lost,
    Failed(Error),
}

/// Working memory of a part.
#[derive(Default)]
pub(super) struct ReadWork {
    pub(super) wanted: Vec<Wanted>,
    pub(super) late: Vec<Wanted>,
    pub(super) lines: Vec<Line>,
    rows: Vec<SketchRow>,
    /// What is known of the sum of each row.
    known: Vec<f32>,
    /// Most blocks that stay of those that the part has read.
    pub(super) most_arrived: usize,
}

impl ReadWork {
    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        (self.wanted.capacity() + self.late.capacity()) * size_of::<Wanted>()
            + self.lines.capacity() * size_of::<Line>()
            + self.rows.capacity() * size_of::<SketchRow>()
            + self.known.capacity() * size_of::<f32>()
    }
}

impl Source<'_> {
    /// The blocks of a head that a few rows want, best first, of every `step`th from `first` on. `queries` are the vectors of
    /// the head, already times the factor of logits, in rows of `lanes`; `known` has the log of what each has summed so far.
    pub(super) fn choose(
        &self,
        blocks: &Blocks,
        head: usize,
        (first, step): (usize, usize),
        queries: impl Iterator<Item = (f32, impl AsRef<[f32]>)>,
        work: &mut ReadWork,
    ) -> Result<()> {
        let away = blocks.away(head);
        memory::cleared(&mut work.wanted, away.len().div_ceil(step))?;
        work.rows.clear();
        work.known.clear();
        for (log_sum, query) in queries {
            memory::push(&mut work.rows, sketch::row(query.as_ref(), self.basis, head))?;
            memory::push(&mut work.known, log_sum)?;
        }
        let sketch = |block: &u32| Some(&blocks.cell(*block, head).offloaded.as_ref()?.sketch);
        let mut ahead = away.iter().skip(first + AHEAD * step).step_by(step);
        for &block in away.iter().skip(first).step_by(step) {
            ahead.next().and_then(sketch).into_iter().flatten().for_each(|tile| prefetch(tile.codes.as_flattened()));
            let Some(sketch) = sketch(&block) else { continue };
            let mut share = f32::NEG_INFINITY;
            for (rows, known) in work.rows.chunks(ROWS_ABREAST).zip(work.known.chunks(ROWS_ABREAST)) {
                let logs = sketch::log_masses(sketch, rows);
                share = logs.iter().zip(known).fold(share, |most, (log, known)| most.max(log - known));
            }
            if share > LEAST_SHARE {
                memory::push(&mut work.wanted, Wanted { block, head, share })?;
            }
        }
        let most = most_reads(blocks.list().len(), blocks.here(head).len());
        // Tests compare with a model that has every block.
        // One more than its share: the best may be in one piece.
        let most = if cfg!(test) { usize::MAX } else { most.div_ceil(step) + 1 };
        if work.wanted.len() > most {
            work.wanted.select_nth_unstable_by(most, |a, b| b.share.total_cmp(&a.share));
            work.wanted.truncate(most);
        }
        Ok(())
    }

    /// Reads the codes of a head of a block to `lines`.
    pub(super) fn read(&self, blocks: &Blocks, wanted: Wanted, lines: &mut Vec<Line>) -> Result<Read> {
        let Some(from) = &blocks.cell(wanted.block, wanted.head).offloaded else { return Ok(Read::Lost) };
        memory::resize(lines, from.lines as usize)?;
        let bytes = bytes_mut(lines);
        match self.file.read_now(from.offset, bytes) {
            Ok(true) if xxh3_64(bytes) == from.sum => Ok(Read::Done),
            Ok(false) => {
                self.file.prefetch(from.offset, bytes.len());
                Ok(Read::Later)
            }
            Ok(true) => Ok(Read::Lost),
            Err(error) if error.status() == Status::Corrupt => Ok(Read::Lost),
            Err(error) => Ok(Read::Failed(error)),
        }
    }
}

/// Most reads of a head that has so many blocks, and of these so many in memory.
fn most_reads(all: usize, here: usize) -> usize {
    ATTENDED.max(all / 2).saturating_sub(here).clamp(LEAST_READS, ATTENDED.max(all / READ_SHARE))
}

/// Waits a moment for blocks that have not come yet; false once `deadline` is over.
pub(super) fn pause(deadline: Instant, reads: &mut Reads) -> bool {
    let now = Instant::now();
    if now >= deadline {
        return false;
    }
    sys::sleep(PAUSE.min(deadline - now));
    reads.wait_ns += now.elapsed().as_nanos() as u64;
    true
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_step_attends_to_half_of_the_blocks_or_to_32_within_its_most_reads() {
        let reads = [(20, 5), (62, 24), (62, 7), (62, 60), (2048, 100), (2048, 1000)]
            .map(|(all, here)| super::most_reads(all, here));
        assert_eq!(reads, [27, 8, 25, 8, 682, 24]);
    }
}
