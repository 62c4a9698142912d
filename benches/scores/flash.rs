//! A flash attention, the baseline for scores: one thread, f32, heads of 128 dims, tiles of 64 tokens. Its loops use
//! all registers as accumulators, and are compiled for AVX2 and FMA where the CPU has both.

/// Dims of a head.
pub const DIM: usize = 128;
/// Tokens of a tile.
pub const TILE: usize = 64;
/// Tokens side by side in a tile of the prefill.
pub const PACK: usize = 16;
const PACKS: usize = TILE / PACK;
/// Query rows whose products are held in registers.
const ROWS: usize = 4;

type Row = [f32; DIM];
type Pack = [f32; PACK];

/// The instruction set of the attention.
pub fn name() -> &'static str {
    if fast() { "AVX2 and FMA" } else { "the default target" }
}

#[cfg(target_arch = "x86_64")]
fn fast() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
}

#[cfg(not(target_arch = "x86_64"))]
fn fast() -> bool {
    false
}

/// Two versions of a function: with AVX2 and FMA, and for the default target.
macro_rules! dispatched {
    ($name:ident = $body:ident($($arg:ident: $type:ty),*)) => {
        fn $name($($arg: $type),*) {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn with_avx2($($arg: $type),*) {
                    $body::<true>($($arg),*)
                }
                if fast() {
                    // SAFETY: the CPU has both features.
                    return unsafe { with_avx2($($arg),*) };
                }
            }
            $body::<{ cfg!(target_arch = "aarch64") }>($($arg),*)
        }
    };
}

#[inline(always)]
fn fma<const FUSED: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FUSED { a.mul_add(b, c) } else { a * b + c }
}

/// e^x for x <= 0; relative error about 2e-7.
#[inline(always)]
fn exp<const FUSED: bool>(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23
    let x = x.max(-80.0) * std::f32::consts::LOG2_E;
    let shifted = x + ROUND;
    let f = x - (shifted - ROUND);
    let p = [1.535_336e-4, 1.339_887_4e-3, 9.618_437e-3, 5.550_332_5e-2, 2.402_265e-1, 6.931_472e-1, 1.0];
    let p = p.into_iter().reduce(|p, c| fma::<FUSED>(p, f, c)).unwrap_or(1.0);
    f32::from_bits(p.to_bits().wrapping_add(shifted.to_bits() << 23))
}

