//! The sums of a checksum in vectors.

use crate::arch::checksum::{Lanes, STRIPE, Sums};
use crate::arch::vector::operations;
use core::arch::x86_64::*;

impl Sums for [__m256i; 2] {
    operations! {
        fn load(sums: &Lanes) -> Self = {
            let from: *const __m256i = sums.as_ptr().cast();
            [_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1))]
        };
        fn store(self, sums: &mut Lanes) = {
            let to: *mut __m256i = sums.as_mut_ptr().cast();
            _mm256_storeu_si256(to, self[0]);
            _mm256_storeu_si256(to.add(1), self[1]);
        };
        fn mix(self, stripe: &[u8; STRIPE], secret: &Lanes) -> Self = {
            let (from, secret): (*const __m256i, *const __m256i) = (stripe.as_ptr().cast(), secret.as_ptr().cast());
            let mut sums = self;
            for (i, sum) in sums.iter_mut().enumerate() {
                let words = _mm256_loadu_si256(from.add(i));
                let keyed = _mm256_xor_si256(words, _mm256_loadu_si256(secret.add(i)));
                let product = _mm256_mul_epu32(keyed, _mm256_srli_epi64::<32>(keyed));
                *sum = _mm256_add_epi64(_mm256_add_epi64(*sum, _mm256_shuffle_epi32::<0x4E>(words)), product);
            }
            sums
        };
    }
}

impl Sums for __m512i {
    operations! {
        fn load(sums: &Lanes) -> Self = _mm512_loadu_si512(sums.as_ptr().cast());
        fn store(self, sums: &mut Lanes) = _mm512_storeu_si512(sums.as_mut_ptr().cast(), self);
        fn mix(self, stripe: &[u8; STRIPE], secret: &Lanes) -> Self = {
            let words = _mm512_loadu_si512(stripe.as_ptr().cast());
            let keyed = _mm512_xor_si512(words, _mm512_loadu_si512(secret.as_ptr().cast()));
            let product = _mm512_mul_epu32(keyed, _mm512_srli_epi64::<32>(keyed));
            _mm512_add_epi64(_mm512_add_epi64(self, _mm512_shuffle_epi32::<0x4E>(words)), product)
        };
    }
}
