//! Blocks against a model of their format in f64.

pub(crate) mod bits;
mod sketch;
mod steps;

use super::*;
use crate::arch;
use crate::arch::attend::encode::{KeyRanges, ValueScales};
use crate::arch::attend::{Keys, Line, Running, Scratch, finish, sums_len};
use crate::common::Noise;
use crate::dtype::Dtype;
use crate::status::Status;
use half::f16;
use proptest::prelude::*;

fn many(noise: &mut Noise, count: usize) -> Vec<f32> {
    (0..count).map(|_| noise.wide()).collect()
}

/// Encodes one head of rows `[token][dim]` in k8v4.
fn encoded(dims: usize, keys: &[f32], values: &[f32]) -> Result<Codes, Unfit> {
    encoded_by(dims, None, keys, values)
}

/// The same, in k4v4 where there are widths and it fits.
fn encoded_by(dims: usize, widths: Option<&mut Widths>, keys: &[f32], values: &[f32]) -> Result<Codes, Unfit> {
    let shape = Shape::new(dims).unwrap();
    let read = |_: usize, k: &mut [f32], v: &mut [f32]| {
        k.copy_from_slice(keys);
        v.copy_from_slice(values);
        Ok(())
    };
    let mut block = Block::default();
    block.encode(shape, 1, widths, &mut EncodeWork::default(), read).unwrap()?;
    Ok(std::mem::take(&mut block.heads_mut(1).unwrap()[0]))
}

fn of_bytes(shape: Shape, bytes: &[u8]) -> crate::status::Result<Codes> {
    let mut codes = Codes::default();
    codes.read(shape, bytes).map(|()| codes)
}

