//! K in 2, 4 or 6 bits by channel, and V in 4 bits behind a rotation: k4v4 (docs/format.md).
//!
//! Codes of four channels lie together, a line of 64 bytes for each two bits. They are unsigned, with the middle of the range
//! in the middle: a code of `b` bits counts from `2^(b - 1)`.

use super::encode::{LEAST_ERROR, VALUE_CODES, ValueScales, inverse, middle_and_scale};
use super::{BLOCK, Dots, LANES, Line, MOST_DIMS, VALUE_GROUP};
use crate::arch::estimates::Sixteen;

/// Bits of a channel, the greatest first, which is the order of codes.
pub const WIDTHS: [u32; 3] = [6, 4, 2];
/// Panels of 16 tokens of a block.
const PANELS: usize = BLOCK / LANES;

/// The bits of a channel among the widths of a head, 2 bits each: 0 has 2, 1 has 4, 2 has 6. `None`: 3 is no width.
pub fn width(widths: &[u8], channel: usize) -> Option<u32> {
    let class = widths[channel / 4] >> (2 * (channel % 4)) & 3;
    (class < 3).then_some(2 * u32::from(class) + 2)
}

/// The channels in the order of their codes: by width, then by number.
pub fn order(widths: &[u8]) -> impl Iterator<Item = usize> {
    WIDTHS.into_iter().flat_map(move |bits| (0..4 * widths.len()).filter(move |d| width(widths, *d) == Some(bits)))
}

/// How many channels have each of the [`WIDTHS`], over four.
#[inline(always)]
pub fn quads(widths: &[u8]) -> [usize; 3] {
    const LOW: u64 = 0x5555_5555_5555_5555;
    let (mut sixes, mut fours) = (0, 0);
    for some in widths.chunks(size_of::<u64>()) {
        let mut bytes = [0; size_of::<u64>()];
        bytes[..some.len()].copy_from_slice(some);
        let all = u64::from_le_bytes(bytes);
        let (low, high) = (all & LOW, all >> 1 & LOW);
        sixes += (high & !low).count_ones() as usize;
        fours += (low & !high).count_ones() as usize;
    }
    [sixes / 4, fours / 4, widths.len() - (sixes + fours) / 4]
}

/// The bits of four channels, of which so many are in 6 and 4 bits.
#[inline(always)]
pub fn bits_of([sixes, fours]: [usize; 2], quad: usize) -> u32 {
    WIDTHS[usize::from(quad >= sixes) + usize::from(quad >= sixes + fours)]
}

/// The lines of so many fours of channels.
#[inline(always)]
pub fn lines_of([sixes, fours, twos]: [usize; 3]) -> usize {
    3 * sixes + 2 * fours + twos
}

/// The lines of codes of such widths; `None` where a channel has none, or there is no multiple of 4 of each.
pub fn lines(widths: &[u8]) -> Option<usize> {
    let all = 0..4 * widths.len();
    let counts = WIDTHS.map(|bits| all.clone().filter(|d| width(widths, *d) == Some(bits)).count());
    let are_right = counts.iter().sum::<usize>() == all.len() && counts.iter().all(|count| count % 4 == 0);
    are_right.then(|| lines_of(quads(widths)))
}

/// What codes of K are made by, channels in the order of their codes.
pub struct KeyBits<'a> {
    /// The channels.
    pub order: &'a [u16],
    /// Of each the middle.
    pub mids: &'a [f32],
    /// And the inverse of its scale.
    pub inverses: &'a [f32],
    /// How many channels have each of the [`WIDTHS`], over four.
    pub quads: [usize; 3],
}

/// The codes of four channels in 6 bits: two lines as below, and the upper two bits.
///
/// # Safety
/// As [`Dots`], here and below.
#[inline(always)]
pub(super) unsafe fn six<V: Dots>(lines: &[Line; 3]) -> [V::Bytes; PANELS] {
    // SAFETY: the caller's.
    unsafe {
        let ([a, b, c, d], [e, f, g, h]) = (four::<V>(&[lines[0], lines[1]]), two::<V>(&lines[2]));
        [V::above(e, a), V::above(f, b), V::above(g, c), V::above(h, d)]
    }
}

/// In 4 bits: a line has two panels.
#[inline(always)]
pub(super) unsafe fn four<V: Dots>(lines: &[Line; 2]) -> [V::Bytes; PANELS] {
    // SAFETY: the caller's.
    unsafe {
        let (a, b) = (V::raw(&lines[0]), V::raw(&lines[1]));
        [V::part::<0>(a, 15), V::part::<4>(a, 15), V::part::<0>(b, 15), V::part::<4>(b, 15)]
    }
}

/// In 2 bits: a line has all of them.
#[inline(always)]
pub(super) unsafe fn two<V: Dots>(line: &Line) -> [V::Bytes; PANELS] {
    // SAFETY: the caller's.
    unsafe {
        let a = V::raw(line);
        [V::part::<0>(a, 3), V::part::<2>(a, 3), V::part::<4>(a, 3), V::part::<6>(a, 3)]
    }
}

