//! Scores of tokens by keys and values, against the formulas in f64.

use mnnkv::h2o::{Angles, InverseRope, TokenRows, TokenScores};
use proptest::prelude::*;

/// Rows `[head][token][dim]` of some tokens.
#[derive(Clone, Debug)]
struct Group {
    keys: Vec<f32>,
    values: Vec<f32>,
}

fn norm(row: &[f64]) -> f64 {
    row.iter().map(|x| x * x).sum::<f64>().sqrt()
}

fn wide(row: &[f32]) -> Vec<f64> {
    row.iter().map(|x| f64::from(*x)).collect()
}

/// `[token][head]`: minus the cosine of a key and the sum of the unit keys up to its group, and the norm of the value.
fn numbers(groups: &[Group], heads: usize, dims: usize) -> Vec<Vec<[f64; 2]>> {
    let mut anchors = vec![vec![0.0; dims]; heads];
    let mut numbers = Vec::new();
    for group in groups {
        let count = group.keys.len() / (heads * dims);
        let row = |rows: &[f32], head: usize, token: usize| wide(&rows[(head * count + token) * dims..][..dims]);
        for (head, anchor) in anchors.iter_mut().enumerate() {
            for key in (0..count).map(|token| row(&group.keys, head, token)) {
                anchor.iter_mut().zip(&key).for_each(|(sum, x)| *sum += x / norm(&key));
            }
        }
        numbers.extend((0..count).map(|token| {
            let head = |(head, anchor): (usize, &Vec<f64>)| {
                let key = row(&group.keys, head, token);
                let product: f64 = key.iter().zip(anchor).map(|(x, y)| x * y).sum();
                [-product / (norm(&key) * norm(anchor)), norm(&row(&group.values, head, token))]
            };
            anchors.iter().enumerate().map(head).collect()
        }));
    }
    numbers
}

/// The mean over heads of the shares of tokens that have a lower number. `sure`: no other number is too near to rank.
fn scores(numbers: &[Vec<[f64; 2]>]) -> (Vec<f64>, bool) {
    let (most, mut sure) = ((numbers.len() - 1).max(1) as f64, true);
    let mut score = |token: usize| {
        let all = (0..numbers[0].len()).flat_map(|head| [(head, 0), (head, 1)]);
        let share = |(head, which): (usize, usize)| {
            let own = numbers[token][head][which];
            let others = || numbers.iter().map(|other| other[head][which]);
            sure &= others().filter(|other| (other - own).abs() < 1e-5 * own.abs().max(1.0)).count() == 1;
            others().filter(|other| *other < own).count() as f64 / most
        };
        all.map(share).sum::<f64>() / (2 * numbers[0].len()) as f64
    };
    ((0..numbers.len()).map(&mut score).collect(), sure)
}

fn ours(groups: &[Group], heads: usize, dims: usize) -> TokenScores {
    let mut scores = TokenScores::default();
    let mut len = 0;
    for group in groups {
        let count = group.keys.len() / (heads * dims);
        len += count as u32;
        let mut new = scores.begin(heads, dims, count).unwrap();
        new.see(&TokenRows { heads, dims, keys: &group.keys, values: &group.values }).unwrap();
        scores.take(new, len);
    }
    scores
}

fn groups() -> impl Strategy<Value = (usize, usize, Vec<Group>)> {
    (1usize..4, prop::sample::select(vec![2usize, 6, 16, 40])).prop_flat_map(|(heads, dims)| {
        let group = (1usize..7).prop_flat_map(move |count| {
            let rows = || prop::collection::vec(0.1f32..3.0, heads * dims * count);
            let signs = prop::collection::vec(any::<bool>(), heads * dims * count);
            (rows(), signs, rows()).prop_map(|(keys, signs, values)| {
                let keys = keys.iter().zip(signs).map(|(key, sign)| if sign { -key } else { *key }).collect();
                Group { keys, values }
            })
        });
        (Just(heads), Just(dims), prop::collection::vec(group, 1..6))
    })
}

