//! XXH3 of 64 bits with seed 0, in the vectors of a level: `xxhash-rust` has them only where everything is compiled for
//! them. It stays the definition.

use xxhash_rust::xxh3::xxh3_64;

/// Words that are mixed in at once.
const LANES: usize = 8;
pub(super) const STRIPE: usize = 8 * LANES;
/// The default secret, as little-endian words.
const SECRET: [u64; 24] = [
    0xBE4B_A423_396C_FEB8,
    0x1CAD_21F7_2C81_017C,
    0xDB97_9083_E96D_D4DE,
    0x1F67_B3B7_A4A4_4072,
    0x78E5_C0CC_4EE6_79CB,
    0x2172_FFCC_7DD0_5A82,
    0x8E24_43F7_7446_08B8,
    0x4C26_3A81_E690_35E0,
    0xCB00_C391_BB52_283C,
    0xA32E_531B_8B65_D088,
    0x4EF9_0DA2_9748_6471,
    0xD8AC_DEA9_46EF_1938,
    0x3F34_9CE3_3F76_FAA8,
    0x1D4F_0BC7_C7BB_DCF9,
    0x3159_B4CD_4BE0_518A,
    0x6473_78D9_C97E_9FC8,
    0xC3EB_D334_83AC_C5EA,
    0xEB63_13FA_FFA0_81C5,
    0x49DA_F0B7_51DD_0D17,
    0x9E68_D429_2655_16D3,
    0xFCA1_477D_58BE_162B,
    0xCE31_D07A_D1B8_F88F,
    0x2804_1695_8F3A_CB45,
    0x7E40_4BBB_CAFB_D7AF,
];
/// Stripes before the sums are scrambled; each takes the secret one word further.
const STRIPES: usize = SECRET.len() - LANES;
/// Shorter inputs have forms of their own.
const SHORT: usize = 240;

const PRIME32: [u64; 3] = [0x9E37_79B1, 0x85EB_CA77, 0xC2B2_AE3D];
const PRIME64: [u64; 5] =
    [0x9E37_79B1_85EB_CA87, 0xC2B2_AE3D_27D4_EB4F, 0x1656_67B1_9E37_79F9, 0x85EB_CA77_C2B2_AE63, 0x27D4_EB2F_1656_67C5];

pub(super) type Lanes = [u64; LANES];

/// The secret from byte `at` on.
const fn secret(at: usize) -> Lanes {
    let mut lanes = [0; LANES];
    let mut i = 0;
    while i < LANES {
        let (word, shift) = (at / 8 + i, 8 * (at % 8) as u32);
        lanes[i] = if shift == 0 { SECRET[word] } else { SECRET[word] >> shift | SECRET[word + 1] << (64 - shift) };
        i += 1;
    }
    lanes
}

/// Sums in vectors.
pub(super) trait Sums: Copy {
    /// # Safety
    /// Needs the CPU features of the implementation, as all functions here.
    unsafe fn load(sums: &Lanes) -> Self;
    /// # Safety
    /// See [`Sums::load`].
    unsafe fn store(self, sums: &mut Lanes);
    /// For each lane, adds the word of its neighbour, and the product of the halves of its own under the secret.
    ///
    /// # Safety
    /// See [`Sums::load`].
    unsafe fn mix(self, stripe: &[u8; STRIPE], secret: &Lanes) -> Self;
}

/// See [`super::Kernels::checksum`].
///
/// # Safety
/// See [`Sums::load`].
#[inline(always)]
pub(super) unsafe fn checksum<S: Sums>(bytes: &[u8]) -> u64 {
    /// The secret of each stripe.
    const SECRETS: [Lanes; STRIPES] = {
        let mut secrets = [[0; LANES]; STRIPES];
        let mut i = 0;
        while i < STRIPES {
            secrets[i] = secret(8 * i);
            i += 1;
        }
        secrets
    };
    const SCRAMBLE: Lanes = secret(8 * STRIPES);
    const LAST: Lanes = secret(8 * STRIPES - 7);
    const MERGE: Lanes = secret(11);
    let Some(last) = bytes.last_chunk::<STRIPE>().filter(|_| bytes.len() > SHORT) else { return xxh3_64(bytes) };
    let [p1, p2, p3, p4, p5] = PRIME64;
    let mut sums = [PRIME32[2], p1, p2, p3, p4, PRIME32[1], p5, PRIME32[0]];
    // The last stripe is mixed in even if it is whole, and the block before it scrambled only if bytes follow.
    for block in bytes[..bytes.len() - 1].chunks(STRIPE * STRIPES) {
        // SAFETY: the caller's.
        unsafe {
            let mut mixed = S::load(&sums);
            for (stripe, secret) in block.as_chunks::<STRIPE>().0.iter().zip(&SECRETS) {
                mixed = mixed.mix(stripe, secret);
            }
            mixed.store(&mut sums);
        }
        if block.len() == STRIPE * STRIPES {
            for (sum, secret) in sums.iter_mut().zip(&SCRAMBLE) {
                *sum = (*sum ^ *sum >> 47 ^ secret).wrapping_mul(PRIME32[0]);
            }
        }
    }
    // SAFETY: the caller's.
    unsafe { S::load(&sums).mix(last, &LAST).store(&mut sums) };
    let mut hash = (bytes.len() as u64).wrapping_mul(p1);
    for (sums, secret) in sums.as_chunks::<2>().0.iter().zip(MERGE.as_chunks::<2>().0) {
        let product = (sums[0] ^ secret[0]) as u128 * (sums[1] ^ secret[1]) as u128;
        hash = hash.wrapping_add(product as u64 ^ (product >> 64) as u64);
    }
    hash = (hash ^ hash >> 37).wrapping_mul(0x1656_6791_9E37_79F9);
    hash ^ hash >> 32
}
