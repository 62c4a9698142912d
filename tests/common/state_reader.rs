//! A second reader of state blobs, written from `docs/state.md`, without code of the library. Slow and obvious; panics on
//! any violation of the format.

use super::{lanes_reader, v2_reader};
use xxhash_rust::xxh3::xxh3_64;

struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len);
        self.0 = rest;
        taken
    }

    fn number(&mut self, len: usize) -> usize {
        self.take(len).iter().rev().fold(0, |n, b| n << 8 | *b as usize)
    }
}

/// A stream: its places in a row as (first byte, bytes) pairs, its dtype, and whether it is transposed.
struct Stream {
    runs: Vec<(usize, usize)>,
    dtype: usize,
    is_transposed: bool,
}

struct Region {
    rows: usize,
    stride: usize,
    section_rows: usize,
    streams: Vec<Stream>,
}

fn region(from: &mut Bytes<'_>) -> Region {
    let [rows, stride, section_rows, fields] = [8; 4].map(|len| from.number(len));
    let opaque = |first, end| Stream { runs: vec![(first, end - first)], dtype: 4, is_transposed: false };
    let (mut streams, mut end) = (Vec::new(), 0);
    for _ in 0..fields {
        let [offset, bytes, layout, dtype, block, scale] = [8, 8, 2, 2, 2, 2].map(|len| from.number(len));
        if offset > end {
            streams.push(opaque(end, offset));
        }
        end = offset + bytes;
        if layout == 2 {
            let blocks = (offset..end).step_by(block);
            let runs = blocks.clone().map(|at| (at, scale)).collect();
            streams.push(Stream { runs, dtype, is_transposed: false });
            let runs = blocks.map(|at| (at + scale, block - scale)).collect();
            streams.push(Stream { runs, dtype: 4, is_transposed: false });
        } else {
            streams.push(Stream { runs: vec![(offset, bytes)], dtype, is_transposed: layout == 1 });
        }
    }
    if end < stride {
        streams.push(opaque(end, stride));
    }
    Region { rows, stride, section_rows, streams }
}

fn words(stored: &mut Bytes<'_>, dtype: usize) -> Vec<u8> {
    let [codec, len] = [1, 8].map(|len| stored.number(len));
    let bytes = stored.take(len);
    let dtype = [dtype, dtype, 1, 3][codec];
    match (codec, bytes) {
        (0, words) => words.to_vec(),
        (1..4, [0, 0, 0, 0, b'M', b'N', b'K', b'V', 2, ..]) => {
            let blob = v2_reader::read(bytes);
            assert_eq!(blob.dtype as usize, dtype);
            blob.words
        }
        (1..4, blob) => {
            let (found, words) = lanes_reader::read(blob).unwrap();
            assert_eq!(found as usize, dtype);
            words
        }
        (codec, _) => panic!("codec {codec}"),
    }
}

/// The buffer that a blob has.
pub fn read(blob: &[u8]) -> Vec<u8> {
    let mut from = Bytes(blob);
    assert_eq!(from.take(16), b"MNKVSTAT\x01\0\0\0\0\0\0\0");
    let [blob_len, raw_len, regions, sections] = [8; 4].map(|len| from.number(len));
    assert_eq!(blob_len, blob.len());
    let regions: Vec<Region> = (0..regions).map(|_| region(&mut from)).collect();
    let table: Vec<[usize; 3]> = (0..sections).map(|_| [8; 3].map(|len| from.number(len))).collect();
    let head = &blob[..blob.len() - from.0.len()];
    assert_eq!(from.number(8) as u64, xxh3_64(head));

    let (mut raw, mut table) = (Vec::new(), table.into_iter());
    for region in &regions {
        let mut left = region.rows;
        while left > 0 {
            let rows = left.min(region.section_rows);
            let [len, raw_sum, stored_sum] = table.next().unwrap();
            let stored = from.take(len);
            assert_eq!(xxh3_64(stored), stored_sum as u64);
            let section = section(region, rows, stored);
            assert_eq!(xxh3_64(&section), raw_sum as u64);
            raw.extend(section);
            left -= rows;
        }
    }
    assert!(table.next().is_none() && from.0.is_empty() && raw.len() == raw_len);
    raw
}

fn section(region: &Region, rows: usize, stored: &[u8]) -> Vec<u8> {
    let (mut stored, mut raw) = (Bytes(stored), vec![0; rows * region.stride]);
    for stream in &region.streams {
        let words = words(&mut stored, stream.dtype);
        let width = [0, 2, 2, 4, 1][stream.dtype];
        let row_len: usize = stream.runs.iter().map(|run| run.1).sum();
        assert_eq!(words.len(), rows * row_len);
        for row in 0..rows {
            let places = stream.runs.iter().flat_map(|(first, len)| *first..first + len);
            for (i, place) in places.enumerate() {
                let column = i / width;
                let word = if stream.is_transposed { column * rows + row } else { row * (row_len / width) + column };
                raw[row * region.stride + place] = words[word * width + i % width];
            }
        }
    }
    assert!(stored.0.is_empty());
    raw
}
