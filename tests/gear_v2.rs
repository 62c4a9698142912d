//! Gear format v2: bit-exact round trips, the bound, an independent reader, refusal of damaged blobs.

#[path = "gear_v2/by_hand.rs"]
mod by_hand;
mod common;
#[path = "gear_v2/damage.rs"]
mod damage;
#[path = "gear_v2/goldens.rs"]
mod goldens;
#[path = "gear_v2/properties.rs"]
mod properties;
#[path = "gear_v2/samples.rs"]
mod samples;
#[allow(dead_code)]
#[path = "common/v1_reader.rs"]
mod v1_reader;
#[path = "common/v2_reader.rs"]
mod v2_reader;

use common::{Random, again};
use mnnkv::dtype::Dtype;
use mnnkv::gear::{
    self, Decoder, Effort, Encoder, Format, Frequencies, Options, Pairing, Positions, Predictors, Rotation,
};
use mnnkv::status::{Result, Status};
use proptest::prelude::*;
use samples::{samples, to_words};
use xxhash_rust::xxh3::xxh3_64;

fn encode(words: &[u8], dtype: Dtype, options: &Options<'_>) -> Vec<u8> {
    Encoder::new().encode(words, dtype, options).unwrap().to_vec()
}

fn decode(blob: &[u8], dtype: Dtype, capacity: usize) -> Result<Vec<u8>> {
    let mut out = vec![0xA5; capacity];
    let len = Decoder::new().decode(blob, dtype, &mut out)?;
    assert!(out[len..].iter().all(|byte| *byte == 0xA5), "bytes after the words");
    out.truncate(len);
    Ok(out)
}

fn effort(number: i32) -> Effort {
    Effort::new(number, "effort").unwrap()
}

/// Both readers return `words`, and `blob` is at most 64 bytes longer.
fn check(blob: &[u8], words: &[u8], dtype: Dtype, what: &str) {
    assert!(blob.len() <= words.len() + 64, "{what}: {} bytes for {}", blob.len(), words.len());
    assert!(blob.len() <= gear::bound(words.len(), dtype).unwrap(), "{what}");
    assert_eq!(gear::decoded_len(blob, dtype).unwrap(), words.len(), "{what}");
    assert!(decode(blob, dtype, words.len() + 9).unwrap() == words, "{what}");
    let read = v2_reader::read(blob);
    assert!((read.dtype as u32, &read.words[..]) == (dtype as u32, words), "{what}");
}

const KV: [&str; 8] = ["l0_k", "l0_v", "l1_k", "l1_v", "l2_k", "l2_v", "l3_k", "l3_v"];

fn kv(name: &str) -> Vec<u8> {
    common::read(&format!("kv/{name}_h2_t1088_d64.f16"))
}

/// The rotation of the keys of the sample.
const ROPE: Rotation<'_> = Rotation {
    pairing: Pairing::Half,
    dims: 64,
    frequencies: Frequencies::Theta(10_000.0),
    tokens: 1088,
    positions: Positions::Counting { first: 0 },
};

/// The sample as words of another type. f32 has noise below the bits of f16, int8 a scale per channel.
fn kv_as(dtype: Dtype, f16: &[u8]) -> Vec<u8> {
    let values: Vec<f32> = f16.as_chunks::<2>().0.iter().map(|word| half::f16::from_le_bytes(*word).to_f32()).collect();
    let mut random = Random(7);
    match dtype {
        Dtype::F16 => f16.to_vec(),
        Dtype::Bf16 => to_words(&values, dtype),
        Dtype::F32 => values.iter().flat_map(|x| (x.to_bits() ^ random.below(4096) as u32).to_le_bytes()).collect(),
        Dtype::Int8 => {
            let largest = |channel: usize| values[channel..].iter().step_by(64).fold(1e-9, |m: f32, x| m.max(x.abs()));
            let scales: Vec<f32> = (0..64).map(|channel| 127.0 / largest(channel)).collect();
            values.iter().enumerate().map(|(i, x)| (x * scales[i % 64]).round() as i8 as u8).collect()
        }
    }
}

