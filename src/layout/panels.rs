//! INT8 V: rows of panels `[dim][token]` of a few bytes per dim, to and from dense rows, and moves by less than a panel.
//!
//! The bytes of one dim of a panel are taken as one integer, so that the work on neighbouring dims is the same and a
//! compiler can do it on vectors. Partial panels, and groups of other sizes, go byte by byte.

use super::TokenRange;
use super::plane::{Place, Plane, Span};

/// Dims that are done at once.
const LANES: usize = 8;

/// The place of panels in a row and of their tokens in dense rows.
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

/// Defines the work on panels of one width: the integer that holds the bytes of a dim.
macro_rules! width {
    ($module:ident, $word:ty, $tokens:literal) => {
        mod $module {
            use super::LANES;

            fn load(panel: &[u8]) -> [$word; LANES] {
                let dims: &[[u8; $tokens]; LANES] =
                    panel.as_chunks::<$tokens>().0.first_chunk().expect("panels are whole groups of dims");
                dims.map(<$word>::from_le_bytes)
            }

            fn store(panel: &mut [u8], words: [$word; LANES]) {
                panel[..LANES * $tokens].copy_from_slice(words.map(<$word>::to_le_bytes).as_flattened());
            }

            /// A panel to one row per token.
            pub(super) fn to_rows(panel: &[u8], rows: &mut [u8], stride: usize, dims: usize) {
                for dim in (0..dims).step_by(LANES) {
                    let words = load(&panel[dim * $tokens..]);
                    for token in 0..$tokens {
                        let row = words.map(|word| (word >> (8 * token)) as u8);
                        rows[token * stride + dim..][..LANES].copy_from_slice(&row);
                    }
                }
            }

            /// The inverse of [`to_rows`].
            pub(super) fn from_rows(rows: &[u8], stride: usize, panel: &mut [u8], dims: usize) {
                for dim in (0..dims).step_by(LANES) {
                    let mut words = [0; LANES];
                    for token in 0..$tokens {
                        let row = &rows[token * stride + dim..][..LANES];
                        for (word, byte) in words.iter_mut().zip(row) {
                            *word |= <$word>::from(*byte) << (8 * token);
                        }
                    }
                    store(&mut panel[dim * $tokens..], words);
                }
            }

            /// Fills the panel at `dst` with the tokens from `cut` on of the panel at `src`, then the first ones of that at
            /// `next`.
            pub(super) fn join(bytes: &mut [u8], src: usize, next: usize, dst: usize, cut: usize, dims: usize) {
                let (low, high) = (8 * cut, 8 * ($tokens - cut));
                for at in (0..dims * $tokens).step_by(LANES * $tokens) {
                    let (first, second) = (load(&bytes[src + at..]), load(&bytes[next + at..]));
                    store(&mut bytes[dst + at..], std::array::from_fn(|i| first[i] >> low | second[i] << high));
                }
            }
        }
    };
}

width!(four, u32, 4);
width!(eight, u64, 8);

/// Whether a plane is of panels.
pub(super) fn are_in(plane: &Plane) -> bool {
    plane.pack > 1 && plane.element_bytes == 1
}

/// Copies a range of tokens of one head to dense rows, `stride` bytes apart.
pub(super) fn gather(plane: &Plane, packed: &[u8], rows: &mut [u8], stride: usize, range: TokenRange) {
    let (group, pack) = (plane.group, plane.pack);
    pieces(plane, stride, range, |piece| {
        let rows = &mut rows[piece.dense..];
        let panel = &packed[piece.start..];
        match pack {
            4 if piece.is_panel(plane) => four::to_rows(panel, rows, stride, group),
            8 if piece.is_panel(plane) => eight::to_rows(panel, rows, stride, group),
            _ => {
                for token in 0..piece.tokens {
                    let row = &mut rows[token * stride..][..piece.dims];
                    let column = panel[piece.first + token..].iter().step_by(pack);
                    row.iter_mut().zip(column).for_each(|(to, from)| *to = *from);
                }
            }
        }
    });
}

/// The inverse of [`gather`].
pub(super) fn scatter(plane: &Plane, packed: &mut [u8], rows: &[u8], stride: usize, range: TokenRange) {
    let (group, pack) = (plane.group, plane.pack);
    pieces(plane, stride, range, |piece| {
        let rows = &rows[piece.dense..];
        let panel = &mut packed[piece.start..];
        match pack {
            4 if piece.is_panel(plane) => four::from_rows(rows, stride, panel, group),
            8 if piece.is_panel(plane) => eight::from_rows(rows, stride, panel, group),
            _ => {
                for token in 0..piece.tokens {
                    let row = &rows[token * stride..][..piece.dims];
                    let column = panel[piece.first + token..].iter_mut().step_by(pack);
                    column.zip(row).for_each(|(to, from)| *to = *from);
                }
            }
        }
    });
}

impl Piece {
    /// Whether the piece is a whole panel, of whole groups of dims.
    fn is_panel(&self, plane: &Plane) -> bool {
        self.tokens == plane.pack && self.dims == plane.group && plane.group.is_multiple_of(LANES)
    }
}

/// Calls `visit` with the parts of a range that lie in one panel.
#[inline]
fn pieces(plane: &Plane, stride: usize, range: TokenRange, mut visit: impl FnMut(Piece)) {
    for Span { base, first, count, at } in plane.spans(range) {
        for (row, dim) in (0..plane.dims).step_by(plane.group).enumerate() {
            let (row, dims) = (base + row * plane.row_stride, plane.group.min(plane.dims - dim));
            let mut done = 0;
            while done < count {
                let u = first + done;
                let in_panel = u % plane.pack;
                let tokens = (plane.pack - in_panel).min(count - done);
                let start = row + (u - in_panel) * plane.group;
                visit(Piece { start, first: in_panel, tokens, dims, dense: (at + done) * stride + dim });
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
