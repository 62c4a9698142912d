//! Caches in fewer bits, as plain models: numbers are rounded to what the codes stand for, and stay f32.

use half::f16;

/// How a cache stores K and V.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// MNN's `attention_mode` 9: K and queries in int8.
    Int8Key,
    /// MNN's `attention_mode` 10: K, queries, V and softmax weights in int8.
    Int8,
    /// MNN's `attention_mode` 14: K and V in TQ4, and scores scaled twice, as MNN does.
    Tq4,
}

impl Rounding {
    /// Names in the key `cache` of a method.
    pub const NAMES: [(&'static str, Rounding); 3] =
        [("int8_k", Rounding::Int8Key), ("int8", Rounding::Int8), ("tq4", Rounding::Tq4)];

    /// The rounding of rows when they are appended.
    pub(super) fn append(self, kept: &mut Kept, dims: usize, key: &mut [f32], value: &mut [f32]) {
        match self {
            Rounding::Int8Key => kept.int8_key(dims, key),
            Rounding::Int8 => {
                kept.int8_key(dims, key);
                kept.int8_value(dims, value);
            }
            Rounding::Tq4 => [key, value].into_iter().flat_map(|rows| rows.chunks_exact_mut(32)).for_each(tq4),
        }
    }

    /// Queries in 8 bits, a scale and a bias per row and head.
    pub(super) fn queries(self, dims: usize, query: &mut [f32]) {
        if matches!(self, Rounding::Int8Key | Rounding::Int8) {
            query.chunks_exact_mut(dims).for_each(asymmetric8);
        }
    }
}

/// What one layer of MNN's int8 caches keeps beside the codes. All rows are `[head][row][dim]`.
#[derive(Clone, Default)]
pub(super) struct Kept {
    /// The greatest K of each head and dim of appends with several tokens.
    centre: Vec<f32>,
    /// Scale and bias of each head and dim of V, of the first append.
    value: Vec<(f32, f32)>,
    /// KV heads.
    heads: usize,
}

impl Kept {
    pub(super) fn new(heads: usize) -> Self {
        Kept { heads, ..Self::default() }
    }

    /// Keys less the centre, each in 8 bits between its least and greatest number.
    fn int8_key(&mut self, dims: usize, key: &mut [f32]) {
        let rows = key.len() / self.heads / dims;
        self.centre.resize(self.heads * dims, f32::MIN);
        for (key, centre) in key.chunks_exact_mut(rows * dims).zip(self.centre.chunks_exact_mut(dims)) {
            if rows > 1 {
                for row in key.chunks_exact(dims) {
                    centre.iter_mut().zip(row).for_each(|(most, x)| *most = most.max(*x));
                }
            }
            for row in key.chunks_exact_mut(dims) {
                row.iter_mut().zip(&*centre).for_each(|(x, centre)| *x -= centre);
                asymmetric8(row);
            }
        }
    }

    /// Values in 8 bits between the least and greatest of their head and dim in the first append.
    fn int8_value(&mut self, dims: usize, value: &mut [f32]) {
        let rows = value.len() / self.heads / dims;
        if self.value.is_empty() {
            for head in value.chunks_exact(rows * dims) {
                self.value.extend((0..dims).map(|dim| value_scale(head.iter().skip(dim).step_by(dims))));
            }
        }
        for (value, scales) in value.chunks_exact_mut(rows * dims).zip(self.value.chunks_exact(dims)) {
            for (x, (scale, bias)) in value.chunks_exact_mut(dims).flat_map(|row| row.iter_mut().zip(scales)) {
                let code = if *scale == 0.0 { 0.0 } else { (*x / scale - bias / scale).round().clamp(-128.0, 127.0) };
                *x = code * scale + bias;
            }
        }
    }
}

/// Scale and bias of a dim.
fn value_scale<'a>(values: impl Iterator<Item = &'a f32>) -> (f32, f32) {
    let (least, most) = values.fold((f32::MAX, f32::MIN), |(least, most), x| (least.min(*x), most.max(*x)));
    let range = most - least;
    if range < 1e-6 { (0.0, most) } else { (range / 255.0, range / 255.0 * 128.0 + least) }
}

/// 8 bits between the least and the greatest.
fn asymmetric8(row: &mut [f32]) {
    let (least, most) = row.iter().fold((f32::MAX, f32::MIN), |(least, most), x| (least.min(*x), most.max(*x)));
    let scale = (most - least) / 255.0;
    if scale > 0.0 {
        row.iter_mut().for_each(|x| *x = ((*x - least) / scale).round() * scale + least);
    }
}

/// The signs that TQ4 turns before its transform, a bit for each of 32 numbers.
const FLIPPED: u32 = 0x696B_4B4A;
/// Bounds between the numbers of the codebook, and these; both again with the other sign.
const EDGES: [f32; 7] = [0.2582, 0.5224, 0.7995, 1.0993, 1.4371, 1.8435, 2.4008];
const BOOK: [f32; 8] = [0.1284, 0.388, 0.6568, 0.9423, 1.2562, 1.618, 2.069, 2.7326];

/// TQ4 of 32 numbers: a scale in f16, and the nearest number of a codebook for each element of a Hadamard transform.
fn tq4(record: &mut [f32]) {
    let squares: f32 = record.iter().map(|x| x * x).sum();
    let rms = (squares / 32.0).sqrt().max(1e-10);
    record.iter_mut().for_each(|x| *x /= rms);
    flip(record);
    hadamard(record);
    let scale = cut(rms);
    for y in record.iter_mut() {
        let book = BOOK[EDGES.iter().filter(|edge| **edge < y.abs()).count()];
        *y = book.copysign(*y) * scale;
    }
    hadamard(record);
    flip(record);
}

fn flip(record: &mut [f32]) {
    for (i, x) in record.iter_mut().enumerate() {
        *x = if FLIPPED >> i & 1 == 1 { -*x } else { *x };
    }
}

/// The Walsh-Hadamard transform of 32 numbers in natural order over the root of 32, its own inverse.
fn hadamard(record: &mut [f32]) {
    for half in [1, 2, 4, 8, 16] {
        for pair in record.chunks_exact_mut(2 * half) {
            let (low, high) = pair.split_at_mut(half);
            low.iter_mut().zip(high).for_each(|(a, b)| (*a, *b) = (*a + *b, *a - *b));
        }
    }
    record.iter_mut().for_each(|x| *x /= 32f32.sqrt());
}

/// A positive number in f16, cut instead of rounded; 0 for less than 2^-14.
fn cut(x: f32) -> f32 {
    let near = f16::from_f32(x);
    let below = if near.to_f32() > x { f16::from_bits(near.to_bits() - 1) } else { near };
    if below < f16::MIN_POSITIVE { 0.0 } else { below.to_f32() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: &[f32], expected: &[f32], most: f32) {
        assert_eq!(found.len(), expected.len());
        for (a, b) in found.iter().zip(expected) {
            assert!((a - b).abs() <= most, "{found:?} is not {expected:?}");
        }
    }

    /// Three tokens of three dims, computed by hand from the formulas of docs/quantised.md.
    #[test]
    fn int8_keys_are_relative_to_the_centre_and_values_keep_the_scales_of_the_first_append() {
        let mut kept = Kept::new(1);
        let (mut key, mut value) = (
            vec![1.0, 2.0, 3.0, 3.0, 2.0, 1.0, 0.0, 2.0, 3.0],
            vec![0.0, 10.0, 1.0, 255.0, 20.0, 1.0, 51.0, 61.0, 1.0],
        );
        Rounding::Int8.append(&mut kept, 3, &mut key, &mut value);
        // The centre is (3, 2, 3).
        near(&key, &[-2.0, 0.0, 0.0, 0.0, 0.0, -2.0, -3.0, 0.0, 0.0], 1e-6);
        near(&value, &[0.0, 10.0, 1.0, 255.0, 20.0, 1.0, 51.0, 61.0, 1.0], 1e-4);
        // A later token is clamped to the first range, and its key is less the old centre. Its second number is that of
        // the code 128, in steps of 7 / 255 from -3.
        let (mut key, mut value) = (vec![7.0, 2.5, 0.0], vec![300.0, 5.0, 9.0]);
        Rounding::Int8.append(&mut kept, 3, &mut key, &mut value);
        near(&key, &[4.0, 128.0 * 7.0 / 255.0 - 3.0, -3.0], 1e-5);
        near(&value, &[255.0, 10.0, 1.0], 1e-4);
    }

    /// The transform of one number alone has the same magnitude everywhere: 1 of its root mean square, where the codebook has
    /// 0.9423. The root mean square itself, 1.0002, is cut to 1 in f16.
    #[test]
    fn tq4_rounds_the_transform_to_its_codebook() {
        for at in [0, 1, 31] {
            let mut record = [0.0; 32];
            record[at] = -32f32.sqrt() * 1.0002;
            tq4(&mut record);
            let mut expected = [0.0; 32];
            expected[at] = -32f32.sqrt() * 0.9423;
            near(&record, &expected, 1e-5);
        }
    }
}
