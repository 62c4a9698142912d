//! INT8 V: rows of panels `[dim][token]` of a few bytes per dim, to and from dense rows, and moves by less than a panel.
//!
//! The bytes of one dim of a panel are taken as one integer, so that the work on neighbouring dims is the same and a
//! compiler can do it on vectors. Partial panels, and groups of other sizes, go byte by byte.

use super::TokenRange;
use super::kind::QUANTISED_BLOCK;
use super::plane::{Place, Plane, Span};
use crate::arch;

/// Dims that are done at once.
const LANES: usize = 8;
/// Bytes of the longest row of a block: 64 dims.
const LONGEST_ROW: usize = 64 * QUANTISED_BLOCK as usize;

/// Tokens of one row of a block: whole panels, or a part of one.
struct Piece {
    /// First byte of the first panel's first dim.
    start: usize,
    /// First token within the first panel.
    first: usize,
    /// Number of tokens.
    tokens: usize,
    /// Real dims.
    dims: usize,
    /// First dense byte.
    dense: usize,
}

/// Defines the work on panels of one width: the integer that holds the bytes of a dim. Loops, not closures over arrays,
/// which compilers do not always inline.
macro_rules! width {
    ($module:ident, $word:ty, $tokens:literal) => {
        mod $module {
            use super::LANES;

            #[inline(always)]
            pub(super) fn load(panel: &[u8]) -> [$word; LANES] {
                let mut words = [0; LANES];
                let dims = panel[..LANES * $tokens].as_chunks::<$tokens>().0;
                words.iter_mut().zip(dims).for_each(|(word, dim)| *word = <$word>::from_le_bytes(*dim));
                words
            }

            #[inline(always)]
            pub(super) fn store(panel: &mut [u8], words: &[$word; LANES]) {
                let dims = panel[..LANES * $tokens].as_chunks_mut::<$tokens>().0;
                dims.iter_mut().zip(words).for_each(|(dim, word)| *dim = word.to_le_bytes());
            }

            /// Fills the panel at `dst` with the tokens from `cut` on of the panel at `src`, then the first ones of that at
            /// `next`.
            #[inline(always)]
            pub(super) fn join(bytes: &mut [u8], src: usize, next: usize, dst: usize, cut: usize, dims: usize) {
                let (low, high) = (8 * cut, 8 * ($tokens - cut));
                for at in (0..dims * $tokens).step_by(LANES * $tokens) {
                    let (mut words, second) = (load(&bytes[src + at..]), load(&bytes[next + at..]));
                    words.iter_mut().zip(&second).for_each(|(first, next)| *first = *first >> low | next << high);
                    store(&mut bytes[dst + at..], &words);
                }
            }
        }
    };
}

width!(four, u32, 4);
width!(eight, u64, 8);

/// A panel of 8 tokens to one row per token.
fn to_rows(panel: &[u8], rows: &mut [u8], stride: usize, dims: usize) {
    for dim in (0..dims).step_by(LANES) {
        let words = eight::load(&panel[dim * 8..]);
        for token in 0..8 {
            let row = &mut rows[token * stride + dim..][..LANES];
            row.iter_mut().zip(&words).for_each(|(byte, word)| *byte = (word >> (8 * token)) as u8);
        }
    }
}

/// The inverse of [`to_rows`].
fn from_rows(rows: &[u8], stride: usize, panel: &mut [u8], dims: usize) {
    for dim in (0..dims).step_by(LANES) {
        let mut words = [0; LANES];
        for token in 0..8 {
            let row = &rows[token * stride + dim..][..LANES];
            words.iter_mut().zip(row).for_each(|(word, byte)| *word |= u64::from(*byte) << (8 * token));
        }
        eight::store(&mut panel[dim * 8..], &words);
    }
}

/// Whether a plane is of panels.
pub(super) fn are_in(plane: &Plane) -> bool {
    plane.pack > 1 && plane.element_bytes == 1
}

/// Copies a range of tokens of one head to dense rows, `stride` bytes apart.
pub(super) fn gather(plane: &Plane, packed: &[u8], rows: &mut [u8], stride: usize, range: TokenRange) {
    let (group, pack) = (plane.group, plane.pack);
    let split = arch::kernels().split4;
    let mut planes = [0; LONGEST_ROW];
    pieces(plane, stride, range, |piece| {
        let rows = &mut rows[piece.dense..];
        let panels = &packed[piece.start..];
        match pack {
            4 if piece.is_whole(plane) => {
                // Plane i has the dims of token i of every panel, side by side.
                let planes = &mut planes[..piece.tokens * group];
                split(&panels[..piece.tokens * group], planes);
                for (i, plane) in planes.chunks_exact(piece.tokens / 4 * group).enumerate() {
                    match group {
                        8 => spread::<8>(plane, &mut rows[i * stride..], 4 * stride),
                        32 => spread::<32>(plane, &mut rows[i * stride..], 4 * stride),
                        _ => spread::<64>(plane, &mut rows[i * stride..], 4 * stride),
                    }
                }
            }
            8 if piece.is_whole(plane) => {
                for (number, panel) in panels[..piece.tokens * group].chunks_exact(group * 8).enumerate() {
                    to_rows(panel, &mut rows[number * 8 * stride..], stride, group);
                }
            }
            _ => {
                for token in 0..piece.tokens {
                    let at = piece.first + token;
                    let column = panels[at / pack * group * pack + at % pack..].iter().step_by(pack);
                    rows[token * stride..][..piece.dims].iter_mut().zip(column).for_each(|(to, from)| *to = *from);
                }
            }
        }
    });
}

