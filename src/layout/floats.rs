//! Tokens of a floating-point head as f32, in the panels that products of matrices take.

use super::plane::{Plane, Tile};
use super::{Head, Kind, TokenRange};
use crate::arch::{self, Element, Transposition};
use crate::dtype::Dtype;
use crate::dtype::convert::{Endian, widen};
use half::{bf16, f16};

/// Numbers side by side in a panel.
const LANES: usize = 16;
/// Most numbers that are converted at once.
const RUN: usize = 2048;

/// Writes K of the tokens of a range to panels `[token / 16][dim][token % 16]`; numbers of tokens behind the range in its last
/// panel may change. The head is of floating-point elements.
pub fn keys_to_panels(head: &Head<'_>, range: TokenRange, keys: &mut [[f32; LANES]]) {
    let (plane, kind) = (head.layout.key.plane(), head.layout.rows.key);
    match kind {
        _ if plane.block > 1 => convert(plane, kind, head.key, range, &mut Keys(keys, plane.dims)),
        Kind::Float(dtype @ (Dtype::F16 | Dtype::Bf16)) => turn_rows::<2>(plane, dtype, head.key, range, keys),
        _ => turn_rows::<4>(plane, Dtype::F32, head.key, range, keys),
    }
}

/// Writes V of the tokens of a range to panels `[dim / 16][token][dim % 16]` that have room for `room` tokens. The head is of
/// floating-point elements.
pub fn values_to_panels(head: &Head<'_>, range: TokenRange, values: &mut [[f32; LANES]], room: usize) {
    convert(head.layout.value.plane(), head.layout.rows.value, head.value, range, &mut Values(values, room));
}

/// Panels that tiles go to.
trait Panels {
    /// Writes the numbers of a tile.
    fn put<T: Copy>(&mut self, tile: &Tile, from: &[T], number: impl Fn(T) -> f32);
}

/// Of K, with the dims of a token.
struct Keys<'a>(&'a mut [[f32; LANES]], usize);

/// Of V, with the tokens that a panel has room for.
struct Values<'a>(&'a mut [[f32; LANES]], usize);

/// Numbers in f16 that lie close together are converted at once: those of a block, or else of a tile.
fn convert(plane: &Plane, kind: Kind, packed: &[u8], range: TokenRange, panels: &mut impl Panels) {
    // The dims of a token are one tile where they lie side by side.
    let row = Plane { group: plane.dims, ..*plane };
    let plane = if plane.block == 1 && plane.pack == 1 { &row } else { plane };
    let (block, mut numbers) = (plane.block_len(), [0.0; RUN]);
    let halves = |start: usize, numbers: &mut [f32]| {
        widen(Dtype::F16, Endian::Native, &packed[2 * start..][..2 * numbers.len()], numbers);
    };
    let is_half = kind == Kind::Float(Dtype::F16);
    for span in plane.spans(range) {
        if is_half && block <= RUN {
            halves(span.base, &mut numbers[..block.min(packed.len() / 2 - span.base)]);
            plane.tiles(span, |tile| panels.put(&Tile { start: tile.start - span.base, ..tile }, &numbers, |x| x));
            continue;
        }
        plane.tiles(span, |tile| {
            let len = (tile.dims - 1) * tile.dim_stride + (tile.tokens - 1) * tile.token_stride + 1;
            match kind {
                _ if is_half && len <= RUN => {
                    halves(tile.start, &mut numbers[..len]);
                    panels.put(&Tile { start: 0, ..tile }, &numbers, |x| x);
                }
                Kind::Float(Dtype::F16) => {
                    panels.put(&tile, packed.as_chunks().0, |bytes| f16::from_ne_bytes(bytes).to_f32());
                }
                Kind::Float(Dtype::Bf16) => {
                    panels.put(&tile, packed.as_chunks().0, |bytes| bf16::from_ne_bytes(bytes).to_f32());
                }
                _ => panels.put(&tile, packed.as_chunks().0, f32::from_ne_bytes),
            }
        });
    }
}

/// K of tokens that are rows of dims.
fn turn_rows<const N: usize>(plane: &Plane, dtype: Dtype, packed: &[u8], range: TokenRange, panels: &mut [[f32; LANES]])
where
    [u8; N]: Element,
{
    const COLUMNS: usize = RUN / LANES;
    let (packed, mut words) = (packed.as_chunks::<N>().0, [[0; N]; RUN]);
    for at in (0..range.count).step_by(LANES) {
        let (rows, start) = (LANES.min(range.count - at), plane.place(range.begin + at).base);
        for first in (0..plane.dims).step_by(COLUMNS) {
            let columns = COLUMNS.min(plane.dims - first);
            let shape = Transposition { rows, columns, src_stride: plane.block_stride, dst_stride: LANES };
            let words = &mut words[..columns * LANES];
            <[u8; N]>::transpose(arch::kernels())(&shape, &packed[start + first..], words);
            let panel = &mut panels[at / LANES * plane.dims + first..][..columns];
            widen(dtype, Endian::Native, words.as_flattened(), panel.as_flattened_mut());
        }
    }
}

