//! Attention over blocks of 64 tokens, k8v4 and k4v4 (docs/format.md): logits from the codes of K, and sums of V weighted by
//! integers. Both products are products of bytes, summed without rounding.
//!
//! Each kernel is written once, over 16 lanes. A level implements [`Dots`] for its instructions; arrays define every
//! operation. Lanes never mix except in [`Sixteen::sum`], whose order is fixed, and no product is fused with a sum that
//! rounds. So results are the same to the bit at every level.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
pub mod bits;
pub(super) mod decode;
pub mod encode;
pub(super) mod keys;
pub mod lines;
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
pub(super) mod neon;
mod plain;
pub mod rows;
pub(super) mod soft_cap;
pub(super) mod softmax;
pub(super) mod values;

use super::estimates::{LANES, Shorts, Sixteen};
use bits::KeyBits;
use encode::{KeyRanges, ValueScales};
use plain::Plain;

/// Tokens of a block.
pub const BLOCK: usize = 64;
/// Bytes of a line; memory of blocks is aligned to it.
pub const LINE: usize = 64;
/// Channels of V that share a scale and a minimum.
pub const VALUE_GROUP: usize = 32;
/// Most elements of a head.
pub const MOST_DIMS: usize = 512;
/// Query vectors that a kernel takes at once.
pub const QUERIES: usize = 4;

/// 64 bytes of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Line(pub [u8; LINE]);

impl Default for Line {
    fn default() -> Self {
        Line([0; LINE])
    }
}

/// Codes of K are unsigned; this one is the middle of the range.
pub const KEY_ZERO: i32 = 128;

/// One head of a block.
#[derive(Clone, Copy)]
pub struct HeadBlock<'a> {
    /// Elements of K and of V of a token.
    pub dims: usize,
    /// Codes of K.
    pub keys: Keys<'a>,
    /// Scale and middle of each channel of K in f16, little endian, in the order of its codes; those behind the last are 0, to
    /// whole lanes.
    pub key_scales: &'a [Shorts],
    /// See `key_scales`.
    pub key_mids: &'a [Shorts],
    /// `[group of 32 channels][token / 4][channel % 16][token % 4]`: codes of the group's first 16 channels in the lower
    /// half of each byte, of the others in the upper half, in two's complement.
    pub values: &'a [Line],
    /// Scale of each token in f16, little endian: of each group, or one of all channels, which are rotated then.
    pub value_scales: &'a [[Shorts; BLOCK / LANES]],
    /// Middle of each token, likewise, which is the code 0.
    pub value_mids: &'a [[Shorts; BLOCK / LANES]],
    /// The lines of the head that is read next, which are fetched meanwhile.
    pub next: &'a [Line],
}

/// Codes of K.
#[derive(Clone, Copy)]
pub enum Keys<'a> {
    /// k8v4.
    Bytes {
        /// `[token / 16][dim / 4][token % 16][dim % 4]`.
        codes: &'a [Line],
        /// Channels in 16 bits.
        wide: &'a [Wide],
    },
    /// k4v4.
    Bits {
        /// Of each channel, 2 bits: [`widths`].
        widths: &'a [u8],
        /// Of each four channels, those of the greatest width first: a line for each two bits, see [`bits`].
        codes: &'a [Line],
    },
}

impl HeadBlock<'_> {
    /// Whether channels of V are rotated.
    pub fn is_rotated(&self) -> bool {
        matches!(self.keys, Keys::Bits { .. })
    }

    /// Where the sums of its V are in those of a query vector.
    fn sums(&self) -> std::ops::Range<usize> {
        let len = sums_len(self.dims);
        if self.is_rotated() { len..2 * len } else { 0..len }
    }
}

/// A channel of K whose range is far above that of the others. Its codes in `keys` are [`KEY_ZERO`] and its scale there
/// is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Wide {
    /// Codes of the tokens, i16, little endian.
    pub codes: [Shorts; BLOCK / LANES],
    /// The channel, u16, and its scale in f16, little endian.
    pub channel: [u8; 2],
    /// See `channel`.
    pub scale: [u8; 2],
    /// Zero.
    pub padding: [u8; 60],
}

