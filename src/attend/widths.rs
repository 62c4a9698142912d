//! Which channels of K get 2, 4 or 6 bits in a block of k4v4.
//!
//! A logit's error from a channel in `b` bits is about `(range * query)^2 / 4^b`. Four channels share a width, and each two bits of
//! them are a line, so that the least error is that of lines given one at a time to where it shrinks most. The widths of a head
//! are chosen by its first block, once more by its first [`SURE`] blocks, and anew where the error of a block is far above that.

use super::block::Shape;
use crate::arch::attend::MOST_DIMS;
use crate::arch::attend::bits::{self, KeyBits};
use crate::arch::attend::encode::KeyRanges;
use crate::bytes::{Reader, push_number};
use crate::status::{Result, bail};
use crate::sys::memory;

/// Blocks after which widths are chosen a second time, by all of them.
const SURE: u32 = 8;
/// Widths are chosen anew where the error of a block is so many times what it was: a bit more would be as good.
const MOST_WORSE: f32 = 4.0;
/// Most error of a block's logits: a share of the part of channels' magnitudes in them. Of SmolLM2 and Gemma 3 it is up to 0.01.
const MOST_SHARE: f32 = 1.0 / 32.0;
/// Most part of one channel in the error: it has 6 bits then, and would need more. Queries, too, are rounded by the greatest channel.
const MOST_OF_ONE: f32 = 0.5;
/// Most variance of a logit's error where queries are known. Of SmolLM2 it is up to 0.09.
const MOST_VARIANCE: f32 = 1.0 / 8.0;
/// Query vectors of a KV head that say what is to come.
const ENOUGH: u64 = 2048;
/// Squares of queries are sums of integers in such parts, which depend on no order.
const PARTS: f32 = (1u64 << 36) as f32;

/// Squares of the numbers of a layer's queries, times the factor of logits.
#[derive(Clone, Debug, Default)]
pub struct Squares {
    /// Sums for each channel of each KV head, in parts.
    sums: Vec<u64>,
    /// Query vectors of a KV head.
    vectors: u64,
}

impl Squares {
    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.vectors == 0
    }

    /// Adds query vectors of a KV head, one of so many; of the first one they are counted. Where memory is refused, they are left
    /// out.
    pub(super) fn add<'a>(
        &mut self,
        (head, heads): (usize, usize),
        dims: usize,
        vectors: impl ExactSizeIterator<Item = &'a [f32]>,
    ) {
        if memory::resize(&mut self.sums, heads * dims).is_err() {
            return;
        }
        self.vectors += if head == 0 { vectors.len() as u64 } else { 0 };
        for vector in vectors {
            for (sum, x) in self.sums[head * dims..][..dims].iter_mut().zip(vector) {
                *sum = sum.saturating_add((x * x * PARTS) as u64);
            }
        }
    }

    /// Nothing is known; the memory stays for what comes.
    pub fn clear(&mut self) {
        self.sums.fill(0);
        self.vectors = 0;
    }

    /// Adds others; where memory is refused, they are left out.
    pub fn join(&mut self, other: &Squares) {
        if other.sums.is_empty() || memory::resize(&mut self.sums, other.sums.len()).is_err() {
            return;
        }
        self.vectors = self.vectors.saturating_add(other.vectors);
        self.sums.iter_mut().zip(&other.sums).for_each(|(sum, other)| *sum = sum.saturating_add(*other));
    }

    /// The mean square of a channel of a KV head; 1 where nothing is known.
    fn mean(&self, channel: usize) -> f32 {
        match self.sums.get(channel) {
            Some(sum) if self.vectors > 0 => *sum as f32 / (self.vectors as f32 * PARTS),
            _ => 1.0,
        }
    }
}

/// The widths of the heads of a layer.
#[derive(Debug, Default)]
pub struct Widths {
    heads: Vec<HeadWidths>,
    /// Of the queries so far.
    pub queries: Squares,
}

/// The widths of a head.
#[derive(Debug, Default)]
pub(super) struct HeadWidths {
    /// Sums of the squares of ranges, of so many blocks.
    ranges: Vec<f32>,
    blocks: u32,
    /// Room for others.
    spare: Vec<f32>,
    /// Mean squares of queries, and whether they are known.
    queries: Vec<f32>,
    are_known: bool,
    /// 2 bits for each channel, as a block has them; none before the first block.
    widths: Vec<u8>,
    order: Vec<u16>,
    quads: [usize; 3],
    /// The error of the block that they were chosen by.
    error: f32,
}

/// The squares of a block's ranges.
fn squares(ranges: &KeyRanges<'_>) -> impl Iterator<Item = f32> {
    ranges.low.iter().zip(&*ranges.high).map(|(low, high)| (high - low) * (high - low))
}

/// How far the logits of a block are from those of its numbers.
struct Errors {
    /// The variance.
    variance: f32,
    /// As a share of what channels' magnitudes are in them.
    share: f32,
    /// The part of one channel in it.
    most: f32,
}

