//! The header's bounds of working memory, for any options and any blob. ZSTD's contexts do not use this allocator: a
//! decoder counts 128 KiB for its own, and a test of the library bounds that of an encoder by 1,280 KiB.

use super::common::Random;
use super::counting_allocator::{held, peak};
use mnnkv::dtype::Dtype;
use mnnkv::gear::{self, Decoder, Effort, Encoder, Format, Options};
use mnnkv::status::Status;
use proptest::prelude::*;

const ENCODER: usize = (2048 - 1280) << 10;
/// Bytes beside three times those of a blob and its words.
const DECODER: usize = 256 << 10;

/// Words of noise, of zeros, or of rows that repeat.
fn words(kind: u8, len: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed | 1);
    match kind {
        0 => random.bytes(len),
        1 => vec![0; len],
        kind => random.bytes(16 * usize::from(kind)).into_iter().cycle().take(len).collect(),
    }
}

fn freed(body: impl FnOnce()) -> usize {
    let before = held();
    body();
    (before - held()) as usize
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(60) })]

    #[test]
    fn codecs_stay_within_their_memory_for_any_options_and_words(
        cases in prop::collection::vec((0u8..5, 1usize..200_000, 1i32..10, any::<bool>(), any::<u64>()), 1..4),
    ) {
        // Memory that one call retains counts for the next.
        let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
        let (mut most_words, mut most_given) = (0, 0);
        for (kind, count, effort, checked, seed) in cases {
            let dtype = Dtype::ALL[seed as usize % Dtype::ALL.len()];
            let words = words(kind, count * dtype.bytes(), seed);
            let format = if checked { Format::Checked } else { Format::V1 };
            let options = Options { effort: Effort::new(effort, "effort").unwrap(), ..Options::new(format) };
            let encoding = peak(|| assert!(Encoder::new().encode(&words, dtype, &options).is_ok()));
            prop_assert!(encoding <= 6 * words.len() + ENCODER, "{encoding} for {}", words.len());
            let blob = encoder.encode(&words, dtype, &options).unwrap().to_vec();
            let (mut back, given) = (vec![0; words.len()], words.len() + blob.len());
            let decoding = peak(|| assert_eq!(Decoder::new().decode(&blob, dtype, &mut back).unwrap(), words.len()));
            prop_assert!(back == words && decoding <= 3 * given + DECODER, "{decoding} for {given}");
            decoder.decode(&blob, dtype, &mut back).unwrap();
            (most_words, most_given) = (words.len().max(most_words), given.max(most_given));
        }
        let (encoder, decoder) = (freed(|| drop(encoder)), freed(|| drop(decoder)));
        prop_assert!(encoder <= 6 * most_words + ENCODER && decoder <= 3 * most_given + DECODER, "{encoder} {decoder}");
    }
}

#[test]
fn changed_blobs_are_refused_or_read_in_bounded_memory() {
    let mut random = Random(1);
    let mut out = vec![0xA5; 20_000];
    let mut read = 0;
    for round in 0..4000 {
        let dtype = Dtype::ALL[round % Dtype::ALL.len()];
        let words = words((round % 5) as u8, dtype.bytes() * (1 + random.below(2000)), round as u64);
        let format = if round % 3 == 0 { Format::Checked } else { Format::V1 };
        let mut blob = Encoder::new().encode(&words, dtype, &Options::new(format)).unwrap().to_vec();
        for _ in 0..=random.below(3) {
            let at = random.below(blob.len());
            match random.below(3) {
                0 => blob[at] ^= 1 << random.below(8),
                1 => blob.truncate(at.max(1)),
                _ => blob[at] = random.bytes(1)[0],
            }
        }
        out.fill(0xA5);
        let given = blob.len() + gear::decoded_len(&blob, dtype).unwrap_or(0).min(out.len());
        let mut result = Ok(0);
        let held = peak(|| result = Decoder::new().decode(&blob, dtype, &mut out));
        assert!(held <= 3 * given + DECODER, "{held} bytes for {given}");
        match result {
            Ok(len) if format == Format::Checked && blob.starts_with(&[0; 4]) => {
                assert!(out[..len] == words[..], "a change that the checksum does not see");
            }
            Ok(_) => read += 1,
            Err(error) => assert_ne!(error.status(), Status::Internal, "{error}"),
        }
    }
    assert!(read > 0);
}
