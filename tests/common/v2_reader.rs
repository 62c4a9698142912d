//! A second reader of gear format v2, written from `docs/format.md`, without code of the library. ZSTD frames are
//! decoded by ruzstd, floating-point numbers converted by half. Slow and obvious; panics on any violation of the
//! format.
#![allow(dead_code)]

use std::collections::BTreeSet;
use std::io::Read;
use xxhash_rust::xxh3::xxh3_64;

/// The contents of a blob, and the parts of the format that it uses.
pub struct Blob {
    /// 1 f16, 2 bf16, 3 f32, 4 int8.
    pub dtype: u8,
    pub head_dim: usize,
    pub words: Vec<u8>,
    /// Names such as "predictor 3" or "wide steps".
    pub seen: BTreeSet<String>,
}

/// Every name in [`Blob::seen`].
pub const PARTS: [&str; 25] = [
    "channels that are not turned",
    "coding 0",
    "coding 1",
    "flat",
    "given frequencies",
    "groups",
    "heads",
    "joins",
    "large steps",
    "no steps",
    "pairing 1",
    "pairing 2",
    "positions with gaps",
    "predictor 0",
    "predictor 1",
    "predictor 2",
    "predictor 3",
    "predictor 4",
    "repeats",
    "small steps",
    "stored",
    "tail",
    "theta",
    "units within channels",
    "wide steps",
];

/// Writes the matching trailer of a changed blob.
pub fn seal(blob: &mut [u8]) {
    let end = blob.len() - 4;
    let checksum = xxh3_64(&blob[..end]) as u32;
    blob[end..].copy_from_slice(&checksum.to_le_bytes());
}

/// Reads a blob of revision 0.
pub fn read(blob: &[u8]) -> Blob {
    let number = |at: usize, len: usize| blob[at..at + len].iter().rev().fold(0u64, |n, b| n << 8 | *b as u64);
    assert_eq!(&blob[..10], b"\0\0\0\0MNKV\x02\0");
    let end = blob.len() - 4;
    assert_eq!(number(end, 4), xxh3_64(&blob[..end]) & 0xFFFF_FFFF, "trailer");
    let (dtype, mode, head_dim, len) = (blob[10], blob[11], number(12, 4) as usize, number(16, 8) as usize);
    let width = [1, 2, 2, 4, 1][dtype as usize];
    assert!(dtype > 0 && head_dim > 0 && len > 0 && len % width == 0, "header");
    let mut body = Body { dtype, width, dims: head_dim, rest: &blob[32..end], seen: BTreeSet::new() };
    let words = match mode {
        0 => {
            body.saw("stored");
            body.take(len).to_vec()
        }
        1 => body.coded(len),
        2 => body.flat(len),
        m => panic!("mode {m}"),
    };
    assert!(body.rest.is_empty(), "bytes after the body");
    assert_eq!(xxh3_64(&words), number(24, 8), "checksum of the words");
    Blob { dtype, head_dim, words, seen: body.seen }
}

/// References of rows: distances, kinds and, for kinds above 0, steps.
struct Repeats {
    distances: Vec<u32>,
    kinds: Vec<u8>,
    /// Rows of steps, in the order of the rows.
    steps: Vec<Vec<u32>>,
}

struct Body<'a> {
    dtype: u8,
    width: usize,
    dims: usize,
    rest: &'a [u8],
    seen: BTreeSet<String>,
}

impl<'a> Body<'a> {
    fn saw(&mut self, what: impl Into<String>) {
        self.seen.insert(what.into());
    }

