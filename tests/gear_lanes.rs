//! Gear format lanes: bit-exact round trips at every size, an independent reader, refusal of damaged blobs.

mod common;
#[path = "common/lanes_reader.rs"]
mod lanes_reader;

use common::Random;
use mnnkv::dtype::Dtype;
use mnnkv::gear::{self, Decoder, Encoder, Format, Options};
use mnnkv::status::{Result, Status};
use proptest::prelude::*;

fn encode(words: &[u8], dtype: Dtype) -> Vec<u8> {
    Encoder::new().encode(words, dtype, &Options::new(Format::Lanes)).unwrap().to_vec()
}

fn decode(blob: &[u8], dtype: Dtype, capacity: usize) -> Result<Vec<u8>> {
    let mut out = vec![0xA5; capacity + 9];
    let len = Decoder::new().decode(blob, dtype, &mut out[..capacity])?;
    assert!(out[len..].iter().all(|byte| *byte == 0xA5), "bytes after the words");
    out.truncate(len);
    Ok(out)
}

/// Both readers return `words`.
fn check(blob: &[u8], words: &[u8], dtype: Dtype, what: &str) {
    assert!(blob.len() <= words.len() + 30 && blob.len() <= gear::bound(words.len(), dtype).unwrap(), "{what}");
    assert_eq!(gear::decoded_len(blob, dtype).unwrap(), words.len(), "{what}");
    assert!(decode(blob, dtype, words.len()).unwrap() == words, "{what}");
    assert!(lanes_reader::read(blob).unwrap() == (dtype as u32, words.to_vec()), "{what}, independent reader");
}

const KV: [&str; 4] = ["l0_k", "l0_v", "l1_k", "l3_v"];

/// The sample as words of `dtype`.
fn kv(name: &str, dtype: Dtype) -> Vec<u8> {
    let f16 = common::read(&format!("kv/{name}_h2_t1088_d64.f16"));
    let numbers = f16.as_chunks::<2>().0.iter().map(|word| half::f16::from_le_bytes(*word).to_f32());
    let mut random = Random(7);
    match dtype {
        Dtype::F16 => f16,
        Dtype::Bf16 => numbers.flat_map(|x| half::bf16::from_f32(x).to_le_bytes()).collect(),
        // With noise below the bits of f16.
        Dtype::F32 => numbers.flat_map(|x| (x.to_bits() ^ random.below(8192) as u32).to_le_bytes()).collect(),
        Dtype::Int8 => numbers.map(|x| (x * 40.0).round().clamp(-127.0, 127.0) as i8 as u8).collect(),
    }
}

#[test]
fn the_real_sample_shrinks_and_is_valid_for_an_independent_reader() {
    for (name, dtype) in KV.iter().flat_map(|name| Dtype::ALL.map(|dtype| (name, dtype))) {
        let words = kv(name, dtype);
        for count in [words.len() / dtype.bytes(), 8191, 2048, 1024] {
            let words = &words[..count * dtype.bytes()];
            let blob = encode(words, dtype);
            check(&blob, words, dtype, &format!("{name} {dtype:?} {count}"));
            // Codes of the quantised sample are spread almost evenly.
            let most = if dtype == Dtype::Int8 { 100 } else { 95 };
            assert!(blob.len() * 100 < words.len() * most, "{name} {dtype:?} {count}: {}", blob.len());
        }
    }
}

#[test]
fn f32_words_that_were_f16_take_no_more_than_these() {
    let f16 = kv("l1_k", Dtype::F16);
    let words: Vec<u8> =
        f16.as_chunks::<2>().0.iter().flat_map(|w| half::f16::from_le_bytes(*w).to_f32().to_le_bytes()).collect();
    let (as_f16, as_f32) = (encode(&f16, Dtype::F16), encode(&words, Dtype::F32));
    check(&as_f32, &words, Dtype::F32, "f16 as f32");
    assert!(as_f32.len() < as_f16.len() * 21 / 20, "{} bytes, {} as f16", as_f32.len(), as_f16.len());
}

