//! The softmax of a step, cut into tiles as hosts do, and its exact masses.

use crate::common::Random;
use crate::dtype::Dtype;
use crate::h2o::{BlockSums, OwnedTile, SumFields, Tile};
use crate::host::packing;
use crate::status::Result;
use half::{bf16, f16};

/// The attention of one layer in one step.
pub(super) struct Attention {
    /// `[head][tile]`
    pub(super) heads: Vec<Vec<OwnedTile>>,
    pub(super) queries: usize,
    /// The last rows, which are scored.
    pub(super) counted: usize,
    /// `[head][scored row][token]`: softmax values.
    exact: Vec<Vec<Vec<f64>>>,
    /// `[token]`: the softmax values of scored rows, summed over heads.
    pub(super) masses: Vec<f64>,
}

/// The form of an attention's tiles.
struct Style {
    dtype: Dtype,
    pack: usize,
    /// Values are rescaled from tile to tile, as in flash attention. Otherwise they are final.
    flash: bool,
    /// Rows that are not scored, and the first tile's scales, are NaN.
    junk: bool,
}

impl Attention {
    /// `worth` is the attention that each token of the cache draws, the step's own included. A row sees the tokens
    /// before it and its own.
    pub(super) fn new(worth: &[f64], heads: usize, queries: usize, counted: usize, random: &mut Random) -> Self {
        let style = Style {
            dtype: random.pick(&[Dtype::F32, Dtype::F32, Dtype::F16, Dtype::Bf16]),
            pack: random.pick(&[0, 4, 8, 16]),
            flash: !random.once_in(4),
            junk: random.once_in(2),
        };
        let (masses, exact) = (vec![0.0; worth.len()], Vec::new());
        let mut attention = Attention { heads: Vec::new(), queries, counted, exact, masses };
        for _ in 0..heads {
            let tiles = attention.head(worth, &style, random);
            attention.heads.push(tiles);
        }
        attention
    }

    fn head(&mut self, worth: &[f64], style: &Style, random: &mut Random) -> Vec<OwnedTile> {
        let (len, queries) = (worth.len(), self.queries);
        let sees = |row: usize| len.saturating_sub(queries - 1 - row).max(1);
        let logit: Vec<Vec<f64>> = (0..queries)
            .map(|row| {
                let noisy = |at: usize| if at < sees(row) { worth[at] + random.unit() } else { f64::NEG_INFINITY };
                (0..len).map(noisy).collect()
            })
            .collect();
        let top = |row: usize, of: &[usize]| of.iter().map(|t| logit[row][*t]).fold(f64::NEG_INFINITY, f64::max);

        let cuts = cuts(len, random);
        let all: Vec<usize> = (0..len).collect();
        let mut highest = vec![f64::NEG_INFINITY; queries];
        let mut sums = vec![0.0; queries];
        // The values of each row so far, which later tiles rescale.
        let mut given = vec![vec![0.0; len]; queries];
        let mut tiles = Vec::new();
        for (number, (begin, count)) in cuts.iter().copied().enumerate() {
            let tokens: Vec<usize> = (begin..begin + count).collect();
            let mut scales = vec![1f32; queries];
            let mut values = vec![vec![0.0; count]; queries];
            for row in 0..queries {
                let before = highest[row];
                highest[row] = if style.flash { before.max(top(row, &tokens)) } else { top(row, &all) };
                let base = if highest[row] == f64::NEG_INFINITY { 0.0 } else { highest[row] };
                let whole = if style.flash { 1.0 } else { logit[row].iter().map(|x| (x - base).exp()).sum() };
                if style.flash {
                    scales[row] = (before - base).exp() as f32;
                    sums[row] *= f64::from(scales[row]);
                    given[row].iter_mut().for_each(|g| *g *= f64::from(scales[row]));
                }
                for (at, token) in tokens.iter().enumerate() {
                    let value = rounded(style.dtype, (logit[row][*token] - base).exp() / whole);
                    values[row][at] = value;
                    given[row][*token] = value;
                    sums[row] += value;
                }
            }
            let (first, last) = (number == 0, number + 1 == cuts.len());
            let junk_rows = if style.junk { queries - self.counted } else { 0 };
            if first && style.junk {
                scales.fill(f32::NAN);
            }
            scales[..junk_rows].fill(f32::NAN);
            values[..junk_rows].iter_mut().for_each(|row| row.fill(f64::NAN));
            tiles.push(OwnedTile {
                dtype: style.dtype,
                pack: style.pack,
                queries,
                heads: 1,
                tokens: count,
                token_begin: begin,
                first,
                last,
                data: packing::tile(style.dtype, style.pack, queries, count, |row, token| values[row][token]),
                update_scale: style.flash.then_some(scales),
                row_sum: (style.flash && last).then(|| {
                    let mut sums: Vec<f32> = sums.iter().map(|sum| *sum as f32).collect();
                    sums[..junk_rows].fill(f32::NAN);
                    sums
                }),
            });
        }
        let exact = |row: usize| {
            let sum = if style.flash { f64::from(sums[row] as f32) } else { 1.0 };
            given[row].iter().map(|given| given / sum).collect::<Vec<f64>>()
        };
        let exact: Vec<_> = (queries - self.counted..queries).map(exact).collect();
        exact.iter().for_each(|row| self.masses.iter_mut().zip(row).for_each(|(mass, value)| *mass += value));
        self.exact.push(exact);
        tiles
    }