#[test]
fn the_real_sample_is_valid_for_an_independent_reader() {
    for name in KV {
        let words = kv(name);
        for (number, head_dim) in [(1, 64), (5, 64), (9, 64), (5, 0)] {
            let options = Options { effort: effort(number), head_dim, ..Options::new(Format::V2) };
            check(&encode(&words, Dtype::F16, &options), &words, Dtype::F16, &format!("{name} {number} {head_dim}"));
        }
    }
}

#[test]
fn the_real_sample_in_other_types_is_valid_for_an_independent_reader() {
    for (name, dtype) in [
        ("l0_v", Dtype::Bf16),
        ("l1_k", Dtype::Bf16),
        ("l0_k", Dtype::F32),
        ("l2_v", Dtype::F32),
        ("l0_v", Dtype::Int8),
        ("l1_v", Dtype::Int8),
        ("l3_k", Dtype::Int8),
    ] {
        let words = kv_as(dtype, &kv(name));
        for (number, head_dim) in [(1, 64), (5, 0), (9, 64)] {
            let options = Options { effort: effort(number), head_dim, ..Options::new(Format::V2) };
            let blob = encode(&words, dtype, &options);
            check(&blob, &words, dtype, &format!("{name} {dtype:?} {number} {head_dim}"));
            assert!(blob.len() < words.len(), "{name} {dtype:?} {number} {head_dim}");
        }
    }
}

#[test]
fn real_keys_with_a_hint_are_valid_for_an_independent_reader() {
    for (name, dtype, rows) in [
        ("l0_k", Dtype::F16, 2176),
        ("l2_k", Dtype::F16, 2176),
        ("l0_k", Dtype::Bf16, 1088),
        ("l0_k", Dtype::F32, 1088),
        ("l0_v", Dtype::F16, 1088),
    ] {
        let words = &kv_as(dtype, &kv(name))[..rows * 64 * dtype.bytes()];
        for number in [1, 5, 9] {
            let rotation = Some(ROPE);
            let options = Options { effort: effort(number), head_dim: 64, rotation, ..Options::new(Format::V2) };
            check(&encode(words, dtype, &options), words, dtype, &format!("{name} {dtype:?} {number}"));
        }
    }
}

#[test]
fn ratios_of_the_real_sample_reach_the_documented_ones() {
    for (name, by_default, with_effort) in [
        ("l0_k", 3.6, 3.9),
        ("l0_v", 5.0, 5.0),
        ("l1_k", 1.45, 1.45),
        ("l1_v", 1.28, 1.38),
        ("l2_k", 1.4, 1.4),
        ("l2_v", 1.2, 1.35),
        ("l3_k", 1.3, 1.3),
        ("l3_v", 1.18, 1.3),
    ] {
        let words = kv(name);
        let rotation = name.ends_with('k').then_some(ROPE);
        for (number, at_least) in [(5, by_default), (9, with_effort)] {
            let options = Options { effort: effort(number), head_dim: 64, rotation, ..Options::new(Format::V2) };
            let ratio = words.len() as f64 / encode(&words, Dtype::F16, &options).len() as f64;
            assert!(ratio >= at_least, "{name} {number}: {ratio:.3}, at least {at_least} expected");
        }
    }
}

/// The sample in 8 bits: a scale for every channel, every token, or all.
fn quantised(f16: &[u8], group: &str) -> Vec<u8> {
    let values: Vec<f32> = f16.as_chunks::<2>().0.iter().map(|word| half::f16::from_le_bytes(*word).to_f32()).collect();
    let of = |i: usize| match group {
        "channel" => i % 64,
        "token" => i / 64,
        _ => 0,
    };
    let mut largest = vec![1e-9f32; values.len()];
    values.iter().enumerate().for_each(|(i, x)| largest[of(i)] = largest[of(i)].max(x.abs()));
    values.iter().enumerate().map(|(i, x)| (x * 127.0 / largest[of(i)]).round() as i8 as u8).collect()
}