/// Words of a type and the range of the distributions that caches and hostile hosts have.
fn words() -> impl Strategy<Value = (Dtype, Vec<u8>)> {
    let size = prop_oneof![1usize..200, 60usize..70, 120usize..136, 250usize..264, 8185usize..8200, 1usize..20_000];
    let spread = prop::sample::select(vec![1usize, 2, 3, 17, 64, 200, 256]);
    (any::<u32>(), prop::sample::select(Dtype::ALL.to_vec()), size, spread, any::<bool>()).prop_map(
        |(seed, dtype, count, spread, is_skewed)| {
            let mut random = Random(seed as u64);
            let byte = |random: &mut Random| {
                let below = if is_skewed { 1 + random.below(spread) } else { spread };
                (random.below(below) * 151) as u8
            };
            (dtype, (0..count * dtype.bytes()).map(|_| byte(&mut random)).collect())
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_words_are_restored_bit_for_bit((dtype, words) in words()) {
        check(&encode(&words, dtype), &words, dtype, "any words");
    }
}

#[test]
fn words_that_are_all_equal_take_a_few_bytes() {
    for (dtype, count) in Dtype::ALL.into_iter().flat_map(|dtype| [1, 2, 64, 65, 10_000].map(|count| (dtype, count))) {
        let words = [0x3C, 0x81, 0x12, 0xFE][..dtype.bytes()].repeat(count);
        let blob = encode(&words, dtype);
        check(&blob, &words, dtype, "equal words");
        assert!(blob.len() <= 30, "{} bytes", blob.len());
    }
}

/// A small blob of each type, with every kind of plane.
fn small() -> Vec<(Dtype, Vec<u8>, Vec<u8>)> {
    let of = |dtype: Dtype, words: Vec<u8>| (dtype, encode(&words, dtype), words);
    let mut all: Vec<_> =
        Dtype::ALL.into_iter().map(|dtype| of(dtype, kv("l1_k", dtype)[..700 * dtype.bytes()].to_vec())).collect();
    let halves = kv("l0_v", Dtype::F16);
    let wide =
        halves.as_chunks::<2>().0[..600].iter().flat_map(|w| half::f16::from_le_bytes(*w).to_f32().to_le_bytes());
    all.push(of(Dtype::F32, wide.collect()));
    all
}

fn refused(blob: &[u8], dtype: Dtype, words: &[u8], what: &str) {
    let status = decode(blob, dtype, words.len()).err().unwrap_or_else(|| panic!("{what} is accepted")).status();
    let known =
        matches!(status, Status::Corrupt | Status::Unsupported | Status::InvalidArgument | Status::BufferTooSmall);
    assert!(known, "{what}: {status:?}");
}

#[test]
fn every_truncation_is_refused() {
    for (dtype, blob, words) in small() {
        (0..blob.len()).for_each(|len| refused(&blob[..len], dtype, &words, &format!("{dtype:?} cut to {len}")));
        refused(&[&blob[..], &[0]].concat(), dtype, &words, "a byte more");
    }
}

#[test]
fn every_flipped_bit_and_ten_thousand_damages_are_refused() {
    let mut random = Random(3);
    for (dtype, blob, words) in small() {
        for bit in 0..8 * blob.len() {
            let mut blob = blob.clone();
            blob[bit / 8] ^= 1 << (bit % 8);
            refused(&blob, dtype, &words, &format!("{dtype:?} with bit {bit} flipped"));
        }
        for _ in 0..2000 {
            let mut damaged = blob.clone();
            for _ in 0..2 + random.below(6) {
                damaged[20.max(random.below(blob.len()))] = random.below(256) as u8;
            }
            if damaged != blob {
                refused(&damaged, dtype, &words, &format!("{dtype:?} damaged"));
            }
        }
    }
}
