use super::*;
use crate::common::Random;
use crate::status::{Result, Status};
use proptest::prelude::*;

/// Block sums with their memory.
#[derive(Clone, Debug)]
struct Owned {
    fields: SumFields,
    sums: Vec<f64>,
    factors: Option<Vec<f64>>,
}

impl Owned {
    /// Whole rows of one head, from a token on; `[block][row]`.
    fn of(rows: u32, block_tokens: u32, tokens: std::ops::Range<u32>, sums: &[f64]) -> Self {
        let (token_begin, token_end, blocks) = (tokens.start, tokens.end, sums.len() as u32 / rows);
        let fields = SumFields { flags: 3, heads: 1, rows, block_tokens, blocks, token_begin, token_end };
        Owned { fields, sums: sums.to_vec(), factors: None }
    }

    fn add_to(&self, scores: &mut Accumulator) -> Result<()> {
        assert_eq!(self.fields.check()?, self.sums.len());
        scores.add(&BlockSums::new(self.fields, &self.sums, self.factors.as_deref()))
    }
}

fn started(block_tokens: usize) -> Accumulator {
    let mut scores = Accumulator::default();
    scores.start(block_tokens);
    scores
}

fn numbers(scores: &Accumulator) -> Vec<f64> {
    scores.sums().masses.iter().map(|mass| mass_to_f64(*mass)).collect()
}

/// A head's rows, `[row][token]`, as the sums of parts of its tokens with any factors.
fn parts(random: &mut Random, rows: &[Vec<f64>], block_tokens: usize) -> Vec<Owned> {
    let tokens = rows[0].len();
    let mut parts = Vec::new();
    let mut begin = 0;
    while begin < tokens {
        let end = if random.below(3) == 0 { tokens } else { tokens.min(begin + 1 + random.below(149)) };
        let first = begin / block_tokens;
        let factors: Vec<f64> = rows.iter().map(|_| 0.01 + random.unit()).collect();
        let mut sums = vec![0.0; (end.div_ceil(block_tokens) - first) * rows.len()];
        for (token, row) in (begin..end).flat_map(|token| (0..rows.len()).map(move |row| (token, row))) {
            sums[(token / block_tokens - first) * rows.len() + row] += rows[row][token] / factors[row];
        }
        let flags = u32::from(begin == 0) + 2 * u32::from(end == tokens);
        let part = Owned::of(rows.len() as u32, block_tokens as u32, begin as u32..end as u32, &sums);
        parts.push(Owned { fields: SumFields { flags, ..part.fields }, factors: Some(factors), ..part });
        begin = end;
    }
    parts
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn masses_are_those_of_a_plain_softmax_on_any_lanes(
        rows in 1usize..=7,
        tokens in 1usize..600,
        block_tokens in 1usize..=70,
        heads in 1usize..6,
        seed: u64,
    ) {
        let random = &mut Random::new(seed);
        let softmax = |random: &mut Random| -> Vec<f64> {
            let weights: Vec<f64> = (0..tokens).map(|_| (8.0 * random.unit() - 4.0).exp()).collect();
            let sum: f64 = weights.iter().sum();
            weights.iter().map(|weight| weight / sum).collect()
        };
        let exact: Vec<Vec<Vec<f64>>> =
            (0..heads).map(|_| (0..rows).map(|_| softmax(random)).collect()).collect();
        let mut parts: Vec<Owned> = exact.iter().flat_map(|rows| parts(random, rows, block_tokens)).collect();
        let mut ours = None;
        for _ in 0..4 {
            let mut lanes: Vec<Accumulator> = (0..4).map(|_| started(block_tokens)).collect();
            for at in 0..parts.len() {
                parts.swap(0, at);
                parts[0].add_to(&mut lanes[random.below(4)]).unwrap();
            }
            let (mut masses, mut joints) = (vec![0; tokens.div_ceil(block_tokens)], Joints::default());
            for lane in &lanes {
                masses.iter_mut().zip(&lane.sums().masses).for_each(|(sum, mass)| *sum += mass);
                joints.add(lane.joints());
            }
            prop_assert_eq!(joints, Joints::default());
            prop_assert_eq!(lanes.iter().map(|lane| lane.sums().heads).sum::<u64>(), heads as u64);
            prop_assert_eq!(lanes.iter().map(|lane| lane.sums().rows).sum::<u64>(), (heads * rows) as u64);
            prop_assert_eq!(lanes.iter().map(Accumulator::token_end).max(), Some(tokens));
            prop_assert_eq!(&masses, ours.get_or_insert_with(|| masses.clone()));
        }
        for (block, mass) in ours.unwrap().into_iter().enumerate() {
            let range = block * block_tokens..tokens.min((block + 1) * block_tokens);
            let exact: f64 = exact.iter().flatten().flat_map(|row| &row[range.clone()]).sum();
            let ours = mass_to_f64(mass);
            prop_assert!((ours - exact).abs() <= 1e-12 * exact, "block {}: {} and not {}", block, ours, exact);
        }
    }
}

