//! Round trips of arbitrary words with arbitrary options.

use super::common::Random;
use super::samples::{Hint, rows, step, to_words};
use super::*;

fn dtypes() -> impl Strategy<Value = Dtype> {
    prop::sample::select(Dtype::ALL.to_vec())
}

fn efforts() -> impl Strategy<Value = Effort> {
    prop::sample::select(vec![1, 5, 9]).prop_map(effort)
}

/// Noise, constants, repeated rows, extreme words of the types, and mixtures.
fn words() -> impl Strategy<Value = Vec<u8>> {
    let edges: Vec<u32> = vec![
        0,
        0x8000,
        0x8000_0000,
        1,
        0x8001,
        0x7C00,
        0xFC00,
        0x7C01,
        0x7E01,
        0xFFFF,
        0x7F80,
        0xFF80,
        0x7F81,
        0x7F80_0000,
        0xFF80_0000,
        0x7F80_0001,
        0xFFC0_1234,
        0x007F_FFFF,
        0x3C00,
        0xBC00,
        0x3F80_0000,
        0x7FFF_FFFF,
    ];
    let piece = prop_oneof![
        prop::collection::vec(any::<u8>(), 1..400),
        (any::<u8>(), 1usize..800).prop_map(|(byte, n)| vec![byte; n]),
        (prop::collection::vec(any::<u8>(), 1..90), 1usize..60).prop_map(|(row, n)| row.repeat(n)),
        (prop::collection::vec(prop::sample::select(edges), 1..40), 1usize..40).prop_map(|(row, n)| row
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect::<Vec<u8>>()
            .repeat(n)),
    ];
    prop::collection::vec(piece, 1..5).prop_map(|pieces| pieces.concat())
}

/// Rows similar to earlier ones: equal, a few steps apart, or many. Some words are arbitrary.
#[derive(Clone, Debug)]
struct Alike {
    seed: u64,
    count: usize,
    row_len: usize,
    distinct: usize,
    noise: f32,
    /// One word in `stepped` moves by steps; one in `replaced` is replaced.
    stepped: usize,
    replaced: usize,
}

fn alike() -> impl Strategy<Value = Alike> {
    let noise = prop::sample::select(vec![0.0, 0.0, 1e-7, 1e-3, 0.02, 0.3]);
    let often = || prop::sample::select(vec![1usize, 3, 10, 1000, 100_000]);
    let fields = (any::<u32>(), 1usize..400, 1usize..40, 1usize..12, noise, often(), often());
    fields.prop_map(|(seed, count, row_len, distinct, noise, stepped, replaced)| Alike {
        seed: seed as u64,
        count,
        row_len,
        distinct,
        noise,
        stepped,
        replaced: 10 * replaced,
    })
}

impl Alike {
    fn words(&self, dtype: Dtype, hint: Option<&Hint>) -> Vec<u8> {
        let mut values = rows(self.seed, self.count, self.row_len, self.distinct, self.noise);
        if let Some(hint) = hint {
            hint.apply(&mut values, self.row_len);
        }
        let mut words = to_words(&values, dtype);
        let mut random = Random(self.seed + 2);
        for word in words.chunks_exact_mut(dtype.bytes()) {
            if random.below(self.stepped) == 0 {
                step(word, random.below(5) as i32 - 2);
            }
            if random.below(self.replaced) == 0 {
                word.copy_from_slice(&random.bytes(word.len()));
            }
        }
        words
    }
}