#[inline(always)]
fn across<const N: usize>(mut lanes: [f32; N], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = N / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = f(lanes[i], lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
}

#[inline(always)]
fn greater(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// A decode step: one query row per head.
pub struct Decode {
    /// `[head][token]`, not normalised
    pub tiles: Vec<f32>,
    /// `[head][tile]`
    pub scales: Vec<f32>,
    /// `[head]`
    pub sums: Vec<f32>,
    out: Vec<Row>,
    tokens: usize,
}

impl Decode {
    pub fn new(heads: usize, tokens: usize) -> Self {
        Decode {
            tiles: vec![0.0; heads * tokens],
            scales: vec![0.0; heads * tokens / TILE],
            sums: vec![0.0; heads],
            out: vec![[0.0; DIM]; heads],
            tokens,
        }
    }

    /// `queries` `[head][dim]`; `keys` and `values` `[KV head][token][dim]`.
    pub fn run(&mut self, queries: &[f32], keys: &[f32], values: &[f32]) {
        let (queries, keys, values) = (queries.as_chunks().0, keys.as_chunks().0, values.as_chunks().0);
        let group = queries.len() / (keys.len() / self.tokens);
        let tiles = self.tiles.chunks_exact_mut(self.tokens);
        let scales = self.scales.chunks_exact_mut(self.tokens / TILE);
        for (head, (((tiles, scales), sum), out)) in
            tiles.zip(scales).zip(&mut self.sums).zip(&mut self.out).enumerate()
        {
            let kv = head / group * self.tokens..(head / group + 1) * self.tokens;
            decode_head(&queries[head], &keys[kv.clone()], &values[kv], tiles, scales, sum, out);
        }
    }
}

dispatched!(decode_head = decode_body(
    query: &Row, keys: &[Row], values: &[Row], tiles: &mut [f32], scales: &mut [f32], sum: &mut f32, out: &mut Row
));

#[inline(always)]
fn decode_body<const FUSED: bool>(
    query: &Row,
    keys: &[Row],
    values: &[Row],
    tiles: &mut [f32],
    scales: &mut [f32],
    sum: &mut f32,
    out: &mut Row,
) {
    let mut max = f32::NEG_INFINITY;
    *sum = 0.0;
    *out = [0.0; DIM];
    let tiles = tiles.as_chunks_mut::<TILE>().0;
    let (keys, values) = (keys.as_chunks::<TILE>().0, values.as_chunks::<TILE>().0);
    for (((tile, scale), keys), values) in tiles.iter_mut().zip(scales).zip(keys).zip(values) {
        for (score, key) in tile.iter_mut().zip(keys) {
            let mut lanes = [0.0; 32];
            for (q, k) in query.as_chunks::<32>().0.iter().zip(key.as_chunks::<32>().0) {
                for i in 0..32 {
                    lanes[i] = fma::<FUSED>(q[i], k[i], lanes[i]);
                }
            }
            *score = across(lanes, |a, b| a + b) * 0.088_388_35;
        }
        let new = max.max(across(*tile, greater));
        for score in tile.iter_mut() {
            *score = exp::<FUSED>(*score - new);
        }
        *scale = exp::<FUSED>(max - new);
        max = new;
        *sum = *sum * *scale + across(*tile, |a, b| a + b);
        // 64 dims fill half of the registers of AVX2.
        for half in 0..2 {
            let at = half * 64;
            let mut acc: [f32; 64] = std::array::from_fn(|i| out[at + i] * *scale);
            for (weight, value) in tile.iter().zip(values) {
                for i in 0..64 {
                    acc[i] = fma::<FUSED>(*weight, value[at + i], acc[i]);
                }
            }
            out[at..at + 64].copy_from_slice(&acc);
        }
    }
    for value in out {
        *value /= *sum;
    }
}

/// All query rows of one head.
pub struct Prefill {
    queries: Vec<Row>,
    /// `[16 tokens][dim][16]`
    keys: Vec<[Pack; DIM]>,
    values: Vec<Row>,
    /// `[16 tokens][row][16]`
    tile: Vec<Pack>,
    max: Vec<f32>,
    sums: Vec<f32>,
    scales: Vec<f32>,
    out: Vec<Row>,
}

impl Prefill {
    /// All `[token][dim]`.
    pub fn new(queries: &[f32], keys: &[f32], values: &[f32]) -> Self {
        let rows = |words: &[f32]| words.as_chunks().0.to_vec();
        let tokens = queries.len() / DIM;
        let pack = |p: usize| -> [Pack; DIM] {
            std::array::from_fn(|d| std::array::from_fn(|i| keys[(p * PACK + i) * DIM + d] * 0.088_388_35))
        };
        Prefill {
            queries: rows(queries),
            keys: (0..tokens / PACK).map(pack).collect(),
            values: rows(values),
            tile: vec![[0.0; PACK]; PACKS * tokens],
            max: vec![0.0; tokens],
            sums: vec![0.0; tokens],
            scales: vec![0.0; tokens],
            out: vec![[0.0; DIM]; tokens],
        }
    }

    /// Calls `done(tile, its values, its scales, the sums so far)` after the softmax of each tile, before its product
    /// with the values. With `causal`, rows before the tile are skipped.
    pub fn run(&mut self, causal: bool, mut done: impl FnMut(usize, &[Pack], &[f32], &[f32])) {
        self.max.fill(f32::NEG_INFINITY);
        self.sums.fill(0.0);
        self.out.fill([0.0; DIM]);
        for i in 0..self.values.len() / TILE {
            let first = if causal { i * TILE } else { 0 };
            softmax(self, i, first, causal);
            done(i, &self.tile, &self.scales, &self.sums);
            products(self, i, first);
        }
        for (out, sum) in self.out.iter_mut().zip(&self.sums) {
            out.iter_mut().for_each(|value| *value /= sum);
        }
    }
}

/// The bytes of a tile, without a copy.
pub fn as_bytes(tile: &[Pack]) -> &[u8] {
    // SAFETY: floats are plain memory, and bytes need no alignment.
    unsafe { std::slice::from_raw_parts(tile.as_ptr().cast(), size_of_val(tile)) }
}

dispatched!(softmax = softmax_body(head: &mut Prefill, index: usize, first: usize, causal: bool));
dispatched!(products = products_body(head: &mut Prefill, index: usize, first: usize));

#[inline(always)]
fn softmax_body<const FUSED: bool>(head: &mut Prefill, index: usize, first: usize, causal: bool) {
    let rows = head.queries.len();
    let keys = &head.keys[index * PACKS..][..PACKS];
    for p in 0..PACKS {
        head.tile[p * rows..][..first].fill([0.0; PACK]);
    }
    head.scales[..first].fill(1.0);
    for row in (first..rows).step_by(ROWS) {
        let queries: &[Row; ROWS] = head.queries[row..].first_chunk().unwrap();
        for (p, keys) in keys.iter().enumerate() {
            let mut acc = [[0.0; PACK]; ROWS];
            for d in 0..DIM {
                for r in 0..ROWS {
                    for i in 0..PACK {
                        acc[r][i] = fma::<FUSED>(queries[r][d], keys[d][i], acc[r][i]);
                    }
                }
            }
            head.tile[p * rows + row..][..ROWS].copy_from_slice(&acc);
        }
    }
    let (a, rest) = head.tile.split_at_mut(rows);
    let (b, rest) = rest.split_at_mut(rows);
    let (c, d) = rest.split_at_mut(rows);
    for row in first..rows {
        let mut packs = [a[row], b[row], c[row], d[row]];
        let seen = if causal { row + 1 - index * TILE } else { TILE };
        if seen < TILE {
            packs.as_flattened_mut()[seen..].fill(f32::NEG_INFINITY);
        }
        let lanes: Pack =
            std::array::from_fn(|i| greater(greater(packs[0][i], packs[1][i]), greater(packs[2][i], packs[3][i])));
        let max = head.max[row].max(across(lanes, greater));
        for value in packs.as_flattened_mut() {
            *value = exp::<FUSED>(*value - max);
        }
        if seen < TILE {
            packs.as_flattened_mut()[seen..].fill(0.0);
        }
        let lanes: Pack = std::array::from_fn(|i| (packs[0][i] + packs[1][i]) + (packs[2][i] + packs[3][i]));
        let scale = exp::<FUSED>(head.max[row] - max);
        head.max[row] = max;
        head.scales[row] = scale;
        head.sums[row] = head.sums[row] * scale + across(lanes, |a, b| a + b);
        [a[row], b[row], c[row], d[row]] = packs;
    }
}

#[inline(always)]
fn products_body<const FUSED: bool>(head: &mut Prefill, index: usize, first: usize) {
    let rows = head.queries.len();
    let values = &head.values[index * TILE..][..TILE];
    for row in (first..rows).step_by(ROWS) {
        let weights: [&[Pack; ROWS]; PACKS] =
            std::array::from_fn(|p| head.tile[p * rows + row..].first_chunk().unwrap());
        let out: &mut [Row; ROWS] = head.out[row..].first_chunk_mut().unwrap();
        let scales: &[f32; ROWS] = head.scales[row..].first_chunk().unwrap();
        for at in (0..DIM).step_by(PACK) {
            let mut acc: [Pack; ROWS] = std::array::from_fn(|r| std::array::from_fn(|i| out[r][at + i] * scales[r]));
            for (p, values) in values.as_chunks::<PACK>().0.iter().enumerate() {
                for t in 0..PACK {
                    let value: &Pack = values[t][at..].first_chunk().unwrap();
                    for r in 0..ROWS {
                        for i in 0..PACK {
                            acc[r][i] = fma::<FUSED>(weights[p][r][t], value[i], acc[r][i]);
                        }
                    }
                }
            }
            for r in 0..ROWS {
                out[r][at..at + PACK].copy_from_slice(&acc[r]);
            }
        }
    }
}
