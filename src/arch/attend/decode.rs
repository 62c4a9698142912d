//! Codes of a block to numbers, for steps of many rows.

use super::bits::{bits_of, four, order, quads, six, two};
use super::{BLOCK, Dots, HeadBlock, Keys, LANES, Line, MOST_DIMS, VALUE_GROUP, Wide};
use crate::arch::estimates::Sixteen;
use half::f16;

/// See [`super::AttendKernels::decode`].
///
/// # Safety
/// As [`Dots`].
#[inline(always)]
pub(in crate::arch) unsafe fn decode<V: Dots>(
    block: &HeadBlock,
    keys: &mut [[f32; LANES]],
    values: &mut [[f32; LANES]],
) {
    let dims = block.dims;
    let (mut scales, mut mids) = ([[0.0; LANES]; MOST_DIMS / LANES], [[0.0; LANES]; MOST_DIMS / LANES]);
    // SAFETY: the caller's.
    unsafe {
        for (at, (scale, mid)) in block.key_scales.iter().zip(block.key_mids).enumerate() {
            V::widen(scale).store(&mut scales[at]);
            V::widen(mid).store(&mut mids[at]);
        }
        let (scales, mids) = (scales.as_flattened().as_chunks::<4>().0, mids.as_flattened().as_chunks::<4>().0);
        match block.keys {
            Keys::Bytes { codes, wide } => of_bytes::<V>(dims, (codes, wide), scales, mids, keys),
            Keys::Bits { widths, codes } => of_bits::<V>(dims, (widths, codes), scales, mids, keys),
        }
        let (mut scale, mut mid) = ([[0.0; LANES]; BLOCK / LANES], [[0.0; LANES]; BLOCK / LANES]);
        let mut of_groups = block.value_scales.iter().zip(block.value_mids);
        let groups = values.as_chunks_mut::<{ VALUE_GROUP / LANES * BLOCK }>().0;
        for (lines, panels) in block.values.chunks_exact(BLOCK / 4).zip(groups) {
            // All groups have the same where there is one.
            if let Some((scales, mids)) = of_groups.next() {
                for at in 0..BLOCK / LANES {
                    V::widen(&scales[at]).store(&mut scale[at]);
                    V::widen(&mids[at]).store(&mut mid[at]);
                }
            }
            let (scale, mid) = (scale.as_flattened(), mid.as_flattened());
            for (quad, line) in lines.iter().enumerate() {
                let words = V::words(line);
                let low =
                    [V::nibble::<28>(words), V::nibble::<20>(words), V::nibble::<12>(words), V::nibble::<4>(words)];
                let high =
                    [V::nibble::<24>(words), V::nibble::<16>(words), V::nibble::<8>(words), V::nibble::<0>(words)];
                for i in 0..4 {
                    let token = 4 * quad + i;
                    let (scale, mid) = (V::Floats::splat(scale[token]), V::Floats::splat(mid[token]));
                    V::floats(low[i]).mul(scale).add(mid).store(&mut panels[token]);
                    V::floats(high[i]).mul(scale).add(mid).store(&mut panels[BLOCK + token]);
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn of_bytes<V: Dots>(
    dims: usize,
    (codes, wide): (&[Line], &[Wide]),
    scales: &[[f32; 4]],
    mids: &[[f32; 4]],
    keys: &mut [[f32; LANES]],
) {
    // SAFETY: the caller's.
    unsafe {
        for (lines, panel) in codes.chunks_exact(dims / 4).zip(keys.chunks_exact_mut(dims)) {
            let channels = panel.as_chunks_mut::<4>().0.iter_mut().zip(scales.iter().zip(mids));
            for (line, (rows, (scale, mid))) in lines.iter().zip(channels) {
                let codes = four_bytes::<V>(line);
                for i in 0..4 {
                    number::<V>(codes[i], -128.0, scale[i], mid[i]).store(&mut rows[i]);
                }
            }
        }
        for wide in wide {
            let channel = usize::from(u16::from_le_bytes(wide.channel));
            let scale = V::Floats::splat(f16::from_le_bytes(wide.scale).to_f32());
            let mid = V::Floats::splat(mids.as_flattened()[channel]);
            for (codes, panel) in wide.codes.iter().zip(keys.chunks_exact_mut(dims)) {
                V::widen_ints(codes).mul(scale).add(mid).store(&mut panel[channel]);
            }
        }
    }
}

#[inline(always)]
unsafe fn of_bits<V: Dots>(
    dims: usize,
    (widths, mut lines): (&[u8], &[Line]),
    scales: &[[f32; 4]],
    mids: &[[f32; 4]],
    keys: &mut [[f32; LANES]],
) {
    let ([sixes, fours, _], mut order, mut codes) = (quads(widths), order(widths), Line::default());
    for (at, (scale, mid)) in scales.iter().zip(mids).enumerate().take(dims / 4) {
        let bits = bits_of([sixes, fours], at);
        let Some((own, rest)) = lines.split_at_checked(bits as usize / 2) else { return };
        lines = rest;
        let channels: [usize; 4] = std::array::from_fn(|_| order.next().unwrap_or(0));
        // SAFETY: the caller's.
        unsafe {
            let panels = match own {
                [a, b, c] => six::<V>(&[*a, *b, *c]),
                [a, b] => four::<V>(&[*a, *b]),
                own => two::<V>(&own[0]),
            };
            for (bytes, panel) in panels.into_iter().zip(keys.chunks_exact_mut(dims)) {
                V::store(bytes, &mut codes);
                let codes = four_bytes::<V>(&codes);
                for i in 0..4 {
                    let zero = -((1 << (bits - 1)) as f32);
                    number::<V>(codes[i], zero, scale[i], mid[i]).store(&mut panel[channels[i]]);
                }
            }
        }
    }
}

/// The four bytes of each lane.
#[inline(always)]
unsafe fn four_bytes<V: Dots>(line: &Line) -> [V::Ints; 4] {
    // SAFETY: the caller's.
    unsafe {
        let words = V::words(line);
        [V::field::<24, 24>(words), V::field::<16, 24>(words), V::field::<8, 24>(words), V::field::<0, 24>(words)]
    }
}

#[inline(always)]
unsafe fn number<V: Dots>(code: V::Ints, zero: f32, scale: f32, mid: f32) -> V::Floats {
    // SAFETY: the caller's.
    unsafe { V::floats(code).add(V::Floats::splat(zero)).mul(V::Floats::splat(scale)).add(V::Floats::splat(mid)) }
}
