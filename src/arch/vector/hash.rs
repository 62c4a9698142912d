//! The blocks of XXH3.

use super::Vector;
use crate::arch::xxh3::{BLOCK, KEYS, PRIMES32, SCRAMBLE, STRIPE, Sums};

/// The operations of XXH3 on words of 8 bytes.
///
/// # Safety
/// As [`Vector`].
pub(in crate::arch) trait Words: Vector {
    /// The sums.
    unsafe fn add64(self, other: Self) -> Self;
    /// The products of the lower and the upper half of each word.
    unsafe fn product(self) -> Self;
    /// Neighbours exchanged.
    unsafe fn swapped(self) -> Self;
    /// `(word ^ word >> 47 ^ key) * prime`, of a prime of 32 bits.
    unsafe fn scrambled(self, key: Self, prime: u32) -> Self;
}

/// `N` vectors are eight words.
///
/// # Safety
/// See [`Vector`].
#[inline(always)]
pub(in crate::arch) unsafe fn xxh3_blocks<V: Words, const N: usize>(sums: &mut Sums, bytes: &[u8]) {
    const { assert!(N * V::LEN == STRIPE) };
    let place = |words: *const u64, i: usize| words.cast::<u8>().wrapping_add(i * V::LEN);
    // SAFETY: the caller's; stripes, keys and sums are N vectors each.
    unsafe {
        let mut local: [V; N] = std::array::from_fn(|i| V::load(place(sums.as_ptr(), i)));
        for block in bytes.as_chunks::<BLOCK>().0 {
            for (stripe, key) in block.as_chunks::<STRIPE>().0.iter().zip(&KEYS) {
                for (i, sum) in local.iter_mut().enumerate() {
                    let words = V::load(stripe.as_ptr().add(i * V::LEN));
                    let keyed = words.xor(V::load(place(key.as_ptr(), i)));
                    *sum = sum.add64(words.swapped().add64(keyed.product()));
                }
            }
            for (i, sum) in local.iter_mut().enumerate() {
                *sum = sum.scrambled(V::load(place(SCRAMBLE.as_ptr(), i)), PRIMES32[0] as u32);
            }
        }
        for (i, sum) in local.into_iter().enumerate() {
            sum.store(sums.as_mut_ptr().cast::<u8>().add(i * V::LEN));
        }
    }
}
