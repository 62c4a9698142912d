//! Sums of V weighted by the softmax of logits.

use super::softmax::{highest, raise, weight};
use super::{BLOCK, Dots, HeadBlock, LANES, Line, QUERIES, Running, Scratch, Shorts, VALUE_GROUP, fetch, together};
use crate::arch::estimates::Sixteen;

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

/// See [`super::AttendKernels::values`].
#[inline(always)]
pub(in crate::arch) unsafe fn values<V: Dots>(
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
    let len = sums.len() / N;
    assert!(logits.len() == N && running.len() == N && sums.len() == N * len && len >= block.sums().end);
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
    let (len, groups) = (sums.len() / N, block.dims.div_ceil(VALUE_GROUP));
    assert!(exps.len() == N && sums.len() == N * len && block.values.len() == groups * QUADS);
    let (sums, mut units) = (&mut sums[block.sums().start..], [0.0; N]);
    let mut scales = block.value_scales.iter().zip(block.value_mids);
    for (group, lines) in block.values.as_chunks::<QUADS>().0.iter().enumerate() {
        fetch(ahead, 4);
        // All groups have the same where there is one.
        if let Some((scales, mids)) = scales.next() {
            let middles = &mut sums[groups * VALUE_GROUP + group * LANES..];
            // SAFETY: the caller's.
            units = unsafe { weight_codes::<V, N, PARTS>(exps, scales, mids, middles, len, weights) };
        }
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