impl Panels for Keys<'_> {
    #[inline(always)]
    fn put<T: Copy>(&mut self, tile: &Tile, from: &[T], number: impl Fn(T) -> f32) {
        let Keys(panels, dims) = self;
        if tile.token_stride > 1 {
            for (at, from) in (tile.at..tile.at + tile.tokens).zip(from[tile.start..].chunks(tile.token_stride)) {
                let rows = &mut panels[at / LANES * *dims + tile.dim..][..tile.dims];
                rows.iter_mut().zip(&from[..tile.dims]).for_each(|(row, x)| row[at % LANES] = number(*x));
            }
            return;
        }
        // Neighbours are tokens: runs of a panel.
        let mut done = 0;
        while done < tile.tokens {
            let (panel, lane) = ((tile.at + done) / LANES, (tile.at + done) % LANES);
            let count = (LANES - lane).min(tile.tokens - done);
            let rows = &mut panels[panel * *dims + tile.dim..][..tile.dims];
            for (row, from) in rows.iter_mut().zip(from[tile.start + done..].chunks(tile.dim_stride)) {
                run(&mut row[lane..lane + count], from, &number);
            }
            done += count;
        }
    }
}

impl Panels for Values<'_> {
    #[inline(always)]
    fn put<T: Copy>(&mut self, tile: &Tile, from: &[T], number: impl Fn(T) -> f32) {
        let Values(panels, room) = self;
        // Dims of one panel.
        let mut done = 0;
        while done < tile.dims {
            let (panel, lane) = ((tile.dim + done) / LANES, (tile.dim + done) % LANES);
            let count = (LANES - lane).min(tile.dims - done);
            let rows = &mut panels[panel * *room + tile.at..][..tile.tokens];
            let from = &from[tile.start + done * tile.dim_stride..];
            if tile.dim_stride == 1 {
                for (row, from) in rows.iter_mut().zip(from.chunks(tile.token_stride)) {
                    run(&mut row[lane..lane + count], from, &number);
                }
            } else {
                for (token, row) in rows.iter_mut().enumerate() {
                    let from = from[token * tile.token_stride..].iter().step_by(tile.dim_stride);
                    row[lane..lane + count].iter_mut().zip(from).for_each(|(to, x)| *to = number(*x));
                }
            }
            done += count;
        }
    }
}

/// Numbers side by side, four at a time, so that compilers vectorise.
#[inline(always)]
fn run<T: Copy>(to: &mut [f32], from: &[T], number: &impl Fn(T) -> f32) {
    let from = &from[..to.len()];
    let ((to, to_rest), (from, rest)) = (to.as_chunks_mut::<4>(), from.as_chunks::<4>());
    to.iter_mut().zip(from).for_each(|(to, from)| *to = from.map(number));
    to_rest.iter_mut().zip(rest).for_each(|(to, from)| *to = number(*from));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::Noise;
    use crate::host::packing::flash;
    use crate::layout::{Layout, Spec};

    /// The places are those of the formula of `plane`, the numbers those of another library.
    #[test]
    fn panels_have_the_numbers_of_every_packing() {
        let mut noise = Noise(5);
        let packs = [[1, 1, 1], [1, 8, 64], [1, 16, 16], [4, 8, 64], [2, 64, 64], [1, 1, 256], [300, 1, 1], [1, 4, 1]];
        for (packs, head_dim) in packs.into_iter().flat_map(|packs| [8, 72, 264].map(|dims| (packs, dims))) {
            for dtype in [Dtype::F16, Dtype::Bf16, Dtype::F32] {
                let ([l_pack, h_pack, flash_block], kind) = (packs, Kind::Float(dtype));
                let spec = Spec { key: kind, value: kind, l_pack, flash_block, ..flash(2, head_dim, h_pack, 200) };
                let layout = Layout::new(&spec).unwrap();
                let (key, value) = layout.head_bytes();
                let [key, value] =
                    [key, value].map(|len| (0..len).map(|_| noise.next().to_bits() as u8).collect::<Vec<_>>());
                let head = Head { layout: &layout, key: &key, value: &value };
                for (begin, count) in [(0, 64), (3, 61), (150, 1), (64, 0), (130, 50)] {
                    let (range, dims) = (layout.range(begin, count).unwrap(), head_dim as usize);
                    let (tokens, groups) = (count as usize, dims.div_ceil(LANES));
                    let mut keys = vec![[0.0; LANES]; tokens.div_ceil(LANES) * dims];
                    let mut values = vec![[0.0; LANES]; groups * (tokens + 2)];
                    keys_to_panels(&head, range, &mut keys);
                    values_to_panels(&head, range, &mut values, tokens + 2);
                    for (token, dim) in (0..tokens).flat_map(|token| (0..dims).map(move |dim| (token, dim))) {
                        let number = |plane: &Plane, packed: &[u8]| {
                            let at = plane.element(begin as usize + token, dim) * plane.element_bytes;
                            let bytes = &packed[at..][..plane.element_bytes];
                            match dtype {
                                Dtype::F16 => f16::from_ne_bytes(bytes.try_into().unwrap()).to_f32(),
                                Dtype::Bf16 => bf16::from_ne_bytes(bytes.try_into().unwrap()).to_f32(),
                                _ => f32::from_ne_bytes(bytes.try_into().unwrap()),
                            }
                        };
                        let found = [
                            (keys[token / LANES * dims + dim][token % LANES], number(layout.key.plane(), &key)),
                            (
                                values[dim / LANES * (tokens + 2) + token][dim % LANES],
                                number(layout.value.plane(), &value),
                            ),
                        ];
                        let is_same = |(x, y): &(f32, f32)| x.to_bits() == y.to_bits() || x.is_nan() && y.is_nan();
                        assert!(
                            found.iter().all(is_same),
                            "{packs:?} {dtype:?} {dims} {begin} {token} {dim}: {found:?}"
                        );
                    }
                }
            }
        }
    }
}