    fn take(&mut self, len: usize) -> &'a [u8] {
        let (head, rest) = self.rest.split_at(len);
        self.rest = rest;
        head
    }

    fn byte(&mut self) -> u8 {
        self.take(1)[0]
    }

    fn number(&mut self) -> usize {
        let mut number = 0u128;
        for shift in (0..).step_by(7) {
            let byte = self.byte();
            number |= (byte as u128 & 0x7F) << shift;
            if byte < 0x80 {
                break;
            }
        }
        number.try_into().unwrap()
    }

    fn bytes(&mut self) -> &'a [u8] {
        let len = self.number();
        self.take(len)
    }

    fn zstd(&mut self, len: usize) -> Vec<u8> {
        unzstd(self.bytes(), len)
    }

    fn list(&mut self, n: usize) -> Vec<u32> {
        let planes = self.zstd(4 * n);
        (0..n).map(|i| u32::from_le_bytes([0, 1, 2, 3].map(|plane| planes[plane * n + i]))).collect()
    }

    /// A matrix of bytes, `[plane][channel][row]`.
    fn planes(&mut self, planes: usize, channels: usize, rows: usize) -> Vec<u8> {
        let mut out = vec![0; planes * channels * rows];
        if out.is_empty() {
            return out;
        }
        let (unit_rows, groups) = (self.number(), self.number());
        assert!(unit_rows > 0 && (1..=256).contains(&groups), "units and groups");
        let per_channel = rows.div_ceil(unit_rows);
        let units = planes * channels * per_channel;
        let group_of = if groups == 1 { vec![0; units] } else { self.zstd(units) };
        let mut lens = vec![0; groups];
        for (unit, group) in group_of.iter().enumerate() {
            lens[*group as usize] += unit_rows.min(rows - unit % per_channel * unit_rows);
        }
        let payloads: Vec<_> = lens.into_iter().map(|len| self.group(len)).collect();
        if groups > 1 {
            self.saw("groups");
        }
        if per_channel > 1 {
            self.saw("units within channels");
        }
        let mut taken = vec![0; groups];
        for at in 0..out.len() {
            let (line, t) = (at / rows, at % rows);
            let is_odd = line % channels % 2 == 1;
            let group = group_of[line * per_channel + t / unit_rows] as usize;
            let (predictor, bytes) = &payloads[group];
            let byte = bytes[taken[group]];
            taken[group] += 1;
            let before = |at: usize| if t > 0 { out[at - 1] } else { 0 };
            out[at] = match (predictor, is_odd) {
                (0, _) | (3, false) => byte,
                (1, _) | (4, false) => byte.wrapping_add(before(at)),
                (2, _) => byte ^ before(at),
                (3, true) => byte.wrapping_add(out[at - rows]),
                (4, true) => {
                    let difference = before(at).wrapping_sub(before(at - rows));
                    byte.wrapping_add(difference).wrapping_add(out[at - rows])
                }
                (p, _) => panic!("predictor {p}"),
            };
        }
        out
    }

    /// Rows of words from the bytes of `planes`.
    fn rows(&self, planes: &[u8], rows: usize) -> Vec<Vec<u32>> {
        let word = |t: usize, channel: usize| {
            let byte = |p: usize| planes[(p * self.dims + channel) * rows + t] as u32;
            (0..self.width).map(|p| byte(p) << (8 * p)).sum()
        };
        (0..rows).map(|t| (0..self.dims).map(|channel| word(t, channel)).collect()).collect()
    }

    /// A group of `len` bytes: its predictor, and the bytes before the predictor is undone.
    fn group(&mut self, len: usize) -> (u8, Vec<u8>) {
        let (predictor, coding, payload) = (self.byte(), self.byte(), self.bytes());
        self.saw(format!("predictor {predictor}"));
        self.saw(format!("coding {coding}"));
        let bytes = match coding {
            0 => payload.to_vec(),
            1 => unzstd(payload, len),
            c => panic!("coding {c}"),
        };
        assert_eq!(bytes.len(), len, "payload");
        (predictor, bytes)
    }

    fn flat(&mut self, len: usize) -> Vec<u8> {
        self.saw("flat");
        assert_eq!(self.dims, 1, "elements per row");
        let groups: Vec<_> = (0..self.width).map(|_| self.group(len / self.width)).collect();
        assert!(groups.iter().all(|(predictor, _)| *predictor == 0), "predictors");
        (0..len).map(|i| groups[i % self.width].1[i / self.width]).collect()
    }

    fn coded(&mut self, len: usize) -> Vec<u8> {
        let count = len / (self.dims * self.width);
        assert!(count > 0, "no whole row");
        let flags = self.byte();
        let repeats = match flags {
            0 => Repeats { distances: vec![0; count], kinds: vec![], steps: vec![] },
            1 | 3 => self.repeats(count, flags == 3),
            f => panic!("flags {f}"),
        };
        let angles = if flags == 3 { Some(self.angles(count)) } else { None };
        let new = repeats.distances.iter().filter(|d| **d == 0).count();
        let planes = self.planes(self.width, self.dims, new);
        let mut new = self.rows(&planes, new);
        for word in new.iter_mut().flatten() {
            *word = match self.dtype {
                2 => (*word as u16).rotate_right(1) as u32,
                3 => word.rotate_right(1),
                _ => *word,
            };
        }
        let rows = match angles {
            Some(angles) => self.turned(&repeats, new, &angles),
            None => self.alike(&repeats, new),
        };
        let words = rows.iter().flatten().flat_map(|word| word.to_le_bytes().into_iter().take(self.width));
        let mut words: Vec<u8> = words.collect();
        let tail = len - words.len();
        if tail > 0 {
            self.saw("tail");
        }
        words.extend_from_slice(self.take(tail));
        words
    }

    fn repeats(&mut self, count: usize, with_angles: bool) -> Repeats {
        self.saw("repeats");
        let distances = self.list(count);
        let mut kinds = self.zstd(distances.iter().filter(|d| **d > 0).count());
        let size = |kind: u8| if with_angles { kind & 0x7F } else { kind };
        let mut order: Vec<usize> = (0..kinds.len()).filter(|i| size(kinds[*i]) > 0).collect();
        order.sort_by_key(|i| size(kinds[*i]));
        assert!(kinds.iter().all(|kind| size(*kind) <= 33), "kinds");
        let small = order.iter().filter(|i| size(kinds[**i]) <= 2).count();
        let wide = order.len() - small;

        let mut coded = Vec::new();
        if small > 0 {
            self.saw("small steps");
            let pairs = small.div_ceil(2);
            let nibbles = self.planes(1, self.dims, pairs);
            let large_count = self.number();
            let large = self.planes(self.width, 1, large_count);
            let mut taken = 0;
            coded = vec![vec![0; self.dims]; small];
            for channel in 0..self.dims {
                for row in 0..small {
                    let byte = nibbles[channel * pairs + row / 2];
                    coded[row][channel] = match if row % 2 == 0 { byte & 15 } else { byte >> 4 } {
                        15 => {
                            taken += 1;
                            (0..self.width).map(|p| (large[p * large_count + taken - 1] as u32) << (8 * p)).sum()
                        }
                        step => step as u32,
                    };
                }
            }
            assert_eq!(taken, large_count, "large steps");
            if large_count > 0 {
                self.saw("large steps");
            }
        }
        if wide > 0 {
            self.saw("wide steps");
            let planes = self.planes(self.width, self.dims, wide);
            coded.extend(self.rows(&planes, wide));
        }
        let mut steps: Vec<Vec<u32>> = vec![vec![0; self.dims]; kinds.len()];
        for (row, i) in coded.into_iter().zip(order) {
            steps[i] = row;
        }
        if kinds.iter().any(|kind| size(*kind) == 0) {
            self.saw("no steps");
        }
        if !with_angles {
            kinds.clear();
        } else if kinds.iter().any(|kind| *kind >= 0x80) {
            self.saw("joins");
        }
        Repeats { distances, kinds, steps }
    }

    /// The word `steps` steps from a prediction.
    fn walk(&self, steps: u32, predicted: u32) -> u32 {
        let bits = 8 * self.width as u32;
        let mask = u32::MAX >> (32 - bits);
        let sign = 1 << (bits - 1);
        let order = |x: u32| if self.dtype != 4 && x & sign != 0 { x ^ (sign - 1) } else { x };
        let difference = if steps.is_multiple_of(2) { steps / 2 } else { (steps / 2 + 1).wrapping_neg() };
        order(order(predicted).wrapping_add(difference) & mask)
    }

    fn alike(&self, repeats: &Repeats, new: Vec<Vec<u32>>) -> Vec<Vec<u32>> {
        let (mut new, mut steps) = (new.into_iter(), repeats.steps.iter());
        let mut rows: Vec<Vec<u32>> = Vec::new();
        for distance in &repeats.distances {
            rows.push(match distance {
                0 => new.next().unwrap(),
                back => {
                    let steps = steps.next().unwrap().iter();
                    let reference = &rows[rows.len() - *back as usize];
                    steps.zip(reference).map(|(s, p)| self.walk(*s, *p)).collect()
                }
            });
        }
        rows
    }
}

