//! The header's bounds of working memory, for any options and any blob. ZSTD's contexts do not use this allocator: a
//! decoder counts 128 KiB for its own, and a test of the library bounds that of an encoder by 1,280 KiB.

use super::common::Random;
use super::counting_allocator::{held, peak};
use mnnkv::dtype::Dtype;
use mnnkv::gear::{Decoder, Effort, Encoder, Format, Frequencies, Options, Pairing, Positions, Rotation};
use mnnkv::status::Status;
use proptest::prelude::*;
use xxhash_rust::xxh3::xxh3_64;

const ENCODER: usize = (2048 - 1280) << 10;
/// Bytes beside three times those of a blob and its words.
pub const DECODER: usize = 256 << 10;

/// Words that reach all parts of an encoder.
#[derive(Clone, Copy, Debug)]
pub enum Content {
    Noise,
    Zeros,
    /// Small numbers.
    Bell,
    /// Rows, many of them a few steps from earlier ones.
    Alike {
        distinct: usize,
        steps: usize,
    },
}

impl Content {
    pub fn words(self, dtype: Dtype, count: usize, row_len: usize, seed: u64) -> Vec<u8> {
        let mut random = Random(seed | 1);
        let len = count * dtype.bytes();
        let moderate = |words: &mut [u8]| {
            // Exponents near that of 1, as rotations expect.
            words.chunks_exact_mut(dtype.bytes()).for_each(|word| match dtype {
                Dtype::F16 => word[1] = word[1] & 0x83 | 0x38,
                Dtype::Bf16 | Dtype::F32 => word[dtype.bytes() - 1] = word[dtype.bytes() - 1] & 0x80 | 0x3F,
                Dtype::Int8 => word[0] = (word[0] as i8 / 3) as u8,
            });
        };
        match self {
            Content::Noise => random.bytes(len),
            Content::Zeros => vec![0; len],
            Content::Bell => {
                let mut words = random.bytes(len);
                moderate(&mut words);
                words
            }
            Content::Alike { distinct, steps } => {
                let row_bytes = row_len.clamp(1, count) * dtype.bytes();
                let mut rows = random.bytes(distinct * row_bytes);
                moderate(&mut rows);
                let mut words: Vec<u8> = Vec::with_capacity(len + row_bytes);
                while words.len() < len {
                    let at = random.below(distinct) * row_bytes;
                    words.extend_from_slice(&rows[at..at + row_bytes]);
                }
                words.truncate(len);
                for word in words.chunks_exact_mut(dtype.bytes()).filter(|_| steps > 0) {
                    word[0] = word[0].wrapping_add(random.below(steps) as u8);
                }
                words
            }
        }
    }
}

fn content() -> impl Strategy<Value = Content> {
    prop_oneof![
        Just(Content::Noise),
        Just(Content::Zeros),
        Just(Content::Bell),
        (1usize..600, 0usize..4).prop_map(|(distinct, steps)| Content::Alike { distinct, steps }),
        (1usize..20, 1usize..3).prop_map(|(distinct, steps)| Content::Alike { distinct, steps }),
    ]
}

/// Elements per row, as a part of all elements or absolute.
fn row_len(count: usize) -> impl Strategy<Value = usize> {
    prop_oneof![
        3 => prop::sample::select(vec![1usize, 2, 8, 16, 32, 64, 128, 256, 1000]),
        1 => (1usize..200).prop_map(move |rows| (count / rows).max(1)),
        1 => prop::sample::select(vec![0, count, count + 1, u32::MAX as usize]),
    ]
}

#[derive(Clone, Debug)]
struct Case {
    dtype: Dtype,
    count: usize,
    head_dim: usize,
    content: Content,
    effort: i32,
    format: Format,
    seed: u64,
    /// Dims as a part of the row, heads, and whether lists are given.
    rotation: Option<(u8, usize, bool)>,
}

fn case() -> impl Strategy<Value = Case> {
    let counts = prop_oneof![1usize..5000, 60_000usize..400_000];
    (counts, prop::sample::select(Dtype::ALL.to_vec())).prop_flat_map(|(count, dtype)| {
        let format = if matches!(dtype, Dtype::F16 | Dtype::F32) {
            prop_oneof![1 => Just(Format::V1), 5 => Just(Format::V2)].boxed()
        } else {
            Just(Format::V2).boxed()
        };
        let rotation = prop::option::of((0u8..3, prop::sample::select(vec![1usize, 2, 8]), any::<bool>()));
        (row_len(count), content(), 1i32..10, format, any::<u64>(), rotation).prop_map(
            move |(head_dim, content, effort, format, seed, rotation)| {
                let rotation = rotation.filter(|_| dtype != Dtype::Int8 && (2..=count).contains(&head_dim));
                // A hint requires whole rows of whole heads.
                let heads = rotation.map_or(1, |(_, heads, _)| heads.min(count / head_dim.max(1)).max(1));
                let whole = if rotation.is_some() { count / (head_dim * heads) * head_dim * heads } else { count };
                let rotation = rotation.map(|(dims, _, given)| (dims, heads, given));
                Case { dtype, count: whole, head_dim, content, effort, format, seed, rotation }
            },
        )
    })
}