/// The numbers of a head by docs/format.md: K and V as `[token][dim]`.
pub(crate) fn by_format(dims: usize, bytes: &[u8]) -> (Vec<f64>, Vec<f64>) {
    if let Some(numbers) = bits::by_format(dims, bytes) {
        return numbers;
    }
    let half = |at: usize| f64::from(f16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let lanes = dims.div_ceil(16) * 16;
    let scales = 64 * dims;
    let codes = scales + (4 * lanes).next_multiple_of(64);
    let groups = dims.div_ceil(32);
    let value_scales = codes + groups * 1024;
    let wide = value_scales + groups * 256;
    let (mut keys, mut values) = (vec![0.0; 64 * dims], vec![0.0; 64 * dims]);
    for t in 0..64 {
        for d in 0..dims {
            let code = bytes[t / 16 * dims * 16 + d / 4 * 64 + t % 16 * 4 + d % 4];
            keys[t * dims + d] = (f64::from(code) - 128.0) * half(scales + 2 * d) + half(scales + 2 * lanes + 2 * d);
            let pair = bytes[codes + d / 32 * 1024 + t / 4 * 64 + d % 16 * 4 + t % 4];
            let code = if d % 32 < 16 { pair & 15 } else { pair >> 4 };
            let code = if code < 8 { f64::from(code) } else { f64::from(code) - 16.0 };
            let at = value_scales + d / 32 * 128 + 2 * t;
            values[t * dims + d] = code * half(at) + half(at + groups * 128);
        }
    }
    for channel in bytes[wide..].chunks_exact(192) {
        let d = usize::from(u16::from_le_bytes([channel[128], channel[129]]));
        let scale = f64::from(f16::from_le_bytes([channel[130], channel[131]]));
        for t in 0..64 {
            let code = i16::from_le_bytes([channel[2 * t], channel[2 * t + 1]]);
            keys[t * dims + d] = f64::from(code) * scale + half(scales + 2 * lanes + 2 * d);
        }
    }
    (keys, values)
}

#[test]
fn codes_are_as_near_to_the_numbers_as_their_bits_allow() {
    for dims in [8, 40, 64, 80, 128, 256, 512] {
        let mut noise = Noise(dims as u64);
        let (mut keys, values) = (many(&mut noise, 64 * dims), many(&mut noise, 64 * dims));
        // A channel with an offset, one with a large range, and a constant one.
        for token in keys.chunks_exact_mut(dims) {
            token[0] += 400.0;
            token[1] *= 300.0;
            token[2] = 3.25;
        }
        let block = encoded(dims, &keys, &values).unwrap();
        let (k, v) = by_format(dims, block.bytes());
        for d in 0..dims {
            let column = || keys.iter().skip(d).step_by(dims);
            let range = column().fold(0.0f32, |most, x| most.max((x - keys[d]).abs())) * 2.0;
            let steps = if d == 1 { 65_534.0 } else { 254.0 };
            // Half a step of the range, which the rounding of its middle and scale may widen, and a denormal scale's.
            let bound = f64::from(range) / steps * 0.53 + 400.0 / 2048.0 / 254.0 + 1e-7;
            for (x, code) in column().zip(k.iter().skip(d).step_by(dims)) {
                assert!((f64::from(*x) - code).abs() <= bound, "{dims} {d}: {x} as {code}, not within {bound}");
            }
        }
        for (row, codes) in values.chunks_exact(dims).zip(v.chunks_exact(dims)) {
            for (row, codes) in row.chunks(32).zip(codes.chunks(32)) {
                let (low, high) = row.iter().fold((f32::MAX, f32::MIN), |(l, h), x| (l.min(*x), h.max(*x)));
                let bound = f64::from(high - low) / 30.0 * 1.01 + 1e-3;
                assert!(row.iter().zip(codes).all(|(x, code)| (f64::from(*x) - code).abs() <= bound));
            }
        }
        let shape = Shape::new(dims).unwrap();
        let (mut panels, mut rows) = (vec![[0.0; 16]; 4 * dims], vec![[0.0; 16]; shape.groups() * 128]);
        (arch::attend_kernels().decode)(&block.view(shape), &mut panels, &mut rows);
        for (t, d) in (0..64).flat_map(|t| (0..dims).map(move |d| (t, d))) {
            let (key, value) = (panels[t / 16 * dims + d][t % 16], rows[d / 16 * 64 + t][d % 16]);
            assert!((f64::from(key) - k[t * dims + d]).abs() <= k[t * dims + d].abs() * 2e-7 + 1e-6);
            assert!((f64::from(value) - v[t * dims + d]).abs() <= v[t * dims + d].abs() * 2e-7 + 1e-6);
        }
        let again = of_bytes(shape, block.bytes()).unwrap();
        assert_eq!(again.bytes(), block.bytes());
    }
}

/// Bytes that an encoder in another language wrote by docs/format.md.
#[test]
fn blocks_are_the_bytes_of_an_independent_encoder() {
    let all = [("d64", 64), ("d80", 80), ("wide", 64), ("bits64", 64), ("bits80", 80), ("bits256", 256)];
    for (name, dims) in all {
        let read = |end: &str| std::fs::read(format!("testdata/attend/{name}.{end}")).unwrap();
        let rows: Vec<f32> = read("rows.f32").as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
        let (keys, values) = rows.split_at(64 * dims);
        let mut widths = Widths::default();
        let block = encoded_by(dims, name.starts_with("bits").then_some(&mut widths), keys, values).unwrap();
        assert!(block.bytes() == read("block"), "{name}");
        let shape = Shape::new(dims).unwrap();
        let of_file = of_bytes(shape, &read("block")).unwrap();
        assert_eq!(of_file.bytes(), block.bytes());
    }
}

#[test]
fn blocks_that_codes_cannot_hold_are_unfit() {
    let dims = 64;
    let mut noise = Noise(1);
    let (keys, values) = (many(&mut noise, 64 * dims), many(&mut noise, 64 * dims));
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30] {
        let mut broken = keys.clone();
        broken[777] = bad;
        assert_eq!(encoded(dims, &broken, &values).unwrap_err(), Unfit::Range, "K {bad}");
        let mut broken = values.clone();
        broken[777] = bad;
        assert_eq!(encoded(dims, &keys, &broken).unwrap_err(), Unfit::Range, "V {bad}");
    }
    // Smaller than any scale in f16, and a channel that even 16 bits do not bring near.
    let small: Vec<f32> = keys.iter().map(|x| x * 1e-8).collect();
    assert_eq!(encoded(dims, &small, &values).unwrap_err(), Unfit::Error);
    let mut wild = keys.clone();
    wild.iter_mut().step_by(dims).for_each(|x| *x *= 30_000.0);
    assert_eq!(encoded(dims, &wild, &values).unwrap_err(), Unfit::Error);
    assert!(encoded(dims, &vec![0.0; 64 * dims], &vec![0.0; 64 * dims]).is_ok());
    // One token again and again: most channels of K hardly turn, and V has the same error everywhere.
    let (key, value) = (&keys[..dims], &values[..dims]);
    let turned = (0..64).flat_map(|at| {
        (0..dims).map(move |d| {
            let angle = at as f32 * 100_000f32.powf(-((d % 32) as f32) / 32.0);
            let (other, sign) = if d < 32 { (d + 32, -1.0) } else { (d - 32, 1.0) };
            key[d] * angle.cos() + sign * key[other] * angle.sin()
        })
    });
    assert!(encoded(dims, &turned.collect::<Vec<_>>(), &value.repeat(64)).is_ok());
    for dims in [0, 4, 12, 520] {
        assert_eq!(Shape::new(dims).unwrap_err().status(), Status::Unsupported);
    }
}

