//! Words to byte planes and back.

use super::{Vector, cover};
use crate::arch::portable;

/// # Safety
/// See [`Vector`].
#[inline(always)]
pub(in crate::arch) unsafe fn split2<V: Vector>(src: &[u8], dst: &mut [u8]) {
    let words = word_count::<2>(src, dst);
    if words < V::LEN {
        return portable::split::<2>(src, dst);
    }
    for (first, last) in cover::<V>(words, dst.as_ptr()) {
        let mut w = first;
        while w <= last {
            // SAFETY: w + LEN <= words, so the words and the places in both planes are inside the slices.
            unsafe {
                let [a, b] = V::split2(src.as_ptr().add(2 * w));
                let to = dst.as_mut_ptr().add(w);
                a.store(to);
                b.store(to.add(words));
            }
            w += V::LEN;
        }
    }
}

/// # Safety
/// See [`Vector`].
#[inline(always)]
pub(in crate::arch) unsafe fn split4<V: Vector>(src: &[u8], dst: &mut [u8]) {
    let words = word_count::<4>(src, dst);
    if words < V::LEN {
        return portable::split::<4>(src, dst);
    }
    for (first, last) in cover::<V>(words, dst.as_ptr()) {
        let mut w = first;
        while w <= last {
            // SAFETY: w + LEN <= words, so the words and the places in all planes are inside the slices.
            unsafe {
                let [a, b, c, d] = V::split4(src.as_ptr().add(4 * w));
                let to = dst.as_mut_ptr().add(w);
                a.store(to);
                b.store(to.add(words));
                c.store(to.add(2 * words));
                d.store(to.add(3 * words));
            }
            w += V::LEN;
        }
    }
}

/// # Safety
/// See [`Vector`].
#[inline(always)]
pub(in crate::arch) unsafe fn merge2<V: Vector>(src: &[u8], dst: &mut [u8]) {
    let words = word_count::<2>(src, dst);
    if words < V::LEN {
        return portable::merge::<2>(src, dst);
    }
    for (first, last) in cover::<V>(words, src.as_ptr()) {
        let mut w = first;
        while w <= last {
            // SAFETY: w + LEN <= words, so the places in both planes and the words are inside the slices.
            unsafe {
                let from = src.as_ptr().add(w);
                V::merge2([V::load(from), V::load(from.add(words))], dst.as_mut_ptr().add(2 * w));
            }
            w += V::LEN;
        }
    }
}

/// # Safety
/// See [`Vector`].
#[inline(always)]
pub(in crate::arch) unsafe fn merge4<V: Vector>(src: &[u8], dst: &mut [u8]) {
    let words = word_count::<4>(src, dst);
    if words < V::LEN {
        return portable::merge::<4>(src, dst);
    }
    for (first, last) in cover::<V>(words, src.as_ptr()) {
        let mut w = first;
        while w <= last {
            // SAFETY: w + LEN <= words, so the places in all planes and the words are inside the slices.
            unsafe {
                let from = src.as_ptr().add(w);
                let (a, b) = (V::load(from), V::load(from.add(words)));
                let (c, d) = (V::load(from.add(2 * words)), V::load(from.add(3 * words)));
                V::merge4([a, b, c, d], dst.as_mut_ptr().add(4 * w));
            }
            w += V::LEN;
        }
    }
}

fn word_count<const N: usize>(src: &[u8], dst: &[u8]) -> usize {
    assert!(src.len().is_multiple_of(N) && dst.len() == src.len(), "whole words and equal lengths");
    src.len() / N
}