/// See [`super::AttendKernels::key_bits`].
#[inline(always)]
pub(in crate::arch) unsafe fn key_bits<V: Dots>(panels: &[[f32; LANES]], plan: &KeyBits, lines: &mut [Line]) {
    let dims = plan.order.len();
    let ([sixes, fours, _], order) = (plan.quads, plan.order.as_chunks::<4>().0);
    let channels = order.iter().zip(plan.mids.as_chunks::<4>().0).zip(plan.inverses.as_chunks::<4>().0);
    let mut lines = lines.iter_mut();
    for (at, ((channels, mids), inverses)) in channels.enumerate() {
        let bits = bits_of([sixes, fours], at);
        // SAFETY: the caller's.
        unsafe {
            // Lower four bits of codes, and those above.
            let (mut lower, mut upper) = ([V::zero(); PANELS], [V::zero(); PANELS]);
            // The first channel has the lowest byte.
            for i in (0..4).rev() {
                let (mid, inverse) = (V::Floats::splat(-mids[i]), V::Floats::splat(inverses[i]));
                let both = lower.iter_mut().zip(&mut upper);
                for ((lower, upper), panel) in both.zip(panels.chunks_exact(dims)) {
                    let code = V::nearest(V::Floats::load(&panel[channels[i] as usize]).add(mid).mul(inverse));
                    let code = V::add_all(code, 1 << (bits - 1));
                    *lower = V::join::<8>(*lower, V::field::<28, 28>(code));
                    *upper = V::join::<8>(*upper, V::field::<0, 4>(code));
                }
            }
            if bits == 2 {
                put::<V>(&mut lines, pairs::<V>(lower));
                continue;
            }
            let [a, b, c, d] = lower;
            put::<V>(&mut lines, V::join::<4>(b, a));
            put::<V>(&mut lines, V::join::<4>(d, c));
            if bits == 6 {
                put::<V>(&mut lines, pairs::<V>(upper));
            }
        }
    }
}

/// Two bits of each byte of four panels.
#[inline(always)]
unsafe fn pairs<V: Dots>([a, b, c, d]: [V::Ints; PANELS]) -> V::Ints {
    // SAFETY: the caller's.
    unsafe { V::join::<4>(V::join::<2>(d, c), V::join::<2>(b, a)) }
}

/// The next line.
#[inline(always)]
unsafe fn put<V: Dots>(lines: &mut std::slice::IterMut<'_, Line>, words: V::Ints) {
    if let Some(line) = lines.next() {
        // SAFETY: the caller's.
        unsafe { V::line(words, line) };
    }
}

/// The channels that are rotated together: the greatest power of two that divides all.
fn rotated(dims: usize) -> usize {
    1 << dims.trailing_zeros()
}

/// The logs of the divisors of a rotation and of its inverse, which make both together 1: powers of two, so that nothing rounds.
fn divisors(dims: usize) -> [u32; 2] {
    let log = dims.trailing_zeros();
    [log / 2, log - log / 2]
}

fn power(negative_log: u32) -> f32 {
    1.0 / (1u32 << negative_log) as f32
}

/// The numbers of a rotation back: sums and differences of pairs (the fast Walsh-Hadamard transform), over a power of two.
pub fn rotate_back(row: &mut [f32]) {
    let factor = power(divisors(row.len())[1]);
    let count = rotated(row.len());
    for row in row.chunks_exact_mut(count) {
        let mut half = 1;
        while half < count {
            for pair in row.chunks_exact_mut(2 * half) {
                let (a, b) = pair.split_at_mut(half);
                a.iter_mut().zip(b).for_each(|(a, b)| (*a, *b) = (*a + *b, *a - *b));
            }
            half *= 2;
        }
        row.iter_mut().for_each(|x| *x *= factor);
    }
}

/// The rotation of the channels of 16 tokens, before its division.
#[inline(always)]
unsafe fn rotate<V: Dots>(panel: &mut [[f32; LANES]]) {
    let count = rotated(panel.len());
    for columns in panel.chunks_exact_mut(count) {
        let mut half = 1;
        while half < count {
            for pair in columns.chunks_exact_mut(2 * half) {
                let (a, b) = pair.split_at_mut(half);
                for (a, b) in a.iter_mut().zip(b) {
                    // SAFETY: the caller's.
                    unsafe {
                        let (x, y) = (V::Floats::load(a), V::Floats::load(b));
                        x.add(y).store(a);
                        x.add(y.mul(V::Floats::splat(-1.0))).store(b);
                    }
                }
            }
            half *= 2;
        }
    }
}

