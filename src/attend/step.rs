//! The attention of a step, in parts that run on any threads.
//!
//! A few rows are split by tokens and KV heads into pieces, each with a softmax of its own: runs of raw tiles and blocks of a
//! head, then every so many-th of those that [`offload`](super::offload) reads. A part folds some of the pieces, and the last
//! part to end merges all in their order. Many rows are split by KV heads and rows, which nobody shares. Neither depends on
//! the number of parts, so that the output has the same bits for any number.

use super::block::Shape;
use super::found::{Found, Shares};
use super::offload::ReadWork;
use super::queries::Queries;
use super::round::{MOST_PARTS, Partial, Round, RoundShape, share};
use super::tokens::Tokens;
use crate::arch;
use crate::arch::attend::{AttendKernels, BLOCK, Running, Scratch, bits, finish, sums_len};
use crate::arch::estimates::LANES;
use crate::dtype::convert::{Endian, first_not_finite, widen};
use crate::status::{Result, bail};
use crate::sys::memory;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Steps of more rows decode blocks to f32.
pub const FEW_ROWS: usize = 16;
/// Query vectors of a unit of many rows: their logits and sums stay in a core's cache.
const UNIT_QUERIES: usize = 96;
/// The largest number of a query times the factor of logits: its logits with 512 numbers of K that blocks can have, at most
/// 32,768 times the largest scale in f16, are finite.
const MOST_QUERY: f32 = 1e26;
const PANELS: usize = BLOCK / LANES;
/// Pieces of the blocks of a KV head that are in a file.
const AWAY_PIECES: usize = 4;

/// Pieces of so many cells, which are tiles of raw tokens and blocks of a head: to merge one costs as much as a third of a cell.
fn segments(cells: usize) -> usize {
    match cells {
        0..16 => cells.min(1),
        16..128 => 4,
        128..256 => 8,
        256..512 => 16,
        _ => 24,
    }
}

/// Numbers that are added to logits.
#[derive(Clone, Copy, Debug)]
pub struct Mask<'a> {
    /// `[row][token]`.
    pub data: &'a [f32],
    /// From one row to the next.
    pub stride: usize,
    /// The newest tokens, which have columns; others have 0.
    pub tokens: u32,
}

/// What a step computes.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// Query rows.
    pub queries: Queries<'a>,
    /// Row r attends to tokens up to `logical - rows + r`; else all rows attend to all tokens.
    pub is_causal: bool,
    /// A row attends to this many tokens, up to its own.
    pub window: Option<u32>,
    /// Logits x become `cap * tanh(x / cap)`.
    pub soft_cap: Option<f32>,
    /// Logits of no token, one for each query head.
    pub sinks: Option<&'a [f32]>,
    /// Added after the soft cap.
    pub mask: Option<Mask<'a>>,
}

/// Working memory of a part.
#[derive(Default)]
pub struct Work {
    pub(super) queries: Vec<f32>,
    pub(super) sorted: Sorted,
    pub(super) running: Vec<Running>,
    /// The softmax of raw tokens alone, where other parts fold them.
    pub(super) raw: Vec<Running>,
    pub(super) sums: Vec<f32>,
    pub(super) logits: Vec<f32>,
    pub(super) keys: Vec<[f32; LANES]>,
    pub(super) values: Vec<[f32; LANES]>,
    pub(super) products: Vec<[f32; LANES]>,
    pub(super) zeros: Vec<[f32; LANES]>,
    pub(super) places: Vec<u32>,
    pub(super) scratch: Option<Box<Scratch>>,
    pub(super) shares: Shares,
    pub(super) found: Found,
    pub(super) reads: ReadWork,
    /// What the part leaves, and what the last one merges.
    left: Partial,
    merged: Vec<Partial>,
}

/// Query vectors of a KV head in the order of codes.
#[derive(Default)]
pub(super) struct Sorted {
    head: usize,
    /// None before the first.
    widths: Vec<u8>,
    pub(super) queries: Vec<f32>,
}

