//! Huffman codes: lengths from a histogram, and words and weights in the order of the format (RFC 8878, 4.2.1).

use super::fse;
use crate::arch::pack::{self, CodeWord};
use std::hint::select_unpredictable;

/// The longest code the format allows.
pub(super) const MAX_LOG: usize = pack::LONGEST as usize;
/// The longest description of a tree, with room for a bit writer: 127 bytes of FSE or 64 of plain weights.
pub(super) const DESCRIPTION_ROOM: usize = 160;

/// Codes without a limit are shorter than this, since a block has at most 2^17 symbols.
const DEPTHS: usize = 32;

/// The length of each symbol's code; 0 for symbols without one.
#[derive(Clone)]
pub(super) struct Lengths {
    of: [u8; 256],
    /// The number of symbols of each length; not kept for 0.
    at: [u32; MAX_LOG + 1],
    /// The longest.
    log: u8,
}

/// Symbols that occur, rarest first, as `count << 8 | symbol`.
struct Ranked {
    keys: [u32; 256],
    len: usize,
}

impl Ranked {
    fn new(counts: &[u32; 256]) -> Self {
        let mut keys = [0; 256];
        let mut len = 0;
        for (symbol, &count) in counts.iter().enumerate() {
            keys[len & 255] = count << 8 | symbol as u32;
            len += (count > 0) as usize;
        }
        keys[..len].sort_unstable();
        Ranked { keys, len }
    }

    fn count(&self, rank: usize) -> u32 {
        self.keys[rank] >> 8
    }

    /// The number of symbols at each depth of an optimal code.
    fn depths(&self) -> [u32; DEPTHS] {
        // Leaves and inner nodes, both lightest first; what does not exist yet is heaviest.
        let mut leaves = [u32::MAX; 512];
        for (leaf, key) in leaves.iter_mut().zip(&self.keys[..self.len]) {
            *leaf = key >> 8;
        }
        let mut inner = [u32::MAX; 256];
        let mut parents = [0u8; 256];
        let (mut leaf, mut node) = (0, 0);
        let root = self.len - 2;
        for new in 0..=root {
            let mut sum = 0;
            for _ in 0..2 {
                let (a, b) = (leaves[leaf & 511], inner[node & 255]);
                // If the leaf is lighter, the node stays and gets its parent later.
                parents[node & 255] = new as u8;
                leaf += (a <= b) as usize;
                node += (a > b) as usize;
                sum += a.min(b);
            }
            inner[new] = sum;
        }
        let mut depth = [0u8; 256];
        let mut inner_at = [0; DEPTHS];
        inner_at[0] = 1;
        for i in (0..root).rev() {
            depth[i] = depth[parents[i] as usize] + 1;
            inner_at[depth[i] as usize] += 1;
        }
        let mut at = [0; DEPTHS];
        for d in 1..DEPTHS {
            at[d] = 2 * inner_at[d - 1] - inner_at[d];
        }
        at
    }

    /// Returns the number of symbols at each depth of an optimal code of at most `limit` bits, by package-merge. A row
    /// has every symbol's count and the sums of pairs of the row before, in order. The first 2n - 2 entries of the last
    /// row are selected, and in each other row the pairs that the selected entries of the next row contain. The length
    /// of a symbol is the number of rows that select its count.
    fn limited_depths(&self, limit: usize) -> [u32; DEPTHS] {
        let n = self.len;
        let mut counts = [u32::MAX; 512];
        for (count, key) in counts.iter_mut().zip(&self.keys[..n]) {
            *count = key >> 8;
        }
        // Marks the entries of each row that are counts.
        let mut is_count = [[1u8; 512]; MAX_LOG];
        let mut row = [0; 512];
        row[..n].copy_from_slice(&counts[..n]);
        let mut len = n;
        // The place of each pair in the row, and the first place at which the row differs from the one before.
        let mut position = [0u16; 512];
        let mut same = 0;
        let mut last = 0;
        let mut sums = [u32::MAX; 512];
        for r in 1..limit {
            let pairs = len / 2;
            for (sum, pair) in sums.iter_mut().zip(row[..2 * pairs].as_chunks::<2>().0) {
                *sum = pair[0] + pair[1];
            }
            sums[pairs] = u32::MAX;
            // Pairs of equal entries are equal, and so is the row up to the last of them.
            let first = same / 2;
            if first == pairs {
                break;
            }
            let mut pair = first;
            let begin = if pair == 0 { 0 } else { position[pair - 1] as usize + 1 };
            let mut count = begin - pair;
            let (above, flags) = is_count.split_at_mut(r);
            flags[0][..begin].copy_from_slice(&above[r - 1][..begin]);
            len = n + pairs;
            let entries = row[begin..len].iter_mut().zip(&mut flags[0][begin..len]);
            let (mut a, mut b) = (counts[count], sums[pair]);
            for (i, (entry, flag)) in (begin..).zip(entries) {
                // Both candidates are read before the comparison.
                let (next_a, next_b) = (counts[(count + 1) & 511], sums[(pair + 1) & 511]);
                let is_count = a <= b;
                position[pair & 511] = i as u16;
                *entry = a.min(b);
                *flag = is_count as u8;
                count += is_count as usize;
                pair += !is_count as usize;
                a = select_unpredictable(is_count, next_a, a);
                b = select_unpredictable(is_count, b, next_b);
            }
            same = position[first] as usize;
            last = r;
        }
        let mut at = [0; DEPTHS];
        let mut wanted = 2 * n - 2;
        for depth in 0..limit {
            let flags = &is_count[(limit - 1 - depth).min(last)][..wanted];
            let counts: u32 = flags.iter().map(|&f| f as u32).sum();
            // These symbols are deeper than `depth`.
            if depth > 0 {
                at[depth] -= counts;
            }
            at[depth + 1] = counts;
            wanted = 2 * (wanted - counts as usize);
        }
        at
    }
}

