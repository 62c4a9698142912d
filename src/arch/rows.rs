//! Rows of words as numbers, turned and compared: the kernels of gear's predictions between rows.
//!
//! Loops that compilers vectorise; a level compiles them for its instructions. Every operation is one of IEEE 754, in a
//! fixed order and without library functions, so results are the same to the bit at every level.

use super::words::{Real, Word};

/// Numbers of a row's sketch.
pub const SKETCH: usize = 8;
/// Sketches that are compared at once.
pub const ABREAST: usize = 16;
/// Sketches side by side, first numbers first. A free place has numbers of 255.
pub type SketchBlock = [[u8; ABREAST]; SKETCH];

/// See [`RowKernels::turn`].
type Turn<R> = fn(back: bool, a: &mut [R], b: &mut [R], cos: &[R], sin: &[R]);

/// The kernels for rows of one type of words; `R` is the type to compute with. Rows of a call are equally long.
pub struct RowKernels<R: 'static> {
    /// Words to numbers.
    pub read: fn(words: &[u8], row: &mut [R]),
    /// Numbers to the nearest words.
    pub nearest: fn(row: &[R], words: &mut [u8]),
    /// Whether arithmetic on all words stays clear of denormals and infinities.
    pub are_moderate: fn(words: &[u8]) -> bool,
    /// Writes the steps from the words of `from` to those of `words`; returns their sum.
    pub steps: fn(words: &[u8], from: &[u8], steps: &mut [u8]) -> u64,
    /// Replaces steps by the words that they lead to.
    pub walk: fn(from: &[u8], steps: &mut [u8]),
    /// Writes cosines and sines of the angles of a position, one for each of the frequencies, which are 0 to 1e6;
    /// those below [`LEAST_FREQUENCY`] are taken for 0. An angle is rounded to f32, as hosts do.
    pub turns: fn(position: u32, frequencies: &[f32], cos: &mut [R], sin: &mut [R]),
    /// Turns the pairs `(a[i], b[i])` by their angles, or back.
    pub turn: Turn<R>,
    /// Sums of every eighth number, with alternating signs.
    pub sums: fn(row: &[R]) -> [f32; SKETCH],
    /// The sum of magnitudes.
    pub size: fn(row: &[R]) -> f32,
    /// The sum of absolute differences.
    pub distance: fn(a: &[R], b: &[R]) -> f32,
}

impl<R> Clone for RowKernels<R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for RowKernels<R> {}

/// The version of every CPU.
pub(super) const fn portable<W: Word>() -> RowKernels<W::Real> {
    RowKernels {
        read: read::<W>,
        nearest: nearest::<W>,
        are_moderate: are_moderate::<W>,
        steps: steps::<W>,
        walk: walk::<W>,
        turns,
        turn,
        sums,
        size,
        distance,
    }
}

#[inline(always)]
pub(super) fn read<W: Word>(words: &[u8], row: &mut [W::Real]) {
    row.iter_mut().zip(words.chunks_exact(W::BYTES)).for_each(|(r, word)| *r = W::real(W::bits(word)));
}

#[inline(always)]
pub(super) fn nearest<W: Word>(row: &[W::Real], words: &mut [u8]) {
    words.chunks_exact_mut(W::BYTES).zip(row).for_each(|(word, r)| put::<W>(word, W::nearest(*r)));
}

#[inline(always)]
fn put<W: Word>(word: &mut [u8], bits: u32) {
    word.copy_from_slice(&bits.to_le_bytes()[..W::BYTES]);
}

#[inline(always)]
pub(super) fn are_moderate<W: Word>(words: &[u8]) -> bool {
    // All words are looked at, without a branch.
    words.chunks_exact(W::BYTES).fold(true, |all, word| all & W::is_moderate(W::bits(word)))
}

