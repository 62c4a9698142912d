//! Heads of blocks that are in a file alone: a step chooses by their sketches which it reads.
//!
//! A step of a few rows reads those that may get a share of attention that counts; one of many rows, a part of a prompt,
//! reads all. What the system has in memory is read at once. The rest is asked for, attention goes on meanwhile, and what has
//! not come by a deadline is left out of the step, and counted.

use super::basis::Basis;
use super::block::{self, Shape};
use super::blocks::Blocks;
use super::sketch::{self, GROUP, Sketches};
use crate::arch;
use crate::arch::attend::lines::bytes_mut;
use crate::arch::attend::{BLOCK, HeadBlock, Line};
use crate::arch::estimates::{LANES, ROWS_ABREAST, SketchRow};
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
/// Between two looks at blocks that have not come yet.
const PAUSE: Duration = Duration::from_micros(30);

/// Where a head of a block is in the block's place in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offloaded {
    /// Lines of 64 bytes before it.
    pub first: u32,
    /// Its lines.
    pub lines: u32,
    /// XXH3-64 of their bytes.
    pub sum: u64,
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
        block::from_panels(&self.panels, dims, &mut self.keys);
        Ok(&self.keys)
    }
}

impl Offloaded {
    /// Its bytes, counted from the first of the block.
    pub fn bytes(&self) -> Range<u64> {
        let at = |line: u32| u64::from(line) * size_of::<Line>() as u64;
        at(self.first)..at(self.first) + at(self.lines)
    }

    /// A head of a block whose codes have these bytes, behind the `first` lines of the block. Appends its sketch.
    pub fn new(
        codes: &HeadBlock<'_>,
        (first, bytes): (u32, &[u8]),
        basis: (&Basis, usize),
        work: &mut SketchWork,
        sketches: &mut Vec<u8>,
    ) -> Result<Offloaded> {
        work.keys(codes)?;
        memory::resize(&mut work.centred, codes.dims)?;
        let sum = xxh3_64(bytes);
        sketch::put(&work.keys, basis, sum, &mut work.centred, sketches)?;
        Ok(Offloaded { first, lines: (bytes.len() / size_of::<Line>()) as u32, sum })
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
    /// Its sketch has come.
    pub(super) is_known: bool,
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
    /// Query rows that choose, and the log of what each has summed so far.
    rows: Vec<SketchRow>,
    logs: Vec<f32>,
    /// Some of the file.
    sketches: Vec<u8>,
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
            + self.rows.capacity() * size_of::<SketchRow>()
            + self.logs.capacity() * size_of::<f32>()
            + self.sketches.capacity()
    }
}

impl Source<'_> {
    /// The blocks of a head that a few rows want. `queries` are the vectors of the head,
    /// already times the factor of logits; each comes with the log of what it has summed so far.
    /// A block whose sketch does not come by the deadline has the share that it got lately, one whose sketch is damaged all. Returns
    /// how many of the former are not chosen.
    pub(super) fn choose(
        &self,
        (blocks, head): (&Blocks, usize),
        queries: impl Iterator<Item = (f32, impl AsRef<[f32]>)>,
        deadline: Instant,
        work: &mut ReadWork,
        reads: &mut Reads,
    ) -> Result<u64> {
        work.rows.clear();
        work.logs.clear();
        for (log_sum, query) in queries {
            memory::push(&mut work.rows, sketch::row(query.as_ref(), self.basis, head))?;
            memory::push(&mut work.logs, log_sum)?;
        }
        let (away, len) = (blocks.away(head), Sketches::bytes(blocks.shape().dims));
        memory::cleared(&mut work.wanted, away.len())?;
        let (mut is_asked, mut late) = (false, 0);
        while let Some((run, range)) = run(blocks, head, away, work.wanted.len()) {
            memory::resize(&mut work.sketches, (range.end - range.start) as usize)?;
            let is_late = loop {
                match self.file.read_now(range.start, &mut work.sketches) {
                    Ok(false) => {}
                    result => {
                        // Codes that cannot be read say why.
                        if result.is_err() {
                            work.sketches.fill(0);
                        }
                        break false;
                    }
                }
                if !std::mem::replace(&mut is_asked, true) {
                    self.ask_sketches(blocks, head, &away[work.wanted.len()..]);
                }
                if !pause(deadline, reads) {
                    late += run.len();
                    break true;
                }
            };
            for block in run {
                let share = match blocks.in_file(*block, head).zip(blocks.sketch_of(*block, head)) {
                    _ if is_late => blocks.score(*block, head).ln(),
                    Some(((known, _), offset)) => {
                        let sketch = &mut work.sketches[(offset - range.start) as usize..][..len];
                        share(sketch, known.sum, blocks.shape(), (&work.rows, &work.logs))
                    }
                    None => f32::NEG_INFINITY,
                };
                memory::push(&mut work.wanted, Wanted { block: *block, head, share, is_known: !is_late, piece: 0 })?;
            }
        }
        work.wanted.retain(|wanted| wanted.share > LEAST_SHARE);
        // Tests compare with a model that has every block.
        let most = most_reads(blocks.list().len(), blocks.here(head).len());
        keep_best(&mut work.wanted, if cfg!(test) { usize::MAX } else { most });
        Ok((late - work.wanted.iter().filter(|wanted| !wanted.is_known).count()) as u64)
    }

    /// Asks the system for the sketches of these blocks.
    fn ask_sketches(&self, blocks: &Blocks, head: usize, away: &[u32]) {
        let mut first = 0;
        while let Some((run, range)) = run(blocks, head, away, first) {
            self.file.prefetch(range.start, (range.end - range.start) as usize);
            first += run.len();
        }
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

/// The blocks from the `first` of some on whose sketches of a head are near each other in the file, and the bytes from the first to
/// the last of these: blocks between them are in memory, and cost less than another read.
fn run<'a>(blocks: &Blocks, head: usize, away: &'a [u32], first: usize) -> Option<(&'a [u32], Range<u64>)> {
    let (away, len) = (&away[first..], Sketches::bytes(blocks.shape().dims) as u64);
    let offsets = away.iter().map_while(|block| blocks.sketch_of(*block, head));
    let begin = offsets.clone().next()?;
    let near = offsets.take_while(|offset| (begin..begin + GROUP as u64 * len).contains(offset));
    let (count, last) = near.fold((0, begin), |(count, last), offset| (count + 1, last.max(offset)));
    Some((&away[..count], begin..last + len))
}

/// The log of the greatest share of a row, by the bytes of a sketch of codes with a checksum; 0 if they are no such. One that is
/// not above [`LEAST_SHARE`] may be another such.
fn share(sketch: &mut [u8], sum: u64, shape: Shape, (rows, logs): (&[SketchRow], &[f32])) -> f32 {
    let Some(sketch) = sketch::read(sketch, sum, shape.dims) else { return 0.0 };
    let mut share = f32::NEG_INFINITY;
    for (rows, known) in rows.chunks(ROWS_ABREAST).zip(logs.chunks(ROWS_ABREAST)) {
        let masses = sketch::log_masses(&sketch, rows, |row| known[row] + share.max(LEAST_SHARE));
        share = masses.iter().zip(known).fold(share, |most, (mass, known)| most.max(mass - known));
    }
    share
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