#[test]
fn damaged_bytes_are_refused() {
    let dims = 64;
    let mut noise = Noise(2);
    let mut keys = many(&mut noise, 64 * dims);
    keys.iter_mut().skip(5).step_by(dims).for_each(|x| *x *= 1000.0);
    let block = encoded(dims, &keys, &many(&mut noise, 64 * dims)).unwrap();
    let (shape, whole) = (Shape::new(dims).unwrap(), block.bytes());
    let status = |bytes: &[u8]| of_bytes(shape, bytes).map(|_| ()).map_err(|e| e.status());
    assert_eq!(status(whole), Ok(()));
    for len in [63, whole.len() - 192 - 64, whole.len() - 64, whole.len() + 192 * 8] {
        let mut bytes = whole.to_vec();
        bytes.resize(len, 0);
        assert_eq!(status(&bytes), Err(Status::Corrupt), "{len}");
    }
    let (scale, value, wide) = (64 * dims, 64 * dims + 256 + 2048, whole.len() - 192);
    for (at, byte) in [(scale + 1, 0x7C), (scale + 1, 0x80), (value + 1, 0xFC), (wide + 129, 1), (wide + 131, 0xFC)] {
        let mut bytes = whole.to_vec();
        bytes[at] = byte;
        assert_eq!(status(&bytes), Err(Status::Corrupt), "byte {at}");
    }
}

/// One channel of V that is far from the 31 others of its group leaves them no codes, however many groups there are.
#[test]
fn a_channel_of_v_that_hides_its_group_leaves_the_block_unfit() {
    for dims in [32, 64, 128, 256, 512] {
        let mut noise = Noise(dims as u64);
        let (keys, values) = (many(&mut noise, 64 * dims), many(&mut noise, 64 * dims));
        let with = |change: fn(f32) -> f32| {
            let mut values = values.clone();
            values.iter_mut().skip(9).step_by(dims).for_each(|x| *x = change(*x));
            encoded(dims, &keys, &values).map(|_| ())
        };
        assert_eq!(with(|x| x), Ok(()), "{dims}");
        for (at, change) in [(|x| x + 50.0) as fn(f32) -> f32, |x| x - 50.0, |x| x * 100.0].into_iter().enumerate() {
            assert_eq!(with(change), Err(Unfit::Error), "{dims}, change {at}");
        }
    }
}