/// The softmax of one query vector so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Running {
    /// The largest logit; -inf before the first.
    pub peak: f32,
    /// The sum of `exp(logit - peak)`.
    pub sum: f32,
    /// The part of `sum` whose V was not read.
    pub skipped: f32,
}

impl Default for Running {
    fn default() -> Self {
        Running { peak: f32::NEG_INFINITY, sum: 0.0, skipped: 0.0 }
    }
}

/// Working memory of the kernels.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Scratch {
    /// Upper and lower parts of query codes; the first alone against codes of few bits.
    query: [[[i8; MOST_DIMS]; 2]; QUERIES],
    scaled: [[f32; MOST_DIMS]; QUERIES],
    /// Upper and lower parts of weights.
    weights: [[[i8; BLOCK]; 2]; QUERIES],
}

impl Default for Scratch {
    fn default() -> Self {
        Scratch {
            query: [[[0; MOST_DIMS]; 2]; QUERIES],
            scaled: [[0.0; MOST_DIMS]; QUERIES],
            weights: [[[0; BLOCK]; 2]; QUERIES],
        }
    }
}

/// Floats of a query vector's sums of V: each channel's, to whole groups, and 16 for the middle of each group, which
/// [`finish`] adds to the group's channels. Blocks whose V is rotated have as many behind them.
pub const fn sums_len(dims: usize) -> usize {
    dims.div_ceil(VALUE_GROUP) * (VALUE_GROUP + LANES)
}

/// Adds the middles to the channels of one query vector's sums, and what is rotated back; its first `dims` numbers are the
/// weighted sum of V then.
pub fn finish(dims: usize, sums: &mut [f32]) {
    let (sums, rotated) = sums.split_at_mut(sums_len(dims));
    let groups = dims.div_ceil(VALUE_GROUP);
    let (channels, middles) = sums.split_at_mut(groups * VALUE_GROUP);
    for (channels, lanes) in channels.chunks_exact_mut(VALUE_GROUP).zip(middles.as_chunks::<LANES>().0) {
        let middle = super::across(*lanes);
        channels.iter_mut().for_each(|sum| *sum += middle);
    }
    if let Some(lanes) = rotated.get(groups * VALUE_GROUP..).and_then(|middles| middles.first_chunk::<LANES>()) {
        let middle = super::across(*lanes);
        let rotated = &mut rotated[..dims];
        rotated.iter_mut().for_each(|sum| *sum += middle);
        bits::rotate_back(rotated);
        channels.iter_mut().zip(rotated).for_each(|(sum, rotated)| *sum += *rotated);
    }
}

/// See [`AttendKernels::logits`].
type Logits = fn(block: &HeadBlock, queries: &[&[f32]], logits: &mut [[f32; BLOCK]], scratch: &mut Scratch);
/// See [`AttendKernels::values`].
type Values = fn(&HeadBlock, logits: &mut [[f32; BLOCK]], &mut [Running], sums: &mut [f32], &mut Scratch);
/// See [`AttendKernels::decode`].
type Decode = fn(block: &HeadBlock, keys: &mut [[f32; LANES]], values: &mut [[f32; LANES]]);
/// See [`AttendKernels::key_codes`].
type KeyCodes = fn(rows: &[f32], mids: &[f32], inverses: &[f32], quads: usize, lines: &mut [Line]);