/// The inverse of [`gather`].
pub(super) fn scatter(plane: &Plane, packed: &mut [u8], rows: &[u8], stride: usize, range: TokenRange) {
    let (group, pack) = (plane.group, plane.pack);
    let merge = arch::kernels().merge4;
    let mut planes = [0; LONGEST_ROW];
    pieces(plane, stride, range, |piece| {
        let rows = &rows[piece.dense..];
        let panels = &mut packed[piece.start..];
        match pack {
            4 if piece.is_whole(plane) => {
                let planes = &mut planes[..piece.tokens * group];
                for (i, plane) in planes.chunks_exact_mut(piece.tokens / 4 * group).enumerate() {
                    match group {
                        8 => collect::<8>(&rows[i * stride..], 4 * stride, plane),
                        32 => collect::<32>(&rows[i * stride..], 4 * stride, plane),
                        _ => collect::<64>(&rows[i * stride..], 4 * stride, plane),
                    }
                }
                merge(planes, &mut panels[..piece.tokens * group]);
            }
            8 if piece.is_whole(plane) => {
                for (number, panel) in panels[..piece.tokens * group].chunks_exact_mut(group * 8).enumerate() {
                    from_rows(&rows[number * 8 * stride..], stride, panel, group);
                }
            }
            _ => {
                for token in 0..piece.tokens {
                    let at = piece.first + token;
                    let column = panels[at / pack * group * pack + at % pack..].iter_mut().step_by(pack);
                    column.zip(&rows[token * stride..][..piece.dims]).for_each(|(to, from)| *to = *from);
                }
            }
        }
    });
}

/// Copies pieces of `N` bytes to places `stride` bytes apart.
#[inline(always)]
fn spread<const N: usize>(from: &[u8], to: &mut [u8], stride: usize) {
    for (from, to) in from.as_chunks::<N>().0.iter().zip(to.chunks_mut(stride)) {
        to[..N].copy_from_slice(from);
    }
}

/// The inverse of [`spread`].
#[inline(always)]
fn collect<const N: usize>(from: &[u8], stride: usize, to: &mut [u8]) {
    for (to, from) in to.as_chunks_mut::<N>().0.iter_mut().zip(from.chunks(stride)) {
        to.copy_from_slice(&from[..N]);
    }
}

impl Piece {
    /// Whether the piece is whole panels, of whole groups of dims.
    fn is_whole(&self, plane: &Plane) -> bool {
        self.first == 0
            && self.tokens.is_multiple_of(plane.pack)
            && self.dims == plane.group
            && plane.group.is_multiple_of(LANES)
    }
}

/// Calls `visit` with the parts of a range that lie in one row: tokens before the first whole panel, whole panels, the rest.
#[inline]
fn pieces(plane: &Plane, stride: usize, range: TokenRange, mut visit: impl FnMut(Piece)) {
    let pack = plane.pack;
    for Span { base, first, count, at } in plane.spans(range) {
        let before = (first.next_multiple_of(pack) - first).min(count);
        let whole = (count - before) / pack * pack;
        for (row, dim) in (0..plane.dims).step_by(plane.group).enumerate() {
            let (row, dims) = (base + row * plane.row_stride, plane.group.min(plane.dims - dim));
            let mut done = 0;
            for tokens in [before, whole, count - before - whole] {
                let u = first + done;
                let start = row + u / pack * pack * plane.group;
                if tokens > 0 {
                    visit(Piece { start, first: u % pack, tokens, dims, dense: (at + done) * stride + dim });
                }
                done += tokens;
            }
        }
    }
}

/// Moves whole target panels whose source is cut elsewhere, first token first: from the token `src` on, to the first token
/// of a panel, within the blocks of both. Returns the number of tokens moved, which may be 0.
pub(super) fn join(plane: &Plane, packed: &mut [u8], src: Place, dst: Place, count: usize) -> usize {
    let (group, pack) = (plane.group, plane.pack);
    let cut = src.first % pack;
    let known = are_in(plane) && matches!(pack, 4 | 8) && group.is_multiple_of(LANES) && plane.tail_dims() == 0;
    if !known || !dst.first.is_multiple_of(pack) || cut == 0 {
        return 0;
    }
    // Both source panels of a target panel lie in the source's block.
    let tokens = count.min(plane.block - src.first) / pack * pack;
    let panel = group * pack;
    for row in 0..plane.full_rows() {
        let start = |place: Place| place.base + row * plane.row_stride + place.first / pack * panel;
        let (src, dst) = (start(src), start(dst));
        for at in (0..tokens / pack).map(|number| number * panel) {
            match pack {
                4 => four::join(packed, src + at, src + at + panel, dst + at, cut, group),
                _ => eight::join(packed, src + at, src + at + panel, dst + at, cut, group),
            }
        }
    }
    tokens
}