/// Tokens whose keys are far greater than all others, some of each block, leave the others as near as 16 bits allow: a step
/// of 8 bits would be a quarter to a half of their standard deviation.
#[test]
fn tokens_with_large_keys_do_not_hide_the_others() {
    let dims = 128;
    for (count, factor) in [(1, 16.0), (1, 64.0), (3, 64.0), (1, 1000.0)] {
        let mut noise = Noise(count as u64);
        let (mut keys, values) = (many(&mut noise, 64 * dims), many(&mut noise, 64 * dims));
        let is_large = |token: usize| (30..30 + count).contains(&token);
        for (token, key) in keys.chunks_exact_mut(dims).enumerate() {
            // Where a channel is small in a large token it has no need of 16 bits.
            key.iter_mut().enumerate().filter(|_| is_large(token)).for_each(|(d, x)| {
                *x = x.signum() * if d % 3 == 0 { 1.0 } else { factor };
            });
        }
        let (k, _) = by_format(dims, encoded(dims, &keys, &values).unwrap().bytes());
        let others = keys.iter().zip(&k).enumerate().filter(|(at, _)| !is_large(at / dims));
        let (errors, size) = others.fold((0.0, 0.0), |(errors, size), (_, (x, code))| {
            let x = f64::from(*x);
            (errors + (x - code) * (x - code), size + x * x)
        });
        assert!((errors / size).sqrt() < 0.05, "{count} tokens x{factor}: {}", (errors / size).sqrt());
    }
}