impl Sorted {
    /// Sorts query vectors of whole lanes in the order of the codes of K of these widths.
    pub(super) fn sort(&mut self, head: usize, widths: &[u8], queries: &[f32], lanes: usize) -> Result<()> {
        if self.head == head && self.widths == widths && self.queries.len() == queries.len() {
            return Ok(());
        }
        memory::resize(&mut self.widths, widths.len())?;
        memory::resize(&mut self.queries, queries.len())?;
        self.head = head;
        self.widths.copy_from_slice(widths);
        for (place, channel) in bits::order(widths).enumerate() {
            let vectors = self.queries.chunks_exact_mut(lanes).zip(queries.chunks_exact(lanes));
            vectors.for_each(|(to, from)| to[place] = from[channel]);
        }
        self.queries.chunks_exact_mut(lanes).for_each(|to| to[4 * widths.len()..].fill(0.0));
        Ok(())
    }

    /// Others are queried.
    fn clear(&mut self) {
        self.widths.clear();
    }

    fn bytes(&self) -> usize {
        self.widths.capacity() + bytes_of(&self.queries)
    }
}

/// Working memory that no part has. Parts of all layers take turns in it.
#[derive(Default)]
pub struct WorkPool {
    work: Vec<Work>,
    partials: Vec<Partial>,
}

impl WorkPool {
    /// Working memory for a part.
    pub fn take(&mut self) -> Work {
        let mut work = self.work.pop().unwrap_or_default();
        work.left = self.partials.pop().unwrap_or_default();
        work
    }

    /// A part has ended. Memory that there is no room for is freed.
    pub fn give(&mut self, mut work: Work) {
        let left = std::mem::take(&mut work.left);
        for mut partial in work.merged.drain(..).chain([left]).filter(|partial| partial.bytes() > 0) {
            partial.clear();
            let _ = memory::push(&mut self.partials, partial);
        }
        let _ = memory::push(&mut self.work, work);
    }

    /// Bytes of memory that queries and logits of so many parts take, which do not depend on how threads share parts.
    pub fn steady_bytes(&self, parts: usize) -> usize {
        parts * self.work.iter().map(Work::steady_bytes).max().unwrap_or(0)
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.work.iter().map(Work::bytes).chain(self.partials.iter().map(Partial::bytes)).sum()
    }
}

impl Step<'_> {
    /// INVALID_ARGUMENT: if the step does not fit the tokens.
    fn check(&self, tokens: &Tokens<'_>, (part, parts): (u32, u32)) -> Result<()> {
        let rows = tokens.cache.layout.rows();
        let Queries { heads, dims, rows: count, scale, .. } = self.queries;
        let expected = self.queries.bytes()?;
        if !(1..=MOST_PARTS).contains(&parts) || part >= parts {
            bail!(
                InvalidArgument,
                "part is {part} of {parts}; parts from 1 to {MOST_PARTS} and part from 0 to parts - 1 expected"
            );
        }
        if dims != rows.dims || !heads.is_multiple_of(rows.heads) {
            bail!(
                InvalidArgument,
                "queries have {heads} heads of {dims} dims; the cache has {rows}, and a multiple of its heads is expected"
            );
        }
        if self.queries.data.len() < expected {
            bail!(InvalidArgument, "queries have {} bytes; {expected} expected", self.queries.data.len());
        }
        if self.is_causal && count > tokens.newest() {
            bail!(
                InvalidArgument,
                "{count} causal rows of a step; the newest {} tokens are in the cache, and no row of others is expected",
                tokens.newest()
            );
        }
        if count > tokens.logical as usize {
            bail!(InvalidArgument, "{count} rows of a chat of {} tokens", tokens.logical);
        }
        if !(0.0..=f32::MAX).contains(&scale) {
            bail!(InvalidArgument, "scale is {scale}; 0 or a finite number above it expected");
        }
        if let Some(cap) = self.soft_cap.filter(|cap| !(f32::MIN_POSITIVE..=f32::MAX).contains(cap)) {
            bail!(
                InvalidArgument,
                "soft_cap is {cap}; a finite number of {:e} or more expected, or 0 for none",
                f32::MIN_POSITIVE
            );
        }
        if let Some(sinks) = self.sinks {
            if sinks.len() < heads {
                bail!(InvalidArgument, "sinks are {} numbers; {heads} expected", sinks.len());
            }
            if let Some(head) = first_not_finite(sinks) {
                bail!(InvalidArgument, "the sink of query head {head} is {}; a finite one expected", sinks[head]);
            }
        }
        if let Some(mask) = &self.mask {
            let needed = (count - 1).checked_mul(mask.stride).and_then(|n| n.checked_add(mask.tokens as usize));
            if mask.tokens > tokens.logical
                || mask.stride < mask.tokens as usize
                || needed.is_none_or(|n| n > mask.data.len())
            {
                bail!(
                    InvalidArgument,
                    "the mask has {} tokens in rows of {}; at most the {} tokens of the chat and whole rows expected",
                    mask.tokens,
                    mask.stride,
                    tokens.logical
                );
            }
        }
        Ok(())
    }

    fn scale(&self) -> f32 {
        match self.queries.scale {
            0.0 => 1.0 / (self.queries.dims as f32).sqrt(),
            scale => scale,
        }
    }
}