/// Pairs of rotated channels, and the cosine and sine of every pair at every token of a head.
struct Angles {
    pairs: Vec<(usize, usize)>,
    turns: Vec<Vec<(f64, f64)>>,
}

impl Body<'_> {
    /// The arithmetic of rows is in f32, or in f64 for f32 words. An operation in f64 whose result is rounded to f32 is
    /// the operation in f32, as f64 has more than twice the digits.
    fn round(&self, x: f64) -> f64 {
        if self.dtype == 3 { x } else { x as f32 as f64 }
    }

    fn angles(&mut self, count: usize) -> Angles {
        let (pairing, n) = (self.byte(), self.number());
        assert!(n > 0 && 2 * n <= self.dims, "pairs");
        let pairs = (0..n).map(|i| match pairing {
            1 => (i, n + i),
            2 => (2 * i, 2 * i + 1),
            p => panic!("pairing {p}"),
        });
        let source = self.byte();
        assert!(source <= 1, "source {source}");
        let count_of_numbers = if source == 0 { 1 } else { n };
        let numbers: Vec<f32> =
            (0..count_of_numbers).map(|_| f32::from_le_bytes(self.take(4).try_into().unwrap())).collect();
        self.saw(format!("pairing {pairing}"));
        self.saw(["theta", "given frequencies"][source as usize]);
        if 2 * n < self.dims {
            self.saw("channels that are not turned");
        }
        let limits = if source == 0 { 1.0..=1e30 } else { 0.0..=1e6 };
        assert!(numbers.iter().all(|number| limits.contains(number)), "theta or frequencies");
        let frequencies = if source == 0 { frequencies(numbers[0], n) } else { numbers };
        let tokens = self.number();
        assert!(tokens > 0 && count.is_multiple_of(tokens), "tokens per head");
        if tokens < count {
            self.saw("heads");
        }
        let steps = self.list(tokens);
        if steps[1..].iter().any(|step| *step != 1) {
            self.saw("positions with gaps");
        }
        let positions = steps.iter().scan(0u32, |position, step| {
            *position = position.wrapping_add(*step);
            Some(*position)
        });
        let turns = positions.map(|position| {
            let turns = frequencies.iter().map(|f| {
                let (cos, sin) = turn(position as f32 * if *f < 1e-12 { 0.0 } else { *f });
                (self.round(cos), self.round(sin))
            });
            turns.collect()
        });
        Angles { pairs: pairs.collect(), turns: turns.collect() }
    }

    fn turned(&self, repeats: &Repeats, new: Vec<Vec<u32>>, angles: &Angles) -> Vec<Vec<u32>> {
        let turn = |row: &mut [f64], number: usize, back: bool| {
            for ((i, j), (cos, sin)) in angles.pairs.iter().zip(&angles.turns[number % angles.turns.len()]) {
                let (a, b) = (row[*i], row[*j]);
                let product = |x: f64, y: f64| self.round(x * y);
                if back {
                    row[*i] = self.round(product(a, *cos) + product(b, *sin));
                    row[*j] = self.round(product(b, *cos) - product(a, *sin));
                } else {
                    row[*i] = self.round(product(a, *cos) - product(b, *sin));
                    row[*j] = self.round(product(b, *cos) + product(a, *sin));
                }
            }
        };
        let (mut new, mut kinds, mut steps) = (new.into_iter(), repeats.kinds.iter(), repeats.steps.iter());
        // Sum and number of the rows of each class; the class of each row.
        let mut classes: Vec<(Vec<f64>, u32)> = Vec::new();
        let mut class_of = Vec::new();
        let mut rows: Vec<Vec<u32>> = Vec::new();
        for (number, distance) in repeats.distances.iter().enumerate() {
            let mut class = classes.len();
            if *distance == 0 {
                rows.push(new.next().unwrap());
            } else {
                let referred: usize = class_of[number - *distance as usize];
                let (sum, members) = &classes[referred];
                let part = self.round(1.0 / *members as f64);
                let mut prediction: Vec<f64> = sum.iter().map(|x| self.round(x * part)).collect();
                turn(&mut prediction, number, false);
                let steps = steps.next().unwrap().iter();
                rows.push(steps.zip(prediction).map(|(s, p)| self.walk(*s, self.nearest(p))).collect());
                if *kinds.next().unwrap() & 0x80 != 0 {
                    class = referred;
                }
            }
            let mut row: Vec<f64> = rows[number].iter().map(|word| self.real(*word)).collect();
            turn(&mut row, number, true);
            class_of.push(class);
            match classes.get_mut(class) {
                Some((sum, members)) => {
                    sum.iter_mut().zip(row).for_each(|(sum, x)| *sum = self.round(*sum + x));
                    *members += 1;
                }
                None => classes.push((row, 1)),
            }
        }
        rows
    }

    fn real(&self, word: u32) -> f64 {
        match self.dtype {
            1 => half::f16::from_bits(word as u16).to_f64(),
            2 => half::bf16::from_bits(word as u16).to_f64(),
            _ => f32::from_bits(word) as f64,
        }
    }

    fn nearest(&self, real: f64) -> u32 {
        match self.dtype {
            1 => half::f16::from_f32(real as f32).to_bits() as u32,
            2 => half::bf16::from_f32(real as f32).to_bits() as u32,
            _ => (real as f32).to_bits(),
        }
    }
}

