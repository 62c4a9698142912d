//! Rows in 4 bits: groups of 32 channels of a token, each from its least to its greatest element.
//!
//! A group is 16 bytes of codes (channel `c` in the lower half of byte `c`, channel `c + 16` in the upper half), the least
//! element in F16, little-endian, and the number of the step between codes: 19 bytes, where F16 has 64. A last group of
//! fewer channels has a byte for each two.
//!
//! An element is decoded to `least + code * step` in f32. For elements of F16 its error is at most
//! `max(range / 29, 2^-16)`, with `range` the greatest element of its group minus the least; of other types it is at most
//! half a step of F16 at the least element more.
//!
//! Steps are [`STEPS`], a factor of 2^(1/11) apart, and the nearest one to `range / 15` is taken. That is close enough for
//! the greatest element to have code 15, so that a decoded group has the same step again: encoded again as F16, it changes
//! by at most one unit in the last place, and then no more.

use super::nearest;

/// Channels of a group.
const GROUP: usize = 32;
/// Bytes of the least element and of the step.
const EXTRA: usize = 3;
/// The greatest code.
const TOP: f32 = 15.0;
/// The largest magnitude of an element; a decoded one is an F16, too.
const LARGEST: f32 = 65_000.0;

/// The steps: 2^(n / 11 - 15).
static STEPS: [f32; 256] = {
    // 2^(n / 11).
    const OCTAVE: [f32; 11] = [
        1.0,
        1.065_041_1,
        1.134_312_5,
        1.208_089_4,
        1.286_665,
        1.370_351,
        1.459_48,
        1.554_406_3,
        1.655_506_6,
        1.763_182_6,
        1.877_862,
    ];
    let mut steps = [1.0 / 32_768.0; 256];
    let mut n = 0;
    while n < steps.len() {
        steps[n] = if n < OCTAVE.len() { steps[n] * OCTAVE[n] } else { 2.0 * steps[n - OCTAVE.len()] };
        n += 1;
    }
    steps
};

/// Bytes of the codes of `tokens` rows.
pub fn encoded_len(tokens: usize, dims: usize) -> usize {
    tokens * row_len(dims)
}

fn row_len(dims: usize) -> usize {
    let last = dims % GROUP;
    dims / GROUP * group_len(GROUP) + if last == 0 { 0 } else { group_len(last) }
}

fn group_len(channels: usize) -> usize {
    channels.div_ceil(2) + EXTRA
}

/// Encodes rows `[token][dim]`. `codes` has [`encoded_len`] bytes. Returns false if an element is NaN or beyond ±65,000, or
/// a group has a range above 4,480; the codes are undefined then.
#[must_use]
pub fn encode(rows: &[f32], dims: usize, codes: &mut [u8]) -> bool {
    assert_eq!(codes.len(), encoded_len(rows.len() / dims, dims), "room for the codes of whole rows");
    let mut rows = rows.chunks_exact(dims).zip(codes.chunks_exact_mut(row_len(dims)));
    rows.all(|(row, codes)| {
        let mut groups = row.chunks(GROUP).zip(codes.chunks_mut(group_len(GROUP)));
        groups.all(|(group, codes)| encode_group(group, codes))
    })
}

fn encode_group(group: &[f32], to: &mut [u8]) -> bool {
    // A whole group in all cases, so that a compiler keeps it in vectors.
    let mut all = [group[0]; GROUP];
    all[..group.len()].copy_from_slice(group);
    let Some((low, high)) = bounds(&all) else { return false };
    let least = half::f16::from_f32(low);
    let low = least.to_f32();
    let Some(number) = nearest_step((high - low).max(0.0)) else { return false };
    let per_step = 1.0 / STEPS[usize::from(number)];
    let codes = all.map(|x| nearest(((x - low) * per_step).clamp(0.0, TOP)) as u8);
    let (pairs, extra) = to.split_at_mut(group.len().div_ceil(2));
    let half = pairs.len();
    pairs.iter_mut().enumerate().for_each(|(c, pair)| *pair = codes[c] | codes[c + half] << 4);
    extra[..2].copy_from_slice(&least.to_le_bytes());
    extra[2] = number;
    true
}

/// The least and the greatest element, unless one is not a number or too large.
fn bounds(group: &[f32; GROUP]) -> Option<(f32, f32)> {
    let (mut low, mut high, mut largest) = ([LARGEST; 8], [-LARGEST; 8], [0u32; 8]);
    for part in group.as_chunks::<8>().0 {
        for i in 0..8 {
            let x = part[i];
            low[i] = if x < low[i] { x } else { low[i] };
            high[i] = if x > high[i] { x } else { high[i] };
            // As integers, in which NaN is above all numbers.
            largest[i] = largest[i].max(x.abs().to_bits());
        }
    }
    for half in [4, 2, 1] {
        for i in 0..half {
            low[i] = if low[i + half] < low[i] { low[i + half] } else { low[i] };
            high[i] = if high[i + half] > high[i] { high[i + half] } else { high[i] };
            largest[i] = largest[i].max(largest[i + half]);
        }
    }
    (largest[0] <= LARGEST.to_bits()).then_some((low[0], high[0]))
}

/// The number of the step that is nearest to a range by the greatest code; none if the range is too large.
fn nearest_step(range: f32) -> Option<u8> {
    let above = STEPS.partition_point(|step| step * TOP < range);
    let number = match above {
        0 => 0,
        256 if range > STEPS[255] * (TOP + 0.4) => return None,
        256 => 255,
        _ if range - STEPS[above - 1] * TOP < STEPS[above] * TOP - range => above - 1,
        _ => above,
    };
    Some(number as u8)
}

/// Decodes codes of whole rows, as [`encode`] wrote them.
pub fn decode(codes: &[u8], dims: usize, rows: &mut [f32]) {
    assert_eq!(codes.len(), encoded_len(rows.len() / dims, dims), "the codes of whole rows");
    for (row, codes) in rows.chunks_exact_mut(dims).zip(codes.chunks_exact(row_len(dims))) {
        for (group, codes) in row.chunks_mut(GROUP).zip(codes.chunks(group_len(GROUP))) {
            let (pairs, extra) = codes.split_at(codes.len() - EXTRA);
            let least = half::f16::from_le_bytes([extra[0], extra[1]]).to_f32();
            let step = STEPS[usize::from(extra[2])];
            let (lower, upper) = group.split_at_mut(pairs.len());
            let x = |code: u8| least + f32::from(code) * step;
            lower.iter_mut().zip(pairs).for_each(|(to, pair)| *to = x(pair & 15));
            upper.iter_mut().zip(pairs).for_each(|(to, pair)| *to = x(pair >> 4));
        }
    }
}
