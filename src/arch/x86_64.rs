//! AVX2 versions. Each works on whole vectors and leaves the words that remain to [`super::portable`].

use super::{Kernels, Level, Transposition, portable};
use core::arch::x86_64::*;

static AVX2: Kernels = Kernels { level: Level::Avx2, split2, split4, merge2, merge4, transpose2, transpose4 };

/// The AVX2 kernels, when this CPU has them. This is the only way to reach the table, so its functions may take the
/// feature for granted.
pub(super) fn avx2() -> Option<&'static Kernels> {
    is_x86_feature_detected!("avx2").then_some(&AVX2)
}

fn split2(src: &[u8], dst: &mut [u8]) {
    // SAFETY: reached only through the table that `avx2` hands out after detection.
    let done = unsafe { split2_avx2(src, dst) };
    finish_split::<2>(src, dst, done);
}

fn split4(src: &[u8], dst: &mut [u8]) {
    // SAFETY: reached only through the table that `avx2` hands out after detection.
    let done = unsafe { split4_avx2(src, dst) };
    finish_split::<4>(src, dst, done);
}

fn merge2(src: &[u8], dst: &mut [u8]) {
    // SAFETY: reached only through the table that `avx2` hands out after detection.
    let done = unsafe { merge2_avx2(src, dst) };
    finish_merge::<2>(src, dst, done);
}

fn merge4(src: &[u8], dst: &mut [u8]) {
    // SAFETY: reached only through the table that `avx2` hands out after detection.
    let done = unsafe { merge4_avx2(src, dst) };
    finish_merge::<4>(src, dst, done);
}

/// The words from `done` on, at most 31 of them.
fn finish_split<const N: usize>(src: &[u8], dst: &mut [u8], done: usize) {
    let words = src.len() / N;
    assert!(src.len() == words * N && dst.len() == src.len(), "whole words and equal lengths");
    let mut tail = [0u8; 32 * 4];
    let tail = &mut tail[..(words - done) * N];
    portable::split::<N>(&src[done * N..], tail);
    for lane in 0..N {
        dst[lane * words + done..(lane + 1) * words].copy_from_slice(&tail[lane * (words - done)..][..words - done]);
    }
}

fn finish_merge<const N: usize>(src: &[u8], dst: &mut [u8], done: usize) {
    let words = src.len() / N;
    assert!(src.len() == words * N && dst.len() == src.len(), "whole words and equal lengths");
    let mut tail = [0u8; 32 * 4];
    let tail = &mut tail[..(words - done) * N];
    for lane in 0..N {
        tail[lane * (words - done)..][..words - done].copy_from_slice(&src[lane * words + done..(lane + 1) * words]);
    }
    portable::merge::<N>(tail, &mut dst[done * N..]);
}

/// Splits whole vectors; returns how many words are done. Lengths are checked before any pointer is made: `dst` holds
/// as many bytes as `src`, so lane `i` at word `w` is at byte `i * words + w`, below `N * words`.
#[target_feature(enable = "avx2")]
fn split2_avx2(src: &[u8], dst: &mut [u8]) -> usize {
    let words = src.len() / 2;
    assert_eq!(dst.len(), src.len());
    let low = _mm256_set1_epi16(0x00FF);
    let mut w = 0;
    while w + 32 <= words {
        // SAFETY: w + 32 <= words bounds both 32-byte loads and both 32-byte stores.
        unsafe {
            let a = _mm256_loadu_si256(src.as_ptr().add(2 * w).cast());
            let b = _mm256_loadu_si256(src.as_ptr().add(2 * w + 32).cast());
            let lo = _mm256_packus_epi16(_mm256_and_si256(a, low), _mm256_and_si256(b, low));
            let hi = _mm256_packus_epi16(_mm256_srli_epi16::<8>(a), _mm256_srli_epi16::<8>(b));
            // Packing works within 128-bit halves: put the quarters back in order.
            let out = dst.as_mut_ptr().add(w);
            _mm256_storeu_si256(out.cast(), _mm256_permute4x64_epi64::<0b11_01_10_00>(lo));
            _mm256_storeu_si256(out.add(words).cast(), _mm256_permute4x64_epi64::<0b11_01_10_00>(hi));
        }
        w += 32;
    }
    w
}

#[target_feature(enable = "avx2")]
fn merge2_avx2(src: &[u8], dst: &mut [u8]) -> usize {
    let words = src.len() / 2;
    assert_eq!(dst.len(), src.len());
    let mut w = 0;
    while w + 32 <= words {
        // SAFETY: w + 32 <= words bounds both 32-byte loads and both 32-byte stores.
        unsafe {
            let lo = _mm256_loadu_si256(src.as_ptr().add(w).cast());
            let hi = _mm256_loadu_si256(src.as_ptr().add(words + w).cast());
            let a = _mm256_unpacklo_epi8(lo, hi);
            let b = _mm256_unpackhi_epi8(lo, hi);
            let out = dst.as_mut_ptr().add(2 * w);
            _mm256_storeu_si256(out.cast(), _mm256_permute2x128_si256::<0x20>(a, b));
            _mm256_storeu_si256(out.add(32).cast(), _mm256_permute2x128_si256::<0x31>(a, b));
        }
        w += 32;
    }
    w
}

