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
pub mod lines;
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
pub(super) mod neon;

use super::estimates::{LANES, Shorts, Sixteen, exp};
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
/// Weights that are all below count as 0, so that their inverse is a number.
const LEAST_WEIGHT: f32 = 1e-30;
/// A block whose largest logit is this far below the largest so far has less than 2^-14 of the mass, and its V is not
/// read: 64 tokens, and ln(64 * 2^14) = 13.86.
pub const NEGLIGIBLE: f32 = 13.875;

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
    /// half of each byte, of the others in the upper half.
    pub values: &'a [Line],
    /// Scale of each group and token in f16, little endian.
    pub value_scales: &'a [[Shorts; BLOCK / LANES]],
    /// Minimum of each group and token.
    pub value_mins: &'a [[Shorts; BLOCK / LANES]],
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
}

impl Default for Running {
    fn default() -> Self {
        Running { peak: f32::NEG_INFINITY, sum: 0.0 }
    }
}

/// Working memory of the kernels.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Scratch {
    /// Upper and lower parts of query codes.
    query: [[[i8; MOST_DIMS]; 2]; QUERIES],
    scaled: [f32; MOST_DIMS],
    /// Upper and lower parts of weights.
    weights: [[[i8; BLOCK]; 2]; QUERIES],
}

impl Default for Scratch {
    fn default() -> Self {
        Scratch { query: [[[0; MOST_DIMS]; 2]; QUERIES], scaled: [0.0; MOST_DIMS], weights: [[[0; BLOCK]; 2]; QUERIES] }
    }
}

/// Floats of a query vector's sums of V: each channel's, to whole groups, and 16 for the minimum of each group, which
/// [`finish`] adds to the group's channels.
pub const fn sums_len(dims: usize) -> usize {
    dims.div_ceil(VALUE_GROUP) * (VALUE_GROUP + LANES)
}

/// Adds the minima to the channels of one query vector's sums; its first `dims` numbers are the weighted sum of V then.
pub fn finish(dims: usize, sums: &mut [f32]) {
    let (channels, minima) = sums.split_at_mut(dims.div_ceil(VALUE_GROUP) * VALUE_GROUP);
    for (channels, minima) in channels.chunks_exact_mut(VALUE_GROUP).zip(minima.as_chunks::<LANES>().0) {
        let minimum = super::sums::across(*minima);
        channels.iter_mut().for_each(|sum| *sum += minimum);
    }
}

/// See [`AttendKernels::logits`].
type Logits = fn(block: &HeadBlock, queries: &[&[f32]], logits: &mut [[f32; BLOCK]], scratch: &mut Scratch);
/// See [`AttendKernels::values`].
type Values = fn(&HeadBlock, logits: &mut [[f32; BLOCK]], &mut [Running], sums: &mut [f32], &mut Scratch);

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

    unsafe fn widen(from: &Shorts) -> Self::Floats;
    /// 16 i16, little endian.
    unsafe fn widen_ints(from: &Shorts) -> Self::Floats;
    unsafe fn abs(x: Self::Floats) -> Self::Floats;
    /// The largest lane.
    unsafe fn highest(x: Self::Floats) -> f32;
    unsafe fn keys(from: &Line) -> Self::Bytes;
    /// The lower and the upper halves of bytes.
    unsafe fn nibbles(from: &Line) -> [Self::Bytes; 2];
    unsafe fn zero() -> Self::Ints;
    /// Adds the products of a lane's four bytes with four signed ones, the bytes of `four` in memory; the magnitude of two products' sum is below 2^15.
    unsafe fn add_dot(sums: Self::Ints, bytes: Self::Bytes, four: i32) -> Self::Ints;
    /// `high * 2^SHIFT + low`.
    unsafe fn join<const SHIFT: i32>(high: Self::Ints, low: Self::Ints) -> Self::Ints;
    unsafe fn add_all(sums: Self::Ints, addend: i32) -> Self::Ints;
    /// The sum of lanes.
    unsafe fn total(ints: Self::Ints) -> i32;
    unsafe fn floats(ints: Self::Ints) -> Self::Floats;
    /// The nearest integers, halves to even; they fit.
    unsafe fn nearest(x: Self::Floats) -> Self::Ints;
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

    #[inline(always)]
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
        let half =
            |shift: u32| std::array::from_fn(|i| std::array::from_fn(|j| i32::from(from.0[4 * i + j] >> shift & 15)));
        [half(0), half(4)]
    }
    #[inline(always)]
    unsafe fn zero() -> Self::Ints {
        [0; LANES]
    }
    #[inline(always)]
    unsafe fn add_dot(sums: Self::Ints, bytes: Self::Bytes, four: i32) -> Self::Ints {
        let four = four.to_ne_bytes();
        std::array::from_fn(|i| sums[i] + (0..4).map(|j| bytes[i][j] * i32::from(four[j] as i8)).sum::<i32>())
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
    fn logits_of(block: &HeadBlock, queries: &[&[f32]], out: &mut [[f32; BLOCK]], scratch: &mut Scratch) {
        // SAFETY: arrays need no CPU features, here and below.
        unsafe { logits::<Plain>(block, queries, out, scratch) }
    }
    fn values_of(
        block: &HeadBlock,
        logits: &mut [[f32; BLOCK]],
        running: &mut [Running],
        sums: &mut [f32],
        scratch: &mut Scratch,
    ) {
        // SAFETY: see above.
        unsafe { values::<Plain>(block, logits, running, sums, scratch) }
    }
    fn soften_of(logits: &mut [[f32; LANES]], running: &mut Running) -> f32 {
        // SAFETY: see above.
        unsafe { soften::<Plain>(logits, running) }
    }
    AttendKernels { logits: logits_of, values: values_of, soften: soften_of }
};

