//! Gear: bit-exact round trips, the reference's goldens, the checked container, refusal of malformed input.

mod common;
#[path = "common/v1_reader.rs"]
mod v1_reader;

use mnnkv::dtype::Dtype;
use mnnkv::gear::{self, Decoder, Effort, Encoder, Format, Options, Predictors};
use mnnkv::status::Status;
use proptest::prelude::*;
use xxhash_rust::xxh3::xxh3_64;

const ALL: Predictors = Predictors::ALL;

struct Golden {
    name: String,
    dtype: Dtype,
    predictors: Predictors,
    input: Vec<u8>,
    frame: Vec<u8>,
}

/// The set of a list such as `raw,delta_seq`.
fn predictors(list: &str) -> Predictors {
    let bits = list.split(',').map(|name| match name {
        "raw" => Predictors::RAW,
        "delta_seq" => Predictors::DELTA_SEQ,
        "xor_seq" => Predictors::XOR_SEQ,
        _ => panic!("{name:?}"),
    });
    Predictors::from_bits(bits.fold(0, |set, bit| set | bit)).unwrap()
}

fn goldens() -> Vec<Golden> {
    let manifest: serde_json::Value = serde_json::from_slice(&common::read("gear_v1/manifest.json")).unwrap();
    let entries = manifest.as_array().unwrap();
    assert_eq!(entries.len(), 135);
    let text = |entry: &serde_json::Value, key: &str| entry[key].as_str().unwrap().to_owned();
    entries
        .iter()
        .map(|e| Golden {
            name: text(e, "frame"),
            dtype: if text(e, "dtype") == "f16" { Dtype::F16 } else { Dtype::F32 },
            predictors: predictors(&text(e, "predictors")),
            input: common::read(&format!("gear_v1/{}", text(e, "input"))),
            frame: common::read(&format!("gear_v1/{}", text(e, "frame"))),
        })
        .collect()
}

fn encode(words: &[u8], dtype: Dtype, predictors: Predictors) -> Vec<u8> {
    let options = Options { predictors, effort: Effort::MAX, ..Options::new(Format::V1) };
    Encoder::new().encode(words, dtype, &options).unwrap().to_vec()
}

fn decode(blob: &[u8], dtype: Dtype, len: usize) -> mnnkv::status::Result<Vec<u8>> {
    let mut out = vec![0xA5; len];
    let written = Decoder::new().decode(blob, dtype, &mut out)?;
    out.truncate(written);
    Ok(out)
}

#[test]
fn every_golden_frame_decodes_to_its_input() {
    for g in goldens() {
        assert!(decode(&g.frame, g.dtype, g.input.len()).unwrap() == g.input, "{}", g.name);
    }
}

#[test]
fn frames_are_valid_for_an_independent_reader_and_no_larger_than_the_goldens() {
    let mut rle_planes = 0;
    for g in goldens() {
        let blob = encode(&g.input, g.dtype, g.predictors);
        let width = g.dtype.bytes();
        assert!(v1_reader::words(&blob, width) == g.input, "{}", g.name);
        let limit = g.frame.len() + g.frame.len() / 1000 + 8;
        assert!(blob.len() <= limit, "{}: {} bytes, golden {}", g.name, blob.len(), g.frame.len());
        // RLE output is unique: where both chose it for the same residual the bytes agree.
        for (ours, golden) in v1_reader::planes(&blob, width).iter().zip(v1_reader::planes(&g.frame, width)) {
            if (ours.codec, ours.mode) == (0, golden.mode) && golden.codec == 0 {
                assert!(ours.payload == golden.payload, "{}", g.name);
                rle_planes += 1;
            }
        }
    }
    assert!(rle_planes > 50, "{rle_planes} RLE planes compared; more than 50 expected");
}

#[test]
fn ratios_of_the_real_sample_match_the_reference() {
    for (file, at_least) in [("l0_k", 1.20), ("l0_v", 4.9), ("l1_k", 1.16), ("l1_v", 1.28), ("l3_k", 1.16)] {
        let raw = common::read(&format!("kv/{file}_h2_t1088_d64.f16"));
        let ratio = raw.len() as f64 / encode(&raw, Dtype::F16, ALL).len() as f64;
        assert!(ratio >= at_least, "{file}: {ratio:.3}, at least {at_least} expected");
    }
}

#[test]
fn every_fp16_bit_pattern_is_restored() {
    let words: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let blob = encode(&words, Dtype::F16, ALL);
    assert!(decode(&blob, Dtype::F16, words.len()).unwrap() == words);
}