/// A plausible or absurd hint for rows of `row_len` elements, at least two.
fn hint(row_len: usize, count: usize) -> impl Strategy<Value = Hint> {
    let divisors: Vec<usize> = (1..=count).filter(|n| count.is_multiple_of(*n)).chain([0]).collect();
    let thetas = prop_oneof![Just(10_000.0f32), Just(500_000.0), 1.0f32..1e30, Just(1.0), Just(1e30)];
    let frequency = || prop_oneof![0.0f32..1.0, 0.0f32..1e6, Just(0.0), 1e-14f32..1e-10, Just(1e6)];
    let pairs = row_len / 2;
    (
        prop::sample::select(vec![Pairing::Half, Pairing::Adjacent]),
        1..=pairs,
        thetas,
        prop_oneof![Just(None), prop::collection::vec(frequency(), pairs).prop_map(Some)],
        prop::sample::select(divisors),
        prop_oneof![Just(0u32), 0u32..100_000, any::<u32>()],
        prop_oneof![
            Just(None),
            prop::collection::vec(0u32..50, count).prop_map(Some),
            prop::collection::vec(any::<u32>(), count).prop_map(Some),
        ],
    )
        .prop_map(move |(pairing, pairs, theta, inv_freq, tokens, first, positions)| Hint {
            pairing,
            dims: 2 * pairs,
            theta,
            inv_freq: inv_freq.map_or(vec![], |list| list[..pairs].to_vec()),
            tokens,
            first,
            positions: positions.map_or(vec![], |list| list[..if tokens == 0 { count } else { tokens }].to_vec()),
        })
}

fn alike_with_hint() -> impl Strategy<Value = (Alike, Hint)> {
    let alike = alike().prop_map(|alike| Alike { row_len: alike.row_len + 1, count: alike.count.div_ceil(3), ..alike });
    alike.prop_flat_map(|alike| {
        let hint = hint(alike.row_len, alike.count);
        (Just(alike), hint)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_words_are_restored_bit_for_bit(
        words in words(),
        dtype in dtypes(),
        head_dim in prop_oneof![Just(0usize), Just(1), 2usize..100, Just(64), 100usize..5000, Just(usize::MAX)],
        effort in efforts(),
    ) {
        let words = &words[..words.len() / dtype.bytes() * dtype.bytes()];
        prop_assume!(!words.is_empty());
        let options = Options { head_dim, effort, ..Options::new(Format::V2) };
        let blob = encode(words, dtype, &options);
        check(&blob, words, dtype, "any words");
        let predicts = |part: &String| part.starts_with("predictor ") && part != "predictor 0";
        prop_assert!(!v2_reader::read(&blob).seen.iter().any(predicts), "the encoder used a predictor");
    }

    #[test]
    fn similar_rows_are_restored_bit_for_bit(
        alike in alike(),
        dtype in dtypes(),
        tail in 0usize..3,
        effort in efforts(),
    ) {
        let mut words = alike.words(dtype, None);
        words.extend_from_within(..tail.min(alike.row_len - 1) * dtype.bytes());
        let options = Options { head_dim: alike.row_len, effort, ..Options::new(Format::V2) };
        check(&encode(&words, dtype, &options), &words, dtype, "rows alike");
    }

    #[test]
    fn rotated_rows_are_restored_bit_for_bit(
        (alike, hint) in alike_with_hint(),
        dtype in prop::sample::select(vec![Dtype::F16, Dtype::Bf16, Dtype::F32]),
        is_turned in any::<bool>(),
        effort in efforts(),
    ) {
        let words = alike.words(dtype, is_turned.then_some(&hint));
        let rotation = Some(hint.rotation());
        let options = Options { head_dim: alike.row_len, rotation, effort, ..Options::new(Format::V2) };
        check(&encode(&words, dtype, &options), &words, dtype, "turned rows");
    }

    #[test]
    fn any_words_with_any_hint_are_restored_bit_for_bit(
        words in words(),
        dtype in prop::sample::select(vec![Dtype::F16, Dtype::Bf16, Dtype::F32]),
        (row_len, hint) in (2usize..40).prop_flat_map(|row_len| (Just(row_len), hint(row_len, 1))),
        effort in efforts(),
    ) {
        let row_bytes = row_len * dtype.bytes();
        let words = &words[..words.len() / row_bytes * row_bytes];
        prop_assume!(!words.is_empty());
        let hint = Hint { tokens: 0, positions: vec![], ..hint };
        let rotation = Some(hint.rotation());
        let options = Options { head_dim: row_len, rotation, effort, ..Options::new(Format::V2) };
        check(&encode(words, dtype, &options), words, dtype, "any words and hint");
    }
}