#[target_feature(enable = "avx2")]
fn split4_avx2(src: &[u8], dst: &mut [u8]) -> usize {
    let words = src.len() / 4;
    assert_eq!(dst.len(), src.len());
    let low = _mm256_set1_epi32(0xFF);
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    let mut w = 0;
    while w + 32 <= words {
        // SAFETY: w + 32 <= words bounds the four 32-byte loads and the store to each lane.
        unsafe {
            let p = src.as_ptr().add(4 * w);
            let v = [
                _mm256_loadu_si256(p.cast()),
                _mm256_loadu_si256(p.add(32).cast()),
                _mm256_loadu_si256(p.add(64).cast()),
                _mm256_loadu_si256(p.add(96).cast()),
            ];
            for lane in 0..4 {
                let shift = _mm_cvtsi32_si128(8 * lane as i32);
                let byte = |x| _mm256_and_si256(_mm256_srl_epi32(x, shift), low);
                let ab = _mm256_packs_epi32(byte(v[0]), byte(v[1]));
                let cd = _mm256_packs_epi32(byte(v[2]), byte(v[3]));
                let packed = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(ab, cd), order);
                _mm256_storeu_si256(dst.as_mut_ptr().add(lane * words + w).cast(), packed);
            }
        }
        w += 32;
    }
    w
}

#[target_feature(enable = "avx2")]
fn merge4_avx2(src: &[u8], dst: &mut [u8]) -> usize {
    let words = src.len() / 4;
    assert_eq!(dst.len(), src.len());
    let mut w = 0;
    while w + 32 <= words {
        // SAFETY: w + 32 <= words bounds the load from each lane and the four 32-byte stores.
        unsafe {
            let lane = |i: usize| _mm256_loadu_si256(src.as_ptr().add(i * words + w).cast());
            let (l0, l1, l2, l3) = (lane(0), lane(1), lane(2), lane(3));
            let (ab0, ab1) = (_mm256_unpacklo_epi8(l0, l1), _mm256_unpackhi_epi8(l0, l1));
            let (cd0, cd1) = (_mm256_unpacklo_epi8(l2, l3), _mm256_unpackhi_epi8(l2, l3));
            let (x0, x1) = (_mm256_unpacklo_epi16(ab0, cd0), _mm256_unpackhi_epi16(ab0, cd0));
            let (x2, x3) = (_mm256_unpacklo_epi16(ab1, cd1), _mm256_unpackhi_epi16(ab1, cd1));
            let out = dst.as_mut_ptr().add(4 * w);
            _mm256_storeu_si256(out.cast(), _mm256_permute2x128_si256::<0x20>(x0, x1));
            _mm256_storeu_si256(out.add(32).cast(), _mm256_permute2x128_si256::<0x20>(x2, x3));
            _mm256_storeu_si256(out.add(64).cast(), _mm256_permute2x128_si256::<0x31>(x0, x1));
            _mm256_storeu_si256(out.add(96).cast(), _mm256_permute2x128_si256::<0x31>(x2, x3));
        }
        w += 32;
    }
    w
}

fn transpose2(shape: &Transposition, src: &[[u8; 2]], dst: &mut [[u8; 2]]) {
    // SAFETY: reached only through the table that `avx2` hands out after detection.
    unsafe { transpose2_avx2(shape, src, dst) };
    finish_transpose(shape, src, dst);
}

fn transpose4(shape: &Transposition, src: &[[u8; 4]], dst: &mut [[u8; 4]]) {
    // SAFETY: reached only through the table that `avx2` hands out after detection.
    unsafe { transpose4_avx2(shape, src, dst) };
    finish_transpose(shape, src, dst);
}

/// What is left beside the squares of 8: columns at the right, rows at the bottom.
fn finish_transpose<T: Copy>(shape: &Transposition, src: &[T], dst: &mut [T]) {
    let (rows, columns) = (shape.rows / 8 * 8, shape.columns / 8 * 8);
    if columns < shape.columns {
        let right = Transposition { rows, columns: shape.columns - columns, ..*shape };
        if rows > 0 {
            portable::transpose(&right, &src[columns..], &mut dst[columns * shape.dst_stride..]);
        }
    }
    portable::transpose_part(shape, rows..shape.rows, 0..shape.columns, src, dst);
}

/// Calls `square` with the first source and target element of every square of 8 x 8 of the matrix.
///
/// # Safety
/// `square` touches 8 elements from each of 8 places `src_stride` and `dst_stride` apart, and no others.
#[inline(always)]
unsafe fn squares<T>(shape: &Transposition, src: &[T], dst: &mut [T], square: impl Fn(*const T, *mut T)) {
    let Transposition { rows, columns, src_stride, dst_stride } = *shape;
    if rows < 8 || columns < 8 {
        return;
    }
    assert!((rows - 1) * src_stride + columns <= src.len() && (columns - 1) * dst_stride + rows <= dst.len());
    for i in (0..rows / 8 * 8).step_by(8) {
        for j in (0..columns / 8 * 8).step_by(8) {
            // SAFETY: rows i .. i + 8 and columns j .. j + 8 are inside the matrix, whose last element is inside both
            // slices.
            unsafe { square(src.as_ptr().add(i * src_stride + j), dst.as_mut_ptr().add(j * dst_stride + i)) };
        }
    }
}

