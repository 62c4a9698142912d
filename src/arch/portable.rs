//! The definition of every kernel, in plain Rust.

use super::Transposition;

/// Byte `i` of every `N`-byte word of `src` goes to lane `i` of `dst`.
pub fn split<const N: usize>(src: &[u8], dst: &mut [u8]) {
    let (words, rest) = src.as_chunks::<N>();
    assert!(rest.is_empty() && dst.len() == src.len(), "whole words and equal lengths");
    if words.is_empty() {
        return;
    }
    for (i, lane) in dst.chunks_exact_mut(words.len()).enumerate() {
        for (byte, word) in lane.iter_mut().zip(words) {
            *byte = word[i];
        }
    }
}

/// The inverse of [`split`].
pub fn merge<const N: usize>(src: &[u8], dst: &mut [u8]) {
    let (words, rest) = dst.as_chunks_mut::<N>();
    assert!(rest.is_empty() && words.len() * N == src.len(), "whole words and equal lengths");
    if words.is_empty() {
        return;
    }
    for (i, lane) in src.chunks_exact(words.len()).enumerate() {
        for (word, byte) in words.iter_mut().zip(lane) {
            word[i] = *byte;
        }
    }
}

/// See [`Transposition`]. Goes by squares of 8 and, at the right edge, strips of 8 by 4, so that a cache line is
/// finished before it is left.
pub fn transpose<T: Copy>(shape: &Transposition, src: &[T], dst: &mut [T]) {
    let Transposition { rows, columns, src_stride, dst_stride } = *shape;
    let mut i = 0;
    while i + 8 <= rows {
        let mut j = 0;
        while j + 8 <= columns {
            strip::<T, 8>(&src[i * src_stride + j..], src_stride, &mut dst[j * dst_stride + i..], dst_stride);
            j += 8;
        }
        if j + 4 <= columns {
            strip::<T, 4>(&src[i * src_stride + j..], src_stride, &mut dst[j * dst_stride + i..], dst_stride);
            j += 4;
        }
        transpose_part(shape, i..i + 8, j..columns, src, dst);
        i += 8;
    }
    transpose_part(shape, i..rows, 0..columns, src, dst);
}

/// Eight rows of `N` columns.
fn strip<T: Copy, const N: usize>(src: &[T], src_stride: usize, dst: &mut [T], dst_stride: usize) {
    let rows: [&[T; N]; 8] =
        std::array::from_fn(|i| src[i * src_stride..].first_chunk().expect("the caller has eight whole rows"));
    for j in 0..N {
        let column: [T; 8] = std::array::from_fn(|i| rows[i][j]);
        dst[j * dst_stride..][..8].copy_from_slice(&column);
    }
}

/// The definition, for a part of the matrix.
pub(super) fn transpose_part<T: Copy>(
    shape: &Transposition,
    rows: std::ops::Range<usize>,
    columns: std::ops::Range<usize>,
    src: &[T],
    dst: &mut [T],
) {
    for i in rows {
        for j in columns.clone() {
            dst[j * shape.dst_stride + i] = src[i * shape.src_stride + j];
        }
    }
}