#[test]
fn blobs_do_not_depend_on_earlier_calls() {
    let mut encoder = Encoder::new();
    let (long, short) = (common::Random(1).bytes(40_000), common::Random(2).bytes(400));
    for (words, width) in [(&long, Dtype::F16), (&short, Dtype::F32), (&short, Dtype::F16), (&long, Dtype::F32)] {
        let reused = encoder.encode(words, width, &Options::new(Format::V1)).unwrap().to_vec();
        assert!(reused == encode(words, width, ALL));
    }
}

/// Blobs that cover every backend and predictor.
fn sample_blobs() -> Vec<(Vec<u8>, Dtype, usize)> {
    let mut found = Vec::new();
    for g in goldens() {
        let tiny = g.frame.len() < 200 && g.predictors != ALL;
        let mixed = ["special.f16.p2.frame", "rows.f32.p2.frame", "ramp.f16.p4.frame"].contains(&g.name.as_str());
        if tiny || mixed {
            found.push((g.frame, g.dtype, g.input.len()));
        }
    }
    assert!(found.len() > 20);
    found
}

#[test]
fn every_truncation_is_corrupt() {
    for (blob, width, len) in sample_blobs() {
        for end in 0..blob.len() {
            let error = decode(&blob[..end], width, len).unwrap_err();
            assert_eq!(error.status(), Status::Corrupt, "cut at {end}: {error}");
        }
    }
}

#[test]
fn every_flipped_bit_is_an_error_or_the_right_number_of_bytes() {
    for (blob, width, len) in sample_blobs() {
        for bit in 0..blob.len() * 8 {
            let mut flipped = blob.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            if let Ok(words) = decode(&flipped, width, len) {
                assert_eq!(words.len(), len, "bit {bit}");
            }
        }
    }
}

#[test]
fn a_hostile_word_count_allocates_no_memory() {
    // 44 bytes that announce 2^32 - 1 words: above the caller's capacity.
    let mut blob = u32::MAX.to_le_bytes().to_vec();
    for _ in 0..2 {
        blob.extend_from_slice(&[0, 0]);
        blob.extend_from_slice(&u32::MAX.to_le_bytes());
        blob.extend_from_slice(&10u32.to_le_bytes());
        blob.extend_from_slice(&[0xFF; 10]);
    }
    let error = decode(&blob, Dtype::F16, 64).unwrap_err();
    assert_eq!((error.status(), error.needed()), (Status::BufferTooSmall, Some(2 * (u32::MAX as usize))));
}

#[test]
fn bytes_after_the_last_frame_and_second_zstd_frames_are_corrupt() {
    let words = common::read("gear_v1/l0_k.f16.bin");
    let mut blob = encode(&words, Dtype::F16, ALL);
    blob.push(0);
    assert_eq!(decode(&blob, Dtype::F16, words.len()).unwrap_err().status(), Status::Corrupt);

    // A plane whose payload is its ZSTD frame and then an empty one.
    let plane = [1u8, 2, 3, 4];
    let mut payload = [0; 64];
    let len = zstd_safe::compress(&mut payload[..], &plane, 3).unwrap();
    let extra = zstd_safe::compress(&mut payload[len..], &[], 3).unwrap();
    for (payload, sound) in [(&payload[..len], true), (&payload[..len + extra], false)] {
        let mut blob = 4u32.to_le_bytes().to_vec();
        for _ in 0..2 {
            blob.extend_from_slice(&[0, 1]);
            blob.extend_from_slice(&4u32.to_le_bytes());
            blob.extend_from_slice(&(payload.len() as u32).to_le_bytes());
            blob.extend_from_slice(payload);
        }
        assert_eq!(decode(&blob, Dtype::F16, 8).is_ok(), sound);
    }
}

#[test]
fn contradictory_headers_are_corrupt() {
    let blob = encode(&[7; 32], Dtype::F16, ALL);
    assert_eq!(decode(&blob, Dtype::F16, 32).unwrap(), [7; 32]);
    // Word count; the first frame's mode, codec, raw_len and payload_len.
    for (at, byte) in [(0, 0), (0, 15), (4, 3), (5, 2), (6, 15), (6, 17), (10, 1), (10, 3), (13, 1)] {
        let mut bad = blob.clone();
        assert_ne!(bad[at], byte);
        bad[at] = byte;
        assert_eq!(decode(&bad, Dtype::F16, 64).unwrap_err().status(), Status::Corrupt, "byte {at} = {byte}");
    }
}

#[test]
fn the_first_of_equal_candidates_wins() {
    // Every predictor turns zeros into zeros; raw comes first.
    for plane in v1_reader::planes(&encode(&[0; 256], Dtype::F16, ALL), 2) {
        assert_eq!((plane.mode, plane.codec), (0, 0));
    }
    // Every residual of one word is the word itself; RLE comes before ZSTD.
    for plane in v1_reader::planes(&encode(&[1, 2, 3, 4], Dtype::F32, Predictors::from_bits(6).unwrap()), 4) {
        assert_eq!((plane.mode, plane.codec), (1, 0));
    }
}