impl Widths {
    /// Appends what a chat file keeps.
    pub fn put(&self, out: &mut Vec<u8>) -> Result<()> {
        let Squares { sums, vectors } = &self.queries;
        let sums = if self.is_settled() { &[] } else { &sums[..] };
        let numbers = [self.heads.len() as u64, *vectors, sums.len() as u64];
        numbers.into_iter().try_for_each(|number| push_number(out, number))?;
        sums.iter().try_for_each(|sum| memory::extend(out, &sum.to_le_bytes()))?;
        for head in &self.heads {
            let ranges = if head.blocks < SURE { &head.ranges[..] } else { &[] };
            let queries = if head.are_known { &head.queries[..] } else { &[] };
            let lens = [head.widths.len(), ranges.len(), queries.len()];
            push_number(out, head.blocks.into())?;
            lens.into_iter().try_for_each(|len| push_number(out, len as u64))?;
            memory::extend(out, &head.widths)?;
            let numbers = ranges.iter().chain(queries).chain(std::iter::once(&head.error));
            numbers.into_iter().try_for_each(|x| memory::extend(out, &x.to_le_bytes()))?;
        }
        Ok(())
    }

    /// Reads what [`Widths::put`] wrote. CORRUPT: if widths are not those of a head, or a number is not finite.
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let (count, vectors) = (reader.small("the heads that have widths")?, reader.number("query vectors")?);
        let (mut heads, mut sums) = (Vec::new(), Vec::new());
        for _ in 0..reader.small("sums of queries")? {
            memory::push(&mut sums, reader.u64("a sum of queries")?)?;
        }
        for _ in 0..count {
            memory::push(&mut heads, HeadWidths::read(reader)?)?;
        }
        Ok(Widths { heads, queries: Squares { sums, vectors } })
    }

    /// Whether more queries are of use.
    pub fn learns(&self) -> bool {
        self.queries.vectors < ENOUGH && !self.is_settled()
    }

    /// Whether no head takes note of queries any more.
    fn is_settled(&self) -> bool {
        !self.heads.is_empty() && !self.heads.iter().any(HeadWidths::learns)
    }

    /// Those of a head, one of so many.
    pub(super) fn head(&mut self, shape: Shape, (head, heads): (usize, usize)) -> Result<&mut HeadWidths> {
        while self.heads.len() < heads {
            memory::push(&mut self.heads, HeadWidths::default())?;
        }
        let (own, queries, dims) = (&mut self.heads[head], &self.queries, shape.dims);
        if own.blocks > 0 && (own.order.len() != dims || bits::lines_of(own.quads) != shape.bit_lines()) {
            // Of another version's chat.
            *own = HeadWidths::default();
        }
        if own.learns() {
            memory::resize(&mut own.ranges, dims)?;
            memory::resize(&mut own.spare, dims)?;
            memory::resize(&mut own.queries, dims)?;
            memory::resize(&mut own.widths, dims / 4)?;
            memory::resize(&mut own.order, dims)?;
            own.are_known = !queries.is_empty();
            let means = (head * dims..).map(|channel| queries.mean(channel));
            own.queries.iter_mut().zip(means).for_each(|(x, mean)| *x = mean);
        }
        Ok(own)
    }
}