/// Runs a part of a step; `write` gets rows of the output: the row, its query head, and its numbers. Parts may run on any
/// threads and in any order; the output is complete once all have returned.
/// INVALID_ARGUMENT: if the step does not fit the tokens, a part is given twice, a query is not finite, or an addend of the mask
/// is NaN or +inf; the part may be given again.
pub fn attend(
    tokens: &Tokens<'_>,
    step: &Step<'_>,
    (part, parts): (u32, u32),
    round: &Round,
    work: &mut Work,
    write: &mut dyn FnMut(usize, usize, &[f32]),
) -> Result<()> {
    // The one row of the last token attends to all.
    let step = &Step { is_causal: step.is_causal && step.queries.rows > 1, ..*step };
    step.check(tokens, (part, parts))?;
    let shape = RoundShape {
        rows: step.queries.rows,
        heads: step.queries.heads,
        kv_heads: tokens.kv_heads(),
        dims: step.queries.dims,
        kv_len: tokens.raw,
    };
    let wait = tokens.source.map_or(Duration::ZERO, |source| source.wait * step.queries.rows as u32);
    let deadline = round.begin((part, parts), shape, wait)?;
    let len = sums_len(step.queries.dims) * if tokens.blocks.is_rotated() { 2 } else { 1 };
    let run = Run { tokens, step, kernels: arch::attend_kernels(), group: step.queries.heads / tokens.kv_heads(), len };
    work.found = Found::default();
    let partial = match run.part((part as usize, parts as usize), deadline, work, write) {
        Ok(partial) => partial,
        Err(error) => {
            round.failed(part)?;
            return Err(error);
        }
    };
    let (found, mut all) = (std::mem::take(&mut work.found), std::mem::take(&mut work.merged));
    round.end(part, partial, found, &mut all)?;
    if !all.is_empty() {
        round.find(|found| run.merge(&mut all, work, found, write))?;
    }
    work.merged = all;
    Ok(())
}

/// Query vectors of some KV heads.
#[derive(Clone, Copy)]
pub(super) struct Unit {
    pub(super) head: usize,
    pub(super) heads: usize,
    pub(super) row: usize,
    pub(super) rows: usize,
}

pub(super) struct Run<'a> {
    pub(super) tokens: &'a Tokens<'a>,
    pub(super) step: &'a Step<'a>,
    pub(super) kernels: &'static AttendKernels,
    /// Query heads of a KV head.
    pub(super) group: usize,
    /// Floats of a query vector's sums.
    pub(super) len: usize,
}