    /// The block sums of a head as a host makes them, in parts of its tokens, with any factors.
    pub(super) fn block_sums(&self, head: usize, block_tokens: u32, random: &mut Random) -> Vec<OwnedSums> {
        let cuts = cuts(self.masses.len(), random);
        let parts = cuts.iter().enumerate().map(|(number, (begin, count))| {
            let (begin, end) = (*begin as u32, (*begin + *count) as u32);
            let flags = u32::from(number == 0) + if number + 1 == cuts.len() { 2 } else { 0 };
            let first_block = begin / block_tokens;
            let blocks = end.div_ceil(block_tokens) - first_block;
            let rows = self.exact[head].len();
            let factors: Vec<f64> = (0..rows).map(|_| 0.01 + random.unit()).collect();
            let mut sums = vec![0.0; blocks as usize * rows];
            for (token, (row, factor)) in
                (begin..end).flat_map(|token| factors.iter().enumerate().map(move |r| (token, r)))
            {
                let block = (token / block_tokens - first_block) as usize;
                sums[block * rows + row] += self.exact[head][row][token as usize] / factor;
            }
            let (rows, token_begin, token_end) = (rows as u32, begin, end);
            let fields = SumFields { flags, heads: 1, rows, block_tokens, blocks, token_begin, token_end };
            OwnedSums { fields, sums, factors }
        });
        parts.collect()
    }
}

/// Block sums with their memory.
pub(super) struct OwnedSums {
    pub(super) fields: SumFields,
    pub(super) sums: Vec<f64>,
    pub(super) factors: Vec<f64>,
}

impl OwnedSums {
    pub(super) fn checked(&self) -> Result<BlockSums<'_>> {
        self.fields.check()?;
        Ok(BlockSums::new(self.fields, &self.sums, Some(&self.factors)))
    }
}

/// Ranges that cover all tokens once.
fn cuts(len: usize, random: &mut Random) -> Vec<(usize, usize)> {
    let most = if random.once_in(3) { len } else { random.from(1, 24) };
    let mut cuts = Vec::new();
    let mut at = 0;
    while at < len {
        let count = random.from(1, most).min(len - at);
        cuts.push((at, count));
        at += count;
    }
    cuts
}

fn rounded(dtype: Dtype, value: f64) -> f64 {
    match dtype {
        Dtype::F16 => f16::from_f64(value).to_f64(),
        Dtype::Bf16 => bf16::from_f64(value).to_f64(),
        _ => f64::from(value as f32),
    }
}

/// A head's only tile: plain f32 rows.
pub(super) fn rows_of<'a>(data: &'a [u8], queries: usize, tokens: usize, row_sum: Option<&'a [f32]>) -> Tile<'a> {
    Tile {
        dtype: Dtype::F32,
        pack: 0,
        queries,
        heads: 1,
        tokens,
        token_begin: 0,
        first: true,
        last: true,
        data,
        update_scale: None,
        row_sum,
    }
}