#[inline(always)]
pub(super) fn steps<W: Word>(words: &[u8], from: &[u8], steps: &mut [u8]) -> u64 {
    /// Words whose steps are added in 32 bits.
    const RUN: usize = 1 << 10;
    let mut sum = 0;
    let run = RUN * W::BYTES;
    for ((words, from), steps) in words.chunks(run).zip(from.chunks(run)).zip(steps.chunks_mut(run)) {
        // Steps of four bytes are added in parts.
        let (mut low, mut high) = (0u32, 0u32);
        let pairs = words.chunks_exact(W::BYTES).zip(from.chunks_exact(W::BYTES));
        for ((word, from), out) in pairs.zip(steps.chunks_exact_mut(W::BYTES)) {
            let steps = W::steps(W::bits(word), W::bits(from));
            low += steps & 0xFFFF;
            high += steps >> 16;
            put::<W>(out, steps);
        }
        sum += ((high as u64) << 16) + low as u64;
    }
    sum
}

#[inline(always)]
pub(super) fn walk<W: Word>(from: &[u8], steps: &mut [u8]) {
    for (word, from) in steps.chunks_exact_mut(W::BYTES).zip(from.chunks_exact(W::BYTES)) {
        let bits = W::walk(W::bits(word), W::bits(from));
        put::<W>(word, bits);
    }
}

/// Frequencies below this are taken for 0.
pub const LEAST_FREQUENCY: f32 = 1.0 / 1e6 / 1e6;

#[inline(always)]
pub(super) fn turns<R: Real>(position: u32, frequencies: &[f32], cos: &mut [R], sin: &mut [R]) {
    for ((f, cos), sin) in frequencies.iter().zip(cos).zip(sin) {
        let (c, s) = turn_of(position, if *f < LEAST_FREQUENCY { 0.0 } else { *f });
        (*cos, *sin) = (R::from_f64(c), R::from_f64(s));
    }
}

/// Cosine and sine of the angle at `position` for an angle of `frequency` per position.
#[inline(always)]
fn turn_of(position: u32, frequency: f32) -> (f64, f64) {
    let angle = position as f32 * frequency;
    // Pi / 2 in three parts, the first two short enough that their products are exact.
    const HALF_PI: [f64; 3] = [1.570796325802803, 9.920935791635221e-10, 5.170182981794105e-19];
    // Numbers from here to 2^53 are whole, and the lowest bits of their mantissa those of the number.
    const WHOLE: f64 = (1u64 << 52) as f64;
    let x = angle as f64;
    // Rounded down: an angle is less than 2^52.
    let quarters = x * std::f64::consts::FRAC_2_PI + 0.5;
    let nearest = (quarters + WHOLE) - WHOLE;
    let q = if nearest > quarters { nearest - 1.0 } else { nearest };
    let quadrant = (q + WHOLE).to_bits();
    let r = ((x - q * HALF_PI[0]) - q * HALF_PI[1]) - q * HALF_PI[2];
    let (cos, sin) = near_zero(r);
    let (c, s) = if quadrant & 1 == 0 { (cos, sin) } else { (sin, cos) };
    // The cosine is negative in the second and third quadrant, the sine in the third and fourth.
    let sign = |bits: u64| bits << 62 & 1 << 63;
    (f64::from_bits(c.to_bits() ^ sign(quadrant + 1)), f64::from_bits(s.to_bits() ^ sign(quadrant)))
}

/// Cosine and sine between -pi / 4 and pi / 4, by their series. Divisions would take most of the time of a rotated row;
/// their inverses are constants.
#[inline(always)]
fn near_zero(x: f64) -> (f64, f64) {
    let z = x * x;
    let (mut cos, mut sin) = (1.0, 1.0);
    for n in [14.0, 12.0, 10.0, 8.0, 6.0, 4.0, 2.0] {
        cos = 1.0 - z * (1.0 / (n * (n - 1.0))) * cos;
        sin = 1.0 - z * (1.0 / (n * (n + 1.0))) * sin;
    }
    (cos, x * sin)
}

#[inline(always)]
pub(super) fn turn<R: Real>(back: bool, a: &mut [R], b: &mut [R], cos: &[R], sin: &[R]) {
    let all = a.iter_mut().zip(b).zip(cos.iter().zip(sin));
    if back {
        all.for_each(|((a, b), (cos, sin))| (*a, *b) = (*a * *cos + *b * *sin, *b * *cos - *a * *sin));
    } else {
        all.for_each(|((a, b), (cos, sin))| (*a, *b) = (*a * *cos - *b * *sin, *b * *cos + *a * *sin));
    }
}

