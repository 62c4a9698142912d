//! Tokens of a floating-point head as f32, in the panels that products of matrices take.

use super::plane::Plane;
use super::{Head, Kind, TokenRange};
use crate::dtype::Dtype;

/// Numbers side by side in a panel.
const LANES: usize = 16;

/// Writes K of the tokens of a range to panels `[token / 16][dim][token % 16]`. The head is of floating-point elements.
pub fn keys_to_panels(head: &Head<'_>, range: TokenRange, keys: &mut [[f32; LANES]]) {
    let (plane, dims) = (head.layout.key.plane(), head.layout.rows.dims);
    match head.layout.rows.key {
        Kind::Float(Dtype::F16) => keys_of(plane, head.key, range, keys, dims, f16),
        Kind::Float(Dtype::Bf16) => keys_of(plane, head.key, range, keys, dims, bf16),
        _ => keys_of(plane, head.key, range, keys, dims, f32::from_ne_bytes),
    }
}

/// Writes V of the tokens of a range to panels `[dim / 16][token][dim % 16]` that have room for `room` tokens. The head is of
/// floating-point elements.
pub fn values_to_panels(head: &Head<'_>, range: TokenRange, values: &mut [[f32; LANES]], room: usize) {
    let value = head.layout.value.plane();
    match head.layout.rows.value {
        Kind::Float(Dtype::F16) => values_of(value, head.value, range, values, room, f16),
        Kind::Float(Dtype::Bf16) => values_of(value, head.value, range, values, room, bf16),
        _ => values_of(value, head.value, range, values, room, f32::from_ne_bytes),
    }
}

#[inline(always)]
fn keys_of<const N: usize>(
    plane: &Plane,
    packed: &[u8],
    range: TokenRange,
    panels: &mut [[f32; LANES]],
    dims: usize,
    widen: impl Fn([u8; N]) -> f32,
) {
    let packed = packed.as_chunks::<N>().0;
    for span in plane.spans(range) {
        plane.tiles(span, |tile| {
            if tile.token_stride > 1 {
                for token in 0..tile.tokens {
                    let at = tile.at + token;
                    let rows = panels[at / LANES * dims + tile.dim..].iter_mut();
                    let from = packed[tile.start + token * tile.token_stride..].iter().step_by(tile.dim_stride);
                    rows.zip(from).take(tile.dims).for_each(|(row, x)| row[at % LANES] = widen(*x));
                }
                return;
            }
            // Neighbours are tokens: runs of a panel.
            let mut done = 0;
            while done < tile.tokens {
                let (panel, lane) = ((tile.at + done) / LANES, (tile.at + done) % LANES);
                let count = (LANES - lane).min(tile.tokens - done);
                let rows = &mut panels[panel * dims + tile.dim..][..tile.dims];
                for (row, from) in rows.iter_mut().zip(packed[tile.start + done..].chunks(tile.dim_stride)) {
                    run(&mut row[lane..lane + count], from, &widen);
                }
                done += count;
            }
        });
    }
}

#[inline(always)]
fn values_of<const N: usize>(
    plane: &Plane,
    packed: &[u8],
    range: TokenRange,
    panels: &mut [[f32; LANES]],
    room: usize,
    widen: impl Fn([u8; N]) -> f32,
) {
    let packed = packed.as_chunks::<N>().0;
    for span in plane.spans(range) {
        plane.tiles(span, |tile| {
            // Dims of one panel.
            let mut done = 0;
            while done < tile.dims {
                let (panel, lane) = ((tile.dim + done) / LANES, (tile.dim + done) % LANES);
                let count = (LANES - lane).min(tile.dims - done);
                let rows = &mut panels[panel * room + tile.at..][..tile.tokens];
                let start = tile.start + done * tile.dim_stride;
                if tile.dim_stride == 1 {
                    for (row, from) in rows.iter_mut().zip(packed[start..].chunks(tile.token_stride)) {
                        run(&mut row[lane..lane + count], from, &widen);
                    }
                } else {
                    for (token, row) in rows.iter_mut().enumerate() {
                        let from = packed[start + token * tile.token_stride..].iter().step_by(tile.dim_stride);
                        row[lane..lane + count].iter_mut().zip(from).for_each(|(to, x)| *to = widen(*x));
                    }
                }
                done += count;
            }
        });
    }
}

/// Numbers side by side, four at a time, so that compilers vectorise.
#[inline(always)]
fn run<const N: usize>(to: &mut [f32], from: &[[u8; N]], widen: &impl Fn([u8; N]) -> f32) {
    let from = &from[..to.len()];
    let ((to, to_rest), (from, rest)) = (to.as_chunks_mut::<4>(), from.as_chunks::<4>());
    to.iter_mut().zip(from).for_each(|(to, from)| *to = from.map(widen));
    to_rest.iter_mut().zip(rest).for_each(|(to, from)| *to = widen(*from));
}

/// Without branches or a test of the CPU.
#[inline(always)]
fn f16(bytes: [u8; 2]) -> f32 {
    let bits = u32::from(u16::from_ne_bytes(bytes));
    let (exponent, magnitude) = (bits & 0x7C00, (bits & 0x7FFF) << 13);
    let normal = magnitude + (112 << 23);
    let unbounded = magnitude + (224 << 23);
    // Below the least normal number: its fraction behind a one, less the one.
    let small = (f32::from_bits(magnitude + (113 << 23)) - f32::from_bits(113 << 23)).to_bits();
    let number = if exponent == 0 {
        small
    } else if exponent == 0x7C00 {
        unbounded
    } else {
        normal
    };
    f32::from_bits(number | (bits & 0x8000) << 16)
}

#[inline(always)]
fn bf16(bytes: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_ne_bytes(bytes)) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_those_of_another_library() {
        for bits in 0..=u16::MAX {
            let expected = half::f16::from_bits(bits).to_f32();
            let same = f16(bits.to_ne_bytes()).to_bits() == expected.to_bits();
            assert!(same || expected.is_nan() && f16(bits.to_ne_bytes()).is_nan(), "{bits:04x}");
            let (x, y) = (bf16(bits.to_ne_bytes()), half::bf16::from_bits(bits).to_f32());
            assert!(x.to_bits() == y.to_bits() || x.is_nan() && y.is_nan(), "{bits:04x}");
        }
    }
}
