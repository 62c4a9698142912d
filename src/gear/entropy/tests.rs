use super::*;
use proptest::prelude::*;
use std::io::Read;

fn by_libzstd(frame: &[u8], len: usize) -> Vec<u8> {
    // One byte more than announced, so that excess content shows.
    let mut out = vec![0; len + 1];
    let got = zstd_safe::decompress(&mut out[..], frame).map_err(zstd_safe::get_error_name).unwrap();
    out.truncate(got);
    out
}

fn by_ruzstd(frame: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut source = frame;
    ruzstd::decoding::StreamingDecoder::new(&mut source).unwrap().read_to_end(&mut out).unwrap();
    assert!(source.is_empty(), "bytes after the frame");
    out
}

/// A frame of `src` in a buffer of exactly [`bound`] bytes, checked with two decoders.
fn checked(src: &[u8], encode: fn(&[u8], &mut [u8]) -> usize) -> Vec<u8> {
    let mut frame = vec![0xEE; bound(src.len())];
    let len = encode(src, &mut frame);
    frame.truncate(len);
    assert_eq!(zstd_safe::find_frame_compressed_size(&frame), Ok(len));
    assert_eq!(zstd_safe::get_frame_content_size(&frame).unwrap(), Some(src.len() as u64));
    assert!(by_libzstd(&frame, src.len()) == src, "libzstd, {} bytes", src.len());
    assert!(by_ruzstd(&frame) == src, "ruzstd, {} bytes", src.len());
    frame
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Raw,
    Rle,
    Own,
    Previous,
}

