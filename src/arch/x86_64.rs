//! AVX2 versions. Each works on whole vectors and leaves the words that remain to [`super::portable`].

use super::{Kernels, Level, portable};
use core::arch::x86_64::*;

static AVX2: Kernels = Kernels { level: Level::Avx2, split2, split4, merge2, merge4 };

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