impl Run<'_> {
    /// Folds a part. Returns what is to be merged with other parts.
    fn part(
        &self,
        (part, parts): (usize, usize),
        deadline: Instant,
        work: &mut Work,
        write: &mut dyn FnMut(usize, usize, &[f32]),
    ) -> Result<Option<Partial>> {
        let (heads, rows) = (self.tokens.kv_heads(), self.step.queries.rows);
        if rows > FEW_ROWS {
            let most = (UNIT_QUERIES / self.group).max(1);
            let units = rows.div_ceil(most);
            // Later rows attend to more tokens: parts take them in turn.
            for at in (part..heads * units).step_by(parts) {
                let (head, row) = (at / units, at % units * most);
                let unit = Unit { head, heads: 1, row, rows: most.min(rows - row) };
                self.load(&unit, work)?;
                self.learn(&unit, &work.queries, &mut work.found);
                self.seen_tiles(&unit).try_for_each(|tile| self.fold_raw(&unit, tile, head, work))?;
                self.seen_here(&unit, head).try_for_each(|at| self.fold_here(&unit, head, at, work))?;
                self.choose_away(&unit, (head, 0), deadline, work)?;
                work.reads.take(0, 1)?;
                self.fold_away(&unit, (head, 0), deadline, work)?;
                self.check_sums(&unit, 0, &work.running)?;
                work.shares.weigh(|head| self.vectors(&unit, head), &work.running, &mut work.found);
                self.finish(&unit, &mut work.sums, &work.running, write);
            }
            return Ok(None);
        }
        let unit = Unit { head: 0, heads, row: 0, rows };
        self.load(&unit, work)?;
        let mut left = std::mem::take(&mut work.left);
        left.part = part as u32;
        let total = heads * self.seen_tiles(&unit).len()
            + (0..heads).map(|head| self.seen_here(&unit, head).len()).sum::<usize>();
        let segments = segments(total);
        for segment in share(segments, (part, parts)) {
            self.fold_segment(&unit, share(total, (segment, segments)), work, &mut left)?;
        }
        left.here = left.heads.len();
        if self.tokens.source.is_some() && (0..heads).any(|head| !self.tokens.blocks.away(head).is_empty()) {
            let pieces = share(heads * AWAY_PIECES, (part, parts));
            let piece = |at: usize| (at / AWAY_PIECES, at % AWAY_PIECES);
            let mut last = None;
            for (head, piece) in pieces.clone().map(piece) {
                // A head of which several parts have pieces is chosen by each.
                if last.replace(head) != Some(head) {
                    self.begin_piece(&unit, head, work);
                    self.weigh_raw(&unit, head, work)?;
                    self.choose_away(&unit, (head, piece), deadline, work)?;
                }
                work.reads.take(piece, AWAY_PIECES)?;
            }
            for (head, piece) in pieces.map(piece) {
                self.begin_piece(&unit, head, work);
                self.fold_away(&unit, (head, piece), deadline, work)?;
                self.end_piece(&unit, head, work, &mut left)?;
            }
        }
        std::mem::swap(&mut left.shares, &mut work.shares);
        Ok(Some(left))
    }

    /// Folds a run of cells: of each KV head tiles of raw tokens, then blocks in memory.
    fn fold_segment(&self, unit: &Unit, cells: Range<usize>, work: &mut Work, left: &mut Partial) -> Result<()> {
        let (tiles, mut first) = (self.seen_tiles(unit), 0);
        for head in 0..unit.heads {
            let here = self.seen_here(unit, head);
            let own = cells.start.max(first)..cells.end.min(first + tiles.len() + here.len());
            if !own.is_empty() {
                self.begin_piece(unit, head, work);
                for cell in own {
                    match (cell - first).checked_sub(tiles.len()) {
                        None => self.fold_raw(unit, tiles.start + cell - first, head, work)?,
                        Some(at) => self.fold_here(unit, head, here.start + at, work)?,
                    }
                }
                self.end_piece(unit, head, work, left)?;
            }
            first += tiles.len() + here.len();
        }
        Ok(())
    }

    /// The raw tiles that rows of a unit may attend to: all but those before the window of its first row.
    pub(super) fn seen_tiles(&self, unit: &Unit) -> Range<usize> {
        let (tokens, tiles) = (self.tokens, self.tokens.raw_tiles());
        let before = |window: u32| tokens.raw_before((self.own(unit.row) + 1).saturating_sub(window as usize));
        let first = self.step.window.map_or(0, |window| (before(window) + tokens.missing) / BLOCK);
        first.min(tiles)..tiles
    }

    /// Likewise which of the blocks of a KV head that are in memory.
    fn seen_here(&self, unit: &Unit, head: usize) -> Range<usize> {
        let here = self.tokens.blocks.here(head);
        here.partition_point(|block| !self.sees(unit, *block))..here.len()
    }

    /// The position of a row.
    pub(super) fn own(&self, row: usize) -> usize {
        self.tokens.logical as usize - self.step.queries.rows + row
    }

    /// Nothing is summed by the query vectors of a KV head.
    fn begin_piece(&self, unit: &Unit, head: usize, work: &mut Work) {
        let (range, len) = (self.vectors(unit, head), self.len);
        work.running[range.clone()].fill(Running::default());
        work.sums[range.start * len..range.end * len].fill(0.0);
    }

    /// Leaves what the query vectors of a KV head have summed to be merged.
    fn end_piece(&self, unit: &Unit, head: usize, work: &Work, left: &mut Partial) -> Result<()> {
        let (range, len) = (self.vectors(unit, head), self.len);
        self.check_sums(unit, range.start, &work.running[range.clone()])?;
        memory::reserve_amortized(&mut left.running, range.len())?;
        memory::reserve_amortized(&mut left.sums, range.len() * len)?;
        memory::push(&mut left.heads, head as u32)?;
        memory::extend(&mut left.running, &work.running[range.clone()])?;
        memory::extend(&mut left.sums, &work.sums[range.start * len..range.end * len])
    }

    /// INVALID_ARGUMENT: if a logit of a query vector was NaN or +inf, the vectors from the `first` one on.
    fn check_sums(&self, unit: &Unit, first: usize, running: &[Running]) -> Result<()> {
        let Some(at) = running.iter().position(|running| running.sum.is_nan()) else { return Ok(()) };
        let (row, head) = self.vector(unit, first + at);
        bail!(
            InvalidArgument,
            "a logit of row {row} of query head {head} is not finite: the query is too large, or K of a raw token is not finite"
        )
    }

    /// Merges the pieces of all parts, those of the file last, in the memory of the part that has ended last, and writes the
    /// rows.
    fn merge(
        &self,
        left: &mut [Partial],
        work: &mut Work,
        found: &mut Found,
        write: &mut dyn FnMut(usize, usize, &[f32]),
    ) {
        let unit = Unit { head: 0, heads: self.tokens.kv_heads(), row: 0, rows: self.step.queries.rows };
        let (len, vectors) = (self.len, unit.rows * self.group);
        (0..unit.heads).for_each(|head| self.begin_piece(&unit, head, work));
        for is_here in [true, false] {
            for part in &*left {
                let pieces = part.running.chunks_exact(vectors).zip(part.sums.chunks_exact(vectors * len));
                let all = part.heads.iter().zip(pieces).enumerate().filter(|(at, _)| (*at < part.here) == is_here);
                for (_, (head, (running, sums))) in all {
                    let first = *head as usize * vectors;
                    let to = work.running[first..][..vectors].iter_mut().zip(running);
                    let sums = work.sums[first * len..].chunks_exact_mut(len).zip(sums.chunks_exact(len));
                    to.zip(sums).for_each(|((all, running), (to, sums))| all.merge(running, to, sums));
                }
            }
        }
        // All parts have loaded the same.
        self.learn(&unit, &work.queries, found);
        for part in left {
            part.shares.weigh(|head| self.vectors(&unit, head), &work.running, found);
        }
        self.finish(&unit, &mut work.sums, &work.running, write);
    }

    /// Writes the rows of a unit.
    fn finish(&self, unit: &Unit, sums: &mut [f32], running: &[Running], write: &mut dyn FnMut(usize, usize, &[f32])) {
        let dims = self.tokens.shape.dims;
        for (at, (sums, running)) in sums.chunks_exact_mut(self.len).zip(running).enumerate() {
            let (row, head) = self.vector(unit, at);
            finish(dims, sums);
            let (mut factor, mut sum) = (1.0, running.sum);
            if let Some(sinks) = self.step.sinks {
                let peak = running.peak.max(sinks[head]);
                factor = (running.peak - peak).exp();
                sum = sum * factor + (sinks[head] - peak).exp();
            }
            let factor = if sum > 0.0 { factor / sum } else { 0.0 };
            sums[..dims].iter_mut().for_each(|x| *x *= factor);
            write(row, head, &sums[..dims]);
        }
    }

    /// The row and the query head of a query vector of a unit.
    pub(super) fn vector(&self, unit: &Unit, at: usize) -> (usize, usize) {
        let (head, at) = (unit.head + at / (unit.rows * self.group), at % (unit.rows * self.group));
        (unit.row + at / self.group, head * self.group + at % self.group)
    }

    /// The query vectors of a KV head among those of a unit.
    pub(super) fn vectors(&self, unit: &Unit, head: usize) -> Range<usize> {
        let count = unit.rows * self.group;
        (head - unit.head) * count..(head - unit.head + 1) * count
    }

    /// Takes note of the queries of a unit.
    fn learn(&self, unit: &Unit, queries: &[f32], found: &mut Found) {
        let (dims, lanes) = (self.tokens.shape.dims, self.tokens.shape.lanes() * LANES);
        for head in (unit.head..unit.head + unit.heads).filter(|_| self.tokens.learns) {
            let range = self.vectors(unit, head);
            let vectors = queries[range.start * lanes..range.end * lanes].chunks_exact(lanes).map(|row| &row[..dims]);
            found.squares.add((head, self.tokens.kv_heads()), dims, vectors);
        }
    }

    /// Checks the mask of a unit, reads its queries, times the factor of logits, and begins their sums.
    fn load(&self, unit: &Unit, work: &mut Work) -> Result<()> {
        let (shape, scale, queries) = (self.tokens.shape, self.step.scale(), &self.step.queries);
        let (dims, lanes) = (shape.dims, shape.lanes() * LANES);
        work.fit(shape, (unit.heads * unit.rows * self.group, unit.rows * self.group), self.len)?;
        work.running.fill(Running::default());
        work.sums.fill(0.0);
        work.raw.clear();
        work.sorted.clear();
        work.shares.clear();
        work.reads.clear();
        if let Some(mask) = &self.step.mask {
            for row in unit.row..unit.row + unit.rows {
                let addends = &mask.data[row * mask.stride..][..mask.tokens as usize];
                if let Some(column) = addends.iter().position(|x| x.is_nan() || *x == f32::INFINITY) {
                    bail!(
                        InvalidArgument,
                        "element {column} of row {row} of the mask is {}; a finite one or -inf expected",
                        addends[column]
                    );
                }
            }
        }
        for (at, to) in work.queries.chunks_exact_mut(lanes).enumerate() {
            let (row, head) = self.vector(unit, at);
            let (to, padding) = to.split_at_mut(dims);
            widen(queries.dtype, Endian::Native, queries.row(head, row), to);
            if let Some(dim) = first_not_finite(to) {
                bail!(
                    InvalidArgument,
                    "element {dim} of row {row} of query head {head} is {}; a finite one expected",
                    to[dim]
                );
            }
            to.iter_mut().for_each(|x| *x *= scale);
            if let Some(dim) = to.iter().position(|x| x.abs() > MOST_QUERY) {
                bail!(
                    InvalidArgument,
                    "element {dim} of row {row} of query head {head} is {} with its factor, scale; at most {MOST_QUERY:e} \
                     expected, above which logits overflow",
                    to[dim]
                );
            }
            padding.fill(0.0);
        }
        Ok(())
    }
}