/// Four codes as one integer.
#[inline(always)]
fn together(four: [i8; 4]) -> i32 {
    i32::from_ne_bytes([four[0] as u8, four[1] as u8, four[2] as u8, four[3] as u8])
}

#[inline(always)]
fn prefetch_line(line: Option<&Line>) {
    if let Some(line) = line {
        super::prefetch(&line.0);
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
            0 => {}
            1 => logits_of::<V, 1>(block, queries, logits, scratch),
            2 => logits_of::<V, 2>(block, queries, logits, scratch),
            3 => logits_of::<V, 3>(block, queries, logits, scratch),
            _ => logits_of::<V, QUERIES>(block, queries, logits, scratch),
        }
    }
}

#[inline(always)]
unsafe fn logits_of<V: Dots, const N: usize>(
    block: &HeadBlock,
    queries: &[&[f32]],
    logits: &mut [[f32; BLOCK]],
    scratch: &mut Scratch,
) {
    let panels = block.dims / 4;
    assert!(queries.len() == N && logits.len() == N && block.keys.len() == BLOCK / LANES * panels);
    let (mut units, mut bases, mut zeros) = ([0.0f32; N], [0.0f32; N], [0i32; N]);
    for (n, query) in queries.iter().enumerate() {
        // SAFETY: the caller's.
        let codes = unsafe { query_codes::<V>(block, query, &mut scratch.scaled, &mut scratch.query[n]) };
        (units[n], bases[n], zeros[n]) = codes;
    }
    let codes: [[&[[i8; 4]]; 2]; N] =
        std::array::from_fn(|n| [0, 1].map(|part| &scratch.query[n][part].as_chunks::<4>().0[..panels]));
    let mut next = block.next.iter();
    for (tokens, keys) in block.keys.chunks_exact(panels).enumerate() {
        // SAFETY: the caller's.
        unsafe {
            let mut sums = [[V::zero(); 2]; N];
            for (at, line) in keys.iter().enumerate() {
                prefetch_line(next.next());
                let bytes = V::keys(line);
                for (sums, codes) in sums.iter_mut().zip(&codes) {
                    sums[0] = V::add_dot(sums[0], bytes, together(codes[0][at]));
                    sums[1] = V::add_dot(sums[1], bytes, together(codes[1][at]));
                }
            }
            for (n, [high, low]) in sums.into_iter().enumerate() {
                let sum = V::floats(V::add_all(V::join::<6>(high, low), -V::KEY_BIAS * zeros[n]));
                let mut logit = sum.mul(V::Floats::splat(units[n])).add(V::Floats::splat(bases[n]));
                for wide in block.wide {
                    let channel = usize::from(u16::from_le_bytes(wide.channel));
                    let factor = queries[n][channel] * f16::from_le_bytes(wide.scale).to_f32();
                    logit = logit.add(V::widen_ints(&wide.codes[tokens]).mul(V::Floats::splat(factor)));
                }
                logit.store(logits[n][tokens * LANES..].first_chunk_mut().expect("whole lanes"));
            }
        }
    }
}

