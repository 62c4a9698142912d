//! The attention of a step, in parts that run on any threads.
//!
//! A few rows are split by tokens and KV heads, in the order of memory: each part folds a run of cells, a head of a tile
//! of raw tokens or of a block, into a softmax of its own, and the last part to end merges them. Many rows are split by KV
//! heads and rows, which nobody shares. Nothing grows with the number of tokens.

use super::block::{Block, Shape};
use super::queries::Queries;
use super::round::{MOST_PARTS, Partial, Round};
use crate::arch::attend::{AttendKernels, BLOCK, QUERIES, Running, Scratch, VALUE_GROUP, finish, sums_len};
use crate::arch::estimates::LANES;
use crate::arch::{self, Product};
use crate::dtype::convert::{Endian, first_not_finite, widen};
use crate::layout::{self, CacheRef, Head, Pair};
use crate::status::{Result, bail};
use crate::sys::{Shared, memory};

/// Steps of more rows decode blocks to f32.
const FEW_ROWS: usize = 16;
/// Query vectors of a unit of many rows: their logits and sums stay in a core's cache.
const UNIT_QUERIES: usize = 96;
const PANELS: usize = BLOCK / LANES;

/// A block in a chat.
#[derive(Clone, Debug)]
pub struct Placed {
    block: Shared<Block>,
    /// The logical position of the first token that is left; the others follow it.
    pub first: u32,
    /// The tokens that are left, one bit each.
    pub live: u64,
}

impl Placed {
    /// A whole block, from a logical position on.
    pub fn new(block: Block, first: u32) -> Result<Self> {
        Ok(Placed { block: Shared::new(block)?, first, live: u64::MAX })
    }

    /// The codes of its tokens.
    pub fn block(&self) -> &Block {
        &self.block
    }

    /// Tokens that are left.
    pub fn tokens(&self) -> u32 {
        self.live.count_ones()
    }
}

/// The tokens of a layer.
#[derive(Clone, Copy)]
pub struct Tokens<'a> {
    /// Of a head.
    pub shape: Shape,
    /// Tokens in blocks.
    pub blocks: &'a [Placed],
    /// The cache of the others.
    pub cache: CacheRef<'a>,
    /// Tokens in the cache, those of the step included.
    pub raw: usize,
    /// Logical positions of the tokens that were in the cache before the step, as runs.
    pub positions: &'a [Pair],
    /// Tokens of the chat, those of the step included.
    pub logical: u32,
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
    queries: Vec<f32>,
    running: Vec<Running>,
    sums: Vec<f32>,
    logits: Vec<f32>,
    keys: Vec<[f32; LANES]>,
    values: Vec<[f32; LANES]>,
    products: Vec<[f32; LANES]>,
    zeros: Vec<[f32; LANES]>,
    places: Vec<u32>,
    scratch: Option<Box<Scratch>>,
}