#[test]
fn a_higher_effort_is_never_larger_than_a_lower_one() {
    let mut sets = vec![];
    for name in KV {
        let words = kv(name);
        sets.extend(["channel", "token", "all"].map(|group| (Dtype::Int8, quantised(&words, group), None)));
        sets.push((Dtype::Bf16, kv_as(Dtype::Bf16, &words), None));
        sets.push((Dtype::F16, words.clone(), None));
        if name.ends_with('k') {
            sets.push((Dtype::F16, words, Some(ROPE)));
        }
    }
    let mut random = Random(12);
    sets.push((Dtype::Int8, random.bytes(100_000), None));
    sets.push((Dtype::Int8, vec![0; 100_000], None));
    sets.push((Dtype::Int8, (0..200_000).map(|_| (random.below(30) + random.below(30)) as u8).collect(), None));
    for (number, (dtype, words, rotation)) in sets.into_iter().enumerate() {
        let mut least = usize::MAX;
        for e in [1, 2, 3, 5, 7, 9] {
            let options = Options { effort: effort(e), head_dim: 64, rotation, ..Options::new(Format::V2) };
            let len = encode(&words, dtype, &options).len();
            assert!(len <= least.saturating_add(least / 1000), "set {number}, effort {e}: {len} bytes, {least} before");
            least = least.min(len);
        }
    }
}

#[test]
fn with_head_dim_v2_is_no_larger_than_v1_on_the_real_sample() {
    for name in KV {
        let words = kv(name);
        let rotation = name.ends_with('k').then_some(ROPE);
        // At effort 1, v2 groups too few channels to gain on every tensor.
        for (number, percent) in [(1, 105), (5, 100), (9, 100)] {
            let effort = effort(number);
            let v1 = encode(&words, Dtype::F16, &Options { effort, ..Options::new(Format::V1) }).len();
            let options = Options { effort, head_dim: 64, rotation, ..Options::new(Format::V2) };
            let v2 = encode(&words, Dtype::F16, &options).len();
            assert!(v2 <= v1 * percent / 100, "{name} {number}: {v2} bytes in v2, {v1} in v1");
        }
    }
}

#[test]
fn a_hint_saves_bytes_and_a_wrong_hint_changes_no_words() {
    let words = kv("l0_k");
    let size = |rotation| {
        let options = Options { head_dim: 64, rotation, ..Options::new(Format::V2) };
        let blob = encode(&words, Dtype::F16, &options);
        check(&blob, &words, Dtype::F16, "a hint");
        blob.len()
    };
    let (right, none) = (size(Some(ROPE)), size(None));
    assert!(2 * right < none, "{right} bytes with the hint, {none} without");
    for wrong in [
        Rotation { pairing: Pairing::Adjacent, ..ROPE },
        Rotation { frequencies: Frequencies::Theta(500.0), ..ROPE },
        Rotation { dims: 32, ..ROPE },
    ] {
        assert!(size(Some(wrong)) > right, "{wrong:?}");
    }
    // Only distances of tokens matter.
    let shifted = size(Some(Rotation { positions: Positions::Counting { first: 100 }, ..ROPE }));
    assert!(2 * shifted < none, "{shifted} bytes with shifted positions, {none} without a hint");
}

#[test]
fn the_samples_use_every_part_of_the_format_but_predictors() {
    let mut seen = std::collections::BTreeSet::new();
    for s in samples() {
        let blob = s.encode();
        check(&blob, &s.words, s.dtype, s.name);
        seen.append(&mut v2_reader::read(&blob).seen);
    }
    let predicts = |part: &str| part.starts_with("predictor ") && part != "predictor 0";
    assert!(seen.iter().eq(v2_reader::PARTS.iter().filter(|part| !predicts(part))), "{seen:?}");
}

