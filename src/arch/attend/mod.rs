//! Attention over blocks of 64 tokens with K in 8 bits and V in 4 bits (docs/format.md): logits from the codes of K, and
//! sums of V weighted by integers. Both products are products of bytes, summed without rounding.
//!
//! Each kernel is written once, over 16 lanes. A level implements [`Dots`] for its instructions; arrays define every
//! operation. Lanes never mix except in [`Sixteen::sum`], whose order is fixed, and no product is fused with a sum that
//! rounds. So results are the same to the bit at every level.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
pub(super) mod decode;
pub mod encode;
pub mod lines;
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
pub(super) mod neon;
pub mod rows;
pub(super) mod soft_cap;

use encode::{KeyRanges, ValueScales};

use super::estimates::{LANES, LEAST_EXPONENT, ROUNDING, Shorts, Sixteen};
use half::f16;

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
/// Largest query code: 63 parts of 64, and 31. Sums of two products with bytes then fit in 16 bits.
const MOST_QUERY: f32 = 4063.0;
/// Largest weight code, 127 parts of 128, and 127.
const MOST_WEIGHT: f32 = 16383.0;
/// The same of one part.
const MOST_COARSE: f32 = 127.0;
/// Weights of a block have one part where the largest is below this share of all weights so far.
const FINE: f32 = 8.0;
/// Weights that are all below count as 0, so that their inverse is a number.
const LEAST_WEIGHT: f32 = 1e-30;
/// A block whose largest logit is this far below the largest so far has less than 2^-14 of the weight: 64 tokens, and
/// ln(64 * 2^14) = 13.86. Its V is not read, as long as all that were not read have less than [`MOST_SKIPPED`].
const NEGLIGIBLE: f32 = 13.875;
/// Most weight of all blocks whose V is not read, as a share of all weights so far.
const MOST_SKIPPED: f32 = 1.0 / 1024.0;

/// One head of a block.
#[derive(Clone, Copy)]
pub struct HeadBlock<'a> {
    /// Elements of K and of V of a token.
    pub dims: usize,
    /// `[token / 16][dim / 4][token % 16][dim % 4]`, codes of K.
    pub keys: &'a [Line],
    /// Scale and middle of each channel of K in f16, little endian; channels behind the last are 0, to whole lanes.
    pub key_scales: &'a [Shorts],
    /// See `key_scales`.
    pub key_mids: &'a [Shorts],
    /// `[group of 32 channels][token / 4][channel % 16][token % 4]`: codes of the group's first 16 channels in the lower
    /// half of each byte, of the others in the upper half, in two's complement.
    pub values: &'a [Line],
    /// Scale of each group and token in f16, little endian.
    pub value_scales: &'a [[Shorts; BLOCK / LANES]],
    /// Middle of each group and token, which is the code 0.
    pub value_mids: &'a [[Shorts; BLOCK / LANES]],
    /// Channels of K in 16 bits.
    pub wide: &'a [Wide],
    /// The lines of the head that is read next, which are fetched meanwhile.
    pub next: &'a [Line],
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
    /// Upper and lower parts of query codes.
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
/// [`finish`] adds to the group's channels.
pub const fn sums_len(dims: usize) -> usize {
    dims.div_ceil(VALUE_GROUP) * (VALUE_GROUP + LANES)
}

