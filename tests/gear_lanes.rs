//! Gear format lanes: bit-exact round trips at every size, an independent reader, refusal of damaged blobs.

mod common;
#[path = "common/lanes_reader.rs"]
mod lanes_reader;

use common::{Random, again};
use mnnkv::dtype::Dtype;
use mnnkv::gear::{self, Decoder, Encoder, Format, Options};
use mnnkv::status::{Result, Status};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;

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
            // Bytes of the quantised sample are spread almost evenly.
            let has_shrunk = blob.len() * 100 < words.len() * 95;
            assert!(has_shrunk || dtype == Dtype::Int8, "{name} {dtype:?} {count}: {}", blob.len());
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

/// Words of each type, and of each kind of plane.
fn samples() -> Vec<(&'static str, Dtype, Vec<u8>)> {
    let part = |name: &str, dtype: Dtype, count: usize| kv(name, dtype)[..count * dtype.bytes()].to_vec();
    let wide = |f16: Vec<u8>| {
        f16.as_chunks::<2>().0.iter().flat_map(|w| half::f16::from_le_bytes(*w).to_f32().to_le_bytes()).collect()
    };
    vec![
        ("f16", Dtype::F16, part("l1_k", Dtype::F16, 700)),
        ("bf16", Dtype::Bf16, part("l1_k", Dtype::Bf16, 704)),
        ("f32", Dtype::F32, part("l1_k", Dtype::F32, 700)),
        // As many values as code well.
        ("int8", Dtype::Int8, (0..1500u32).map(|i| (i * i % 1009 % 97 * (i % 7) / 20) as u8).collect()),
        ("f32_of_f16", Dtype::F32, wide(part("l0_v", Dtype::F16, 600))),
        ("f16_noise", Dtype::F16, Random(1).bytes(122)),
        ("bf16_constant", Dtype::Bf16, [0x80, 0x3F].repeat(33)),
        ("f16_wide", Dtype::F16, part("l3_v", Dtype::F16, 8300)),
    ]
}

/// Blobs of `testdata/gear_lanes`, which every later version must decode, with their words.
fn goldens() -> Vec<(String, Dtype, Vec<u8>, Vec<u8>)> {
    let manifest: Value = serde_json::from_slice(&common::read("gear_lanes/manifest.json")).unwrap();
    let golden = |entry: &Value| {
        let name = entry["name"].as_str().unwrap().to_owned();
        let [words, blob] = ["bin", "mnkv"].map(|ending| common::read(&format!("gear_lanes/{name}.{ending}")));
        let dtype = Dtype::ALL.into_iter().find(|dtype| entry["dtype"] == dtype.name()).unwrap();
        assert_eq!([words.len(), blob.len()].map(Value::from), [entry["bytes"].clone(), entry["blob_bytes"].clone()]);
        (name, dtype, blob, words)
    };
    manifest.as_array().unwrap().iter().map(golden).collect()
}

#[test]
fn every_golden_blob_is_read_by_both_readers() {
    let mut seen = BTreeSet::new();
    for (name, dtype, blob, words) in goldens() {
        check(&blob, &words, dtype, &name);
        seen.extend((0..dtype.bytes()).map(|i| ("kind", blob[10] >> (2 * i) & 3)));
        seen.extend([("lanes", blob[11]), ("dtype", blob[9])]);
    }
    let all = [("dtype", 1..5), ("kind", 0..3), ("lanes", 1..3)].map(|(name, range)| range.map(move |n| (name, n)));
    assert!(seen.iter().eq(all.into_iter().flatten().collect::<BTreeSet<_>>().iter()), "{seen:?}");
}

#[test]
fn golden_words_are_encoded_to_the_same_bytes_at_every_level() {
    // Each level in a process of its own; a blob is a pure function of the words.
    if std::env::var_os("MNNKV_CPU_LEVEL").is_some() {
        return;
    }
    let blobs = |level: &str| {
        let run = again("print_checksums").env("MNNKV_CPU_LEVEL", level).output();
        let text = String::from_utf8(run.unwrap().stdout).unwrap();
        text.lines().find_map(|line| line.split_once("checksums ")).unwrap().1.to_owned()
    };
    let portable = blobs("portable");
    for level in ["sse2", "avx2", "avx512", "neon"] {
        assert_eq!(blobs(level), portable, "{level}");
    }
}

/// A part of the test above.
#[test]
#[ignore]
fn print_checksums() {
    let sums: Vec<u64> =
        samples().iter().map(|(_, dtype, words)| xxhash_rust::xxh3::xxh3_64(&encode(words, *dtype))).collect();
    println!("checksums {sums:x?}");
}

/// Writes missing goldens, and never replaces one:
/// `cargo test --test gear_lanes -- --ignored write_missing_goldens`.
#[test]
#[ignore]
fn write_missing_goldens() {
    let folder = common::testdata("gear_lanes");
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("manifest.json");
    let manifest = fs::read(&path).map_or(json!([]), |text| serde_json::from_slice(&text).unwrap());
    let mut entries = manifest.as_array().unwrap().clone();
    for (name, dtype, words) in samples() {
        if entries.iter().any(|entry| entry["name"] == name) {
            continue;
        }
        let blob = encode(&words, dtype);
        for (ending, bytes) in [("bin", &words), ("mnkv", &blob)] {
            let file = fs::File::create_new(folder.join(format!("{name}.{ending}")));
            file.expect("an existing golden is not replaced").write_all(bytes).unwrap();
        }
        entries.push(json!({"name": name, "dtype": dtype.name(), "bytes": words.len(), "blob_bytes": blob.len()}));
    }
    let lines: Vec<String> = entries.iter().map(|entry| format!("  {entry}")).collect();
    fs::write(path, format!("[\n{}\n]\n", lines.join(",\n"))).unwrap();
}

fn refused(blob: &[u8], dtype: Dtype, words: &[u8], what: &str) {
    let status = decode(blob, dtype, words.len()).err().unwrap_or_else(|| panic!("{what} is accepted")).status();
    let known =
        matches!(status, Status::Corrupt | Status::Unsupported | Status::InvalidArgument | Status::BufferTooSmall);
    assert!(known, "{what}: {status:?}");
}

#[test]
fn every_truncation_is_refused() {
    for (_, dtype, blob, words) in goldens() {
        (0..blob.len()).for_each(|len| refused(&blob[..len], dtype, &words, &format!("{dtype:?} cut to {len}")));
        refused(&[&blob[..], &[0]].concat(), dtype, &words, "a byte more");
    }
}

#[test]
fn every_flipped_bit_and_ten_thousand_damages_are_refused() {
    let mut random = Random(3);
    for (_, dtype, blob, words) in goldens().into_iter().filter(|(_, _, blob, _)| blob.len() < 4000) {
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