impl Step<'_> {
    /// INVALID_ARGUMENT: if the step does not fit the tokens.
    fn check(&self, tokens: &Tokens<'_>, (part, parts): (u32, u32)) -> Result<()> {
        let rows = tokens.cache.layout.rows();
        let Queries { heads, dims, rows: count, scale, .. } = self.queries;
        let expected = self.queries.bytes()?;
        if !(1..=MOST_PARTS).contains(&parts) || part >= parts {
            bail!(InvalidArgument, "part is {part} of {parts}; parts of 1 to {MOST_PARTS} expected, from 0 on");
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
        if self.is_causal && count > tokens.raw {
            bail!(InvalidArgument, "{count} causal rows of a step; the cache has {} tokens", tokens.raw);
        }
        if count > tokens.logical as usize {
            bail!(InvalidArgument, "{count} rows of a chat of {} tokens", tokens.logical);
        }
        if !(0.0..=f32::MAX).contains(&scale) {
            bail!(InvalidArgument, "scale is {scale}; 0 or a finite number above it expected");
        }
        if let Some(cap) = self.soft_cap.filter(|cap| !(f32::MIN_POSITIVE..=f32::MAX).contains(cap)) {
            bail!(InvalidArgument, "soft_cap is {cap}; a finite number above 0 expected, or 0 for none");
        }
        if let Some(sinks) = self.sinks
            && (sinks.len() < heads || sinks.iter().any(|sink| !sink.is_finite()))
        {
            bail!(InvalidArgument, "sinks are {} numbers; {heads} finite ones expected", sinks.len());
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
/// INVALID_ARGUMENT: if the step does not fit the tokens, a part is given twice, or a query is not finite; the part may be
/// given again.
pub fn attend(
    tokens: &Tokens<'_>,
    step: &Step<'_>,
    (part, parts): (u32, u32),
    round: &Round,
    work: &mut Work,
    write: &mut dyn FnMut(usize, usize, &[f32]),
) -> Result<()> {
    step.check(tokens, (part, parts))?;
    round.begin((part, parts), step.queries.rows)?;
    let run = Run { tokens, step, kernels: arch::attend_kernels(), group: step.queries.heads / tokens.kv_heads() };
    let partial = match run.part(part as usize, parts as usize, work, write) {
        Ok(partial) => partial,
        Err(error) => {
            round.failed(part)?;
            return Err(error);
        }
    };
    let mut left = round.end(part, partial)?;
    run.merge(&mut left, write);
    Ok(())
}

impl Tokens<'_> {
    fn kv_heads(&self) -> usize {
        self.cache.layout.rows().heads
    }

    fn raw_tiles(&self) -> usize {
        self.raw.div_ceil(BLOCK)
    }

    /// Tiles of raw tokens, and blocks.
    fn tiles(&self) -> usize {
        self.raw_tiles() + self.blocks.len()
    }

    /// The logical positions of a tile's tokens; those that are not there have the last one.
    fn places(&self, tile: usize, live: u64, places: &mut [u32]) {
        places.fill(u32::MAX);
        let tokens = (0..BLOCK).filter(|token| live >> token & 1 == 1);
        match tile.checked_sub(self.raw_tiles()) {
            Some(block) => tokens.zip(self.blocks[block].first..).for_each(|(token, place)| places[token] = place),
            None => {
                let before = self.positions.iter().map(|run| run[1] as usize).sum::<usize>();
                let step = self.logical as usize + before - self.raw;
                let runs = self.positions.iter().map(|&[first, count]| (first as usize, count as usize));
                let all = runs.chain([(step, self.raw - before)]).flat_map(|(first, count)| first..first + count);
                tokens.zip(all.skip(tile * BLOCK)).for_each(|(token, place)| places[token] = place as u32);
            }
        }
    }
}

/// Query vectors of some KV heads.
#[derive(Clone, Copy)]
struct Unit {
    head: usize,
    heads: usize,
    row: usize,
    rows: usize,
}

struct Run<'a> {
    tokens: &'a Tokens<'a>,
    step: &'a Step<'a>,
    kernels: &'static AttendKernels,
    /// Query heads of a KV head.
    group: usize,
}

impl Run<'_> {
    /// Folds a part. Returns what is to be merged with other parts.
    fn part(
        &self,
        part: usize,
        parts: usize,
        work: &mut Work,
        write: &mut dyn FnMut(usize, usize, &[f32]),
    ) -> Result<Option<Partial>> {
        let (heads, tiles, rows) = (self.tokens.kv_heads(), self.tokens.tiles(), self.step.queries.rows);
        if rows > FEW_ROWS {
            let most = (UNIT_QUERIES / self.group).max(1);
            let units = rows.div_ceil(most);
            // Later rows attend to more tokens: parts take them in turn.
            for at in (part..heads * units).step_by(parts) {
                let (head, row) = (at / units, at % units * most);
                let unit = Unit { head, heads: 1, row, rows: most.min(rows - row) };
                self.load(&unit, work)?;
                for tile in 0..tiles {
                    self.fold(&unit, tile, head, work)?;
                }
                self.finish(&unit, &mut work.sums, &work.running, write);
            }
            return Ok(None);
        }
        let unit = Unit { head: 0, heads, row: 0, rows };
        self.load(&unit, work)?;
        let total = heads * tiles;
        for cell in part * total / parts..(part + 1) * total / parts {
            self.fold(&unit, cell / heads, cell % heads, work)?;
        }
        if parts == 1 {
            self.finish(&unit, &mut work.sums, &work.running, write);
            return Ok(None);
        }
        Ok(Some(Partial { running: memory::copied(&work.running)?, sums: memory::copied(&work.sums)? }))
    }

    /// Merges the shares of parts, and writes the rows.
    fn merge(&self, partials: &mut [Partial], write: &mut dyn FnMut(usize, usize, &[f32])) {
        let Some((all, shares)) = partials.split_first_mut() else { return };
        let len = sums_len(self.tokens.shape.dims);
        for share in shares {
            let sums = all.sums.chunks_exact_mut(len).zip(share.sums.chunks_exact(len));
            for ((all, share), (to, from)) in all.running.iter_mut().zip(&share.running).zip(sums) {
                let peak = all.peak.max(share.peak);
                if peak > f32::NEG_INFINITY {
                    let factors = [(all.peak - peak).exp(), (share.peak - peak).exp()];
                    to.iter_mut().zip(from).for_each(|(to, from)| *to = *to * factors[0] + from * factors[1]);
                    *all = Running { peak, sum: all.sum * factors[0] + share.sum * factors[1] };
                }
            }
        }
        let unit = Unit { head: 0, heads: self.tokens.kv_heads(), row: 0, rows: self.step.queries.rows };
        self.finish(&unit, &mut all.sums, &all.running, write);
    }

    /// Writes the rows of a unit.
    fn finish(&self, unit: &Unit, sums: &mut [f32], running: &[Running], write: &mut dyn FnMut(usize, usize, &[f32])) {
        let dims = self.tokens.shape.dims;
        for (at, (sums, running)) in sums.chunks_exact_mut(sums_len(dims)).zip(running).enumerate() {
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
    fn vector(&self, unit: &Unit, at: usize) -> (usize, usize) {
        let (head, at) = (unit.head + at / (unit.rows * self.group), at % (unit.rows * self.group));
        (unit.row + at / self.group, head * self.group + at % self.group)
    }

    /// Folds a tile of a KV head into `running` and `sums` of the working memory.
    fn fold(&self, unit: &Unit, tile: usize, head: usize, work: &mut Work) -> Result<()> {
        let (tokens, shape) = (self.tokens, self.tokens.shape);
        let Some(at) = tile.checked_sub(tokens.raw_tiles()) else {
            let first = tile * BLOCK;
            let count = BLOCK.min(tokens.raw - first);
            if self.step.is_causal && first > self.last(unit.row + unit.rows - 1) {
                return Ok(());
            }
            let layout = tokens.cache.layout;
            let Some((key, value)) = layout.head(head as u32) else { return Ok(()) };
            let from = Head { layout, key: &tokens.cache.key[key], value: &tokens.cache.value[value] };
            let range = layout.range(first as u32, count as u32)?;
            layout::to_panels(&from, range, &mut work.keys, &mut work.values, count);
            self.fold_floats(unit, tile, head, (count, u64::MAX >> (BLOCK - count)), work);
            return Ok(());
        };
        let Placed { block, live, .. } = &tokens.blocks[at];
        // In the order of memory.
        let next = if head + 1 < tokens.kv_heads() { Some((&**block, head + 1)) } else { None };
        let next = next.or_else(|| Some((tokens.blocks.get(at + 1)?.block(), 0)));
        let block = block.head(shape, head, next);
        if self.step.queries.rows > FEW_ROWS {
            (self.kernels.decode)(&block, &mut work.keys, &mut work.values);
            self.fold_floats(unit, tile, head, (BLOCK, *live), work);
            return Ok(());
        }
        self.places(tile, *live, work);
        let (lanes, len, range) = (shape.lanes() * LANES, sums_len(shape.dims), self.vectors(unit, head));
        let Work { queries, running, sums, logits, places, scratch: Some(scratch), .. } = work else { return Ok(()) };
        let logits = logits.as_chunks_mut::<BLOCK>().0;
        let vectors =
            running[range.clone()].chunks_mut(QUERIES).zip(sums[range.start * len..].chunks_mut(QUERIES * len));
        for (first, (running, sums)) in (range.start..).step_by(QUERIES).zip(vectors) {
            let some = running.len();
            let mut rows = [&[][..]; QUERIES];
            rows.iter_mut().zip(queries[first * lanes..].chunks_exact(lanes)).for_each(|(to, row)| *to = row);
            let logits = &mut logits[..some];
            (self.kernels.logits)(&block, &rows[..some], logits, scratch);
            for (i, logits) in logits.iter_mut().enumerate() {
                self.adjust(self.vector(unit, first + i).0, tile, *live, places, logits);
            }
            (self.kernels.values)(&block, logits, running, &mut sums[..some * len], scratch);
        }
        Ok(())
    }

    /// The query vectors of a KV head among those of a unit.
    fn vectors(&self, unit: &Unit, head: usize) -> std::ops::Range<usize> {
        let count = unit.rows * self.group;
        (head - unit.head) * count..(head - unit.head + 1) * count
    }

    /// Folds a tile of a KV head, so many tokens whose numbers are in the panels of the working memory.
    fn fold_floats(&self, unit: &Unit, tile: usize, head: usize, (tokens, live): (usize, u64), work: &mut Work) {
        self.places(tile, live, work);
        let (shape, range) = (self.tokens.shape, self.vectors(unit, head));
        let (lanes, len, count) = (shape.lanes() * LANES, sums_len(shape.dims), range.len());
        let Work { queries, running, sums, logits, keys, values, products, zeros, places, .. } = work;
        let (key_panels, value_panels) = (tokens.div_ceil(LANES), shape.groups() * VALUE_GROUP / LANES);
        let queries = &queries[range.start * lanes..range.end * lanes];
        let (running, sums) = (&mut running[range.clone()], &mut sums[range.start * len..range.end * len]);
        let stride = key_panels * LANES;
        let logits = &mut logits[..count * stride];
        let panels = &keys[..key_panels * shape.dims];
        let product = Product { a: queries, stride: lanes, depth: shape.dims, panels, bias: &zeros[..key_panels] };
        (arch::kernels().product)(&product, logits.as_chunks_mut::<LANES>().0);
        for (i, (logits, running)) in logits.chunks_exact_mut(stride).zip(running).enumerate() {
            self.adjust(self.vector(unit, range.start + i).0, tile, live, places, logits);
            let factor = (self.kernels.soften)(logits.as_chunks_mut::<LANES>().0, running);
            if factor != 1.0 {
                sums[i * len..(i + 1) * len].iter_mut().for_each(|sum| *sum *= factor);
            }
        }
        let panels = &values[..value_panels * tokens];
        let product = Product { a: logits, stride, depth: tokens, panels, bias: &zeros[..value_panels] };
        let products = &mut products[..count * value_panels];
        (arch::kernels().product)(&product, products);
        for (sums, products) in sums.chunks_exact_mut(len).zip(products.chunks_exact(value_panels)) {
            sums.iter_mut().zip(products.as_flattened()).for_each(|(sum, x)| *sum += x);
        }
    }

    /// Reads the queries of a unit, times the factor of logits, and begins their sums.
    fn load(&self, unit: &Unit, work: &mut Work) -> Result<()> {
        let (shape, scale, queries) = (self.tokens.shape, self.step.scale(), &self.step.queries);
        let (dims, lanes) = (shape.dims, shape.lanes() * LANES);
        work.fit(shape, unit.heads * unit.rows * self.group, unit.rows * self.group)?;
        work.running.fill(Running::default());
        work.sums.fill(0.0);
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
            padding.fill(0.0);
        }
        Ok(())
    }

    /// The logical positions of a tile's tokens, where they matter.
    fn places(&self, tile: usize, live: u64, work: &mut Work) {
        if self.step.window.is_some() || self.step.mask.is_some() {
            self.tokens.places(tile, live, &mut work.places);
        }
    }

    /// Applies the soft cap and the mask to the logits of a tile for a row, and removes tokens that it does not attend to.
    fn adjust(&self, row: usize, tile: usize, live: u64, places: &[u32], logits: &mut [f32]) {
        let Step { is_causal, window, soft_cap, mask, .. } = self.step;
        if let Some(cap) = soft_cap {
            logits.iter_mut().for_each(|x| *x = cap * (*x / cap).tanh());
        }
        let own = self.tokens.logical as usize - self.step.queries.rows + row;
        if let Some(mask) = mask {
            let (row, first) = (&mask.data[row * mask.stride..], self.tokens.logical - mask.tokens);
            for (x, place) in logits.iter_mut().zip(places).filter(|(_, place)| (first..u32::MAX).contains(place)) {
                *x += row[(place - first) as usize];
            }
        }
        if let Some(window) = window {
            let seen = |place: &u32| *place as usize + *window as usize > own;
            logits.iter_mut().zip(places).filter(|(_, place)| !seen(place)).for_each(|(x, _)| *x = f32::NEG_INFINITY);
        }
        let mut live = live;
        if *is_causal && tile < self.tokens.raw_tiles() {
            match (self.last(row) + 1).saturating_sub(tile * BLOCK) {
                0 => live = 0,
                seen => live &= u64::MAX >> (BLOCK - seen.min(BLOCK)),
            }
        }
        if live != u64::MAX {
            for (token, x) in logits.iter_mut().enumerate() {
                if live >> token & 1 == 0 {
                    *x = f32::NEG_INFINITY;
                }
            }
        }
    }

    /// The last raw token that a causal row attends to.
    fn last(&self, row: usize) -> usize {
        self.tokens.raw - self.step.queries.rows + row
    }
}

impl Work {
    /// Makes room for so many query vectors, and for the logits of so many that share a KV head.
    fn fit(&mut self, shape: Shape, count: usize, sharing: usize) -> Result<()> {
        let (lanes, panels) = (shape.lanes() * LANES, shape.groups() * 2);
        memory::resize(&mut self.queries, count * lanes)?;
        memory::resize(&mut self.running, count)?;
        memory::resize(&mut self.sums, count * sums_len(shape.dims))?;
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