#[test]
fn partial_words_are_refused() {
    for (len, width) in [(0, Dtype::F16), (1, Dtype::F16), (3, Dtype::F16), (0, Dtype::F32), (6, Dtype::F32)] {
        let error = Encoder::new().encode(&vec![0; len], width, &Options::new(Format::V1)).unwrap_err();
        assert_eq!(error.status(), Status::InvalidArgument);
        assert_eq!(gear::bound(len, width), None);
    }
    // More words than a frame can hold.
    assert_eq!(gear::bound(1 << 34, Dtype::F16), None);
    assert_eq!(gear::bound(usize::MAX - 1, Dtype::F16), None);
}

/// Words like those of caches: noise, constants, repeated rows, and mixtures.
fn words(width: usize) -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        prop::collection::vec(any::<u8>(), 1..300),
        (any::<u8>(), 1usize..600).prop_map(|(b, n)| vec![b; n]),
        (prop::collection::vec(any::<u8>(), 1..20), 1usize..40).prop_map(|(row, n)| row.repeat(n)),
    ];
    prop::collection::vec(piece, 1..5).prop_map(move |pieces| {
        let mut bytes = pieces.concat();
        bytes.resize(bytes.len().next_multiple_of(width), 0);
        bytes
    })
}

/// 26 bytes in front of a frame, as docs/format.md has them.
fn checked(words: &[u8], dtype: Dtype) -> Vec<u8> {
    let count = (words.len() / dtype.bytes()) as u64;
    let head = [&b"\0\0\0\0MNKV\x04"[..], &[dtype as u32 as u8], &count.to_le_bytes(), &xxh3_64(words).to_le_bytes()];
    [head.concat(), Encoder::new().encode(words, dtype, &Options::new(Format::V1)).unwrap().to_vec()].concat()
}

#[test]
fn a_checked_blob_is_a_frame_behind_its_header_and_any_other_bit_is_refused() {
    for dtype in Dtype::ALL {
        let words: Vec<u8> = (0..64 * dtype.bytes()).map(|at| ((at * at) >> 4) as u8).collect();
        let blob = checked(&words, dtype);
        assert!(Encoder::new().encode(&words, dtype, &Options::new(Format::Checked)).unwrap() == blob, "{dtype:?}");
        assert!(decode(&blob, dtype, words.len()).unwrap() == words);
        for bit in 0..8 * blob.len() {
            let mut bad = blob.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            // A bit of ZSTD's descriptor that nobody reads changes no word.
            match decode(&bad, dtype, words.len()) {
                Ok(back) => assert!(back == words, "{dtype:?}, bit {bit}"),
                Err(error) => assert_ne!(error.status(), Status::Internal, "{dtype:?}, bit {bit}: {error}"),
            }
        }
        for len in 0..blob.len() {
            assert!(decode(&blob[..len], dtype, words.len()).is_err(), "{dtype:?} cut to {len}");
        }
        let other = if dtype == Dtype::F16 { Dtype::Bf16 } else { Dtype::F16 };
        assert_eq!(decode(&blob, other, words.len()).unwrap_err().status(), Status::InvalidArgument);
        let mut later = blob;
        later[8] = 5;
        assert_eq!(decode(&later, dtype, words.len()).unwrap_err().status(), Status::Unsupported);
    }
}

proptest! {
    #[test]
    fn any_words_are_restored_bit_for_bit_within_the_bound(
        (width, words) in prop_oneof![
            words(1).prop_map(|w| (Dtype::Int8, w)),
            words(2).prop_map(|w| (Dtype::F16, w)),
            words(4).prop_map(|w| (Dtype::F32, w)),
        ],
        bits in 0u32..8,
    ) {
        let predictors = Predictors::from_bits(bits).unwrap();
        let blob = encode(&words, width, predictors);
        prop_assert!(blob.len() <= gear::bound(words.len(), width).unwrap());
        prop_assert_eq!(gear::decoded_len(&blob, width).unwrap(), words.len());
        prop_assert!(decode(&blob, width, words.len()).unwrap() == words);
        prop_assert!(v1_reader::words(&blob, width.bytes()) == words);
        for plane in v1_reader::planes(&blob, width.bytes()) {
            prop_assert!(predictors.bits() & (1 << plane.mode) != 0);
        }
    }

    #[test]
    fn noise_is_never_decoded_beyond_the_capacity(noise in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(words) = decode(&noise, Dtype::F16, 64) {
            prop_assert!(words.len() <= 64);
        }
    }
}
