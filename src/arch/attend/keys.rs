//! Logits of a block's tokens.

use super::{BLOCK, Dots, HeadBlock, LANES, Line, MOST_DIMS, QUERIES, Scratch, fetch, together};
use crate::arch::estimates::Sixteen;
use half::f16;

/// Largest query code: 63 parts of 64, and 31. Sums of two products with bytes then fit in 16 bits.
const MOST_QUERY: f32 = 4063.0;

/// See [`AttendKernels::logits`].
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
