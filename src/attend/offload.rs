//! Heads of blocks that are in a file alone: a step chooses by their sketches which it reads.
//!
//! A step of a few rows reads those that may get a share of attention that counts; one of many rows, a part of a prompt,
//! reads all. What the system has in memory is read at once. The rest is asked for, attention goes on meanwhile, and what has
//! not come by a deadline is left out of the step, and counted.

use super::basis::Basis;
use super::block::{self, Shape};
use super::blocks::Blocks;
use super::gist::{self, Gist, Promises, Rows};
use super::sketch::{self, Sketch};
use crate::arch::attend::lines::bytes_mut;
use crate::arch::attend::{BLOCK, HeadBlock, Line};
use crate::arch::estimates::{LANES, ROWS_ABREAST};
use crate::arch::{self, prefetch, prefetch_far};
use crate::status::{Error, Result, Status};
use crate::sys::storage::Storage;
use crate::sys::{self, memory};
use std::ops::Range;
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64;

/// The log of the least estimated share of a head's attention for which a block is read: 1 in 8,000, since a sketch may be
/// far too low for the one block that a query asks for.
const LEAST_SHARE: f32 = -9.0;
/// A step reads at least so many of the best blocks of a head, if they may count.
const LEAST_READS: usize = 8;
/// With what it reads a step attends to half of the blocks of a head, or to so many, if so many reads do, or reads of one block
/// in [`READ_SHARE`]. See [`attended`].
const ATTENDED: usize = 32;
/// Of a head that has more blocks a step attends to less than half.
const HALVED: usize = 128;
/// See [`ATTENDED`].
const READ_SHARE: usize = 3;
/// A step looks at the sketches of so many blocks for each that it may read, or at so many of a head, whichever is more.
const LOOKS: usize = 4;
/// See [`LOOKS`].
const LEAST_LOOKS: usize = 128;
/// Sketches that memory is asked for ahead of the one at hand; where they are is asked for twice as far ahead.
const AHEAD: usize = 4;
/// Between two looks at blocks that have not come yet.
const PAUSE: Duration = Duration::from_micros(30);

/// Where a head of a block is in the block's place in the file, and what its keys are like.
#[derive(Clone, Debug, PartialEq)]
pub struct Offloaded {
    /// Lines of 64 bytes before it.
    pub first: u32,
    /// Its lines.
    pub lines: u32,
    /// XXH3-64 of their bytes.
    pub sum: u64,
    /// Of its keys.
    pub sketch: Sketch,
}

/// A head of a block in the file, and its gist.
pub type Known = (Box<Offloaded>, Gist);

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
        block::from_panels(&self.panels, dims, &mut self.keys);
        Ok(&self.keys)
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        (self.panels.capacity() + self.values.capacity()) * size_of::<[f32; LANES]>()
            + (self.keys.capacity() + self.centred.capacity()) * size_of::<f32>()
    }
}

impl Offloaded {
    /// Its bytes, counted from the first of the block.
    pub fn bytes(&self) -> Range<u64> {
        let at = |line: u32| u64::from(line) * size_of::<Line>() as u64;
        at(self.first)..at(self.first) + at(self.lines)
    }

    /// A head of a block whose codes have these bytes, behind the `first` lines of the block.
    pub fn new(
        codes: &HeadBlock<'_>,
        (first, bytes): (u32, &[u8]),
        (basis, head): (&Basis, usize),
        work: &mut SketchWork,
    ) -> Result<Known> {
        work.keys(codes)?;
        memory::resize(&mut work.centred, codes.dims)?;
        let sketch = sketch::sketch(&work.keys, basis, head, &mut work.centred);
        let lines = (bytes.len() / size_of::<Line>()) as u32;
        let gist = gist::gist(&sketch);
        Ok((memory::boxed(Offloaded { first, lines, sum: xxh3_64(bytes), sketch })?, gist))
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
    /// The piece that folds it.
    pub(super) piece: usize,
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
    /// What is chosen of a head.
    pub(super) wanted: Vec<Wanted>,
    /// What the part reads, of all its pieces in turn.
    pub(super) chosen: Vec<Wanted>,
    /// The next of `chosen`.
    pub(super) next: usize,
    /// The system was asked for all of `chosen`.
    pub(super) are_asked: bool,
    pub(super) lines: Vec<Line>,
    pub(super) rows: Rows,
    /// Most blocks that stay of those that the part has read.
    pub(super) most_arrived: usize,
}

impl ReadWork {
    /// Nothing is chosen.
    pub(super) fn clear(&mut self) {
        self.chosen.clear();
        (self.next, self.are_asked) = (0, false);
    }

    /// The part reads every so many-th of the chosen blocks of a head, in a piece.
    pub(super) fn take(&mut self, piece: usize, pieces: usize) -> Result<()> {
        let mut own = self.wanted.iter().skip(piece).step_by(pieces);
        own.try_for_each(|wanted| memory::push(&mut self.chosen, Wanted { piece, ..*wanted }))
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        (self.wanted.capacity() + self.chosen.capacity()) * size_of::<Wanted>()
            + self.lines.capacity() * size_of::<Line>()
            + self.rows.bytes()
    }
}

impl Source<'_> {
    /// The blocks of a head that a few rows want. `queries` are the vectors of the head,
    /// already times the factor of logits; each comes with the log of what it has summed so far.
    pub(super) fn choose(
        &self,
        blocks: &Blocks,
        head: usize,
        queries: impl Iterator<Item = (f32, impl AsRef<[f32]>)>,
        work: &mut ReadWork,
    ) -> Result<()> {
        work.rows.clear();
        for (log_sum, query) in queries {
            work.rows.push(sketch::row(query.as_ref(), self.basis, head), log_sum)?;
        }
        // Tests compare with a model that has every block.
        let most = most_reads(blocks.list().len(), blocks.here(head).len());
        choose_most(blocks, head, if cfg!(test) { usize::MAX } else { most }, work)
    }