/// Channels of K in 16 bits are ascending, and within the head; all of them may be.
#[test]
fn channels_in_16_bits_are_read_as_the_format_has_them() {
    let (dims, shape) = (64, Shape::new(64).unwrap());
    let mut noise = Noise(3);
    let (keys, values) = (many(&mut noise, 64 * dims), many(&mut noise, 64 * dims));
    // In one token, so that the median channel is none of them.
    let with = |channels: &[usize]| {
        let mut keys = keys.clone();
        channels.iter().for_each(|channel| keys[20 * dims + channel] = 1000.0);
        encoded(dims, &keys, &values)
    };
    let status = |bytes: &[u8]| of_bytes(shape, bytes).map(|_| ()).map_err(|e| e.status());
    let all = with(&(0..64).collect::<Vec<_>>()).unwrap();
    assert_eq!((status(all.bytes()), all.bytes().len()), (Ok(()), shape.lines(Format::K8V4) * 64 + 64 * 192));
    let block = with(&[5, 40]).unwrap();
    let [first, second] = [384, 192].map(|back| block.bytes().len() - back + 128);
    for (at, channel, is_right) in [
        (first, 39u16, true),
        (first, 40, false),
        (first, 41, false),
        (second, 63, true),
        (second, 64, false),
        (second, 5, false),
    ] {
        let mut bytes = block.bytes().to_vec();
        bytes[at..at + 2].copy_from_slice(&channel.to_le_bytes());
        assert_eq!(status(&bytes).is_ok(), is_right, "channel {channel} at {at}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn every_level_attends_to_the_same_bits(
        seed in any::<u64>(), dims in prop::sample::select(vec![8usize, 24, 64, 72, 128, 512]), count in 1usize..=4,
        peak in prop::sample::select(vec![f32::NEG_INFINITY, -5.0, 3.0, 60.0]), size in prop::sample::select(vec![0.0f32, 1e-30, 0.1, 3.0, 1e4]),
        wide in any::<bool>(), is_few in any::<bool>(),
    ) {
        let mut noise = Noise(seed);
        let (mut keys, values) = (many(&mut noise, 64 * dims), many(&mut noise, 64 * dims));
        if wide {
            keys.iter_mut().skip(dims / 2).step_by(dims).for_each(|x| *x *= 500.0);
        }
        let mut widths = Widths::default();
        let block = encoded_by(dims, is_few.then_some(&mut widths), &keys, &values).unwrap();
        let (shape, lanes) = (Shape::new(dims).unwrap(), dims.div_ceil(16) * 16);
        let len = sums_len(dims) * if is_few { 2 } else { 1 };
        let queries: Vec<Vec<f32>> = (0..count)
            .map(|_| (0..lanes).map(|d| if d < dims { noise.wide() * size } else { 0.0 }).collect())
            .collect();
        let sums: Vec<f32> = many(&mut noise, count * len);
        let whole = |rows: &[f32], width: usize| -> Vec<f32> {
            let padding = dims.next_multiple_of(width) - dims;
            rows.chunks_exact(dims).flat_map(|row| row.iter().copied().chain(vec![0.5; padding])).collect()
        };
        let (key_rows, value_rows) = (whole(&keys, 16), whole(&values, 32));
        let run = |kernels: &arch::attend::AttendKernels| {
            let [mut low, mut high, mut size] = [0; 3].map(|_| vec![0.0; lanes]);
            assert!((kernels.key_ranges)(&key_rows, &mut KeyRanges { low: &mut low, high: &mut high, size: &mut size }));
            let inverses: Vec<f32> = low.iter().zip(&high).map(|(low, high)| 250.0 / (high - low).max(1e-6)).collect();
            let mids: Vec<f32> = low.iter().zip(&high).map(|(low, high)| 0.5 * low + 0.5 * high).collect();
            let (mut k, mut v) = (vec![Line::default(); dims], vec![Line::default(); shape.groups() * 16]);
            (kernels.key_codes)(&key_rows, &mids, &inverses, dims / 4, &mut k);
            let (mut scales, mut middles) = (vec![[0; 2]; shape.groups() * 64], vec![[0; 2]; shape.groups() * 64]);
            let mut out = ValueScales { scales: &mut scales, mids: &mut middles, error: 0.0 };
            assert!((kernels.value_codes)(&value_rows, shape.groups(), &mut v, &mut out));
            let mut codes: Vec<u32> = [out.error].into_iter().chain(low).chain(high).chain(size).map(f32::to_bits).collect();
            codes.extend(k.iter().chain(&v).flat_map(|line| line.0).map(u32::from));
            codes.extend(bits::of_kernels(kernels, dims, &keys, &values, seed as usize));
            let mut scratch = Scratch::default();
            let (mut logits, mut running) = (vec![[0.0; 64]; count], vec![Running { peak, sum: 2.5, skipped: 0.0 }; count]);
            let mut sums = sums.clone();
            let sorted: Vec<Vec<f32>> = match block.view(shape).keys {
                Keys::Bytes { .. } => queries.clone(),
                Keys::Bits { widths, .. } => queries.iter().map(|row| bits::sorted(widths, row)).collect(),
            };
            let rows: Vec<&[f32]> = sorted.iter().map(Vec::as_slice).collect();
            (kernels.logits)(&block.view(shape), &rows, &mut logits, &mut scratch);
            let first = logits.clone();
            logits[0][13] = f32::NEG_INFINITY;
            (kernels.values)(&block.view(shape), &mut logits, &mut running, &mut sums, &mut scratch);
            let (mut panels, mut decoded) = (vec![[0.0; 16]; 4 * dims], vec![[0.0; 16]; shape.groups() * 128]);
            (kernels.decode)(&block.view(shape), &mut panels, &mut decoded);
            let mut bits: Vec<u32> = first.iter().chain(&logits).flatten().map(|x| x.to_bits()).collect();
            bits.extend(codes);
            bits.extend(panels.iter().chain(&decoded).flatten().map(|x| x.to_bits()));
            bits.extend(running.iter().flat_map(|r| [r.peak, r.sum, r.skipped].map(f32::to_bits)));
            bits.extend(sums.iter().map(|x| x.to_bits()));
            (bits, first)
        };
        let (expected, logits) = run(&arch::attend::PORTABLE);
        for (at, kernels) in arch::available_attend().enumerate() {
            let (bits, _) = run(kernels);
            prop_assert!(bits == expected, "kernels {at}");
        }
        let (k, v) = by_format(dims, block.bytes());
        // Sums of V are within the rounding of weights to 14 bits of their largest, or to 7 where all weights so far are more
        // than 8 times that. V is within 8 times its scale of the middle.
        let head = block.view(shape);
        let (mut weights, mut running) = (logits.clone(), vec![Running { peak, sum: 2.5, skipped: 0.0 }; count]);
        let mut sums = vec![0.0; count * len];
        (arch::attend_kernels().values)(&head, &mut weights, &mut running, &mut sums, &mut Scratch::default());
        let most = |weights: &[f32]| weights.iter().copied().fold(0.0f32, f32::max);
        let is_fine = weights.iter().zip(&running).any(|(w, running)| most(w) * 8.0 > running.sum);
        let is_read = logits.iter().zip(&running).any(|(l, now)| l.iter().any(|x| *x >= now.peak - 13.875));
        for (weights, sums) in weights.iter().zip(sums.chunks_exact_mut(len)).filter(|_| is_read) {
            finish(dims, sums);
            for d in 0..dims {
                // The errors of all channels that a rotation has joined.
                let (group, joined) = if head.is_rotated() { (0, (1 << dims.trailing_zeros()) as f64) } else { (d / 32, 1.0) };
                let scale = |t: usize| f64::from(f16::from_le_bytes(head.value_scales[group].as_flattened()[t])) * joined.sqrt() * 1.5;
                let weight = |t: usize| f64::from(weights[t]);
                let exact: f64 = (0..64).map(|t| weight(t) * v[t * dims + d]).sum();
                let largest = (0..64).map(|t| weight(t) * scale(t)).fold(0.0, f64::max);
                let size: f64 = (0..64).map(|t| weight(t) * v[t * dims + d].abs()).sum();
                let bound = largest * 0.5 / if is_fine { 16383.0 } else { 127.0 } * 512.0 + size * 1e-5 + 1e-28;
                prop_assert!((f64::from(sums[d]) - exact).abs() <= bound, "{d}: {} and {exact}, not within {bound}", sums[d]);
            }
        }
        // Logits are within the rounding of queries to 13 or 7 bits of their largest product with a scale.
        for (query, logits) in queries.iter().zip(&logits) {
            let exact: Vec<f64> = k.chunks_exact(dims).map(|k| k.iter().zip(query).map(|(k, q)| k * f64::from(*q)).sum()).collect();
            let size: f64 = k.chunks_exact(dims).map(|k| k.iter().zip(query).map(|(k, q)| (k * f64::from(*q)).abs()).fold(0.0, f64::max)).fold(0.0, f64::max);
            let bound = size * dims as f64 / if head.is_rotated() { 254.0 } else { 8126.0 } + 1e-30;
            for (x, y) in logits.iter().zip(&exact) {
                prop_assert!((f64::from(*x) - y).abs() <= bound, "{x} {y} {bound}");
            }
        }
    }
}

fn softmax(logits: &[f64], sink: Option<f64>) -> Vec<f64> {
    let peak = logits.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
    let exps: Vec<f64> = logits.iter().map(|x| (x - peak).exp()).collect();
    let sum: f64 = exps.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - peak).exp());
    exps.iter().map(|x| x / sum).collect()
}

