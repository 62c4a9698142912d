//! Logits of a block's tokens.

use super::bits::{bits_of, four, lines_of, quads, six, two};
use super::{BLOCK, Dots, HeadBlock, Keys, LANES, Line, MOST_DIMS, QUERIES, Scratch, Wide, fetch, together};
use crate::arch::estimates::Sixteen;
use half::f16;

/// Largest query code: 63 parts of 64, and 31. Sums of two products with bytes then fit in 16 bits.
const MOST_QUERY: f32 = 4063.0;
/// Largest query code of one part.
const MOST_QUERY_BYTE: f32 = 127.0;

/// See [`super::AttendKernels::logits`].
///
/// # Safety
/// As [`Dots`], here and below.
#[inline(always)]
pub(in crate::arch) unsafe fn logits<V: Dots>(
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

#[inline(always)]
unsafe fn logits_of<V: Dots, const N: usize>(
    block: &HeadBlock,
    queries: &[&[f32]],
    logits: &mut [[f32; BLOCK]],
    scratch: &mut Scratch,
) {
    assert!(queries.len() == N && logits.len() == N);
    // SAFETY: the caller's.
    unsafe {
        match block.keys {
            Keys::Bytes { codes, wide } => of_bytes::<V, N>(block, (codes, wide), queries, logits, scratch),
            Keys::Bits { widths, codes } => of_bits::<V, N>(block, (widths, codes), queries, logits, scratch),
        }
    }
}

/// Two panels of 16 tokens at a time, so that a query code is loaded once for both.
#[inline(always)]
unsafe fn of_bytes<V: Dots, const N: usize>(
    block: &HeadBlock,
    (keys, wide): (&[Line], &[Wide]),
    queries: &[&[f32]],
    logits: &mut [[f32; BLOCK]],
    scratch: &mut Scratch,
) {
    let quads = block.dims / 4;
    assert!(keys.len() == BLOCK / LANES * quads);
    let Scratch { query: codes, scaled, .. } = scratch;
    let ahead = &mut &block.next[..block.next.len() / 2];
    // SAFETY: the caller's.
    let (units, bases, zeros) = unsafe { byte_codes::<V, N>(block, queries, scaled, codes, ahead) };
    let codes: [[&[[i8; 4]]; 2]; N] =
        std::array::from_fn(|n| [0, 1].map(|part| &codes[n][part].as_chunks::<4>().0[..quads]));
    for (pair, keys) in keys.chunks_exact(2 * quads).enumerate() {
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
                    for wide in wide {
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

/// Products of query vectors with the scales of channels, in `scaled`: for each the largest magnitude, and the logit of the middles.
#[inline(always)]
unsafe fn scale<V: Dots, const N: usize>(
    block: &HeadBlock,
    queries: &[&[f32]],
    scaled: &mut [[f32; MOST_DIMS]; QUERIES],
    ahead: &mut &[Line],
) -> ([f32; N], [f32; N]) {
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
        // Not closures, which would not have the features of their caller, here and below.
        let (mut most, mut sums) = ([0.0; N], [0.0; N]);
        for n in 0..N {
            (most[n], sums[n]) = (V::highest(peaks[n]), bases[n].sum());
        }
        (most, sums)
    }
}

/// The factor that makes codes up to `most` of numbers up to a peak. Of denormal ones, too, the codes must fit.
fn factor(peak: f32, most: f32) -> f32 {
    let factor = if peak > 0.0 { most / peak } else { 0.0 };
    if factor.is_finite() { factor } else { 0.0 }
}

/// The codes of query vectors against a block: products with the scales of channels, in 13 bits of their largest.
/// Returns, for each, the unit of the codes, the logit of the middles, and the sum of codes.
#[inline(always)]
unsafe fn byte_codes<V: Dots, const N: usize>(
    block: &HeadBlock,
    queries: &[&[f32]],
    scaled: &mut [[f32; MOST_DIMS]; QUERIES],
    codes: &mut [[[i8; MOST_DIMS]; 2]; QUERIES],
    ahead: &mut &[Line],
) -> ([f32; N], [f32; N], [i32; N]) {
    // SAFETY: the caller's.
    unsafe {
        let (peaks, bases) = scale::<V, N>(block, queries, scaled, ahead);
        let (mut sums, mut zeros) = ([V::zero(); N], [0; N]);
        for at in 0..block.key_scales.len() {
            fetch(ahead, 3);
            for n in 0..N {
                let factor = V::Floats::splat(factor(peaks[n], MOST_QUERY));
                let code = V::nearest(V::Floats::load(&scaled[n].as_chunks::<LANES>().0[at]).mul(factor));
                sums[n] = V::join::<0>(sums[n], code);
                let [high, low] = &mut codes[n];
                let parts = (&mut high.as_chunks_mut::<LANES>().0[at], &mut low.as_chunks_mut::<LANES>().0[at]);
                V::split::<6, 32>(code, parts.0, parts.1);
            }
        }
        for n in 0..N {
            zeros[n] = if V::KEY_BIAS == 0 { 0 } else { V::total(sums[n]) };
        }
        (peaks.map(|peak| peak * (1.0 / MOST_QUERY)), bases, zeros)
    }
}

/// All panels of 16 tokens at a time.
#[inline(always)]
unsafe fn of_bits<V: Dots, const N: usize>(
    block: &HeadBlock,
    (widths, lines): (&[u8], &[Line]),
    queries: &[&[f32]],
    logits: &mut [[f32; BLOCK]],
    scratch: &mut Scratch,
) {
    let counts @ [sixes, fours, _] = quads(widths);
    assert!(4 * widths.len() == block.dims && lines.len() == lines_of(counts));
    let Scratch { query: codes, scaled, .. } = scratch;
    let ahead = &mut &block.next[..block.next.len() / 2];
    // SAFETY: the caller's.
    unsafe {
        let (units, bases, zeros) = bit_codes::<V, N>(block, [sixes, fours], queries, scaled, codes, ahead);
        let codes: [&[[i8; 4]]; N] = std::array::from_fn(|n| &codes[n][0].as_chunks::<4>().0[..block.dims / 4]);
        let mut sums = [[V::zero(); BLOCK / LANES]; N];
        let (of_sixes, lines) = lines.split_at(3 * sixes);
        let (of_fours, of_twos) = lines.split_at(2 * fours);
        for (at, lines) in of_sixes.as_chunks().0.iter().enumerate() {
            fetch(ahead, 3);
            add::<V, N>(&mut sums, six::<V>(lines), &codes, at);
        }
        for (at, lines) in (sixes..).zip(of_fours.as_chunks().0) {
            fetch(ahead, 2);
            add::<V, N>(&mut sums, four::<V>(lines), &codes, at);
        }
        for (at, line) in (sixes + fours..).zip(of_twos) {
            fetch(ahead, 1);
            add::<V, N>(&mut sums, two::<V>(line), &codes, at);
        }
        for (n, sums) in sums.into_iter().enumerate() {
            for (sum, to) in sums.into_iter().zip(logits[n].as_chunks_mut::<LANES>().0) {
                let sum = V::floats(V::add_all(sum, -zeros[n])).mul(V::Floats::splat(units[n]));
                sum.add(V::Floats::splat(bases[n])).store(to);
            }
        }
    }
}

/// Adds the products of four channels.
#[inline(always)]
unsafe fn add<V: Dots, const N: usize>(
    sums: &mut [[V::Ints; BLOCK / LANES]; N],
    panels: [V::Bytes; BLOCK / LANES],
    codes: &[&[[i8; 4]]; N],
    at: usize,
) {
    for (sums, codes) in sums.iter_mut().zip(codes) {
        let four = together(codes[at]);
        for (sum, panel) in sums.iter_mut().zip(panels) {
            // SAFETY: the caller's.
            *sum = unsafe { V::add_keys(*sum, panel, four) };
        }
    }
}

/// As [`byte_codes`], in 7 bits of their largest: products with the scales of channels are alike where bits are given by what they
/// are, and codes of few bits have no use for more. Returns the sum of codes times the middle codes of K for their sum.
#[inline(always)]
unsafe fn bit_codes<V: Dots, const N: usize>(
    block: &HeadBlock,
    counts: [usize; 2],
    queries: &[&[f32]],
    scaled: &mut [[f32; MOST_DIMS]; QUERIES],
    codes: &mut [[[i8; MOST_DIMS]; 2]; QUERIES],
    ahead: &mut &[Line],
) -> ([f32; N], [f32; N], [i32; N]) {
    // SAFETY: the caller's.
    unsafe {
        let (peaks, bases) = scale::<V, N>(block, queries, scaled, ahead);
        let (mut sums, mut zeros) = ([V::Floats::splat(0.0); N], [0; N]);
        for at in 0..block.key_scales.len() {
            fetch(ahead, 3);
            let mut middles = [0.0; LANES];
            for (quad, middles) in (at * LANES / 4..).zip(middles.as_chunks_mut::<4>().0) {
                *middles = [(1 << (bits_of(counts, quad) - 1)) as f32; 4];
            }
            let middles = V::Floats::load(&middles);
            for n in 0..N {
                let factor = V::Floats::splat(factor(peaks[n], MOST_QUERY_BYTE));
                let code = V::nearest(V::Floats::load(&scaled[n].as_chunks::<LANES>().0[at]).mul(factor));
                V::bytes(code, &mut codes[n][0].as_chunks_mut::<LANES>().0[at]);
                // Integers that floats hold.
                sums[n] = sums[n].add(V::floats(code).mul(middles));
            }
        }
        for n in 0..N {
            zeros[n] = sums[n].sum() as i32;
        }
        (peaks.map(|peak| peak * (1.0 / MOST_QUERY_BYTE)), bases, zeros)
    }
}