    /// Asks the system for a head of a block.
    pub(super) fn ask(&self, blocks: &Blocks, wanted: Wanted) {
        if let Some((from, offset)) = blocks.in_file(wanted.block, wanted.head) {
            self.file.prefetch(offset, from.lines as usize * size_of::<Line>());
        }
    }

    /// Reads the codes of a head of a block to `lines`.
    pub(super) fn read(&self, blocks: &Blocks, wanted: Wanted, lines: &mut Vec<Line>) -> Result<Read> {
        let Some((from, offset)) = blocks.in_file(wanted.block, wanted.head) else { return Ok(Read::Lost) };
        memory::resize(lines, from.lines as usize)?;
        let bytes = bytes_mut(lines);
        match self.file.read_now(offset, bytes) {
            Ok(true) if xxh3_64(bytes) == from.sum && blocks.shape().check(lines).is_ok() => Ok(Read::Done),
            Ok(false) => {
                self.ask(blocks, wanted);
                Ok(Read::Later)
            }
            Ok(true) => Ok(Read::Lost),
            Err(error) if error.status() == Status::Corrupt => Ok(Read::Lost),
            Err(error) => Ok(Read::Failed(error)),
        }
    }
}

/// Chooses so many blocks of a head at most.
pub(super) fn choose_most(blocks: &Blocks, head: usize, most: usize, work: &mut ReadWork) -> Result<()> {
    let ReadWork { wanted, rows, .. } = work;
    let (away, looks) = (blocks.away(head), most.saturating_mul(LOOKS).max(LEAST_LOOKS));
    memory::cleared(wanted, away.len())?;
    let mut promises = Promises::default();
    for &block in away {
        let share = if away.len() > looks { blocks.gists.promise(block, head, rows, &mut promises) } else { 0.0 };
        memory::push(wanted, Wanted { block, head, share, piece: 0 })?;
    }
    keep_best(wanted, looks);
    let sketch = |wanted: &Wanted| Some(&blocks.cell(wanted.block, head).offloaded.as_ref()?.sketch);
    for at in 0..wanted.len() {
        if let Some(next) = wanted.get(at + 2 * AHEAD) {
            prefetch_far(std::ptr::from_ref(blocks.cell(next.block, head)).cast());
        }
        let ahead = wanted.get(at + AHEAD).and_then(sketch);
        ahead.into_iter().flatten().for_each(|tile| prefetch(tile.codes.as_flattened()));
        let mut share = f32::NEG_INFINITY;
        if let Some(sketch) = sketch(&wanted[at]) {
            for (some, known) in rows.rows.chunks(ROWS_ABREAST).zip(rows.known.chunks(ROWS_ABREAST)) {
                let logs = sketch::log_masses(sketch, some);
                share = logs.iter().zip(known).fold(share, |most, (log, known)| most.max(log - known.log));
            }
        }
        wanted[at].share = share;
    }
    wanted.retain(|wanted| wanted.share > LEAST_SHARE);
    keep_best(wanted, most);
    Ok(())
}

/// Keeps so many at most, those of the greatest shares.
fn keep_best(wanted: &mut Vec<Wanted>, most: usize) {
    if wanted.len() > most {
        wanted.select_nth_unstable_by(most, |a, b| b.share.total_cmp(&a.share).then(a.block.cmp(&b.block)));
        wanted.truncate(most);
    }
}

/// Blocks that a step attends to of so many of a head. A constant loss of attention needs blocks that grow with the power 0.85
/// of the chat on SmolLM2 from 1,024 to 8,192 tokens, where half of them lose 3 %; here it is 7/8.
fn attended(all: usize) -> usize {
    // Roots are the same bits on every machine.
    let eighth = (all as f64 / HALVED as f64).max(1.0).sqrt().sqrt().sqrt();
    ATTENDED.max(((all / 2) as f64 / eighth) as usize)
}

/// Most reads of a head that has so many blocks, and of these so many in memory.
fn most_reads(all: usize, here: usize) -> usize {
    attended(all).saturating_sub(here).clamp(LEAST_READS, ATTENDED.max(all / READ_SHARE))
}

/// Waits a moment for blocks that have not come yet; false once `deadline` is over.
pub fn pause(deadline: Instant, reads: &mut Reads) -> bool {
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
        let reads = [(20, 5), (62, 24), (62, 7), (62, 60), (128, 20), (2048, 0), (2048, 100), (2048, 1000)]
            .map(|(all, here)| super::most_reads(all, here));
        // 2,048 blocks are 16 times 128: half of them by the eighth root of 16, 1.414.
        assert_eq!(reads, [27, 8, 25, 8, 42, 682, 624, 8]);
    }
}