/// The sum of how far the channels of a group are from the mean of their token, the least and the greatest aside, and a sum that is
/// not 0 where one is not finite.
#[inline(always)]
unsafe fn spread<V: Dots>(columns: &[[f32; LANES]]) -> (f32, f32) {
    // SAFETY: the caller's.
    unsafe {
        let (negative, least) = (V::Floats::splat(-1.0), V::Floats::splat(f32::NEG_INFINITY));
        let (mut high, mut negated_low, mut sum) = (least, least, V::Floats::splat(0.0));
        let mut zeros = V::Floats::splat(0.0);
        for column in columns {
            let x = V::Floats::load(column);
            high = x.max(high);
            negated_low = x.mul(negative).max(negated_low);
            sum = sum.add(x);
            zeros = zeros.add(x.mul(V::Floats::splat(0.0)));
        }
        let low = negated_low.mul(negative);
        let inner = sum.add(high.mul(negative)).add(negated_low);
        let mean = inner.mul(V::Floats::splat(-1.0 / (columns.len() - 2) as f32));
        let mut all = V::abs(high.add(mean)).add(V::abs(low.add(mean))).mul(negative);
        for column in columns {
            all = all.add(V::abs(V::Floats::load(column).add(mean)));
        }
        (all.sum(), zeros.sum())
    }
}

/// See [`super::AttendKernels::value_bits`].
#[inline(always)]
pub(in crate::arch) unsafe fn value_bits<V: Dots>(
    panels: &mut [[f32; LANES]],
    lines: &mut [Line],
    out: &mut ValueScales,
) -> bool {
    let dims = panels.len() / PANELS;
    let divisor = power(divisors(dims)[0]);
    let (mut spreads, mut noise, mut middles) = ([0.0f32; MOST_DIMS / VALUE_GROUP], 0.0, 0.0);
    for (panel, columns) in panels.chunks_exact_mut(dims).enumerate() {
        // SAFETY: the caller's.
        unsafe {
            for (group, all) in columns.chunks(VALUE_GROUP).zip(&mut spreads) {
                let (spread, zero) = spread::<V>(group);
                if zero != 0.0 {
                    return false;
                }
                *all += spread;
            }
            rotate::<V>(columns);
            let (negative, least) = (V::Floats::splat(-1.0), V::Floats::splat(f32::NEG_INFINITY));
            let (mut high, mut negated_low) = (least, least);
            for column in &*columns {
                let x = V::Floats::load(column);
                high = x.max(high);
                negated_low = x.mul(negative).max(negated_low);
            }
            let [mut highs, mut lows, mut mids, mut units, mut inverses] = [[0.0f32; LANES]; 5];
            high.mul(V::Floats::splat(divisor)).store(&mut highs);
            negated_low.mul(V::Floats::splat(-divisor)).store(&mut lows);
            for token in 0..LANES {
                let Some((mid, scale)) = middle_and_scale(lows[token], highs[token], VALUE_CODES) else { return false };
                let place = panel * LANES + token;
                (out.scales[place], out.mids[place]) = (scale.to_le_bytes(), mid.to_le_bytes());
                (mids[token], units[token]) = (-mid.to_f32(), -scale.to_f32());
                inverses[token] = inverse(scale);
                middles += mid.to_f32().abs();
            }
            let (mid, unit) = (V::Floats::load(&mids), V::Floats::load(&units));
            let (inverse, divisor) = (V::Floats::load(&inverses), V::Floats::splat(divisor));
            let mut error = V::Floats::splat(0.0);
            for (group, lines) in columns.chunks(VALUE_GROUP).zip(lines.chunks_exact_mut(BLOCK / 4)) {
                for pair in 0..LANES {
                    let mut halves = [V::zero(); 2];
                    for (half, codes) in halves.iter_mut().enumerate() {
                        if let Some(column) = group.get(half * LANES + pair) {
                            let x = V::Floats::load(column).mul(divisor);
                            *codes = V::nearest(x.add(mid).mul(inverse));
                            error = error.add(V::abs(V::floats(*codes).mul(unit).add(mid).add(x)));
                        }
                    }
                    // Both count from 8 here, less 128, so that they are a signed byte.
                    let mut bytes = [0; LANES];
                    V::bytes(V::join::<4>(halves[1], V::add_all(halves[0], 8)), &mut bytes);
                    let quads = lines[panel * LANES / 4..].iter_mut().zip(bytes.as_chunks::<4>().0);
                    for (line, four) in quads {
                        line.0.as_chunks_mut::<4>().0[pair] = four.map(|byte| byte as u8 ^ 8);
                    }
                }
            }
            noise += error.sum();
        }
    }
    // Of a number that is rotated back.
    let share = (divisor * divisor * rotated(dims) as f32).sqrt();
    let noise = (noise / dims as f32 - middles * LEAST_ERROR) / share;
    out.error = 0.0;
    for (at, spread) in spreads[..dims.div_ceil(VALUE_GROUP)].iter().enumerate() {
        let noise = noise * (dims - at * VALUE_GROUP).min(VALUE_GROUP) as f32;
        if noise > 0.0 {
            out.error = out.error.max(if *spread > 0.0 { noise / spread } else { f32::INFINITY });
        }
    }
    true
}