fn frequencies(theta: f32, n: usize) -> Vec<f32> {
    let root = root(theta as f64, n);
    (0..n).scan(1.0f64, |power, _| Some(1.0 / std::mem::replace(power, *power * root) as f32)).collect()
}

/// The n-th root, by Newton's method from a guess.
fn root(theta: f64, n: usize) -> f64 {
    // theta is (1 + m) 2^e.
    let mut e = 0;
    while theta / 2f64.powi(e) >= 2.0 {
        e += 1;
    }
    let m = theta / 2f64.powi(e) - 1.0;
    let log = (e as f64 + m * (1.34 - 0.34 * m)) / n as f64;
    let part = log - log.floor();
    let mut root = 2f64.powi(log.floor() as i32) * (1.0 + part * (0.657 + 0.343 * part));
    for _ in 0..8 {
        let power = (1..n).fold(1.0, |power, _| power * root);
        root += (theta / power - root) / n as f64;
    }
    root
}

fn turn(angle: f32) -> (f64, f64) {
    let angle = angle as f64;
    let q = (angle * std::f64::consts::FRAC_2_PI + 0.5).floor();
    let r = ((angle - q * 1.570796325802803) - q * 9.920935791635221e-10) - q * 5.170182981794105e-19;
    let z = r * r;
    let (mut cos, mut sin) = (1.0, 1.0);
    for n in [14.0, 12.0, 10.0, 8.0, 6.0, 4.0, 2.0] {
        cos = 1.0 - z * (1.0 / (n * (n - 1.0))) * cos;
        sin = 1.0 - z * (1.0 / (n * (n + 1.0))) * sin;
    }
    sin *= r;
    match q.rem_euclid(4.0) as u32 {
        0 => (cos, sin),
        1 => (-sin, cos),
        2 => (-cos, -sin),
        _ => (sin, -cos),
    }
}

fn unzstd(frame: &[u8], len: usize) -> Vec<u8> {
    let mut source = frame;
    let mut out = Vec::new();
    ruzstd::decoding::StreamingDecoder::new(&mut source).unwrap().read_to_end(&mut out).unwrap();
    assert!(source.is_empty(), "one frame");
    assert_eq!(out.len(), len, "decoded bytes");
    out
}
