//! The definition of every kernel, in plain Rust.

use super::Transposition;

/// Byte `i` of every `N`-byte word of `src` goes to plane `i` of `dst`.
pub fn split<const N: usize>(src: &[u8], dst: &mut [u8]) {
    let (words, rest) = src.as_chunks::<N>();
    assert!(rest.is_empty() && dst.len() == src.len(), "whole words and equal lengths");
    if words.is_empty() {
        return;
    }
    for (i, plane) in dst.chunks_exact_mut(words.len()).enumerate() {
        for (byte, word) in plane.iter_mut().zip(words) {
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
    for (i, plane) in src.chunks_exact(words.len()).enumerate() {
        for (word, byte) in words.iter_mut().zip(plane) {
            word[i] = *byte;
        }
    }
}

/// See [`Transposition`]. Moves squares of 8 and, at the right edge, strips of 8 by 4, so that cache lines are finished
/// one after another.
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
    let rows: [&[T; N]; 8] = std::array::from_fn(|i| src[i * src_stride..].first_chunk().expect("eight whole rows"));
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

/// `dst[i] = src[i] - src[i - 1]` mod 256; the byte before the first is 0.
pub fn delta(src: &[u8], dst: &mut [u8]) {
    residual(src, dst, u8::wrapping_sub);
}

/// `dst[i] = src[i] ^ src[i - 1]`; the byte before the first is 0.
pub fn xor(src: &[u8], dst: &mut [u8]) {
    residual(src, dst, |byte, before| byte ^ before);
}

fn residual(src: &[u8], dst: &mut [u8], apart: impl Fn(u8, u8) -> u8) {
    assert_eq!(src.len(), dst.len());
    let ([first, ..], [out, rest @ ..]) = (src, dst) else { return };
    *out = *first;
    for ((out, byte), before) in rest.iter_mut().zip(&src[1..]).zip(src) {
        *out = apart(*byte, *before);
    }
}

/// The inverse of [`delta`], in place.
pub fn undo_delta(bytes: &mut [u8]) {
    let mut before = 0u8;
    for byte in bytes {
        before = before.wrapping_add(*byte);
        *byte = before;
    }
}

/// The inverse of [`xor`], in place.
pub fn undo_xor(bytes: &mut [u8]) {
    let mut before = 0u8;
    for byte in bytes {
        before ^= *byte;
        *byte = before;
    }
}

/// Adds the number of bytes `b` to `counts[b]`. Neighbours are counted in different tables, because an increment of the
/// same count would wait for the one before; the tables pay for longer input alone.
pub fn histogram(src: &[u8], counts: &mut [u32; 256]) {
    let (groups, mut rest) = src.as_chunks::<8>();
    if src.len() < 512 {
        rest = src;
    } else {
        let mut tables = [[0u32; 256]; 4];
        for group in groups {
            for (i, byte) in group.iter().enumerate() {
                tables[i % 4][*byte as usize] += 1;
            }
        }
        for (i, count) in counts.iter_mut().enumerate() {
            *count += tables.iter().map(|table| table[i]).sum::<u32>();
        }
    }
    for byte in rest {
        counts[*byte as usize] += 1;
    }
}

/// The number of bytes that equal the byte before them.
pub fn repeats(src: &[u8]) -> usize {
    let Some((_, bytes)) = src.split_first() else { return 0 };
    // A byte can count as many, so the sum stays one byte wide.
    let groups = bytes.chunks(255).zip(src.chunks(255));
    groups.map(|(bytes, before)| bytes.iter().zip(before).map(|(a, b)| u8::from(a == b)).sum::<u8>() as usize).sum()
}

/// The place of the first four equal bytes in a row; the length if there are none.
pub fn next_run(src: &[u8]) -> usize {
    src.windows(4).position(|w| w[0] == w[1] && w[1] == w[2] && w[2] == w[3]).unwrap_or(src.len())
}

/// The number of bytes at the start that equal the first.
pub fn run_len(src: &[u8]) -> usize {
    src.iter().position(|byte| *byte != src[0]).unwrap_or(src.len())
}

/// The places of a byte.
pub fn places(src: &[u8], byte: u8, places: &mut [u16]) -> usize {
    assert!(src.len() <= places.len() && src.len() <= 1 << 16, "room for all places, which fit");
    let mut count = 0;
    for (at, other) in src.iter().enumerate() {
        // Written in any case; kept if it is the byte.
        places[count] = at as u16;
        count += (*other == byte) as usize;
    }
    count
}
