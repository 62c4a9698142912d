//! XXH3-64 of long input, by blocks, so that a decoder hashes words while they are in the cache.
//!
//! The sums of a block depend on no other block's words, and vectors have all eight. `xxhash-rust` has the vectors of the
//! target alone.

/// The bytes of a block, and of its stripes.
pub const BLOCK: usize = 1024;
pub(super) const STRIPE: usize = 64;

/// The algorithm's default secret.
const SECRET: [u64; 24] = [
    0xbe4ba423396cfeb8,
    0x1cad21f72c81017c,
    0xdb979083e96dd4de,
    0x1f67b3b7a4a44072,
    0x78e5c0cc4ee679cb,
    0x2172ffcc7dd05a82,
    0x8e2443f7744608b8,
    0x4c263a81e69035e0,
    0xcb00c391bb52283c,
    0xa32e531b8b65d088,
    0x4ef90da297486471,
    0xd8acdea946ef1938,
    0x3f349ce33f76faa8,
    0x1d4f0bc7c7bbdcf9,
    0x3159b4cd4be0518a,
    0x647378d9c97e9fc8,
    0xc3ebd33483acc5ea,
    0xeb6313faffa081c5,
    0x49daf0b751dd0d17,
    0x9e68d429265516d3,
    0xfca1477d58be162b,
    0xce31d07ad1b8f88f,
    0x280416958f3acb45,
    0x7e404bbbcafbd7af,
];

pub(super) const PRIMES32: [u64; 3] = [0x9e37_79b1, 0x85eb_ca77, 0xc2b2_ae3d];
const PRIMES64: [u64; 5] =
    [0x9e37_79b1_85eb_ca87, 0xc2b2_ae3d_27d4_eb4f, 0x1656_67b1_9e37_79f9, 0x85eb_ca77_c2b2_ae63, 0x27d4_eb2f_1656_67c5];

/// The running sums.
pub type Sums = [u64; 8];

/// The sums of no block.
pub const START: Sums =
    [PRIMES32[2], PRIMES64[0], PRIMES64[1], PRIMES64[2], PRIMES64[3], PRIMES32[1], PRIMES64[4], PRIMES32[0]];

/// The eight bytes of the secret from byte `at` on.
const fn secret(at: usize) -> u64 {
    let (low, bits) = (SECRET[at / 8], at % 8 * 8);
    if bits == 0 { low } else { low >> bits | SECRET[at / 8 + 1] << (64 - bits) }
}

/// Eight numbers of the secret from byte `at` on.
const fn secrets(at: usize) -> [u64; 8] {
    let mut all = [0; 8];
    let mut i = 0;
    while i < 8 {
        all[i] = secret(at + 8 * i);
        i += 1;
    }
    all
}

/// The keys of the stripes of a block.
pub(super) static KEYS: [[u64; 8]; BLOCK / STRIPE] = {
    let mut keys = [[0; 8]; BLOCK / STRIPE];
    let mut i = 0;
    while i < keys.len() {
        keys[i] = secrets(8 * i);
        i += 1;
    }
    keys
};

/// The key after a block.
pub(super) static SCRAMBLE: [u64; 8] = secrets(128);

/// Adds a stripe to the sums.
#[inline(always)]
fn add(sums: &mut Sums, stripe: &[u8; STRIPE], secrets: &[u64; 8]) {
    let words: [u64; 8] = std::array::from_fn(|i| u64::from_le_bytes(stripe.as_chunks::<8>().0[i]));
    let keyed: [u64; 8] = std::array::from_fn(|i| words[i] ^ secrets[i]);
    *sums = std::array::from_fn(|i| {
        sums[i].wrapping_add(words[i ^ 1]).wrapping_add((keyed[i] & 0xffff_ffff) * (keyed[i] >> 32))
    });
}

/// Adds whole blocks to the sums, each of which more input follows.
pub fn blocks(sums: &mut Sums, bytes: &[u8]) {
    let mut local = *sums;
    for block in bytes.as_chunks::<BLOCK>().0 {
        for (stripe, keys) in block.as_chunks::<STRIPE>().0.iter().zip(&KEYS) {
            add(&mut local, stripe, keys);
        }
        local = std::array::from_fn(|i| (local[i] ^ local[i] >> 47 ^ SCRAMBLE[i]).wrapping_mul(PRIMES32[0]));
    }
    *sums = local;
}

/// The hash of input of `len` bytes, more than a block, from the sums of all blocks but the last, which may be a part of
/// one. `end` is the input behind the blocks, `last` are its last 64 bytes.
pub fn finish(mut sums: Sums, end: &[u8], last: &[u8; STRIPE], len: usize) -> u64 {
    const LAST: [u64; 8] = secrets(121);
    for (i, stripe) in end[..end.len() - 1].as_chunks::<STRIPE>().0.iter().enumerate() {
        add(&mut sums, stripe, &KEYS[i]);
    }
    add(&mut sums, last, &LAST);
    let mut hash = PRIMES64[0].wrapping_mul(len as u64);
    for (i, pair) in sums.as_chunks::<2>().0.iter().enumerate() {
        let product = (pair[0] ^ secret(11 + 16 * i)) as u128 * (pair[1] ^ secret(19 + 16 * i)) as u128;
        hash = hash.wrapping_add(product as u64 ^ (product >> 64) as u64);
    }
    hash = (hash ^ hash >> 37).wrapping_mul(0x1656_6791_9e37_79f9);
    hash ^ hash >> 32
}