#[inline(always)]
pub(super) fn sums<R: Real>(row: &[R]) -> [f32; SKETCH] {
    let mut sums = [0.0; SKETCH];
    let (parts, rest) = row.as_chunks::<SKETCH>();
    // With alternating signs the common part of all rows cancels out.
    let mut sign = 1.0;
    for part in parts {
        sums.iter_mut().zip(part).for_each(|(s, x)| *s += sign * x.to_f32());
        sign = -sign;
    }
    sums.iter_mut().zip(rest).for_each(|(s, x)| *s += sign * x.to_f32());
    sums
}

/// In eight partial sums.
#[inline(always)]
pub(super) fn size<R: Real>(row: &[R]) -> f32 {
    let mut sums = [0.0; 8];
    let (parts, rest) = row.as_chunks::<8>();
    for part in parts {
        for i in 0..8 {
            sums[i] += part[i].to_f32().abs();
        }
    }
    sums.iter().sum::<f32>() + rest.iter().map(|x| x.to_f32().abs()).sum::<f32>()
}

/// In eight partial sums.
#[inline(always)]
pub(super) fn distance<R: Real>(a: &[R], b: &[R]) -> f32 {
    let mut sums = [0.0; 8];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    for (a, b) in a.iter().zip(b) {
        for i in 0..8 {
            sums[i] += (a[i].to_f32() - b[i].to_f32()).abs();
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| (a.to_f32() - b.to_f32()).abs()).sum();
    sums.iter().sum::<f32>() + rest
}

/// See [`super::Kernels::closest`]. The closest of each place first, then the closest place: no branch for each block.
#[inline(always)]
pub(super) fn closest(blocks: &[SketchBlock], sketch: &[u8; SKETCH]) -> Option<usize> {
    /// A block is two vectors at most.
    const HALF: usize = SKETCH / 2 * ABREAST;
    assert!(blocks.len() <= 256, "numbers of blocks are bytes");
    let wanted: [[u8; HALF]; 2] =
        std::array::from_fn(|half| std::array::from_fn(|i| sketch[half * SKETCH / 2 + i / ABREAST]));
    let mut best = ([u8::MAX; ABREAST], [0u8; ABREAST]);
    for (number, block) in blocks.iter().enumerate() {
        let halves = block.as_flattened().as_chunks::<HALF>().0;
        // One of the two is 0.
        let difference = |half: usize, i: usize| {
            let (a, b): (u8, u8) = (halves[half][i], wanted[half][i]);
            a.saturating_sub(b) | b.saturating_sub(a)
        };
        let sums: [u8; HALF] = std::array::from_fn(|i| difference(0, i).saturating_add(difference(1, i)));
        let sums: [u8; HALF / 2] = std::array::from_fn(|i| sums[i].saturating_add(sums[i + HALF / 2]));
        let sums: [u8; ABREAST] = std::array::from_fn(|i| sums[i].saturating_add(sums[i + ABREAST]));
        for ((sum, least), at) in sums.iter().zip(&mut best.0).zip(&mut best.1) {
            *at = if sum < least { number as u8 } else { *at };
            *least = (*least).min(*sum);
        }
    }
    let key = |place: usize| (best.0[place] as u32) << 16 | (best.1[place] as u32 * ABREAST as u32 + place as u32);
    let least = (0..ABREAST).map(key).min().unwrap_or(u32::MAX);
    (least >> 16 < u8::MAX as u32).then_some((least & 0xFFFF) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_agree_with_the_libm_of_the_machine() {
        for position in [0, 1, 2, 3, 7, 100, 1087, 4095, 131_071, 1_000_000] {
            for i in 0..32 {
                let frequency = 1e4f32.powf(-i as f32 / 32.0);
                let angle = (position as f32 * frequency) as f64;
                let (cos, sin) = turn_of(position, frequency);
                assert!((cos - angle.cos()).abs() < 1e-11 && (sin - angle.sin()).abs() < 1e-11, "{angle}: {cos} {sin}");
            }
        }
    }
}
