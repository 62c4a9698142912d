//! Transposes of elements.

use super::Vector;
use crate::arch::{Transposition, portable};

/// # Safety
/// See [`Vector`].
#[inline(always)]
pub(in crate::arch) unsafe fn transpose2<V: Vector>(shape: &Transposition, src: &[[u8; 2]], dst: &mut [[u8; 2]]) {
    // SAFETY: the caller's.
    unsafe { blocks::<V, 2, 8>(shape, src, dst) };
}

/// # Safety
/// See [`Vector`].
#[inline(always)]
pub(in crate::arch) unsafe fn transpose4<V: Vector>(shape: &Transposition, src: &[[u8; 4]], dst: &mut [[u8; 4]]) {
    // SAFETY: the caller's.
    unsafe { blocks::<V, 4, 4>(shape, src, dst) };
}

/// Blocks of `COLUMNS` columns of `N` bytes, which fill a part, and as many rows as fill a vector: rows are loaded,
/// interleaved round by round, and stored as columns. `portable` moves the rest.
///
/// # Safety
/// See [`Vector`].
#[inline(always)]
unsafe fn blocks<V: Vector, const N: usize, const COLUMNS: usize>(
    shape: &Transposition,
    src: &[[u8; N]],
    dst: &mut [[u8; N]],
) {
    let Transposition { src_stride, dst_stride, .. } = *shape;
    let rows = shape.rows - shape.rows % (V::LEN / N);
    let columns = shape.columns - shape.columns % COLUMNS;
    if rows > 0 && columns > 0 {
        assert!((rows - 1) * src_stride + columns <= src.len() && (columns - 1) * dst_stride + rows <= dst.len());
    }
    for i in (0..rows).step_by(V::LEN / N) {
        for j in (0..columns).step_by(COLUMNS) {
            // SAFETY: the block's rows and columns are inside the matrix, whose last element is inside both slices.
            unsafe {
                let from = src.as_ptr().add(i * src_stride + j);
                let to = dst.as_mut_ptr().add(j * dst_stride + i);
                let mut v = [V::zero(); COLUMNS];
                for (row, v) in v.iter_mut().enumerate() {
                    *v = V::load_parts(from.add(row * src_stride).cast(), COLUMNS * src_stride * N);
                }
                for _ in 0..COLUMNS.trailing_zeros() {
                    let before = v;
                    for k in 0..COLUMNS / 2 {
                        v[2 * k] = before[k].zip_lo::<N>(before[k + COLUMNS / 2]);
                        v[2 * k + 1] = before[k].zip_hi::<N>(before[k + COLUMNS / 2]);
                    }
                }
                for (column, v) in v.into_iter().enumerate() {
                    v.store(to.add(column * dst_stride).cast());
                }
            }
        }
    }
    if rows > 0 && columns < shape.columns {
        let right = Transposition { rows, columns: shape.columns - columns, ..*shape };
        portable::transpose(&right, &src[columns..], &mut dst[columns * dst_stride..]);
    }
    if V::LEN > V::Half::LEN && rows < shape.rows && shape.columns > 0 {
        let bottom = Transposition { rows: shape.rows - rows, ..*shape };
        // SAFETY: a level's features include those of narrower vectors.
        return unsafe { blocks::<V::Half, N, COLUMNS>(&bottom, &src[rows * src_stride..], &mut dst[rows..]) };
    }
    portable::transpose_part(shape, rows..shape.rows, 0..shape.columns, src, dst);
}