#[test]
fn every_fp16_and_bf16_bit_pattern_is_restored() {
    let words: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for (dtype, number) in [(Dtype::F16, 1), (Dtype::F16, 9), (Dtype::Bf16, 5)] {
        for head_dim in [0, 64] {
            let options = Options { effort: effort(number), head_dim, ..Options::new(Format::V2) };
            check(&encode(&words, dtype, &options), &words, dtype, "all words");
        }
    }
}

#[test]
fn results_do_not_depend_on_earlier_calls() {
    let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
    let (up, down) = (samples(), samples().into_iter().rev());
    for s in up.into_iter().chain(down) {
        let reused = encoder.encode(&s.words, s.dtype, &s.options()).unwrap().to_vec();
        assert!(reused == s.encode(), "{}", s.name);
        let mut out = vec![0; s.words.len()];
        assert_eq!(decoder.decode(&reused, s.dtype, &mut out).unwrap(), s.words.len());
        assert!(out == s.words, "{}", s.name);
        // Nor on calls that failed.
        encoder.encode(&s.words[..1], Dtype::F32, &Options::new(Format::V2)).unwrap_err();
        decoder.decode(&reused[..reused.len() - 1], s.dtype, &mut out).unwrap_err();
    }
}

#[test]
fn a_small_buffer_is_unchanged_and_the_error_has_the_needed_size() {
    for s in samples() {
        let blob = s.encode();
        for capacity in [0, s.words.len() - 1] {
            let mut out = vec![0xA5; capacity];
            let error = Decoder::new().decode(&blob, s.dtype, &mut out).unwrap_err();
            assert_eq!((error.status(), error.needed()), (Status::BufferTooSmall, Some(s.words.len())), "{}", s.name);
            assert!(out.iter().all(|byte| *byte == 0xA5));
        }
    }
}

#[test]
fn partial_words_are_refused() {
    let lengths = [(0, Dtype::Int8), (0, Dtype::F16), (3, Dtype::F16), (1, Dtype::Bf16), (6, Dtype::F32)];
    for (len, dtype) in lengths {
        let error = Encoder::new().encode(&vec![0; len], dtype, &Options::new(Format::V2)).unwrap_err();
        assert_eq!(error.status(), Status::InvalidArgument);
        assert!(error.message().contains("src_len"), "{error}");
        assert_eq!(gear::bound(len, dtype), None);
    }
}

#[test]
fn predictors_are_refused() {
    for bits in [Predictors::RAW, Predictors::DELTA_SEQ, Predictors::RAW | Predictors::XOR_SEQ, 8, 128] {
        let error = Predictors::from_bits(bits, Format::V2).unwrap_err();
        assert_eq!(error.status(), Status::InvalidArgument, "{bits}");
        assert!(error.message().contains("predictors") && error.message().contains("v2"), "{error}");
    }
    assert!(Predictors::from_bits(0, Format::V2).is_ok());
    // v1 has three predictors.
    assert_eq!(Predictors::from_bits(8, Format::V1).unwrap_err().status(), Status::InvalidArgument);
}

