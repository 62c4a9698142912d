//! The best code of limited length (package-merge, Larmore and Hirschberg 1990).

use crate::arch::lanes::MAX_LEN;

const LEAVES: usize = 257;
/// More than any sum of weights.
const NONE: u64 = u64::MAX / 2;

/// Writes the length of the code of each weight, at most [`MAX_LEN`]. There are 2 to 256 weights, with a sum below 2^40.
pub(crate) fn lens(weights: &[u64], lens: &mut [u8; LEAVES]) {
    let n = weights.len();
    let mut leaves = [NONE; LEAVES];
    for (i, (leaf, weight)) in leaves.iter_mut().zip(weights).enumerate() {
        *leaf = weight << 9 | i as u64;
    }
    leaves[..n].sort_unstable();
    let order = leaves;
    leaves[..n].iter_mut().for_each(|leaf| *leaf >>= 9);
    // Each list has all leaves and the pairs of neighbours of the list before it, in the order of their weights.
    let mut is_leaf = [[0u8; 2 * LEAVES]; MAX_LEN];
    let mut pairs = [NONE; LEAVES];
    let mut number = 0;
    let mut items = [0; 2 * LEAVES];
    for list in &mut is_leaf {
        let (mut leaf, mut pair) = (0, 0);
        for (item, is_leaf) in items.iter_mut().zip(list).take(n + number) {
            let (a, b) = (leaves[leaf], pairs[pair]);
            let takes_leaf = (a <= b) as usize;
            *item = a.min(b);
            *is_leaf = takes_leaf as u8;
            leaf += takes_leaf;
            pair += 1 - takes_leaf;
        }
        number = (n + number) / 2;
        for (pair, [a, b]) in pairs.iter_mut().zip(items.as_chunks::<2>().0).take(number) {
            *pair = a + b;
        }
        pairs[number] = NONE;
    }
    // The first items of the last list, and those that they consist of.
    let mut chosen = 2 * n - 2;
    for list in is_leaf.iter().rev() {
        let taken: usize = list[..chosen].iter().map(|is_leaf| *is_leaf as usize).sum();
        for leaf in &order[..taken] {
            lens[(leaf & 511) as usize] += 1;
        }
        chosen = 2 * (chosen - taken);
    }
}
