//! Rows of a host against attention in f64 over the numbers of their formats.

use crate::common::Noise;
use half::f16;
use mnnkv::arch::attend::rows::RowType;
use mnnkv_llama::rows::{Plane, RowMask, Rows, extent};

const TYPES: [RowType; 3] = [RowType::F16, RowType::Q8_0, RowType::Q4_0];

fn pick(noise: &mut Noise, choices: &[usize]) -> usize {
    noise.next();
    choices[(noise.0 >> 33) as usize % choices.len()]
}

/// A cache of random numbers, and its numbers by the format: `[head][token][dim]`.
struct Side {
    kind: RowType,
    dims: usize,
    token_stride: usize,
    head_stride: usize,
    bytes: Vec<u8>,
    numbers: Vec<f64>,
}

/// The bytes of 32 numbers and what they stand for.
fn unit(kind: RowType, noise: &mut Noise) -> (Vec<u8>, Vec<f64>) {
    if kind == RowType::F16 {
        let halves: Vec<f16> = (0..32).map(|_| f16::from_f32(noise.wide())).collect();
        return (halves.iter().flat_map(|x| x.to_le_bytes()).collect(), halves.into_iter().map(f64::from).collect());
    }
    let scale = f16::from_f32(noise.wide() * if kind == RowType::Q8_0 { 0.01 } else { 0.2 });
    let mut code = || {
        noise.next();
        (noise.0 >> 40) as u8
    };
    let codes: Vec<u8> = (0..if kind == RowType::Q8_0 { 32 } else { 16 }).map(|_| code()).collect();
    let signed: Vec<i32> = match kind {
        RowType::Q8_0 => codes.iter().map(|code| i32::from(*code as i8)).collect(),
        _ => codes.iter().map(|c| c % 16).chain(codes.iter().map(|c| c / 16)).map(|c| i32::from(c) - 8).collect(),
    };
    let numbers = signed.into_iter().map(|code| f64::from(code) * f64::from(scale)).collect();
    (scale.to_le_bytes().into_iter().chain(codes).collect(), numbers)
}

impl Side {
    fn any(noise: &mut Noise, dims: usize, heads: usize, tokens: usize) -> Self {
        let kind = TYPES[pick(noise, &[0, 1, 2])];
        let row = kind.bytes(dims) + pick(noise, &[0, 2, 30]);
        let (token_stride, head_stride) = if noise.next() < 0.0 { (row * heads, row) } else { (row, row * tokens) };
        let len = token_stride * (tokens - 1) + head_stride * (heads - 1) + kind.bytes(dims);
        // Between rows are NaNs, which must not be read as numbers.
        let mut side = Side { kind, dims, token_stride, head_stride, bytes: vec![0xFF; len], numbers: Vec::new() };
        for (head, token) in (0..heads).flat_map(|h| (0..tokens).map(move |t| (h, t))) {
            let mut at = head * head_stride + token * token_stride;
            for _ in 0..dims / 32 {
                let (bytes, numbers) = unit(kind, noise);
                side.bytes[at..at + bytes.len()].copy_from_slice(&bytes);
                at += bytes.len();
                side.numbers.extend(numbers);
            }
        }
        side
    }

    fn plane(&self) -> Plane<'_> {
        let Side { kind, dims, token_stride, head_stride, ref bytes, .. } = *self;
        Plane { kind, dims, token_stride, head_stride, data: bytes }
    }
}

#[test]
fn a_stride_below_a_row_is_refused_where_there_is_a_next_row() {
    let of = |tokens, heads| extent("key", 64, &[("token", tokens, 3), ("head", heads, 1)]);
    assert_eq!(of(64, 0), Ok(192));
    assert_eq!(extent("key", 64, &[("token", 0, 1), ("head", 100, 3)]), Ok(264));
    for (result, text) in [
        (of(0, 64), "key_token_stride is 0; 64 or more expected"),
        (of(63, 1000), "key_token_stride is 63; 64 or more expected"),
        (extent("key", 64, &[("head", 1, 2)]), "key_head_stride is 1; 64 or more expected"),
        (of(usize::MAX / 2, 0), "key_token_stride is 9223372036854775807; 3 of them exceed the address space"),
    ] {
        let error = result.unwrap_err();
        assert!(error.message().starts_with(text), "{error}");
    }
}

