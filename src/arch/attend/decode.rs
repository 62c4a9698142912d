//! Codes of a block to numbers, for steps of many rows.

use super::{BLOCK, Dots, HeadBlock, LANES, MOST_DIMS, VALUE_GROUP};
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
        for (lines, panel) in block.keys.chunks_exact(dims / 4).zip(keys.chunks_exact_mut(dims)) {
            let channels = panel.as_chunks_mut::<4>().0.iter_mut().zip(scales.iter().zip(mids));
            for (line, (rows, (scale, mid))) in lines.iter().zip(channels) {
                let words = V::words(line);
                let codes = [V::byte::<24>(words), V::byte::<16>(words), V::byte::<8>(words), V::byte::<0>(words)];
                for i in 0..4 {
                    let code = V::floats(codes[i]).add(V::Floats::splat(-128.0));
                    code.mul(V::Floats::splat(scale[i])).add(V::Floats::splat(mid[i])).store(&mut rows[i]);
                }
            }
        }
        for wide in block.wide {
            let channel = usize::from(u16::from_le_bytes(wide.channel));
            let scale = V::Floats::splat(f16::from_le_bytes(wide.scale).to_f32());
            let mid = V::Floats::splat(mids.as_flattened()[channel]);
            for (codes, panel) in wide.codes.iter().zip(keys.chunks_exact_mut(dims)) {
                V::widen_ints(codes).mul(scale).add(mid).store(&mut panel[channel]);
            }
        }
        let groups =
            block.values.chunks_exact(BLOCK / 4).zip(values.as_chunks_mut::<{ VALUE_GROUP / LANES * BLOCK }>().0);
        for ((lines, panels), (scales, mids)) in groups.zip(block.value_scales.iter().zip(block.value_mids)) {
            let (mut scale, mut mid) = ([[0.0; LANES]; BLOCK / LANES], [[0.0; LANES]; BLOCK / LANES]);
            for at in 0..BLOCK / LANES {
                V::widen(&scales[at]).store(&mut scale[at]);
                V::widen(&mids[at]).store(&mut mid[at]);
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