/// The codes of a query vector against a block: products with the scales of channels, in 13 bits of their largest.
/// Returns the unit of the codes, the logit of the middles, and the sum of codes.
#[inline(always)]
unsafe fn query_codes<V: Dots>(
    block: &HeadBlock,
    query: &[f32],
    scaled: &mut [f32; MOST_DIMS],
    codes: &mut [[i8; MOST_DIMS]; 2],
) -> (f32, f32, i32) {
    // SAFETY: the caller's.
    unsafe {
        let (mut peak, mut base) = (V::Floats::splat(0.0), V::Floats::splat(0.0));
        let query = query.as_chunks::<LANES>().0;
        let rows = query.iter().zip(block.key_scales).zip(block.key_mids);
        for (((query, scale), mid), scaled) in rows.zip(scaled.as_chunks_mut::<LANES>().0) {
            let query = V::Floats::load(query);
            let product = query.mul(V::widen(scale));
            product.store(scaled);
            peak = V::abs(product).max(peak);
            base = base.add(query.mul(V::widen(mid)));
        }
        let peak = V::highest(peak);
        let factor = if peak > 0.0 { MOST_QUERY / peak } else { 0.0 };
        // Of denormal products, too, the codes must fit.
        let factor = V::Floats::splat(if factor.is_finite() { factor } else { 0.0 });
        let mut sum = V::zero();
        let [high, low] = codes;
        let parts = high.as_chunks_mut::<LANES>().0.iter_mut().zip(low.as_chunks_mut::<LANES>().0);
        for ((high, low), scaled) in parts.zip(&scaled.as_chunks::<LANES>().0[..query.len()]) {
            let code = V::nearest(V::Floats::load(scaled).mul(factor));
            sum = V::join::<0>(sum, code);
            V::split::<6, 32>(code, high, low);
        }
        (peak / MOST_QUERY, base.sum(), V::total(sum))
    }
}

