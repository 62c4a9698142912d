//! Small inputs, one for each part of the format.

use super::common::{self, Random};
use mnnkv::dtype::Dtype;
use mnnkv::gear::{Effort, Encoder, Format, Frequencies, Options, Pairing, Positions, Rotation};

/// A rotation that owns its lists.
#[derive(Clone, Debug)]
pub struct Hint {
    pub pairing: Pairing,
    pub dims: usize,
    pub theta: f32,
    /// Instead of theta, unless empty.
    pub inv_freq: Vec<f32>,
    pub tokens: usize,
    pub first: u32,
    /// Instead of counting from `first`, unless empty.
    pub positions: Vec<u32>,
}

impl Hint {
    pub fn new(pairing: Pairing, dims: usize) -> Self {
        Hint { pairing, dims, theta: 10_000.0, inv_freq: vec![], tokens: 0, first: 0, positions: vec![] }
    }

    pub fn rotation(&self) -> Rotation<'_> {
        Rotation {
            pairing: self.pairing,
            dims: self.dims,
            frequencies: match &self.inv_freq[..] {
                [] => Frequencies::Theta(self.theta),
                given => Frequencies::Given(given),
            },
            tokens: self.tokens,
            positions: match &self.positions[..] {
                [] => Positions::Counting { first: self.first },
                given => Positions::Given(given),
            },
        }
    }

    /// Rotates rows in f32 with the libm of the machine, as a host does.
    pub fn apply(&self, rows: &mut [f32], row_len: usize) {
        let tokens = if self.tokens == 0 { rows.len() / row_len } else { self.tokens };
        for (number, row) in rows.chunks_exact_mut(row_len).enumerate() {
            let token = number % tokens;
            let position = self.positions.get(token).copied().unwrap_or(self.first.wrapping_add(token as u32));
            let n = self.dims / 2;
            for i in 0..n {
                let frequency = self.inv_freq.get(i).copied();
                let frequency = frequency.unwrap_or_else(|| self.theta.powf(-(i as f32) / n as f32));
                let (sin, cos) = (position as f32 * frequency).sin_cos();
                let (a, b) = if self.pairing == Pairing::Half { (i, n + i) } else { (2 * i, 2 * i + 1) };
                (row[a], row[b]) = (row[a] * cos - row[b] * sin, row[b] * cos + row[a] * sin);
            }
        }
    }
}

/// Words of `dtype` nearest to these values; int8 in steps of 1/24.
pub fn to_words(values: &[f32], dtype: Dtype) -> Vec<u8> {
    let bytes = |x: &f32| match dtype {
        Dtype::F16 => half::f16::from_f32(*x).to_le_bytes().to_vec(),
        Dtype::Bf16 => half::bf16::from_f32(*x).to_le_bytes().to_vec(),
        Dtype::F32 => x.to_le_bytes().to_vec(),
        Dtype::Int8 => vec![(x * 24.0).round().clamp(-128.0, 127.0) as i8 as u8],
    };
    values.iter().flat_map(bytes).collect()
}

/// Bell-shaped around 0, mostly within 1.
fn bell(random: &mut Random) -> f32 {
    (0..6).map(|_| random.below(4001) as f32 / 2000.0 - 1.0).sum::<f32>() / 2.0
}

/// Rows with channels of different magnitude: each is one of `distinct` rows plus noise.
pub fn rows(seed: u64, count: usize, row_len: usize, distinct: usize, noise: f32) -> Vec<f32> {
    let mut random = Random(seed + 1);
    let scales: Vec<f32> = (0..row_len).map(|i| [1.0, 0.25, 3.0][i % 3]).collect();
    let bases: Vec<f32> = (0..distinct * row_len).map(|i| scales[i % row_len] * bell(&mut random)).collect();
    let mut rows = Vec::new();
    for number in 0..count {
        let base = if number < distinct { number } else { random.below(distinct) };
        let base = &bases[base * row_len..][..row_len];
        rows.extend(base.iter().zip(&scales).map(|(x, scale)| x + scale * noise * bell(&mut random)));
    }
    rows
}

/// Adds to a word's bits.
pub fn step(word: &mut [u8], steps: i32) {
    let bits = word.iter().rev().fold(0u32, |bits, byte| bits << 8 | *byte as u32).wrapping_add_signed(steps);
    word.copy_from_slice(&bits.to_le_bytes()[..word.len()]);
}

pub struct Sample {
    pub name: &'static str,
    pub purpose: &'static str,
    pub dtype: Dtype,
    pub head_dim: usize,
    pub effort: i32,
    pub hint: Option<Hint>,
    pub words: Vec<u8>,
}

impl Sample {
    pub fn options(&self) -> Options<'_> {
        Options {
            effort: Effort::new(self.effort, "effort").unwrap(),
            head_dim: self.head_dim,
            rotation: self.hint.as_ref().map(Hint::rotation),
            ..Options::new(Format::V2)
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        Encoder::new().encode(&self.words, self.dtype, &self.options()).unwrap().to_vec()
    }
}

fn sample(name: &'static str, dtype: Dtype, head_dim: usize, words: Vec<u8>, purpose: &'static str) -> Sample {
    Sample { name, purpose, dtype, head_dim, effort: 5, hint: None, words }
}

/// A sample at effort 9, where the encoder searches for similar rows.
fn slow(name: &'static str, dtype: Dtype, head_dim: usize, words: Vec<u8>, purpose: &'static str) -> Sample {
    Sample { effort: 9, ..sample(name, dtype, head_dim, words, purpose) }
}