/// Masks of all kinds: finite addends, hidden tokens, hidden tiles, a sequence of its own for each row, a row that sees nothing.
fn mask(noise: &mut Noise, rows: usize, stride: usize) -> Vec<f16> {
    let mut mask = vec![f16::ZERO; rows * stride];
    match pick(noise, &[0, 1, 2, 3, 4]) {
        0 => mask.iter_mut().for_each(|x| *x = f16::from_f32(noise.wide())),
        1 => mask.iter_mut().filter(|_| noise.next() < 0.0).for_each(|x| *x = f16::NEG_INFINITY),
        2 => mask.chunks_mut(stride).enumerate().for_each(|(r, row)| row[r.min(stride)..].fill(f16::NEG_INFINITY)),
        3 => mask.chunks_mut(stride).for_each(|row| row[..stride * 2 / 3].fill(f16::NEG_INFINITY)),
        _ => mask.chunks_mut(stride).enumerate().for_each(|(r, row)| {
            let own = r * stride / rows..(r + 1) * stride / rows;
            row[..own.start].fill(f16::NEG_INFINITY);
            row[own.end..].fill(f16::NEG_INFINITY);
        }),
    }
    if pick(noise, &[0, 1, 2]) == 0 {
        mask[..stride].fill(f16::NEG_INFINITY);
    }
    mask
}

fn run(rows: &Rows<'_>, parts: u32) -> Vec<f32> {
    rows.check((parts - 1, parts)).unwrap();
    let len = rows.part_len();
    // What the memory held before must not matter.
    let mut memory = vec![f32::NAN; len * parts as usize];
    for part in (0..parts).rev() {
        rows.attend((part, parts), &mut memory[part as usize * len..][..len]);
    }
    let mut out = vec![f32::NAN; rows.heads * rows.rows * rows.value.dims];
    for vector in (0..parts).flat_map(|part| rows.merges((part, parts))) {
        let (row, head) = (vector / rows.heads, vector % rows.heads);
        rows.merge(row, head, &memory, &mut out[vector * rows.value.dims..][..rows.value.dims]);
    }
    out
}

/// Attention of a query head and row in f64, and how far f32 may be from it.
fn model(rows: &Rows<'_>, (key, value): (&Side, &Side), row: usize, head: usize) -> (Vec<f64>, f64) {
    let of = |side: &Side, t: usize| {
        let at = (head / (rows.heads / rows.kv_heads) * rows.tokens + t) * side.dims;
        side.numbers[at..at + side.dims].to_vec()
    };
    let query = &rows.queries[head * rows.query_head_stride + row * rows.query_row_stride..][..key.dims];
    let (mut logits, mut error) = (Vec::new(), 0f64);
    for t in 0..rows.tokens {
        let products: Vec<f64> = of(key, t).iter().zip(query).map(|(k, q)| k * f64::from(*q)).collect();
        let magnitude = products.iter().map(|x| x.abs()).sum::<f64>() * f64::from(rows.scale).abs();
        let mut x = products.iter().sum::<f64>() * f64::from(rows.scale);
        if let Some(cap) = rows.soft_cap {
            x = f64::from(cap) * (x / f64::from(cap)).tanh();
        }
        if let Some(mask) = rows.mask {
            let slope = mask.slopes.map_or(1.0, |slopes| f64::from(slopes[head]));
            let addend = f64::from(f16::from_ne_bytes(mask.data[row * mask.stride + t]));
            x = if addend.is_finite() { x + slope * addend } else { addend };
        }
        error = error.max((key.dims as f64 + 8.0) * magnitude);
        logits.push(x);
    }
    let sink = rows.sinks.map_or(f64::NEG_INFINITY, |sinks| f64::from(sinks[head]));
    let peak = logits.iter().copied().fold(sink, f64::max);
    let mut out = vec![0.0; value.dims];
    if peak == f64::NEG_INFINITY {
        return (out, 0.0);
    }
    let total = logits.iter().map(|x| (x - peak).exp()).sum::<f64>() + (sink - peak).exp();
    let mut most = 0f64;
    for (t, x) in logits.iter().enumerate() {
        for (out, v) in out.iter_mut().zip(of(value, t)) {
            *out += (x - peak).exp() / total * v;
            most = most.max(v.abs());
        }
    }
    // Of logits, of exponentials, and of sums.
    let epsilon = f64::from(f32::EPSILON);
    (out, 2.0 * most * (error * epsilon + 2f64.powi(-18) + (rows.tokens as f64).sqrt() * epsilon))
}