#[test]
fn a_worked_example() {
    let mut scores = started(2);
    let mut head = Owned::of(2, 2, 3..6, &[0.25, 0.5, 0.75, 3.5]);
    head.add_to(&mut scores).unwrap();
    assert_eq!(numbers(&scores), [0.0, 0.75, 4.25]);
    assert_eq!((scores.sums().heads, scores.sums().rows, scores.token_end()), (1, 2, 6));
    // The second row counts a quarter.
    head.factors = Some(vec![1.0, 0.25]);
    head.fields.heads = 2;
    head.add_to(&mut scores).unwrap();
    assert_eq!(numbers(&scores), [0.0, 1.125, 5.875]);
    assert_eq!((scores.sums().heads, scores.sums().rows, scores.token_end()), (3, 4, 6));
}

#[test]
fn a_start_forgets_all_sums() {
    let mut scores = started(4);
    Owned::of(1, 4, 0..8, &[1.0; 2]).add_to(&mut scores).unwrap();
    let part = Owned::of(1, 4, 0..8, &[1.0; 2]);
    Owned { fields: SumFields { flags: 1, ..part.fields }, ..part }.add_to(&mut scores).unwrap();
    scores.start(2);
    assert!(scores.sums().masses.is_empty() && scores.joints() == Joints::default());
    assert_eq!((scores.sums().heads, scores.sums().rows, scores.token_end()), (0, 0, 0));
    Owned::of(1, 2, 0..2, &[0.5]).add_to(&mut scores).unwrap();
    assert_eq!(numbers(&scores), [0.5]);
}

#[test]
fn sums_that_are_bad_are_refused_and_change_nothing() {
    let good = || Owned::of(2, 4, 4..20, &[0.5; 8]);
    let with = |change: fn(&mut SumFields)| {
        let mut sums = good();
        change(&mut sums.fields);
        sums
    };
    let value = |value: f64| {
        let mut sums = good();
        sums.sums[5] = value;
        sums
    };
    let mut scores = started(4);
    for (sums, text) in [
        (with(|f| f.flags = 4), "sums->flags is 0x4"),
        (with(|f| f.heads = 0), "sums->rows is 2 and sums->heads 0"),
        (with(|f| f.heads = 3), "sums->rows is 2 and sums->heads 3"),
        (with(|f| f.rows = 0), "sums->rows is 0"),
        (with(|f| f.token_begin = 20), "sums->token_begin is 20 and sums->token_end 20"),
        (with(|f| f.token_end = (1 << 24) + 1), "an end of 16777216 or less"),
        (with(|f| f.block_tokens = 0), "sums->block_tokens is 0"),
        (with(|f| (f.block_tokens, f.token_end) = (5, 20)), "sums->block_tokens is 5; 4 expected"),
        (with(|f| f.blocks = 3), "sums->blocks is 3; tokens 4 to 20 are in 4 blocks"),
        (value(f64::NAN), "attention to block 3 is NaN"),
        (value(f64::INFINITY), "attention to block 3 is inf"),
        (value(-2.0), "attention to block 3 is -1.5"),
        (value(1e13), "attention to block 3 is 10000000000000.5"),
    ] {
        good().add_to(&mut scores).unwrap();
        let before = (numbers(&scores), scores.sums().heads, scores.sums().rows, scores.token_end());
        let error = sums.add_to(&mut scores).unwrap_err();
        assert!(error.status() == Status::InvalidArgument && error.message().contains(text), "{error}");
        assert_eq!((numbers(&scores), scores.sums().heads, scores.sums().rows, scores.token_end()), before, "{error}");
    }
}