/// Query vectors of a call are [`QUERIES`] at most, as rows of whole lanes in the order of the codes of K; elements behind the
/// last are 0.
#[derive(Clone, Copy)]
pub struct AttendKernels {
    /// Writes the logits of a block's tokens for each query vector, which is scaled already.
    pub logits: Logits,
    /// Raises the peaks to the largest logit, replaces logits by `exp(logit - peak)`, and adds these to the sums and the
    /// sums of V weighted by them to `sums`, [`sums_len`] for each query vector, or twice as many. Logits are finite or -inf.
    pub values: Values,
    /// The first half of `values`, for any number of tokens in whole lanes: peak, exponentials and sum of one row, whose
    /// earlier sums are to be multiplied by the number that it returns.
    pub soften: fn(logits: &mut [[f32; LANES]], running: &mut Running) -> f32,
    /// Logits x become `cap * tanh(x / cap)`; the cap is above 0.
    pub soft_cap: fn(logits: &mut [[f32; LANES]], cap: f32),
    /// The range of each channel of a block's rows. Returns whether all numbers are finite.
    pub key_ranges: fn(rows: &[f32], out: &mut KeyRanges) -> bool,
    /// Writes the codes of K, of so many quads of channels; an inverse is that of a channel's scale.
    pub key_codes: KeyCodes,
    /// Writes the codes of V, of so many groups. Returns false if a number is not finite or too large for f16.
    pub value_codes: fn(rows: &[f32], groups: usize, lines: &mut [Line], out: &mut ValueScales) -> bool,
    /// Writes the codes of K in few bits, from panels as `decode` writes them.
    pub key_bits: fn(panels: &[[f32; LANES]], plan: &KeyBits, lines: &mut [Line]),
    /// Rotates V in such panels and writes its codes, whose scales are in one group. Returns false if a number is not finite or too
    /// large for f16.
    pub value_bits: fn(panels: &mut [[f32; LANES]], lines: &mut [Line], out: &mut ValueScales) -> bool,
    /// Writes the numbers of a block to panels of 16: K as `[token / 16][dim][token % 16]`, and V, where it is rotated as it is,
    /// as `[dim / 16][token][dim % 16]`, in whole groups.
    pub decode: Decode,
}

/// Byte products in 16 lanes.
///
/// # Safety
/// Every function needs the CPU features of its implementation.
pub(super) trait Dots: Copy {
    /// 16 floats.
    type Floats: Sixteen;
    /// 16 i32.
    type Ints: Copy;
    /// 64 bytes, four for each lane.
    type Bytes: Copy;
    /// What products with [`Dots::keys`] are to be reduced by, in sums of the other factor.
    const KEY_BIAS: i32;
    /// Whether registers hold the sums of several query vectors. If not, a block is read once for each, in less code.
    const ABREAST: bool = true;

    unsafe fn widen(from: &Shorts) -> Self::Floats;
    /// 16 i16, little endian.
    unsafe fn widen_ints(from: &Shorts) -> Self::Floats;
    unsafe fn abs(x: Self::Floats) -> Self::Floats;
    /// The largest lane.
    unsafe fn highest(x: Self::Floats) -> f32;
    unsafe fn keys(from: &Line) -> Self::Bytes;
    /// The bytes as they are, for [`Dots::part`].
    unsafe fn raw(from: &Line) -> Self::Bytes;
    /// Bytes shifted down, of which the bits of a mask are left.
    unsafe fn part<const SHIFT: i32>(bytes: Self::Bytes, mask: u8) -> Self::Bytes;
    /// `low + high * 16`, where neither has bits of the other.
    unsafe fn above(high: Self::Bytes, low: Self::Bytes) -> Self::Bytes;
    /// The bytes, in memory.
    unsafe fn store(bytes: Self::Bytes, to: &mut Line);
    /// The lower and the upper halves of bytes, as signed codes times 16.
    unsafe fn nibbles(from: &Line) -> [Self::Bytes; 2];
    unsafe fn zero() -> Self::Ints;
    /// Adds the products of a lane's four codes of K, of [`Dots::keys`] or below 128, with four signed ones, the bytes of `four`
    /// in memory. The magnitude of two products' sum is below 2^15, here and below.
    unsafe fn add_keys(sums: Self::Ints, keys: Self::Bytes, four: i32) -> Self::Ints;
    /// The same of codes of V, and weights from 0 to 127.
    unsafe fn add_values(sums: Self::Ints, nibbles: Self::Bytes, four: i32) -> Self::Ints;
    /// `high * 2^SHIFT + low`.
    unsafe fn join<const SHIFT: i32>(high: Self::Ints, low: Self::Ints) -> Self::Ints;
    unsafe fn add_all(sums: Self::Ints, addend: i32) -> Self::Ints;
    /// The sum of lanes.
    unsafe fn total(ints: Self::Ints) -> i32;
    unsafe fn floats(ints: Self::Ints) -> Self::Floats;
    /// The nearest integers, halves to even; they fit.
    unsafe fn nearest(x: Self::Floats) -> Self::Ints;
    /// Integers that are bytes.
    unsafe fn bytes(x: Self::Ints, to: &mut [i8; LANES]);
    /// The lanes, little endian.
    unsafe fn line(x: Self::Ints, to: &mut Line);
    /// The same back.
    unsafe fn words(from: &Line) -> Self::Ints;
    /// The bits that a shift up and one down leave, unsigned.
    unsafe fn field<const UP: i32, const DOWN: i32>(x: Self::Ints) -> Self::Ints;
    /// The 4 bits that are left at the top after a shift up, in two's complement.
    unsafe fn nibble<const SHIFT: i32>(x: Self::Ints) -> Self::Ints;
    /// `(x + ROUND) >> SHIFT`, and `x - that * 2^SHIFT`, as bytes.
    unsafe fn split<const SHIFT: i32, const ROUND: i32>(x: Self::Ints, high: &mut [i8; LANES], low: &mut [i8; LANES]);
}