impl HeadWidths {
    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let blocks = reader.small("blocks that widths are chosen by")?;
        let lens = [reader.small("the bytes of widths")?, reader.small("ranges")?, reader.small("queries")?];
        let [len, ranges, queries] = lens.map(|len| len as usize);
        let dims = 4 * len;
        if dims > MOST_DIMS || ![0, dims].contains(&ranges) || ![0, dims].contains(&queries) {
            bail!(Corrupt, "{len} bytes of widths with {ranges} ranges and {queries} queries");
        }
        let widths = memory::copied(reader.take(len as u64, "widths")?)?;
        if bits::lines(&widths).is_none() {
            bail!(Corrupt, "the widths of {dims} channels of K; 6, 4 or 2 of multiples of 4 expected");
        }
        let mut floats = |count: usize| {
            let mut list = memory::filled(0.0, count)?;
            for x in &mut list {
                *x = f32::from_bits(reader.u32("a number of widths")?);
                if !x.is_finite() {
                    bail!(Corrupt, "a number of widths is {x}");
                }
            }
            Ok(list)
        };
        let (ranges, queries, error) = (floats(ranges)?, floats(queries)?, floats(1)?[0]);
        let (are_known, quads) = (!queries.is_empty(), bits::quads(&widths));
        let mut head = HeadWidths { ranges, blocks, queries, are_known, widths, quads, error, ..HeadWidths::default() };
        memory::resize(&mut head.ranges, dims)?;
        memory::resize(&mut head.spare, dims)?;
        memory::resize(&mut head.queries, dims)?;
        memory::resize(&mut head.order, dims)?;
        head.sort();
        Ok(head)
    }

    /// Whether more blocks or queries say what is best.
    fn learns(&self) -> bool {
        self.blocks < SURE || !self.are_known
    }

    /// Takes note of a block's ranges, by which widths may be chosen. Returns whether codes are near enough to its numbers then.
    pub(super) fn see(&mut self, shape: Shape, ranges: &KeyRanges<'_>) -> bool {
        if self.blocks > 0 {
            let errors = self.errors(ranges);
            if self.fits(&errors) && errors.share <= self.error * MOST_WORSE {
                return self.blocks >= SURE || self.add(shape, ranges);
            }
        }
        // What such a block says of those to come is more than what others did, unless it has no widths at all.
        let (mut widths, quads) = ([0; MOST_DIMS / 4], self.quads);
        widths[..self.widths.len()].copy_from_slice(&self.widths);
        let before = std::mem::take(&mut self.ranges);
        self.ranges = std::mem::take(&mut self.spare);
        self.ranges.iter_mut().zip(squares(ranges)).for_each(|(sum, square)| *sum = square);
        self.choose(shape);
        let errors = self.errors(ranges);
        if self.fits(&errors) {
            (self.spare, self.blocks, self.error) = (before, self.blocks.max(1), errors.share);
            return true;
        }
        self.spare = std::mem::replace(&mut self.ranges, before);
        let len = self.widths.len();
        self.widths.copy_from_slice(&widths[..len]);
        self.quads = quads;
        self.sort();
        false
    }

    /// Sorts the channels by their widths.
    fn sort(&mut self) {
        self.order.iter_mut().zip(bits::order(&self.widths)).for_each(|(to, channel)| *to = channel as u16);
    }

    /// Adds a block like those before. Returns whether it fits the widths that it may have changed.
    fn add(&mut self, shape: Shape, ranges: &KeyRanges<'_>) -> bool {
        self.blocks += 1;
        self.ranges.iter_mut().zip(squares(ranges)).for_each(|(sum, square)| *sum += square);
        if self.blocks < SURE {
            return true;
        }
        self.choose(shape);
        let errors = self.errors(ranges);
        self.error = errors.share;
        self.fits(&errors)
    }

    fn fits(&self, errors: &Errors) -> bool {
        errors.most <= MOST_OF_ONE
            && errors.share <= MOST_SHARE
            && (!self.are_known || errors.variance <= MOST_VARIANCE)
    }

    /// Chooses widths by the ranges and queries so far.
    fn choose(&mut self, shape: Shape) {
        let HeadWidths { ranges, queries, widths, order, quads, .. } = self;
        let weight = |d: u16| ranges[usize::from(d)] * queries[usize::from(d)];
        order.iter_mut().zip(0..).for_each(|(at, channel)| *at = channel);
        order.sort_unstable_by(|a, b| weight(*b).total_cmp(&weight(*a)).then(a.cmp(b)));
        let count = order.len() / 4;
        // Of each four channels a line, and the others two or one more: sixes take two, fours one.
        let more = shape.bit_lines() - count;
        let error = |sixes: usize| {
            let fours = more - 2 * sixes;
            let each = order.as_chunks::<4>().0.iter().enumerate().map(|(at, four)| {
                let bits = bits::bits_of([sixes, fours], at);
                four.iter().map(|d| weight(*d)).sum::<f32>() / (1u32 << (2 * bits)) as f32
            });
            each.sum::<f32>()
        };
        // So many sixes that the other lines do not suffice for fours, to all that there are lines for.
        let mut best = (more.saturating_sub(count), f32::INFINITY);
        for sixes in best.0..=more / 2 {
            let error = error(sixes);
            if error < best.1 {
                best = (sixes, error);
            }
        }
        *quads = [best.0, more - 2 * best.0, count + best.0 - more];
        widths.fill(0);
        for (at, four) in order.as_chunks::<4>().0.iter().enumerate() {
            let class = bits::bits_of([quads[0], quads[1]], at) as u8 / 2 - 1;
            four.iter().for_each(|d| widths[usize::from(*d) / 4] |= class << (2 * (d % 4)));
        }
        self.sort();
    }

    /// The error of a block's logits.
    fn errors(&self, ranges: &KeyRanges<'_>) -> Errors {
        let (mut variance, mut magnitude, mut most) = (0.0f32, 0.0, 0.0f32);
        for (channel, bits) in self.channels() {
            let step = (ranges.high[channel] - ranges.low[channel]) / ((1 << bits) - 1) as f32;
            let own = self.queries[channel] * step * step;
            (variance, most) = (variance + own, most.max(own));
            magnitude += self.queries[channel] * ranges.size[channel] * ranges.size[channel];
        }
        let part = |of: f32, all: f32| if of > 0.0 { of / all } else { 0.0 };
        let most = part(most, variance);
        let variance = variance * (1.0 / 12.0);
        Errors { variance, share: part(variance, magnitude), most }
    }

    /// The widths as a block has them.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.widths
    }

    /// The channels and their bits, in the order of their codes.
    pub(super) fn channels(&self) -> impl Iterator<Item = (usize, u32)> {
        let [sixes, fours, _] = self.quads;
        self.order.iter().enumerate().map(move |(at, d)| (usize::from(*d), bits::bits_of([sixes, fours], at / 4)))
    }

    /// What codes are made by, with the middles and the inverse scales of channels in their order.
    pub(super) fn plan<'a>(&'a self, mids: &'a [f32], inverses: &'a [f32]) -> KeyBits<'a> {
        KeyBits { order: &self.order, mids, inverses, quads: self.quads }
    }
}