/// Adds the middles to the channels of one query vector's sums; its first `dims` numbers are the weighted sum of V then.
pub fn finish(dims: usize, sums: &mut [f32]) {
    let (channels, middles) = sums.split_at_mut(dims.div_ceil(VALUE_GROUP) * VALUE_GROUP);
    for (channels, lanes) in channels.chunks_exact_mut(VALUE_GROUP).zip(middles.as_chunks::<LANES>().0) {
        let middle = super::across(*lanes);
        channels.iter_mut().for_each(|sum| *sum += middle);
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

/// Query vectors of a call are [`QUERIES`] at most, as rows of whole lanes; elements behind the last are 0.
#[derive(Clone, Copy)]
pub struct AttendKernels {
    /// Writes the logits of a block's tokens for each query vector, which is scaled already.
    pub logits: Logits,
    /// Raises the peaks to the largest logit, replaces logits by `exp(logit - peak)`, and adds these to the sums and the
    /// sums of V weighted by them to `sums`, [`sums_len`] for each query vector. Logits are finite or -inf.
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
    /// Writes the numbers of a block to panels of 16: K as `[token / 16][dim][token % 16]`, and V as
    /// `[dim / 16][token][dim % 16]`, in whole groups.
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
    /// The lower and the upper halves of bytes, as signed codes times 16.
    unsafe fn nibbles(from: &Line) -> [Self::Bytes; 2];
    unsafe fn zero() -> Self::Ints;
    /// Adds the products of a lane's four codes of K with four signed ones, the bytes of `four` in memory. The magnitude of
    /// two products' sum is below 2^15, here and below.
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
    /// The 8 bits that are left at the top after a shift up, unsigned.
    unsafe fn byte<const SHIFT: i32>(x: Self::Ints) -> Self::Ints;
    /// The 4 bits that are left at the top after a shift up, in two's complement.
    unsafe fn nibble<const SHIFT: i32>(x: Self::Ints) -> Self::Ints;
    /// `(x + ROUND) >> SHIFT`, and `x - that * 2^SHIFT`, as bytes.
    unsafe fn split<const SHIFT: i32, const ROUND: i32>(x: Self::Ints, high: &mut [i8; LANES], low: &mut [i8; LANES]);
}

/// Arrays, which define every operation.
#[derive(Clone, Copy)]
pub(super) struct Plain;

impl Dots for Plain {
    type Floats = [f32; LANES];
    type Ints = [i32; LANES];
    type Bytes = [[i32; 4]; LANES];
    const KEY_BIAS: i32 = KEY_ZERO;
    const ABREAST: bool = false;

    #[inline(never)]
    unsafe fn widen(from: &Shorts) -> Self::Floats {
        from.map(|bytes| f16::from_le_bytes(bytes).to_f32())
    }
    #[inline(always)]
    unsafe fn widen_ints(from: &Shorts) -> Self::Floats {
        from.map(|bytes| f32::from(i16::from_le_bytes(bytes)))
    }
    #[inline(always)]
    unsafe fn abs(x: Self::Floats) -> Self::Floats {
        x.map(f32::abs)
    }
    #[inline(always)]
    unsafe fn highest(x: Self::Floats) -> f32 {
        x.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
    #[inline(always)]
    unsafe fn keys(from: &Line) -> Self::Bytes {
        std::array::from_fn(|i| std::array::from_fn(|j| i32::from(from.0[4 * i + j])))
    }
    #[inline(always)]
    unsafe fn nibbles(from: &Line) -> [Self::Bytes; 2] {
        let half = |shift: u32| {
            std::array::from_fn(|i| std::array::from_fn(|j| i32::from((from.0[4 * i + j] << shift & 0xF0) as i8)))
        };
        [half(4), half(0)]
    }
    #[inline(always)]
    unsafe fn zero() -> Self::Ints {
        [0; LANES]
    }
    #[inline(always)]
    unsafe fn add_keys(sums: Self::Ints, keys: Self::Bytes, four: i32) -> Self::Ints {
        let four = four.to_ne_bytes();
        std::array::from_fn(|i| sums[i] + (0..4).map(|j| keys[i][j] * i32::from(four[j] as i8)).sum::<i32>())
    }
    #[inline(always)]
    unsafe fn add_values(sums: Self::Ints, nibbles: Self::Bytes, four: i32) -> Self::Ints {
        // SAFETY: arrays need no CPU features.
        unsafe { Self::add_keys(sums, nibbles, four) }
    }
    #[inline(always)]
    unsafe fn join<const SHIFT: i32>(high: Self::Ints, low: Self::Ints) -> Self::Ints {
        std::array::from_fn(|i| (high[i] << SHIFT) + low[i])
    }
    #[inline(always)]
    unsafe fn add_all(sums: Self::Ints, addend: i32) -> Self::Ints {
        sums.map(|sum| sum + addend)
    }
    #[inline(always)]
    unsafe fn total(ints: Self::Ints) -> i32 {
        ints.into_iter().sum()
    }
    #[inline(always)]
    unsafe fn floats(ints: Self::Ints) -> Self::Floats {
        ints.map(|x| x as f32)
    }
    #[inline(always)]
    unsafe fn nearest(x: Self::Floats) -> Self::Ints {
        x.map(|x| x.round_ties_even() as i32)
    }
    #[inline(always)]
    unsafe fn bytes(x: Self::Ints, to: &mut [i8; LANES]) {
        *to = x.map(|x| x as i8);
    }
    #[inline(always)]
    unsafe fn line(x: Self::Ints, to: &mut Line) {
        to.0.as_chunks_mut::<4>().0.iter_mut().zip(x).for_each(|(to, x)| *to = x.to_le_bytes());
    }
    #[inline(always)]
    unsafe fn words(from: &Line) -> Self::Ints {
        std::array::from_fn(|i| i32::from_le_bytes(std::array::from_fn(|j| from.0[4 * i + j])))
    }
    #[inline(always)]
    unsafe fn byte<const SHIFT: i32>(x: Self::Ints) -> Self::Ints {
        x.map(|x| (x as u32) << SHIFT >> 24).map(|x| x as i32)
    }
    #[inline(always)]
    unsafe fn nibble<const SHIFT: i32>(x: Self::Ints) -> Self::Ints {
        x.map(|x| x << SHIFT >> 28)
    }
    #[inline(always)]
    unsafe fn split<const SHIFT: i32, const ROUND: i32>(x: Self::Ints, high: &mut [i8; LANES], low: &mut [i8; LANES]) {
        for i in 0..LANES {
            let upper = (x[i] + ROUND) >> SHIFT;
            high[i] = upper as i8;
            low[i] = (x[i] - (upper << SHIFT)) as i8;
        }
    }
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
        logits: safe!(logits::<Plain> => (block: &HeadBlock, queries: &[&[f32]], to: &mut Logits64, scratch: &mut Scratch) -> ()),
        values: safe!(values::<Plain> => (
            block: &HeadBlock, logits: &mut Logits64, running: &mut [Running], sums: &mut [f32], scratch: &mut Scratch
        ) -> ()),
        soften: safe!(soften::<Plain> => (logits: &mut [[f32; LANES]], running: &mut Running) -> f32),
        soft_cap: soft_cap::soft_cap,
        key_ranges: safe!(encode::key_ranges::<Plain> => (rows: &[f32], out: &mut KeyRanges) -> bool),
        key_codes: safe!(encode::key_codes::<Plain> => (
            rows: &[f32], mids: &[f32], inverses: &[f32], quads: usize, lines: &mut [Line]
        ) -> ()),
        value_codes: safe!(encode::value_codes::<Plain> => (
            rows: &[f32], groups: usize, lines: &mut [Line], out: &mut ValueScales
        ) -> bool),
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

/// See [`AttendKernels::logits`].
///
/// # Safety
/// As [`Dots`], here and below.
#[inline(always)]
pub(super) unsafe fn logits<V: Dots>(
    block: &HeadBlock,
    queries: &[&[f32]],
    logits: &mut [[f32; BLOCK]],
    scratch: &mut Scratch,
) {
    // SAFETY: the caller's.
    unsafe {
        match queries.len() {
            _ if !V::ABREAST => {
                for (query, logits) in queries.chunks(1).zip(logits.chunks_mut(1)) {
                    logits_of::<V, 1>(block, query, logits, scratch);
                }
            }
            0 => {}
            1 => logits_of::<V, 1>(block, queries, logits, scratch),
            2 => logits_of::<V, 2>(block, queries, logits, scratch),
            3 => logits_of::<V, 3>(block, queries, logits, scratch),
            _ => logits_of::<V, QUERIES>(block, queries, logits, scratch),
        }
    }
}

/// Two panels of 16 tokens at a time, so that a query code is loaded once for both.
#[inline(always)]
unsafe fn logits_of<V: Dots, const N: usize>(
    block: &HeadBlock,
    queries: &[&[f32]],
    logits: &mut [[f32; BLOCK]],
    scratch: &mut Scratch,
) {
    let quads = block.dims / 4;
    assert!(queries.len() == N && logits.len() == N && block.keys.len() == BLOCK / LANES * quads);
    let Scratch { query: codes, scaled, .. } = scratch;
    let ahead = &mut &block.next[..block.next.len() / 2];
    // SAFETY: the caller's.
    let (units, bases, zeros) = unsafe { query_codes::<V, N>(block, queries, scaled, codes, ahead) };
    let codes: [[&[[i8; 4]]; 2]; N] =
        std::array::from_fn(|n| [0, 1].map(|part| &codes[n][part].as_chunks::<4>().0[..quads]));
    for (pair, keys) in block.keys.chunks_exact(2 * quads).enumerate() {
        let (first, second) = keys.split_at(quads);
        // SAFETY: the caller's.
        unsafe {
            let mut sums = [[[V::zero(); 2]; 2]; N];
            for (at, lines) in first.iter().zip(second).enumerate() {
                fetch(ahead, 1);
                let panels = [V::keys(lines.0), V::keys(lines.1)];
                for (sums, codes) in sums.iter_mut().zip(&codes) {
                    for (sums, codes) in sums.iter_mut().zip(codes) {
                        let four = together(codes[at]);
                        sums[0] = V::add_keys(sums[0], panels[0], four);
                        sums[1] = V::add_keys(sums[1], panels[1], four);
                    }
                }
            }
            for (n, [high, low]) in sums.into_iter().enumerate() {
                for (panel, (high, low)) in high.into_iter().zip(low).enumerate() {
                    let panel = 2 * pair + panel;
                    let sum = V::floats(V::add_all(V::join::<6>(high, low), -V::KEY_BIAS * zeros[n]));
                    let mut logit = sum.mul(V::Floats::splat(units[n])).add(V::Floats::splat(bases[n]));
                    for wide in block.wide {
                        let channel = usize::from(u16::from_le_bytes(wide.channel));
                        let factor = queries[n][channel] * f16::from_le_bytes(wide.scale).to_f32();
                        logit = logit.add(V::widen_ints(&wide.codes[panel]).mul(V::Floats::splat(factor)));
                    }
                    logit.store(&mut logits[n].as_chunks_mut::<LANES>().0[panel]);
                }
            }
        }
    }
}

/// The codes of query vectors against a block: products with the scales of channels, in 13 bits of their largest.
/// Returns, for each, the unit of the codes, the logit of the middles, and the sum of codes.
#[inline(always)]
unsafe fn query_codes<V: Dots, const N: usize>(
    block: &HeadBlock,
    queries: &[&[f32]],
    scaled: &mut [[f32; MOST_DIMS]; QUERIES],
    codes: &mut [[[i8; MOST_DIMS]; 2]; QUERIES],
    ahead: &mut &[Line],
) -> ([f32; N], [f32; N], [i32; N]) {
    let lanes = block.key_scales.len();
    let rows: [&[[f32; LANES]]; N] = std::array::from_fn(|n| &queries[n].as_chunks::<LANES>().0[..lanes]);
    // SAFETY: the caller's.
    unsafe {
        let (mut peaks, mut bases) = ([V::Floats::splat(0.0); N], [V::Floats::splat(0.0); N]);
        for (at, (scale, mid)) in block.key_scales.iter().zip(block.key_mids).enumerate() {
            fetch(ahead, 2);
            let (scale, mid) = (V::widen(scale), V::widen(mid));
            for n in 0..N {
                let query = V::Floats::load(&rows[n][at]);
                let product = query.mul(scale);
                product.store(&mut scaled[n].as_chunks_mut::<LANES>().0[at]);
                peaks[n] = V::abs(product).max(peaks[n]);
                bases[n] = bases[n].add(query.mul(mid));
            }
        }
        let (mut units, mut sums) = ([0.0; N], [V::zero(); N]);
        let mut factors = [V::Floats::splat(0.0); N];
        for n in 0..N {
            let peak = V::highest(peaks[n]);
            units[n] = peak * (1.0 / MOST_QUERY);
            let factor = if peak > 0.0 { MOST_QUERY / peak } else { 0.0 };
            // Of denormal products, too, the codes must fit.
            factors[n] = V::Floats::splat(if factor.is_finite() { factor } else { 0.0 });
        }
        for at in 0..lanes {
            fetch(ahead, 3);
            for n in 0..N {
                let code = V::nearest(V::Floats::load(&scaled[n].as_chunks::<LANES>().0[at]).mul(factors[n]));
                sums[n] = V::join::<0>(sums[n], code);
                let [high, low] = &mut codes[n];
                let parts = (&mut high.as_chunks_mut::<LANES>().0[at], &mut low.as_chunks_mut::<LANES>().0[at]);
                V::split::<6, 32>(code, parts.0, parts.1);
            }
        }
        // Not closures, which would not have the features of their caller, here and below.
        let (mut zeros, mut base_sums) = ([0; N], [0.0; N]);
        for n in 0..N {
            zeros[n] = if V::KEY_BIAS == 0 { 0 } else { V::total(sums[n]) };
            base_sums[n] = bases[n].sum();
        }
        (units, base_sums, zeros)
    }
}

/// See [`AttendKernels::soften`].
#[inline(always)]
pub(super) unsafe fn soften<V: Dots>(logits: &mut [[f32; LANES]], running: &mut Running) -> f32 {
    // SAFETY: the caller's.
    unsafe {
        let highest = highest::<V>(logits);
        let peak = if highest > running.peak { highest } else { running.peak };
        if peak == f32::NEG_INFINITY {
            logits.iter_mut().for_each(|logits| *logits = [0.0; LANES]);
            return 1.0;
        }
        let mut sum = V::Floats::splat(0.0);
        for logits in logits.iter_mut() {
            let weight = weight(V::Floats::load(logits), peak);
            weight.store(logits);
            sum = sum.add(weight);
        }
        raise::<V>(running, peak, sum)
    }
}

#[inline(always)]
unsafe fn highest<V: Dots>(logits: &[[f32; LANES]]) -> f32 {
    // SAFETY: the caller's.
    unsafe {
        let mut highest = V::Floats::splat(f32::NEG_INFINITY);
        for logits in logits {
            highest = V::Floats::load(logits).max(highest);
        }
        V::highest(highest)
    }
}

/// Adds weights below a peak that is not below the earlier one. Returns the factor of earlier sums.
#[inline(always)]
unsafe fn raise<V: Dots>(running: &mut Running, peak: f32, weights: V::Floats) -> f32 {
    // SAFETY: the caller's.
    unsafe {
        let factor = if peak > running.peak {
            let mut factor = [0.0; LANES];
            weight(V::Floats::splat(running.peak), peak).store(&mut factor);
            factor[0]
        } else {
            1.0
        };
        *running = Running { peak, sum: running.sum * factor + weights.sum(), skipped: running.skipped * factor };
        factor
    }
}

/// `2^r - 1` for r from -1/2 to 1/2, divided by r, from its highest power of r on.
const POWERS: [f32; 4] = [0.009_582_853, 0.055_906_426, 0.240_240_99, 0.693_124_2];

/// `exp(logit - peak)` for logits up to the peak with a relative error below 2^-18; 0 below [`LEAST_EXPONENT`], and NaN where
/// the logit or the peak is NaN or infinite, but for a logit of -inf.
#[inline(always)]
unsafe fn weight<V: Sixteen>(logit: V, peak: f32) -> V {
    // SAFETY: the caller's.
    unsafe {
        let (x, least) = (logit.add(V::splat(-peak)), V::splat(LEAST_EXPONENT));
        let twos = least.max(x).mul(V::splat(std::f32::consts::LOG2_E));
        let shifted = twos.add(V::splat(ROUNDING));
        let r = twos.add(shifted.add(V::splat(-ROUNDING)).mul(V::splat(-1.0)));
        let mut series = V::splat(POWERS[0]);
        for c in &POWERS[1..] {
            series = series.mul(r).add(V::splat(*c));
        }
        x.unless_less(least, series.mul(r).add(V::splat(1.0)).add_exponent(shifted))
    }
}

/// See [`AttendKernels::values`].
#[inline(always)]
pub(super) unsafe fn values<V: Dots>(
    block: &HeadBlock,
    logits: &mut [[f32; BLOCK]],
    running: &mut [Running],
    sums: &mut [f32],
    scratch: &mut Scratch,
) {
    let weights = &mut scratch.weights;
    // SAFETY: the caller's.
    unsafe {
        match logits.len() {
            0 => {}
            1 => values_of::<V, 1>(block, logits, running, sums, weights),
            2 => values_of::<V, 2>(block, logits, running, sums, weights),
            3 => values_of::<V, 3>(block, logits, running, sums, weights),
            _ => values_of::<V, QUERIES>(block, logits, running, sums, weights),
        }
    }
}

#[inline(always)]
unsafe fn values_of<V: Dots, const N: usize>(
    block: &HeadBlock,
    logits: &mut [[f32; BLOCK]],
    running: &mut [Running],
    sums: &mut [f32],
    weights: &mut [[[i8; BLOCK]; 2]; QUERIES],
) {
    let len = sums_len(block.dims);
    assert!(logits.len() == N && running.len() == N && sums.len() == N * len);
    let ahead = &mut &block.next[block.next.len() / 2..];
    fetch(ahead, 8);
    // SAFETY: the caller's.
    unsafe {
        let (mut peaks, mut is_negligible) = ([0.0f32; N], true);
        for n in 0..N {
            let highest = highest::<V>(logits[n].as_chunks().0);
            is_negligible &= highest < running[n].peak - NEGLIGIBLE;
            peaks[n] = if highest > running[n].peak { highest } else { running[n].peak };
        }
        let (mut totals, mut most) = ([V::Floats::splat(0.0); N], [V::Floats::splat(0.0); N]);
        for panel in 0..BLOCK / LANES {
            fetch(ahead, 2);
            // Rows side by side, which do not wait for each other.
            for n in 0..N {
                let logits = &mut logits[n].as_chunks_mut::<LANES>().0[panel];
                // A finite peak, so that the difference is not NaN where all logits are -inf.
                let weight = weight(V::Floats::load(logits), peaks[n].max(f32::MIN));
                weight.store(logits);
                totals[n] = totals[n].add(weight);
                most[n] = weight.max(most[n]);
            }
        }
        let mut is_fine = false;
        for n in 0..N {
            if peaks[n] == f32::NEG_INFINITY {
                continue;
            }
            let factor = raise::<V>(&mut running[n], peaks[n], totals[n]);
            is_fine |= V::highest(most[n]) * FINE > running[n].sum;
            if factor != 1.0 {
                let factor = V::Floats::splat(factor);
                for sums in sums[n * len..(n + 1) * len].as_chunks_mut::<LANES>().0 {
                    V::Floats::load(sums).mul(factor).store(sums);
                }
            }
        }
        match (is_negligible && may_skip::<V, N>(&totals, running), is_fine) {
            (true, _) => fetch(ahead, ahead.len()),
            (false, is_fine) if !V::ABREAST => {
                for (logits, sums) in logits.chunks(1).zip(sums.chunks_mut(len)) {
                    if is_fine {
                        add_values::<V, 1, 2>(block, logits, sums, weights, ahead);
                    } else {
                        add_values::<V, 1, 1>(block, logits, sums, weights, ahead);
                    }
                }
            }
            (false, false) => add_values::<V, N, 1>(block, logits, sums, weights, ahead),
            (false, true) => add_values::<V, N, 2>(block, logits, sums, weights, ahead),
        }
    }
}

/// Whether the V of a block with these weights need not be read, which is taken note of then.
#[inline(always)]
unsafe fn may_skip<V: Dots, const N: usize>(totals: &[V::Floats; N], running: &mut [Running]) -> bool {
    let mut skipped = [0.0; N];
    for n in 0..N {
        // SAFETY: the caller's.
        skipped[n] = running[n].skipped + unsafe { totals[n].sum() };
        if skipped[n] > running[n].sum * MOST_SKIPPED {
            return false;
        }
    }
    running.iter_mut().zip(skipped).for_each(|(running, skipped)| running.skipped = skipped);
    true
}

/// Adds V weighted by codes of `PARTS` times 7 bits.
#[inline(always)]
unsafe fn add_values<V: Dots, const N: usize, const PARTS: usize>(
    block: &HeadBlock,
    exps: &[[f32; BLOCK]],
    sums: &mut [f32],
    weights: &mut [[[i8; BLOCK]; 2]; QUERIES],
    ahead: &mut &[Line],
) {
    const QUADS: usize = BLOCK / 4;
    let (len, groups) = (sums_len(block.dims), block.dims.div_ceil(VALUE_GROUP));
    assert!(exps.len() == N && sums.len() == N * len && block.values.len() == groups * QUADS);
    let scales = block.value_scales.iter().zip(block.value_mids);
    for (group, (lines, (scales, mids))) in block.values.as_chunks::<QUADS>().0.iter().zip(scales).enumerate() {
        let middles = groups * VALUE_GROUP + group * LANES;
        fetch(ahead, 4);
        // SAFETY: the caller's.
        let units = unsafe { weight_codes::<V, N, PARTS>(exps, scales, mids, &mut sums[middles..], len, weights) };
        // SAFETY: the caller's.
        unsafe {
            let mut totals = [[[V::zero(); 2]; PARTS]; N];
            for (at, line) in lines.iter().enumerate() {
                fetch(ahead, 1);
                let halves = V::nibbles(line);
                for (totals, weights) in totals.iter_mut().zip(&*weights) {
                    for (totals, weights) in totals.iter_mut().zip(weights) {
                        let four = together(weights.as_chunks::<4>().0[at]);
                        totals[0] = V::add_values(totals[0], halves[0], four);
                        totals[1] = V::add_values(totals[1], halves[1], four);
                    }
                }
            }
            for (n, parts) in totals.into_iter().enumerate() {
                let to = sums[n * len + group * VALUE_GROUP..].as_chunks_mut::<LANES>().0;
                for (half, to) in to.iter_mut().take(2).enumerate() {
                    let mut total = parts[0][half];
                    for low in &parts[1..] {
                        total = V::join::<7>(total, low[half]);
                    }
                    V::Floats::load(to).add(V::floats(total).mul(V::Floats::splat(units[n]))).store(to);
                }
            }
        }
    }
}

/// The codes of weights times the scales of a group, in `PARTS` times 7 bits of their largest; adds weights times middles
/// to `middles`, `len` apart. Returns the unit of the products with codes of V times 16.
#[inline(always)]
unsafe fn weight_codes<V: Dots, const N: usize, const PARTS: usize>(
    exps: &[[f32; BLOCK]],
    scales: &[Shorts; BLOCK / LANES],
    mids: &[Shorts; BLOCK / LANES],
    middles: &mut [f32],
    len: usize,
    codes: &mut [[[i8; BLOCK]; 2]; QUERIES],
) -> [f32; N] {
    let most = if PARTS == 1 { MOST_COARSE } else { MOST_WEIGHT };
    // SAFETY: the caller's.
    unsafe {
        let mut products = [[V::Floats::splat(0.0); BLOCK / LANES]; N];
        let (mut sums, mut peaks) = ([V::Floats::splat(0.0); N], [V::Floats::splat(0.0); N]);
        for (at, (scale, mid)) in scales.iter().zip(mids).enumerate() {
            let (scale, mid) = (V::widen(scale), V::widen(mid));
            for n in 0..N {
                let exps = V::Floats::load(&exps[n].as_chunks::<LANES>().0[at]);
                products[n][at] = exps.mul(scale);
                peaks[n] = products[n][at].max(peaks[n]);
                sums[n] = sums[n].add(exps.mul(mid));
            }
        }
        let mut units = [0.0; N];
        for n in 0..N {
            let to = middles[n * len..].first_chunk_mut().expect("whole lanes");
            V::Floats::load(to).add(sums[n]).store(to);
            let peak = V::highest(peaks[n]);
            let factor = V::Floats::splat(if peak > LEAST_WEIGHT { most / peak } else { 0.0 });
            let [high, low] = &mut codes[n];
            let parts = high.as_chunks_mut::<LANES>().0.iter_mut().zip(low.as_chunks_mut::<LANES>().0);
            for ((high, low), product) in parts.zip(products[n]) {
                let code = V::nearest(product.mul(factor));
                if PARTS == 1 {
                    V::bytes(code, high);
                } else {
                    V::split::<7, 0>(code, high, low);
                }
            }
            units[n] = peak * (1.0 / (16.0 * most));
        }
        units
    }
}