#[test]
fn an_invalid_rotation_hint_is_refused_with_the_name_of_the_field() {
    let nan = [1.0, f32::NAN];
    let negative = [-0.5, 1.0];
    let good = Rotation { dims: 4, tokens: 5, ..ROPE };
    let refused = |rotation, head_dim, dtype: Dtype, len: usize, name: &str| {
        let options = Options { head_dim, rotation: Some(rotation), ..Options::new(Format::V2) };
        let error = Encoder::new().encode(&vec![0; len * dtype.bytes()], dtype, &options).unwrap_err();
        assert_eq!(error.status(), Status::InvalidArgument, "{rotation:?}: {error}");
        assert!(error.message().contains(name), "{rotation:?}: {error}");
    };
    let theta = |theta| Rotation { frequencies: Frequencies::Theta(theta), ..good };
    let given = |list| Rotation { frequencies: Frequencies::Given(list), ..good };
    // Ten rows of eight elements.
    for (rotation, name) in [
        (Rotation { dims: 0, ..good }, "rope_dims"),
        (Rotation { dims: 3, ..good }, "rope_dims"),
        (Rotation { dims: 10, ..good }, "rope_dims"),
        (Rotation { tokens: 3, ..good }, "rope_tokens"),
        (Rotation { tokens: 20, ..good }, "rope_tokens"),
        (theta(0.99), "rope_theta"),
        (theta(-1e4), "rope_theta"),
        (theta(f32::NAN), "rope_theta"),
        (theta(f32::INFINITY), "rope_theta"),
        (given(&[]), "rope_inv_freq"),
        (given(&[1.0]), "rope_inv_freq"),
        (given(&[1.0, 0.1, 0.01]), "rope_inv_freq"),
        (given(&negative), "rope_inv_freq[0]"),
        (given(&nan), "rope_inv_freq[1]"),
        (given(&[f32::INFINITY, 1.0]), "rope_inv_freq[0]"),
        (Rotation { positions: Positions::Given(&[1, 2, 3, 4]), ..good }, "rope_positions"),
        (Rotation { positions: Positions::Given(&[]), ..good }, "rope_positions"),
    ] {
        refused(rotation, 8, Dtype::F16, 80, name);
    }
    refused(good, 0, Dtype::F16, 80, "head_dim");
    refused(good, 8, Dtype::F16, 81, "src_len");
    refused(good, 8, Dtype::Int8, 80, "INT8");

    let options = Options { head_dim: 8, rotation: Some(good), ..Options::new(Format::V2) };
    check(&encode(&[0; 160], Dtype::F16, &options), &[0; 160], Dtype::F16, "the valid hint");
}

#[test]
fn many_threads_write_the_same_bytes_as_one() {
    let blobs: Vec<_> = samples().iter().map(|s| s.encode()).collect();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert!(samples().iter().zip(&blobs).all(|(s, blob)| s.encode() == *blob)));
        }
    });
}

/// Run by [`every_cpu_level_writes_the_same_bytes`], in a process for each level.
#[test]
#[ignore]
fn print_level_and_digest() {
    let mut blobs: Vec<u8> = samples().iter().flat_map(|s| s.encode()).collect();
    for name in ["l0_k", "l1_v", "l3_k"] {
        for dtype in Dtype::ALL {
            let words = kv_as(dtype, &kv(name));
            for number in [1, 5, 9] {
                let rotation = (name == "l0_k" && dtype != Dtype::Int8).then_some(ROPE);
                let options = Options { effort: effort(number), head_dim: 64, rotation, ..Options::new(Format::V2) };
                blobs.extend(encode(&words, dtype, &options));
            }
        }
    }
    println!("digest {} {:x}", mnnkv::arch::level_name().to_str().unwrap(), xxh3_64(&blobs));
}

#[test]
fn every_cpu_level_writes_the_same_bytes() {
    let children = mnnkv::arch::available().map(|kernels| {
        let level = format!("{:?}", kernels.level).to_lowercase();
        let child =
            again("print_level_and_digest").env("MNNKV_CPU_LEVEL", &level).stdout(std::process::Stdio::piped()).spawn();
        (level, child.unwrap())
    });
    let digests = children.collect::<Vec<_>>().into_iter().map(|(level, child)| {
        let text = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
        let digest = text.split(&format!("digest {level} ")).nth(1).unwrap_or_else(|| panic!("{level}: {text}"));
        digest.lines().next().unwrap().to_owned()
    });
    let digests: Vec<String> = digests.collect();
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
}