/// Rows are loaded, interleaved in three rounds, and stored as columns.
#[target_feature(enable = "avx2")]
fn transpose2_avx2(shape: &Transposition, src: &[[u8; 2]], dst: &mut [[u8; 2]]) {
    let square = |from: *const [u8; 2], to: *mut [u8; 2]| {
        // SAFETY: `squares` hands out places with 8 elements in each of 8 rows.
        let row = |r: usize| unsafe { _mm_loadu_si128(from.add(r * shape.src_stride).cast()) };
        let (r0, r1, r2, r3) = (row(0), row(1), row(2), row(3));
        let (r4, r5, r6, r7) = (row(4), row(5), row(6), row(7));
        let (a0, a1) = (_mm_unpacklo_epi16(r0, r1), _mm_unpackhi_epi16(r0, r1));
        let (a2, a3) = (_mm_unpacklo_epi16(r2, r3), _mm_unpackhi_epi16(r2, r3));
        let (a4, a5) = (_mm_unpacklo_epi16(r4, r5), _mm_unpackhi_epi16(r4, r5));
        let (a6, a7) = (_mm_unpacklo_epi16(r6, r7), _mm_unpackhi_epi16(r6, r7));
        let (b0, b1) = (_mm_unpacklo_epi32(a0, a2), _mm_unpackhi_epi32(a0, a2));
        let (b2, b3) = (_mm_unpacklo_epi32(a1, a3), _mm_unpackhi_epi32(a1, a3));
        let (b4, b5) = (_mm_unpacklo_epi32(a4, a6), _mm_unpackhi_epi32(a4, a6));
        let (b6, b7) = (_mm_unpacklo_epi32(a5, a7), _mm_unpackhi_epi32(a5, a7));
        let columns = [
            _mm_unpacklo_epi64(b0, b4),
            _mm_unpackhi_epi64(b0, b4),
            _mm_unpacklo_epi64(b1, b5),
            _mm_unpackhi_epi64(b1, b5),
            _mm_unpacklo_epi64(b2, b6),
            _mm_unpackhi_epi64(b2, b6),
            _mm_unpacklo_epi64(b3, b7),
            _mm_unpackhi_epi64(b3, b7),
        ];
        for (c, column) in columns.into_iter().enumerate() {
            // SAFETY: `squares` hands out places with 8 elements in each of 8 rows.
            unsafe { _mm_storeu_si128(to.add(c * shape.dst_stride).cast(), column) };
        }
    };
    // SAFETY: `square` keeps to the places it is given.
    unsafe { squares(shape, src, dst, square) };
}

/// As [`transpose2_avx2`], in 256-bit rows of eight 4-byte elements.
#[target_feature(enable = "avx2")]
fn transpose4_avx2(shape: &Transposition, src: &[[u8; 4]], dst: &mut [[u8; 4]]) {
    let square = |from: *const [u8; 4], to: *mut [u8; 4]| {
        // SAFETY: `squares` hands out places with 8 elements in each of 8 rows.
        let row = |r: usize| unsafe { _mm256_loadu_si256(from.add(r * shape.src_stride).cast()) };
        // Four rows at a time: column c is in the low half of element c % 4 for c < 4, else in its high half.
        let four = |r: usize| {
            let (r0, r1, r2, r3) = (row(r), row(r + 1), row(r + 2), row(r + 3));
            let (a0, a1) = (_mm256_unpacklo_epi32(r0, r1), _mm256_unpackhi_epi32(r0, r1));
            let (a2, a3) = (_mm256_unpacklo_epi32(r2, r3), _mm256_unpackhi_epi32(r2, r3));
            [
                _mm256_unpacklo_epi64(a0, a2),
                _mm256_unpackhi_epi64(a0, a2),
                _mm256_unpacklo_epi64(a1, a3),
                _mm256_unpackhi_epi64(a1, a3),
            ]
        };
        for (c, (upper, lower)) in four(0).into_iter().zip(four(4)).enumerate() {
            let left = _mm256_permute2x128_si256::<0x20>(upper, lower);
            let right = _mm256_permute2x128_si256::<0x31>(upper, lower);
            // SAFETY: `squares` hands out places with 8 elements in each of 8 rows.
            unsafe {
                _mm256_storeu_si256(to.add(c * shape.dst_stride).cast(), left);
                _mm256_storeu_si256(to.add((c + 4) * shape.dst_stride).cast(), right);
            }
        }
    };
    // SAFETY: `square` keeps to the places it is given.
    unsafe { squares(shape, src, dst, square) };
}