/// V of blocks of little weight is not read, but for all of them together no more than 1 part in 1,024 of the weight.
#[test]
fn what_steps_skip_is_bounded_for_any_number_of_blocks() {
    let (dims, blocks, logit) = (64, 4000, -14.5f32);
    let mut noise = Noise(10);
    let values: Vec<f32> = many(&mut noise, 64 * dims).iter().map(|x| x + 3.0).collect();
    let block = encoded(dims, &many(&mut noise, 64 * dims), &values).unwrap();
    let mut running = [Running { peak: 0.0, sum: 1.0, skipped: 0.0 }];
    let (mut sums, mut scratch) = (vec![0.0; sums_len(dims)], Scratch::default());
    for _ in 0..blocks {
        let view = block.view(Shape::new(dims).unwrap());
        (arch::attend_kernels().values)(&view, &mut [[logit; 64]], &mut running, &mut sums, &mut scratch);
    }
    finish(dims, &mut sums);
    let weight = f64::from(logit).exp() * f64::from(blocks) * 64.0;
    assert!(weight > 0.1 && running[0].skipped > 0.0, "an eighth of the weight, of which some is skipped");
    let (_, v) = by_format(dims, block.bytes());
    for (d, sum) in sums[..dims].iter().enumerate() {
        let mean = v.iter().skip(d).step_by(dims).sum::<f64>() / 64.0;
        let error = (f64::from(*sum) - mean * weight).abs() / (1.0 + weight);
        assert!(error < mean.abs() / 1024.0 + 1e-3, "channel {d}: {error} of {mean}");
    }
}