impl Work {
    /// Bytes of memory.
    fn bytes(&self) -> usize {
        let others = bytes_of(&self.raw)
            + bytes_of(&self.places)
            + self.sorted.bytes()
            + self.shares.bytes()
            + self.reads.bytes();
        self.steady_bytes() + others + self.scratch.as_ref().map_or(0, |_| size_of::<Scratch>())
    }

    /// Bytes of what has a size for each unit.
    fn steady_bytes(&self) -> usize {
        let floats = bytes_of(&self.queries) + bytes_of(&self.sums) + bytes_of(&self.logits);
        let panels = bytes_of(&self.keys) + bytes_of(&self.values) + bytes_of(&self.products) + bytes_of(&self.zeros);
        floats + panels + bytes_of(&self.running)
    }

    /// Makes room for so many query vectors, their sums of `len` numbers, and for the logits of so many that share a KV head.
    fn fit(&mut self, shape: Shape, (count, sharing): (usize, usize), len: usize) -> Result<()> {
        let (lanes, panels) = (shape.lanes() * LANES, shape.groups() * 2);
        memory::resize(&mut self.queries, count * lanes)?;
        memory::resize(&mut self.running, count)?;
        memory::resize(&mut self.sums, count * len)?;
        memory::resize(&mut self.logits, sharing * BLOCK)?;
        memory::resize(&mut self.keys, PANELS * shape.dims)?;
        memory::resize(&mut self.values, panels * BLOCK)?;
        memory::resize(&mut self.products, sharing * panels)?;
        memory::resize(&mut self.zeros, panels.max(PANELS))?;
        memory::resize(&mut self.places, BLOCK)?;
        if self.scratch.is_none() {
            self.scratch = Some(memory::boxed(Scratch::default())?);
        }
        Ok(())
    }
}

fn bytes_of<T>(list: &Vec<T>) -> usize {
    list.capacity() * size_of::<T>()
}
