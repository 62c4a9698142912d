//! k4v4: K in 2, 4 or 6 bits by channel, V rotated.

use super::*;
use crate::arch::attend::bits::{KeyBits, order, width};

/// The numbers of a head in k4v4 by docs/format.md; `None` where the bytes are of another format.
pub(crate) fn by_format(dims: usize, bytes: &[u8]) -> Option<(Vec<f64>, Vec<f64>)> {
    let whole = |bytes: usize| bytes.next_multiple_of(64);
    let (lanes, groups) = (dims.div_ceil(16) * 16, dims.div_ceil(32));
    let scales = whole(dims / 4);
    let codes = scales + whole(4 * lanes);
    let rest = groups * 1024 + 256;
    let least = 32 * dims;
    let key_bytes = least.max((73 * dims / 64 * 64).saturating_sub(codes + rest)).min(48 * dims);
    if bytes.len() != codes + key_bytes + rest {
        return None;
    }
    let half = |at: usize| f64::from(f16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let (mut keys, mut values) = (vec![0.0; 64 * dims], vec![0.0; 64 * dims]);
    let class = |d: usize| bytes[d / 4] >> (2 * (d % 4)) & 3;
    let (mut at, mut place) = (codes, 0);
    for bits in [6u8, 4, 2] {
        let channels: Vec<usize> = (0..dims).filter(|d| 2 * class(*d) + 2 == bits).collect();
        for four in channels.chunks(4) {
            for (i, d) in four.iter().enumerate() {
                for t in 0..64 {
                    let byte = |line: usize| bytes[at + 64 * line + t % 16 * 4 + i];
                    let panel = t / 16;
                    let code = match bits {
                        2 => byte(0) >> (2 * panel) & 3,
                        _ => byte(panel / 2) >> (4 * (panel % 2)) & 15,
                    };
                    let code = code | if bits == 6 { (byte(2) >> (2 * panel) & 3) << 4 } else { 0 };
                    let zero = f64::from(1 << (bits - 1));
                    let (scale, mid) = (half(scales + 2 * (place + i)), half(scales + 2 * (lanes + place + i)));
                    keys[t * dims + d] = (f64::from(code) - zero) * scale + mid;
                }
            }
            (at, place) = (at + 32 * usize::from(bits), place + 4);
        }
    }
    assert_eq!((at, place), (codes + key_bytes, dims));
    let count = 1 << dims.trailing_zeros();
    for t in 0..64 {
        let row = &mut values[t * dims..][..dims];
        for (d, x) in row.iter_mut().enumerate() {
            let pair = bytes[at + d / 32 * 1024 + t / 4 * 64 + d % 16 * 4 + t % 4];
            let code = if d % 32 < 16 { pair & 15 } else { pair >> 4 };
            let code = f64::from((code << 4) as i8 >> 4);
            *x = code * half(at + groups * 1024 + 2 * t) + half(at + groups * 1024 + 128 + 2 * t);
        }
        for row in row.chunks_mut(count) {
            let rotated: Vec<f64> = (0..count)
                .map(|i| (0..count).map(|j| if (i & j).count_ones() % 2 == 0 { row[j] } else { -row[j] }).sum())
                .collect();
            let log = count.trailing_zeros();
            row.iter_mut().zip(rotated).for_each(|(x, y)| *x = y / f64::from(1u32 << (log - log / 2)));
        }
    }
    Some((keys, values))
}

/// A query row in the order of codes.
pub(super) fn sorted(widths: &[u8], row: &[f32]) -> Vec<f32> {
    let own = order(widths).map(|d| row[d]);
    own.chain(std::iter::repeat(0.0)).take(row.len()).collect()
}

/// What the encoding kernels of a level make of rows.
pub(super) fn of_kernels(
    kernels: &arch::attend::AttendKernels,
    dims: usize,
    keys: &[f32],
    values: &[f32],
    seed: usize,
) -> Vec<u32> {
    let panels = |rows: &[f32]| -> Vec<[f32; 16]> {
        let column = |panel: usize, d: usize| std::array::from_fn(|t| rows[(16 * panel + t) * dims + d]);
        (0..4 * dims).map(|at| column(at / dims, at % dims)).collect()
    };
    let sixes = seed % (dims / 4 + 1);
    let fours = seed / 7 % (dims / 4 - sixes + 1);
    let order: Vec<u16> = (0..dims).map(|d| ((d * 5 + seed % 8) % dims) as u16).collect();
    let quads = [sixes, fours, dims / 4 - sixes - fours];
    // Numbers from -1 to 1 fill the codes of each width.
    let inverses: Vec<f32> = [24.0, 5.0, 0.7].iter().zip(quads).flat_map(|(x, quads)| vec![*x; 4 * quads]).collect();
    let (mids, keys) = (vec![0.25; dims], keys.iter().map(|x| x.clamp(-1.0, 1.0)).collect::<Vec<_>>());
    let plan = KeyBits { order: &order, mids: &mids, inverses: &inverses, quads };
    let mut lines = vec![Line::default(); 3 * quads[0] + 2 * quads[1] + quads[2] + dims.div_ceil(32) * 16];
    let (k, v) = lines.split_at_mut(3 * quads[0] + 2 * quads[1] + quads[2]);
    (kernels.key_bits)(&panels(&keys), &plan, k);
    let (mut scales, mut mids) = (vec![[0; 2]; 64], vec![[0; 2]; 64]);
    let mut out = ValueScales { scales: &mut scales, mids: &mut mids, error: 0.0 };
    let mut panels = panels(values);
    assert!((kernels.value_bits)(&mut panels, v, &mut out));
    let error = out.error.to_bits();
    let codes = lines.iter().flat_map(|line| line.0).chain(scales.into_iter().chain(mids).flatten());
    codes.map(u32::from).chain([error]).chain(panels.iter().flatten().map(|x| x.to_bits())).collect()
}

const ALL_DIMS: [usize; 9] = [8, 24, 40, 64, 80, 96, 128, 256, 512];

#[test]
fn codes_of_few_bits_are_as_near_to_the_numbers_as_these_allow() {
    for dims in ALL_DIMS {
        let mut noise = Noise(dims as u64);
        let (mut keys, values) = (many(&mut noise, 64 * dims), many(&mut noise, 64 * dims));
        // A channel with an offset, some with a larger range, and a constant one.
        for token in keys.chunks_exact_mut(dims) {
            token[0] += 400.0;
            token[1] *= 6.0;
            token[2] = 3.25;
            token[5] *= 4.0;
        }
        let (shape, mut widths) = (Shape::new(dims).unwrap(), Widths::default());
        let block = encoded_by(dims, Some(&mut widths), &keys, &values).unwrap();
        assert_eq!(block.format(shape), Some(Format::K4V4), "{dims}");
        let (k, v) = by_format(dims, block.bytes()).unwrap();
        let Keys::Bits { widths, .. } = block.view(shape).keys else { panic!("k4v4") };
        let of = |d: usize| width(widths, d).unwrap();
        assert!(of(1) >= of(3) && of(2) <= of(3), "{dims}: what is wide has more bits, what is constant fewer");
        for d in 0..dims {
            let column = || keys.iter().skip(d).step_by(dims);
            let (low, high) = column().fold((f32::MAX, f32::MIN), |(low, high), x| (low.min(*x), high.max(*x)));
            let steps = f64::from((1 << of(d)) - 1);
            // Half a step of the range, which the rounding of its middle and scale may widen.
            let bound =
                f64::from(high - low) / steps * 0.53 + f64::from(low.abs().max(high.abs())) / 2048.0 / steps + 1e-7;
            for (x, code) in column().zip(k.iter().skip(d).step_by(dims)) {
                assert!((f64::from(*x) - code).abs() <= bound, "{dims} {d}: {x} as {code}, not within {bound}");
            }
        }
        let (errors, size) = values.iter().zip(&v).fold((0.0, 0.0), |(errors, size), (x, y)| {
            let x = f64::from(*x);
            (errors + (x - y) * (x - y), size + x * x)
        });
        assert!((errors / size).sqrt() < 0.12, "{dims}: {}", (errors / size).sqrt());
        let (mut panels, mut rows) = (vec![[0.0; 16]; 4 * dims], vec![[0.0; 16]; shape.groups() * 128]);
        (arch::attend_kernels().decode)(&block.view(shape), &mut panels, &mut rows);
        for t in 0..64 {
            let mut row: Vec<f32> = (0..dims).map(|d| rows[d / 16 * 64 + t][d % 16]).collect();
            arch::attend::bits::rotate_back(&mut row);
            for d in 0..dims {
                let (key, exact) = (f64::from(panels[t / 16 * dims + d][t % 16]), k[t * dims + d]);
                assert!((key - exact).abs() <= exact.abs() * 2e-7 + 1e-6);
                assert!((f64::from(row[d]) - v[t * dims + d]).abs() <= 1e-5, "{dims} {t} {d}");
            }
        }
        assert_eq!(of_bytes(shape, block.bytes()).unwrap().bytes(), block.bytes());
        assert!(
            block.bytes().len() * 8 <= 64 * dims * 37 / 4 || dims % 64 > 0,
            "{dims}: {} bytes",
            block.bytes().len()
        );
    }
}

#[test]
fn heads_that_few_bits_do_not_hold_have_k8v4() {
    let dims = 64;
    let mut noise = Noise(5);
    let (keys, values) = (many(&mut noise, 64 * dims), many(&mut noise, 64 * dims));
    let format = |widths: &mut Widths, keys: &[f32], values: &[f32]| {
        encoded_by(dims, Some(widths), keys, values).unwrap().format(Shape::new(dims).unwrap()).unwrap()
    };
    let known = || {
        let (mut widths, queries) = (Widths::default(), many(&mut Noise(6), 8 * dims));
        let scaled: Vec<f32> = queries.iter().map(|x| x * 0.125).collect();
        widths.queries.add((0, 1), dims, scaled.chunks_exact(dims));
        widths
    };
    assert_eq!(format(&mut known(), &keys, &values), Format::K4V4);
    // A bias of norm 600 in two pairs of channels, which turns with the position.
    let mut biased = keys.clone();
    for (at, key) in biased.chunks_exact_mut(dims).enumerate() {
        for pair in [3, 9] {
            let angle = at as f32 * 100_000f32.powf(-(pair as f32) / 32.0);
            key[pair] += 424.0 * angle.cos();
            key[pair + 32] += 424.0 * angle.sin();
        }
    }
    assert_eq!(format(&mut known(), &biased, &values), Format::K8V4);
    // A token that is far greater than the others, and channels of V that hide them.
    let mut large = keys.clone();
    large[5 * dims..6 * dims].iter_mut().for_each(|x| *x *= 100.0);
    let mut hidden = values.clone();
    hidden.iter_mut().skip(7).step_by(dims).for_each(|x| *x *= 400.0);
    for mut widths in [known(), Widths::default()] {
        assert_eq!(format(&mut widths, &large, &values), Format::K8V4);
        assert_eq!(format(&mut widths, &keys, &values), Format::K4V4, "the next block is as ever");
        assert_eq!(encoded_by(dims, Some(&mut widths), &keys, &hidden).unwrap_err(), Unfit::Error);
        for bad in [f32::NAN, f32::INFINITY, 1e30] {
            let mut broken = [keys.clone(), values.clone()];
            broken[usize::from(bad > 1.0)][777] = bad;
            let [keys, values] = &broken;
            assert_eq!(encoded_by(dims, Some(&mut widths), keys, values).unwrap_err(), Unfit::Range, "{bad}");
        }
    }
    assert_eq!(format(&mut Widths::default(), &vec![0.0; 64 * dims], &values), Format::K4V4);
}

/// Channels that queries do not ask for have the fewest bits, and widths stay until a block is far from them.
#[test]
fn widths_go_where_ranges_and_queries_are_large_and_stay_there() {
    let (dims, shape) = (64, Shape::new(64).unwrap());
    let mut noise = Noise(8);
    let mut widths = Widths::default();
    let queries: Vec<f32> = (0..dims).map(|d| if d < 32 { 0.1 } else { 0.0002 }).collect();
    widths.queries.add((0, 1), dims, [&queries[..]].into_iter());
    let values = many(&mut noise, 64 * dims);
    let mut of_block = |keys: &[f32]| {
        let block = encoded_by(dims, Some(&mut widths), keys, &values).unwrap();
        let Keys::Bits { widths, .. } = block.view(shape).keys else { panic!("k4v4") };
        widths.to_vec()
    };
    let first = of_block(&many(&mut noise, 64 * dims));
    assert!(
        (0..32).all(|d| width(&first, d).unwrap() >= 4)
            && (32..64).filter(|d| width(&first, *d) == Some(2)).count() > 24
    );
    assert_eq!(of_block(&many(&mut noise, 64 * dims)), first);
    let mut other = many(&mut noise, 64 * dims);
    other.iter_mut().skip(50).step_by(dims).for_each(|x| *x *= 2_000.0);
    let second = of_block(&other);
    assert!(second != first && width(&second, 50) == Some(6), "channel 50 is what counts now");
    assert_eq!(of_block(&other), second);
}

#[test]
fn damaged_bytes_of_few_bits_are_refused() {
    let (dims, shape) = (64, Shape::new(64).unwrap());
    let mut noise = Noise(9);
    let rows = [many(&mut noise, 64 * dims), many(&mut noise, 64 * dims)];
    let block = encoded_by(dims, Some(&mut Widths::default()), &rows[0], &rows[1]).unwrap();
    let status = |bytes: &[u8]| of_bytes(shape, bytes).map(|_| ()).map_err(|e| e.status());
    assert_eq!(status(block.bytes()), Ok(()));
    let values = block.bytes().len() - 256;
    // A width of its own, one that does not exist, and scales that are infinite or negative.
    for (at, byte) in [
        (0, block.bytes()[0] ^ 1),
        (3, 0xFF),
        (65, 0x7C),
        (65, 0x80),
        (193, 0xFC),
        (values + 1, 0x80),
        (values + 129, 0x7C),
    ] {
        let mut bytes = block.bytes().to_vec();
        bytes[at] = byte;
        assert_eq!(status(&bytes), Err(Status::Corrupt), "byte {at}");
    }
    for len in [block.bytes().len() - 64, block.bytes().len() + 64] {
        let mut bytes = block.bytes().to_vec();
        bytes.resize(len, 0);
        assert_eq!(status(&bytes), Err(Status::Corrupt), "{len} bytes");
    }
}