impl Case {
    /// Encodes and decodes. Returns, for each, the most bytes held and the bytes given.
    fn run(&self, encoder: &mut Encoder, decoder: &mut Decoder) -> ((usize, usize), (usize, usize)) {
        let words = self.content.words(self.dtype, self.count, self.head_dim, self.seed);
        let rows = self.count / self.head_dim.max(1);
        let (mut frequencies, mut positions) = (vec![], vec![]);
        let rotation = self.rotation.map(|(part, heads, given)| {
            let dims = (self.head_dim >> part).max(2) & !1;
            if given {
                frequencies = (0..dims / 2).map(|i| 1.0 / (i + 1) as f32).collect();
                positions = (0..rows / heads).map(|i| 3 * i as u32).collect();
            }
            Rotation {
                pairing: if heads > 1 { Pairing::Half } else { Pairing::Adjacent },
                dims,
                frequencies: if given { Frequencies::Given(&frequencies) } else { Frequencies::Theta(10_000.0) },
                tokens: rows / heads,
                positions: if given { Positions::Given(&positions) } else { Positions::Counting { first: 7 } },
            }
        });
        let options = Options {
            effort: Effort::new(self.effort, "effort").unwrap(),
            head_dim: self.head_dim,
            rotation: rotation.filter(|_| self.format == Format::V2),
            ..Options::new(self.format)
        };
        let mut blob = vec![];
        let mut len = 0;
        let encoding = peak(|| len = encoder.encode(&words, self.dtype, &options).unwrap().len());
        blob.extend_from_slice(encoder.encode(&words, self.dtype, &options).unwrap());
        assert_eq!(blob.len(), len);
        let mut back = vec![0; words.len()];
        let decoding = peak(|| assert_eq!(decoder.decode(&blob, self.dtype, &mut back).unwrap(), words.len()));
        assert!(back == words);
        ((encoding, words.len()), (decoding, words.len() + blob.len()))
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(120) })]

    #[test]
    fn codecs_stay_within_their_memory_for_any_options_and_words(cases in prop::collection::vec(case(), 1..4)) {
        // Memory that one call retains counts for the next.
        let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
        let (mut largest_words, mut largest_given) = (0, 0);
        for case in &cases {
            // With a new codec, and with a used one.
            let fresh = case.run(&mut Encoder::new(), &mut Decoder::new());
            prop_assert!(fresh.0.0 <= 6 * fresh.0.1 + ENCODER, "{case:?} encoder: {:?}", fresh.0);
            prop_assert!(fresh.1.0 <= 3 * fresh.1.1 + DECODER, "{case:?} decoder: {:?}", fresh.1);
            let reused = case.run(&mut encoder, &mut decoder);
            largest_words = reused.0.1.max(largest_words);
            largest_given = reused.1.1.max(largest_given);
        }
        // Both are dropped here, which frees all that they held.
        let encoder_held = freed(|| drop(encoder));
        let decoder_held = freed(|| drop(decoder));
        prop_assert!(encoder_held <= 6 * largest_words + ENCODER, "{cases:?}: {encoder_held} of {largest_words}");
        prop_assert!(decoder_held <= 3 * largest_given + DECODER, "{cases:?}: {decoder_held} of {largest_given}");
    }

    #[test]
    fn decoders_stay_within_their_memory_for_any_blob(hostile in hostile()) {
        let blob = hostile.blob();
        let mut words = vec![0xA5; hostile.len()];
        let given = blob.len() + words.len();
        let mut decoder = Decoder::new();
        let mut status = None;
        let held = peak(|| status = decoder.decode(&blob, hostile.dtype, &mut words).err().map(|e| e.status()));
        prop_assert!(held <= 3 * given + DECODER, "{hostile:?}: {held} of {given}");
        prop_assert!(matches!(status, Some(Status::Corrupt | Status::OutOfMemory)), "{hostile:?}: {status:?}");
        // With a limit, too.
        for limit in [given / 2, given, 2 * given] {
            let mut fresh = Decoder::new();
            let held = peak(|| drop(fresh.decode_within(&blob, hostile.dtype, &mut words, Some(limit))));
            prop_assert!(held <= limit + (4 << 10), "{hostile:?}: {held} of {limit}");
        }
    }
}

fn freed(body: impl FnOnce()) -> usize {
    let before = held();
    body();
    (before - held()) as usize
}