#[test]
fn rows_of_any_shape_and_type_are_attended_to_as_in_f64() {
    for seed in 0..150 {
        let mut noise = Noise(seed);
        let kv_heads = pick(&mut noise, &[1, 2, 3]);
        let heads = kv_heads * pick(&mut noise, &[1, 2, 3, 4, 5, 9]);
        let count = pick(&mut noise, &[1, 1, 2, 5, 16]);
        let tokens = pick(&mut noise, &[1, 3, 63, 64, 65, 127, 200, 450]);
        let dims = pick(&mut noise, &[32, 64, 96, 128, 256, 576]);
        let key = Side::any(&mut noise, dims, kv_heads, tokens);
        let dims = pick(&mut noise, &[dims, 64, 512]);
        let value = Side::any(&mut noise, dims, kv_heads, tokens);
        let gap = pick(&mut noise, &[0, 3]);
        let row = key.dims + gap;
        let queries: Vec<f32> = (0..heads * count * row).map(|_| noise.wide()).collect();
        let (by_heads, by_rows) = ((row * count, row), (row, row * heads));
        let strides = if noise.next() < 0.0 { by_heads } else { by_rows };
        let stride = tokens + pick(&mut noise, &[0, 5]);
        let numbers = mask(&mut noise, count, stride);
        let numbers: Vec<[u8; 2]> = numbers.into_iter().map(f16::to_ne_bytes).collect();
        let per_head: Vec<f32> = (0..heads).map(|head| if head % 3 == 1 { 0.0 } else { 1.1 * noise.next() }).collect();
        let sinks: Vec<f32> = (0..heads).map(|_| 3.0 * noise.wide()).collect();
        let slopes = (noise.next() < 0.0).then_some(&per_head[..]);
        let rows = Rows {
            key: key.plane(),
            value: value.plane(),
            tokens,
            kv_heads,
            heads,
            rows: count,
            queries: &queries,
            query_head_stride: strides.0,
            query_row_stride: strides.1,
            scale: 1.0 / (key.dims as f32).sqrt(),
            soft_cap: (noise.next() < -0.4).then_some(20.0),
            mask: (noise.next() < 0.4).then_some(RowMask { data: &numbers, stride, slopes }),
            sinks: (noise.next() < -0.4).then_some(&sinks),
        };
        for parts in [1, pick(&mut noise, &[2, 3, 5, 8]) as u32, 64] {
            let out = run(&rows, parts);
            for (vector, out) in out.chunks_exact(value.dims).enumerate() {
                let (expected, bound) = model(&rows, (&key, &value), vector / heads, vector % heads);
                for (x, exact) in out.iter().zip(&expected) {
                    let difference = (f64::from(*x) - exact).abs();
                    assert!(
                        difference <= bound,
                        "seed {seed}, {parts} parts: {x} is {difference:e} off, {bound:e} allowed"
                    );
                }
            }
        }
    }
}