/// Keys of Qwen2 have a bias that turns with the position. Relative errors of the attention output, of codes and of f16.
#[test]
fn a_bias_that_turns_with_the_position_costs_at_most_twice_what_f16_costs() {
    let dims = 64;
    let mut totals = [[0.0; 2]; 5];
    let all = [1, 2, 4].into_iter().flat_map(|pairs| (0..=32 - pairs).step_by(3).map(move |first| (pairs, first)));
    for (pairs, first) in all {
        let mut noise = Noise(first as u64 * 7 + pairs as u64);
        let (count, tokens) = (8, 512);
        let mut keys: Vec<f32> = many(&mut noise, tokens * dims).into_iter().map(|x| 2.7 * x).collect();
        for (at, key) in keys.chunks_exact_mut(dims).enumerate() {
            for pair in first..first + pairs {
                let angle = (1000 + at) as f64 * 100_000f64.powf(-(pair as f64) / 32.0) + pair as f64;
                let size = 600.0 / (pairs as f64).sqrt();
                key[pair] += (angle.cos() * size) as f32;
                key[pair + 32] += (angle.sin() * size) as f32;
            }
        }
        let values = many(&mut noise, tokens * dims);
        let of_codes: Vec<f64> = keys
            .chunks_exact(64 * dims)
            .zip(values.chunks_exact(64 * dims))
            .flat_map(|(k, v)| by_format(dims, encoded(dims, k, v).unwrap().bytes()).0)
            .collect();
        let exact: Vec<f64> = keys.iter().map(|x| f64::from(*x)).collect();
        let halves: Vec<f64> = keys.iter().map(|x| f16::from_f32(*x).to_f64()).collect();
        let mut errors = [0.0, 0.0, 0.0];
        for _ in 0..count {
            let query: Vec<f64> = many(&mut noise, dims).into_iter().map(f64::from).collect();
            let output = |keys: &[f64]| -> Vec<f64> {
                let logits: Vec<f64> = keys
                    .chunks_exact(dims)
                    .map(|k| k.iter().zip(&query).map(|(k, q)| k * q).sum::<f64>() / 8.0)
                    .collect();
                let weights = softmax(&logits, None);
                (0..dims)
                    .map(|d| weights.iter().enumerate().map(|(t, w)| w * f64::from(values[t * dims + d])).sum())
                    .collect()
            };
            let (a, b, c) = (output(&exact), output(&of_codes), output(&halves));
            let squares = |x: &[f64]| x.iter().zip(&a).map(|(x, a)| (x - a) * (x - a)).sum::<f64>();
            errors[0] += squares(&b);
            errors[1] += squares(&c);
            errors[2] += a.iter().map(|a| a * a).sum::<f64>();
        }
        let [ours, half]: [f64; 2] = [errors[0], errors[1]].map(|e| (e / errors[2]).sqrt());
        assert!(ours < 0.03, "{pairs} pairs from {first}: {ours}, f16 {half}");
        totals[pairs][0] += ours;
        totals[pairs][1] += half;
    }
    for pairs in [1, 2, 4] {
        let [ours, half] = totals[pairs];
        assert!(ours <= 2.0 * half, "{pairs} pairs: {ours}, f16 {half}");
    }
}