/// A blob of few bytes and as much work as possible: every list and plane is one value.
#[derive(Clone, Debug)]
pub struct Hostile {
    pub dtype: Dtype,
    row_len: usize,
    rows: usize,
    is_rotated: bool,
    /// One row in `new_every` is new. The others refer to the row before.
    new_every: usize,
    kind: u8,
    unit_rows: usize,
    groups: u8,
    predictor: u8,
    nibble: u8,
    pairs: usize,
}

pub fn hostile() -> impl Strategy<Value = Hostile> {
    let row_len = prop::sample::select(vec![1usize, 2, 4, 8, 16, 64, 5000]);
    let bytes = prop_oneof![1usize..10_000, 200_000usize..2_000_000];
    let kind = prop::sample::select(vec![0u8, 1, 2, 3, 33, 0x80, 0x81, 0x83]);
    let new_every = prop::sample::select(vec![1usize, 2, 3, 1 << 30]);
    let unit_rows = prop::sample::select(vec![1usize, 2, 128, 1 << 40]);
    let of = (prop::sample::select(Dtype::ALL.to_vec()), row_len, bytes, any::<bool>(), new_every, kind);
    (of, unit_rows, 1u8..4, 0u8..5, prop::sample::select(vec![0u8, 0x11, 0xFF]), 1usize..4).prop_map(
        |((dtype, row_len, bytes, is_rotated, new_every, kind), unit_rows, groups, predictor, nibble, pairs)| Hostile {
            dtype,
            row_len,
            rows: (bytes / row_len / dtype.bytes()).max(1),
            is_rotated: is_rotated && dtype != Dtype::Int8 && row_len > 1,
            new_every,
            kind: if is_rotated { kind } else { kind & 0x7F },
            unit_rows,
            groups,
            predictor,
            nibble,
            pairs: if pairs == 1 { 1 } else { row_len / 2 },
        },
    )
}

fn number(mut value: usize, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn frame(content: &[u8], out: &mut Vec<u8>) {
    let mut frame = vec![0; zstd_safe::compress_bound(content.len())];
    let len = zstd_safe::compress(&mut frame[..], content, 1).unwrap();
    number(len, out);
    out.extend_from_slice(&frame[..len]);
}

impl Hostile {
    pub fn len(&self) -> usize {
        self.rows * self.row_len * self.dtype.bytes()
    }

    fn planes(&self, planes: usize, channels: usize, rows: usize, value: u8, out: &mut Vec<u8>) {
        if planes * channels * rows == 0 {
            return;
        }
        number(self.unit_rows, out);
        number(self.groups as usize, out);
        if self.groups > 1 {
            frame(&vec![0; planes * channels * rows.div_ceil(self.unit_rows)], out);
        }
        for group in 0..self.groups {
            out.extend_from_slice(&[self.predictor, 1]);
            frame(&vec![value; if group == 0 { planes * channels * rows } else { 0 }], out);
        }
    }

    pub fn blob(&self) -> Vec<u8> {
        let (width, rows) = (self.dtype.bytes(), self.rows);
        let mut out = b"\0\0\0\0MNKV\x02\0".to_vec();
        out.extend_from_slice(&[self.dtype as u32 as u8, 1]);
        out.extend_from_slice(&(self.row_len as u32).to_le_bytes());
        out.extend_from_slice(&(self.len() as u64).to_le_bytes());
        out.extend_from_slice(&0u64.to_le_bytes());
        out.push(if self.is_rotated { 3 } else { 1 });
        let refers = |row: usize| !row.is_multiple_of(self.new_every);
        let mut distances = vec![0; 4 * rows];
        (0..rows).filter(|row| refers(*row)).for_each(|row| distances[row] = 1);
        frame(&distances, &mut out);
        let referring = (0..rows).filter(|row| refers(*row)).count();
        frame(&vec![self.kind; referring], &mut out);
        match self.kind & 0x7F {
            0 => {}
            1 | 2 if referring > 0 => {
                self.planes(1, self.row_len, referring.div_ceil(2), self.nibble, &mut out);
                let large = if self.nibble == 0xFF { self.row_len * referring } else { 0 };
                number(large, &mut out);
                self.planes(width, 1, large, 1, &mut out);
            }
            _ => self.planes(width, self.row_len, referring, 1, &mut out),
        }
        if self.is_rotated {
            out.push(1);
            number(self.pairs, &mut out);
            out.push(0);
            out.extend_from_slice(&10_000f32.to_le_bytes());
            number(rows, &mut out);
            frame(&vec![0; 4 * rows], &mut out);
        }
        self.planes(width, self.row_len, rows - referring, 1, &mut out);
        let checksum = xxh3_64(&out) as u32;
        out.extend_from_slice(&checksum.to_le_bytes());
        out
    }
}
