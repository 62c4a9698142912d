//! Residuals and repetitions of a byte stream.

use super::{Sums, Vector, cover};
use crate::arch::portable;

/// # Safety
/// See [`Vector`].
#[inline(always)]
pub(in crate::arch) unsafe fn delta<V: Vector>(src: &[u8], dst: &mut [u8]) {
    if src.len() <= V::LEN {
        return portable::delta(src, dst);
    }
    // SAFETY: the caller's.
    unsafe { residual::<V, false>(src, dst) };
}

/// # Safety
/// See [`Vector`].
#[inline(always)]
pub(in crate::arch) unsafe fn xor<V: Vector>(src: &[u8], dst: &mut [u8]) {
    if src.len() <= V::LEN {
        return portable::xor(src, dst);
    }
    // SAFETY: the caller's.
    unsafe { residual::<V, true>(src, dst) };
}

/// # Safety
/// See [`Vector`]; `src` is longer than a vector.
#[inline(always)]
unsafe fn residual<V: Vector, const XOR: bool>(src: &[u8], dst: &mut [u8]) {
    assert_eq!(src.len(), dst.len());
    dst[0] = src[0];
    let out = &mut dst[1..];
    for (first, last) in cover::<V>(out.len(), out.as_ptr()) {
        let mut at = first;
        while at <= last {
            // SAFETY: at + LEN <= out.len(), and src is one byte longer.
            unsafe {
                let (before, bytes) = (V::load(src.as_ptr().add(at)), V::load(src.as_ptr().add(at + 1)));
                let residual = if XOR { bytes.xor(before) } else { bytes.sub(before) };
                residual.store(out.as_mut_ptr().add(at));
            }
            at += V::LEN;
        }
    }
}

/// # Safety
/// See [`Vector`].
#[inline(always)]
pub(in crate::arch) unsafe fn undo_delta<V: Sums>(bytes: &mut [u8]) {
    // SAFETY: the caller's.
    let done = unsafe { undo::<V, false>(bytes) };
    let (before, rest) = bytes.split_at_mut(done);
    if let (Some(before), Some(first)) = (before.last(), rest.first_mut()) {
        *first = first.wrapping_add(*before);
    }
    portable::undo_delta(rest);
}

/// # Safety
/// See [`Vector`].
#[inline(always)]
pub(in crate::arch) unsafe fn undo_xor<V: Sums>(bytes: &mut [u8]) {
    // SAFETY: the caller's.
    let done = unsafe { undo::<V, true>(bytes) };
    let (before, rest) = bytes.split_at_mut(done);
    if let (Some(before), Some(first)) = (before.last(), rest.first_mut()) {
        *first ^= *before;
    }
    portable::undo_xor(rest);
}

/// The running sum of whole vectors. Returns the number of bytes that are done. The sums within a vector do not wait for
/// the vector before it; one addition per vector does.
///
/// # Safety
/// See [`Vector`].
#[inline(always)]
unsafe fn undo<V: Sums, const XOR: bool>(bytes: &mut [u8]) -> usize {
    let mut at = 0;
    // SAFETY: at + LEN <= bytes.len() bounds the load and the store.
    unsafe {
        let mut before = V::zero();
        while at + V::LEN <= bytes.len() {
            let place = bytes.as_mut_ptr().add(at);
            let mut v = V::load(place);
            v = combine::<V, XOR>(v, v.up::<1>());
            v = combine::<V, XOR>(v, v.up::<2>());
            v = combine::<V, XOR>(v, v.up::<4>());
            v = combine::<V, XOR>(v, v.up::<8>());
            v = combine::<V, XOR>(v, v.carried());
            combine::<V, XOR>(v, before).store(place);
            before = combine::<V, XOR>(before, v.last());
            at += V::LEN;
        }
    }
    at
}

/// # Safety
/// See [`Vector`].
#[inline(always)]
unsafe fn combine<V: Vector, const XOR: bool>(a: V, b: V) -> V {
    // SAFETY: the caller's.
    unsafe { if XOR { a.xor(b) } else { a.add(b) } }
}

/// Counts bits of the mask, which gains nothing if a mask is not one bit a byte.
///
/// # Safety
/// See [`Vector`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(in crate::arch) unsafe fn repeats<V: Vector>(src: &[u8]) -> usize {
    let mut bits = 0;
    let mut at = 0;
    while at + V::LEN < src.len() {
        // SAFETY: at + 1 + LEN <= src.len().
        unsafe {
            let (before, bytes) = (V::load(src.as_ptr().add(at)), V::load(src.as_ptr().add(at + 1)));
            bits += bytes.equal(before).count_ones() as usize;
        }
        at += V::LEN;
    }
    bits / V::MASK_BITS as usize + portable::repeats(&src[at..])
}

/// # Safety
/// See [`Vector`].
#[inline(always)]
pub(in crate::arch) unsafe fn next_run<V: Vector>(src: &[u8]) -> usize {
    if src.len() <= V::LEN {
        return portable::next_run(src);
    }
    // A vector compares LEN bytes with the next; the two last have no two comparisons after them.
    let last = src.len() - 1 - V::LEN;
    let mut at = 0;
    loop {
        // SAFETY: at <= last, so at + 1 + LEN <= src.len().
        let equal = unsafe { V::load(src.as_ptr().add(at)).equal(V::load(src.as_ptr().add(at + 1))) };
        let runs = equal & (equal >> V::MASK_BITS) & (equal >> (2 * V::MASK_BITS));
        if runs != 0 {
            return at + (runs.trailing_zeros() / V::MASK_BITS) as usize;
        }
        if at == last {
            return src.len();
        }
        at = last.min(at + V::LEN - 2);
    }
}

/// # Safety
/// See [`Vector`].
#[inline(always)]
pub(in crate::arch) unsafe fn run_len<V: Vector>(src: &[u8]) -> usize {
    if src.len() < V::LEN {
        return portable::run_len(src);
    }
    let all = u64::MAX >> (64 - V::LEN as u32 * V::MASK_BITS);
    // SAFETY: V::splat touches no memory.
    let first = unsafe { V::splat(src[0]) };
    let last = src.len() - V::LEN;
    let mut at = 0;
    loop {
        // SAFETY: at <= last, so at + LEN <= src.len().
        let other = unsafe { V::load(src.as_ptr().add(at)).equal(first) } ^ all;
        if other != 0 {
            return at + (other.trailing_zeros() / V::MASK_BITS) as usize;
        }
        if at == last {
            return src.len();
        }
        at = last.min(at + V::LEN);
    }
}

/// # Safety
/// See [`Vector`].
#[inline(always)]
pub(in crate::arch) unsafe fn places<V: Vector>(src: &[u8], byte: u8, places: &mut [u16]) -> usize {
    assert!(src.len() <= places.len() && src.len() <= 1 << 16, "room for all places, which fit");
    // SAFETY: V::splat touches no memory.
    let wanted = unsafe { V::splat(byte) };
    let (mut count, mut at) = (0, 0);
    while at + V::LEN <= src.len() {
        // SAFETY: at + LEN <= src.len().
        let mut equal = unsafe { V::load(src.as_ptr().add(at)).equal(wanted) };
        while equal != 0 {
            let bit = equal.trailing_zeros();
            places[count] = (at + (bit / V::MASK_BITS) as usize) as u16;
            count += 1;
            // All bits of the byte.
            equal &= !((u64::MAX >> (64 - V::MASK_BITS)) << bit);
        }
        at += V::LEN;
    }
    for (i, other) in src[at..].iter().enumerate() {
        if *other == byte {
            places[count] = (at + i) as u16;
            count += 1;
        }
    }
    count
}