/// The longest code to allow for `total` symbols, `distinct` of them different. Shorter codes are cheaper to describe.
pub(super) fn limit(total: u32, distinct: usize) -> usize {
    let cheap = total.ilog2().saturating_sub(2);
    cheap.max(distinct.ilog2() + 2).min(MAX_LOG as u32) as usize
}

impl Lengths {
    /// Optimal lengths within [`limit`] for a block's histogram, which has at least two symbols.
    pub(super) fn new(counts: &[u32; 256]) -> Self {
        let ranked = Ranked::new(counts);
        let total: u32 = counts.iter().sum();
        let limit = limit(total, ranked.len);
        // With a lightest node of this weight the limit is almost certainly exceeded.
        let lightest = ranked.count(0) + ranked.count(1);
        let mut at = [0; DEPTHS];
        if total >> limit < lightest {
            at = ranked.depths();
        }
        if at[1..=limit].iter().sum::<u32>() < ranked.len as u32 {
            at = ranked.limited_depths(limit);
        }
        let mut of = [0; 256];
        let mut keys = ranked.keys[..ranked.len].iter();
        for d in (1..=MAX_LOG).rev() {
            for key in keys.by_ref().take(at[d] as usize) {
                of[*key as u8 as usize] = d as u8;
            }
        }
        let log = at.iter().rposition(|&n| n > 0).unwrap_or(0) as u8;
        let mut lengths = Lengths { of, at: std::array::from_fn(|d| at[d]), log };
        lengths.make_describable();
        lengths
    }

    /// More than 128 equal weights can neither be listed nor go through FSE. That takes codes of length 8 for all
    /// symbols but the last: one gets shorter and two get longer.
    fn make_describable(&mut self) {
        let listed = self.last_symbol();
        if listed > 128 && self.of[..listed].iter().all(|l| *l == self.of[0]) {
            let len = self.of[0] as usize;
            self.of[..3].copy_from_slice(&[len as u8 - 1, len as u8 + 1, len as u8 + 1]);
            self.at[len] -= 3;
            self.at[len - 1] += 1;
            self.at[len + 1] += 2;
            self.log += 1;
        }
    }

    fn last_symbol(&self) -> usize {
        self.of.iter().rposition(|&l| l > 0).unwrap_or(0)
    }

    /// Bits of a block with this histogram, or `None` when it has a symbol without a code.
    pub(super) fn cost(&self, counts: &[u32; 256]) -> Option<usize> {
        let pairs = || counts.iter().zip(&self.of);
        let covered = pairs().fold(true, |all, (&c, &l)| all & (c == 0 || l > 0));
        covered.then(|| pairs().map(|(&c, &l)| c * l as u32).sum::<u32>() as usize)
    }

    /// Writes the description of the tree; returns its length, or `None` when there is none.
    pub(super) fn describe(&self, out: &mut [u8; DESCRIPTION_ROOM]) -> Option<usize> {
        let last = self.last_symbol();
        let mut weights = [0; 256];
        for (weight, &len) in weights.iter_mut().zip(&self.of) {
            *weight = if len == 0 { 0 } else { self.log + 1 - len };
        }
        // The last weight follows from the others.
        let mut counts = [0; MAX_LOG + 1];
        for len in 1..=self.log as usize {
            counts[self.log as usize + 1 - len] = self.at[len];
        }
        counts[weights[last] as usize] -= 1;
        counts[0] = last as u32 - counts.iter().sum::<u32>();
        let weights = &weights[..last];
        let plain = 1 + last.div_ceil(2);
        if let Some(len) = fse::compress(weights, &counts, &mut out[1..])
            && len < 128
            && (last > 128 || 1 + len < plain)
        {
            out[0] = len as u8;
            return Some(1 + len);
        }
        if last > 128 {
            return None;
        }
        out[0] = 127 + last as u8;
        for (byte, pair) in out[1..].iter_mut().zip(weights.chunks(2)) {
            *byte = pair[0] << 4 | pair.get(1).unwrap_or(&0);
        }
        Some(plain)
    }

    /// The code of each symbol.
    pub(super) fn codes(&self) -> [CodeWord; 256] {
        // Words count up from 0 through the symbols of the longest code, then of the next length, and so on.
        let mut next = [0; 16];
        let mut word = 0;
        for len in (1..=self.log as usize).rev() {
            next[len] = word;
            word = (word + self.at[len] as CodeWord) >> 1;
        }
        let mut codes = [0; 256];
        for (code, &len) in codes.iter_mut().zip(&self.of) {
            if len > 0 {
                let word = &mut next[len as usize & 15];
                *code = *word << 4 | len as CodeWord;
                *word += 1;
            }
        }
        codes
    }
}