/// Deterministic samples; names are files of `testdata/gear_v2`.
pub fn samples() -> Vec<Sample> {
    use Dtype::*;
    let mut all = vec![
        sample("stored_f16", F16, 8, Random(1).bytes(96), "noise, stored"),
        sample("stored_int8", Int8, 0, vec![7], "one byte"),
        sample("column_f16", F16, 0, to_words(&rows(2, 300, 1, 300, 0.0), F16), "no head_dim: one channel"),
        sample("tail_f32", F32, 12, to_words(&rows(3, 451, 1, 451, 0.0), F32), "37 rows and 7 words"),
        sample("kv_f16", F16, 64, common::read("kv/l3_v_h2_t1088_d64.f16")[..72 * 128].into(), "real values"),
    ];
    // Two rows, without a head_dim.
    let (a, b) = (Random(11).bytes(120), Random(12).bytes(120));
    let words = [&a, &b, &a, &b, &a, &a, &b, &b, &a, &b].map(|row| &row[..]).concat();
    all.push(slow("flat_f16", F16, 0, words.clone(), "rows that repeat, no head_dim: bytes of words with matches"));
    all.push(slow("flat_f32", F32, 0, words, "the same of four bytes"));
    for (name, dtype) in [("coded_f16", F16), ("coded_bf16", Bf16), ("coded_f32", F32), ("coded_int8", Int8)] {
        let words = to_words(&rows(4, 80, 15, 80, 0.0), dtype);
        all.push(sample(name, dtype, 15, words, "channels of three sizes, two units each"));
    }
    for (name, dtype) in [("repeats_f16", F16), ("repeats_bf16", Bf16), ("repeats_f32", F32), ("repeats_int8", Int8)] {
        let words = to_words(&rows(5, 60, 17, 7, 0.0), dtype);
        all.push(sample(name, dtype, 17, words, "rows equal to earlier ones"));
    }
    for (name, dtype) in [("steps_f16", F16), ("steps_bf16", Bf16), ("steps_f32", F32), ("steps_int8", Int8)] {
        let mut words = to_words(&rows(6, 60, 24, 7, 0.0), dtype);
        let mut random = Random(10);
        for word in words.chunks_exact_mut(dtype.bytes()) {
            let steps = [0, 0, 0, 0, 0, 0, 1, if random.below(16) == 0 { 21 } else { -1 }][random.below(8)];
            step(word, steps);
        }
        all.push(slow(name, dtype, 24, words, "rows a few steps from earlier ones, large steps among them"));
    }
    let words = |noise, dtype| to_words(&rows(7, 60, 24, 7, noise), dtype);
    all.push(slow("wide_f16", F16, 24, words(0.02, F16), "rows many steps from earlier ones"));
    all.push(slow("wide_f32", F32, 24, words(0.001, F32), "rows many steps from earlier ones"));

    let mut rotated = |name, dtype, row_len, hint: Hint, purpose| {
        let mut values = rows(8, 60, row_len, 7, 0.0);
        // Two rows are only similar to others, so that some begin a class.
        values[40 * row_len..42 * row_len].iter_mut().for_each(|x| *x *= 1.1);
        hint.apply(&mut values, row_len);
        let words = to_words(&values, dtype);
        all.push(Sample { hint: Some(hint), ..sample(name, dtype, row_len, words, purpose) });
    };
    let half = |dims| Hint::new(Pairing::Half, dims);
    let given = vec![1.0, 0.5, 0.1, 0.0, 3e-4, 1e-13];
    let adjacent = Hint { inv_freq: given, ..Hint::new(Pairing::Adjacent, 12) };
    let gaps = (0..30).map(|t| t * 3 + t * t % 5).collect();
    rotated("half_f16", F16, 16, half(16), "keys turned by theta 10000");
    rotated("half_heads_bf16", Bf16, 16, Hint { tokens: 20, ..half(16) }, "three heads of turned keys");
    rotated(
        "half_gaps_f32",
        F32,
        14,
        Hint { tokens: 30, positions: gaps, theta: 5e5, ..half(14) },
        "positions with gaps",
    );
    rotated("adjacent_f16", F16, 16, adjacent, "given frequencies, channels that are not turned");
    rotated("adjacent_f32", F32, 16, Hint { first: 900, ..Hint::new(Pairing::Adjacent, 16) }, "positions from 900 on");

    // NaNs with payloads, infinities, denormals and both zeros, in repeated rows.
    let specials = [0x7E01u16, 0xFFFF, 0x7C01, 0x7C00, 0xFC00, 1, 0x8001, 0x03FF, 0, 0x8000, 0x7BFF, 0x3C00];
    let words: Vec<u8> =
        (0..40).flat_map(|t| (0..12).map(move |i| specials[(i + t % 5) % 12])).flat_map(u16::to_le_bytes).collect();
    all.push(sample("specials_f16", F16, 12, words.clone(), "NaNs, infinities, denormals"));
    let mut values = rows(9, 60, 12, 5, 0.0);
    half(12).apply(&mut values, 12);
    let words = [to_words(&values[..40 * 12], F16), words[..4 * 24].into(), to_words(&values[40 * 12..], F16)].concat();
    let hint = Hint { positions: (0..40).chain(0..4).chain(40..60).collect(), ..half(12) };
    all.push(Sample { hint: Some(hint), ..sample("half_specials_f16", F16, 12, words, "NaNs among turned keys") });
    all
}