proptest! {
    #[test]
    fn scores_are_mean_ranks_of_key_differences_and_value_norms((heads, dims, groups) in groups(), block in 1u32..5) {
        let (tokens, sure) = scores(&numbers(&groups, heads, dims));
        prop_assume!(sure);
        let ours = ours(&groups, heads, dims).ranking(block).unwrap();
        let blocks: Vec<f64> =
            tokens.chunks(block as usize).map(|block| block.iter().sum::<f64>() / block.len() as f64).collect();
        prop_assert_eq!(ours.len(), blocks.len());
        prop_assert!(ours.iter().zip(&blocks).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-6), "{:?} {:?}", ours, blocks);
    }

    #[test]
    fn tokens_keep_their_numbers_when_others_leave((heads, dims, groups) in groups(), stays in any::<u32>()) {
        let all = numbers(&groups, heads, dims);
        let kept: Vec<usize> = (0..all.len()).filter(|token| stays >> token & 1 == 1).collect();
        prop_assume!(!kept.is_empty());
        let (tokens, sure) = scores(&kept.iter().map(|token| all[*token].clone()).collect::<Vec<_>>());
        prop_assume!(sure);
        let pairs: Vec<[i32; 2]> = kept.iter().map(|token| [*token as i32, 1]).collect();
        let ours = ours(&groups, heads, dims).kept(&pairs).unwrap();
        prop_assert_eq!(ours.unscored(), 0);
        let ours = ours.ranking(1).unwrap();
        prop_assert!(ours.iter().zip(&tokens).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-6), "{:?} {:?}", ours, tokens);
    }

    #[test]
    fn keys_turn_back_to_position_0(
        adjacent in any::<bool>(), pairs in 1usize..20, more in 0usize..5,
        positions in prop::collection::vec(prop_oneof![0u32..100, 0u32..100_000], 1..9), count in 1u32..9, seed in 0f32..1.0,
    ) {
        // Runs of consecutive positions, and jumps.
        let positions: Vec<u32> = positions.iter().flat_map(|first| *first..first + count).collect();
        let dims = 2 * pairs + more;
        let frequencies: Vec<f32> = (0..pairs).map(|pair| 10_000f32.powf(-(pair as f32) / pairs as f32)).collect();
        let plain: Vec<f32> = (0..2 * positions.len() * dims).map(|at| (seed + at as f32 * 0.37).sin()).collect();
        let mut keys = plain.clone();
        for (row, key) in keys.chunks_exact_mut(dims).enumerate() {
            for (pair, frequency) in frequencies.iter().enumerate() {
                let angle = f64::from(positions[row % positions.len()]) * f64::from(*frequency);
                let [x, y] = if adjacent { [2 * pair, 2 * pair + 1] } else { [pair, pairs + pair] };
                let (from, to) = (f64::from(key[x]), f64::from(key[y]));
                key[x] = (from * angle.cos() - to * angle.sin()) as f32;
                key[y] = (to * angle.cos() + from * angle.sin()) as f32;
            }
        }
        InverseRope::new(adjacent, frequencies).back(&mut keys, dims, &positions, &mut Angles::default()).unwrap();
        prop_assert!(keys.iter().zip(&plain).all(|(a, b)| (a - b).abs() < 1e-5), "{:?} {:?}", keys, plain);
    }
}

#[test]
fn rows_that_are_not_finite_rank_lowest_and_spoil_no_other() {
    let (heads, dims) = (1, 2);
    let keys = vec![1.0, 0.0, f32::INFINITY, 0.0, 0.0, 0.0, f32::NAN, 1.0, 0.0, 1.0, 1.0, 0.1];
    let values = vec![1.0, 1.0, 2.0, 2.0, f32::NAN, 0.0, 3.0, 3.0, 4.0, 4.0, 5.0, 5.0];
    let ours = ours(&[Group { keys, values }], heads, dims).ranking(1).unwrap();
    assert!(ours.iter().all(|score| (0.0..=1.0).contains(score)), "{ours:?}");
    assert!(ours[4] > ours[0], "{ours:?}: the key apart, and the larger value");
}