/// The kernels of every CPU.
pub(crate) const PORTABLE: AttendKernels = {
    macro_rules! safe {
        ($kernel:path => ($($arg:ident: $type:ty),*) -> $out:ty) => {{
            fn call($($arg: $type),*) -> $out {
                // SAFETY: arrays need no CPU features.
                unsafe { $kernel($($arg),*) }
            }
            call
        }};
    }
    type Logits64 = [[f32; BLOCK]];
    AttendKernels {
        logits: safe!(keys::logits::<Plain> => (block: &HeadBlock, queries: &[&[f32]], to: &mut Logits64, scratch: &mut Scratch) -> ()),
        values: safe!(values::values::<Plain> => (
            block: &HeadBlock, logits: &mut Logits64, running: &mut [Running], sums: &mut [f32], scratch: &mut Scratch
        ) -> ()),
        soften: safe!(softmax::soften::<Plain> => (logits: &mut [[f32; LANES]], running: &mut Running) -> f32),
        soft_cap: soft_cap::soft_cap,
        key_ranges: safe!(encode::key_ranges::<Plain> => (rows: &[f32], out: &mut KeyRanges) -> bool),
        key_codes: safe!(encode::key_codes::<Plain> => (
            rows: &[f32], mids: &[f32], inverses: &[f32], quads: usize, lines: &mut [Line]
        ) -> ()),
        value_codes: safe!(encode::value_codes::<Plain> => (
            rows: &[f32], groups: usize, lines: &mut [Line], out: &mut ValueScales
        ) -> bool),
        key_bits: safe!(bits::key_bits::<Plain> => (panels: &[[f32; LANES]], plan: &KeyBits, lines: &mut [Line]) -> ()),
        value_bits: safe!(bits::value_bits::<Plain> => (panels: &mut [[f32; LANES]], lines: &mut [Line], out: &mut ValueScales) -> bool),
        decode: safe!(decode::decode::<Plain> => (
            block: &HeadBlock, keys: &mut [[f32; LANES]], values: &mut [[f32; LANES]]
        ) -> ()),
    }
};

/// Four codes as one integer.
#[inline(always)]
fn together(four: [i8; 4]) -> i32 {
    i32::from_ne_bytes([four[0] as u8, four[1] as u8, four[2] as u8, four[3] as u8])
}

/// Asks for the next lines of those that are read next.
#[inline(always)]
fn fetch(ahead: &mut &[Line], count: usize) {
    if let Some((lines, rest)) = ahead.split_at_checked(count) {
        lines.iter().for_each(|line| super::prefetch(&line.0));
        *ahead = rest;
    }
}