/// See [`AttendKernels::soften`].
#[inline(always)]
pub(super) unsafe fn soften<V: Dots>(logits: &mut [[f32; LANES]], running: &mut Running) -> f32 {
    // SAFETY: the caller's.
    unsafe {
        let highest = highest::<V>(logits);
        soften_below::<V>(logits, highest, running)
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

/// Softens logits of which the largest is known.
#[inline(always)]
unsafe fn soften_below<V: Dots>(logits: &mut [[f32; LANES]], highest: f32, running: &mut Running) -> f32 {
    let peak = if highest > running.peak { highest } else { running.peak };
    if peak == f32::NEG_INFINITY {
        logits.iter_mut().for_each(|logits| *logits = [0.0; LANES]);
        return 1.0;
    }
    // SAFETY: the caller's.
    unsafe {
        let below = V::Floats::splat(-peak);
        let mut sum = V::Floats::splat(0.0);
        for logits in logits.iter_mut() {
            let weight = exp(V::Floats::load(logits).add(below));
            weight.store(logits);
            sum = sum.add(weight);
        }
        let factor = if peak > running.peak {
            let mut factor = [0.0; LANES];
            exp(V::Floats::splat(running.peak - peak)).store(&mut factor);
            factor[0]
        } else {
            1.0
        };
        *running = Running { peak, sum: running.sum * factor + sum.sum() };
        factor
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
    let len = sums_len(block.dims);
    assert!(sums.len() == len * logits.len() && running.len() == logits.len());
    let mut negligible = true;
    // SAFETY: the caller's.
    unsafe {
        for ((logits, running), sums) in logits.iter_mut().zip(running).zip(sums.chunks_exact_mut(len)) {
            let logits = logits.as_chunks_mut::<LANES>().0;
            let highest = highest::<V>(logits);
            negligible &= highest < running.peak - NEGLIGIBLE;
            let factor = soften_below::<V>(logits, highest, running);
            if factor != 1.0 {
                let factor = V::Floats::splat(factor);
                for sums in sums.as_chunks_mut::<LANES>().0 {
                    V::Floats::load(sums).mul(factor).store(sums);
                }
            }
        }
        if negligible {
            return;
        }
        match logits.len() {
            0 => {}
            1 => values_of::<V, 1>(block, logits, sums, &mut scratch.weights),
            2 => values_of::<V, 2>(block, logits, sums, &mut scratch.weights),
            3 => values_of::<V, 3>(block, logits, sums, &mut scratch.weights),
            _ => values_of::<V, QUERIES>(block, logits, sums, &mut scratch.weights),
        }
    }
}

#[inline(always)]
unsafe fn values_of<V: Dots, const N: usize>(
    block: &HeadBlock,
    exps: &[[f32; BLOCK]],
    sums: &mut [f32],
    weights: &mut [[[i8; BLOCK]; 2]; QUERIES],
) {
    const QUADS: usize = BLOCK / 4;
    let (len, groups) = (sums_len(block.dims), block.dims.div_ceil(VALUE_GROUP));
    assert!(exps.len() == N && block.values.len() == groups * QUADS);
    let scales = block.value_scales.iter().zip(block.value_mins);
    // Its keys are on their way.
    let mut next = block.next.iter().skip(block.dims);
    for (group, (lines, (scales, mins))) in block.values.chunks_exact(QUADS).zip(scales).enumerate() {
        let mut units = [0.0f32; N];
        for n in 0..N {
            let minima = &mut sums[n * len + groups * VALUE_GROUP..].as_chunks_mut::<LANES>().0[group];
            // SAFETY: the caller's.
            units[n] = unsafe { weight_codes::<V>(&exps[n], scales, mins, minima, &mut weights[n]) };
        }
        let codes: [[&[[i8; 4]]; 2]; N] =
            std::array::from_fn(|n| [0, 1].map(|part| weights[n][part].as_chunks::<4>().0));
        // SAFETY: the caller's.
        unsafe {
            let mut totals = [[[V::zero(); 2]; 2]; N];
            for (at, line) in lines.iter().enumerate() {
                prefetch_line(next.next());
                prefetch_line(next.next());
                let halves = V::nibbles(line);
                for (totals, codes) in totals.iter_mut().zip(&codes) {
                    for (totals, bytes) in totals.iter_mut().zip(halves) {
                        totals[0] = V::add_dot(totals[0], bytes, together(codes[0][at]));
                        totals[1] = V::add_dot(totals[1], bytes, together(codes[1][at]));
                    }
                }
            }
            for (n, halves) in totals.into_iter().enumerate() {
                let to = sums[n * len + group * VALUE_GROUP..].as_chunks_mut::<LANES>().0;
                for ([high, low], to) in halves.into_iter().zip(to) {
                    let sum = V::floats(V::join::<7>(high, low)).mul(V::Floats::splat(units[n]));
                    V::Floats::load(to).add(sum).store(to);
                }
            }
        }
    }
}

/// The codes of weights times the scales of a group, in 14 bits of their largest; adds weights times minima to `minima`.
/// Returns the unit of the codes.
#[inline(always)]
unsafe fn weight_codes<V: Dots>(
    exps: &[f32; BLOCK],
    scales: &[Shorts; BLOCK / LANES],
    mins: &[Shorts; BLOCK / LANES],
    minima: &mut [f32; LANES],
    codes: &mut [[i8; BLOCK]; 2],
) -> f32 {
    // SAFETY: the caller's.
    unsafe {
        let (mut sum, mut peak) = (V::Floats::load(minima), V::Floats::splat(0.0));
        let mut products = [V::Floats::splat(0.0); BLOCK / LANES];
        for (i, exps) in exps.as_chunks::<LANES>().0.iter().enumerate() {
            let exps = V::Floats::load(exps);
            products[i] = exps.mul(V::widen(&scales[i]));
            peak = products[i].max(peak);
            sum = sum.add(exps.mul(V::widen(&mins[i])));
        }
        sum.store(minima);
        let peak = V::highest(peak);
        let factor = V::Floats::splat(if peak > LEAST_WEIGHT { MOST_WEIGHT / peak } else { 0.0 });
        let [high, low] = codes;
        let parts = high.as_chunks_mut::<LANES>().0.iter_mut().zip(low.as_chunks_mut::<LANES>().0);
        for ((high, low), product) in parts.zip(products) {
            V::split::<7, 0>(V::nearest(product.mul(factor)), high, low);
        }
        peak / MOST_WEIGHT
    }
}