/// The kind of each block of a frame.
fn kinds(frame: &[u8]) -> Vec<Kind> {
    let mut at = 5 + [1, 2, 4, 8][frame[4] as usize >> 6];
    let mut kinds = Vec::new();
    loop {
        let header = u32::from_le_bytes([frame[at], frame[at + 1], frame[at + 2], 0]);
        let size = (header >> 3) as usize;
        at += BLOCK_HEADER;
        let (kind, len) = match (header >> 1 & 3, frame[at..].first().map(|literals| literals & 3)) {
            (0, _) => (Kind::Raw, size),
            (1, _) => (Kind::Rle, 1),
            (2, Some(2)) => (Kind::Own, size),
            (2, Some(3)) => (Kind::Previous, size),
            other => panic!("block and literals type {other:?}"),
        };
        kinds.push(kind);
        at += len;
        if header & 1 == 1 {
            assert_eq!(at, frame.len());
            return kinds;
        }
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let a = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let b = (a ^ a >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        b ^ b >> 31
    }

    fn below(&mut self, n: usize) -> usize {
        ((self.next() as u128 * n as u128) >> 64) as usize
    }

    fn shuffle(&mut self, items: &mut [u8]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

const SHAPES: usize = 7;

/// Frequencies of `symbols` symbols, up to a factor.
fn shape(kind: usize, symbols: usize) -> Vec<f64> {
    let f = |i: usize| match kind {
        0 => 1.0,
        1 => 0.9f64.powi(i as i32),
        2 => 0.6f64.powi(i as i32),
        3 => [1.0, 0.004][(i > 0) as usize],
        // Fibonacci numbers give the deepest trees.
        4 => 1.618_034_f64.powi(-(i as i32)),
        5 => 1.0 / (1.0 + (i * i) as f64),
        _ => [1.0, 1e-3, 1e-3][i % 3],
    };
    (0..symbols).map(f).collect()
}

/// `len` shuffled bytes of `symbols` values, whose counts follow a shape as well as they can; at least one of each
/// when they fit.
fn sample(kind: usize, symbols: usize, len: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let mut values: Vec<u8> = (0..=255).collect();
    if seed & 1 == 1 {
        random.shuffle(&mut values);
    }
    let shape = shape(kind, symbols);
    let total: f64 = shape.iter().sum();
    let mut bytes: Vec<u8> = values.iter().copied().take(symbols.min(len)).collect();
    for (value, f) in values.iter().zip(&shape) {
        let count = (f / total * len as f64) as usize;
        bytes.resize((bytes.len() + count).min(len), *value);
    }
    bytes.resize(len, values[0]);
    random.shuffle(&mut bytes);
    bytes
}

fn histogram_of(bytes: &[u8]) -> [u32; 256] {
    let mut counts = [0; 256];
    bytes.iter().for_each(|b| counts[*b as usize] += 1);
    counts
}

fn lengths_in_blocks() -> impl Strategy<Value = usize> {
    prop_oneof![
        6 => 0..2000usize,
        1 => 2000..70_000usize,
        1 => (1..4usize, 0..7usize).prop_map(|(blocks, i)| blocks * BLOCK_MAX + i - 3),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_frame_decodes(len in lengths_in_blocks(), kind in 0..SHAPES, symbols in 1..=256usize, seed: u64) {
        let src = sample(kind, symbols, len, seed);
        let frame = checked(&src, literals);
        // Never longer than storing, and that is as long as it must be.
        let stored = checked(&src, stored);
        prop_assert!(frame.len() <= stored.len());
        prop_assert_eq!(stored.len(), [6, 7, 9][(len > 255) as usize + (len > 65_791) as usize] + len + 3 * len.div_ceil(BLOCK_MAX).max(1));
        prop_assert!(stored.len() <= bound(len));
    }

    #[test]
    fn blocks_of_different_kinds_follow_one_another(parts in prop::collection::vec((0..SHAPES, 1..=256usize, 0..3u64), 2..5), cut in 0..3000usize) {
        let mut src: Vec<u8> = parts.iter().flat_map(|&(kind, symbols, seed)| sample(kind, symbols, BLOCK_MAX, seed)).collect();
        src.truncate(src.len() - cut);
        checked(&src, literals);
    }

    #[test]
    fn lengths_are_complete_and_optimal(kind in 0..SHAPES, symbols in 2..=256usize, len in 256..BLOCK_MAX, seed: u64) {
        let counts = histogram_of(&sample(kind, symbols, len, seed));
        let lengths = Lengths::new(&counts);
        let codes = lengths.codes().map(|c| (c as u8 & 15, c >> 4));
        prop_assert!(codes.iter().zip(&counts).all(|((len, _), count)| (*len > 0) == (*count > 0) && *len <= 11));
        prop_assert_eq!(codes.iter().filter(|(len, _)| *len > 0).map(|(len, _)| 2048 >> len).sum::<u32>(), 2048);
        let cost = lengths.cost(&counts).unwrap();
        let optimal = package_merge(&counts, huffman::limit(len as u32, counts.iter().filter(|c| **c > 0).count()));
        // Equal lengths that cannot be described were changed.
        let lens = codes.map(|(len, _)| len);
        let equal = lens[..3] == [7, 9, 9] && lens[3..128].iter().all(|l| *l == 8);
        prop_assert!(cost == optimal || equal, "{} against {}", cost, optimal);
    }
}

/// The cost of an optimal code no longer than `limit`.
fn package_merge(counts: &[u32; 256], limit: usize) -> usize {
    let mut coins: Vec<usize> = counts.iter().filter(|c| **c > 0).map(|c| *c as usize).collect();
    coins.sort_unstable();
    let mut row: Vec<usize> = Vec::new();
    for _ in 0..limit {
        row = row.chunks_exact(2).map(|pair| pair[0] + pair[1]).chain(coins.iter().copied()).collect();
        row.sort_unstable();
    }
    row[..2 * coins.len() - 2].iter().sum()
}

#[test]
fn content_sizes_take_the_smallest_field() {
    for (len, header) in [(0, 6), (255, 6), (256, 7), (65_791, 7), (65_792, 9)] {
        let mut out = [0; frame::HEADER_MAX];
        assert_eq!(frame::begin(len, &mut out), header, "{len}");
        assert_eq!(checked(&vec![1; len], stored).len(), header + len + BLOCK_HEADER, "{len}");
    }
    let mut out = [0; frame::HEADER_MAX];
    assert_eq!(frame::begin(1 << 32, &mut out), 13);
    assert_eq!(out[4..], [0xE0, 0, 0, 0, 0, 1, 0, 0, 0]);
}

#[test]
fn one_value_becomes_runs() {
    let frame = checked(&vec![9; 2 * BLOCK_MAX + 1], literals);
    assert_eq!(frame.len(), 9 + 3 * 4);
    assert_eq!(kinds(&frame), [Kind::Rle; 3]);
}

#[test]
fn noise_is_stored() {
    let mut src = sample(0, 256, 2 * BLOCK_MAX, 1);
    assert_eq!(kinds(&checked(&src, literals)), [Kind::Raw; 2]);
    src.truncate(300);
    assert_eq!(kinds(&checked(&src, literals)), [Kind::Raw]);
}

#[test]
fn a_tree_serves_again_past_blocks_without_one() {
    let block = sample(1, 60, BLOCK_MAX, 3);
    let noise = sample(0, 256, BLOCK_MAX, 4);
    let run = vec![block[0]; BLOCK_MAX];
    let frame = checked(&[&block[..], &noise, &block, &run, &block[..2000]].concat(), literals);
    assert_eq!(kinds(&frame), [Kind::Own, Kind::Raw, Kind::Previous, Kind::Rle, Kind::Previous]);
}

#[test]
fn a_tree_that_fits_badly_or_not_at_all_is_replaced() {
    let block = sample(1, 60, BLOCK_MAX, 3);
    let turned: Vec<u8> = block.iter().map(|b| 255 - b).collect();
    let more = sample(1, 61, BLOCK_MAX, 3);
    for other in [turned, more] {
        assert_eq!(kinds(&checked(&[&block[..], &other].concat(), literals)), [Kind::Own; 2]);
    }
}

#[test]
fn equal_weights_of_many_symbols_are_described() {
    // 128 to 254 codes of length 8, and a last one that takes the other half, quarter and so on.
    for free in [128, 64, 32, 16, 8, 4, 2] {
        let mut src: Vec<u8> = (0..=255).map(|i: u8| i.min((256 - free) as u8)).collect();
        src = src.repeat(40);
        Random(5).shuffle(&mut src);
        let frame = checked(&src, literals);
        // At worst the one longer and two shorter codes take back what the last symbol gains.
        assert!(free < 4 || kinds(&frame) == [Kind::Own], "{free}");
    }
}

fn real_lanes() -> Vec<(String, Vec<u8>)> {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/kv");
    let mut planes = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "f16") {
            let words = std::fs::read(&path).unwrap();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            planes.push((name, words.chunks_exact(2).map(|w| w[1]).collect()));
        }
    }
    assert!(!planes.is_empty());
    planes
}

#[test]
fn real_planes_without_matches_are_as_short_as_by_libzstd() {
    for (name, mut plane) in real_lanes() {
        Random(6).shuffle(&mut plane);
        for piece in [700, 1500, 4096, 20_000, BLOCK_MAX, 400_000] {
            let piece = &plane[..piece.min(plane.len())];
            let ours = checked(piece, literals).len();
            let mut theirs = vec![0; zstd_safe::compress_bound(piece.len())];
            let theirs = zstd_safe::compress(&mut theirs[..], piece, 1).unwrap();
            assert!(ours as f64 <= theirs as f64 * 1.003 + 16.0, "{name}, {} bytes: {ours} > {theirs}", piece.len());
        }
    }
}

#[test]
fn estimates_are_near() {
    let mut samples: Vec<_> = real_lanes().into_iter().map(|(name, plane)| (name, plane, 0.01)).collect();
    for (kind, symbols) in (0..SHAPES).flat_map(|k| [2, 5, 30, 200].map(|s| (k, s))) {
        samples.push((format!("{kind}/{symbols}"), sample(kind, symbols, BLOCK_MAX, 7), 0.05));
    }
    for (name, plane, tolerance) in samples {
        for piece in [2000, 10_000, BLOCK_MAX] {
            let piece = &plane[..piece.min(plane.len())];
            let len = checked(piece, literals).len();
            let about = estimate(&histogram_of(piece));
            let off = about.abs_diff(len);
            assert!(off as f64 <= len as f64 * tolerance + 16.0, "{name}, {} bytes: {about} for {len}", piece.len());
        }
    }
}
