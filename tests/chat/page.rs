//! A second reader of chat files, without code of the library. Slow and obvious; panics on what no file has.

use crate::v1_reader;
use std::collections::BTreeMap;
use std::ops::Range;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// A layer: its numbers as they are written, and its tokens.
#[derive(Debug, Default)]
pub struct Layer {
    /// heads, dims, tokens of the chat, and the codes of K and of V.
    pub shape: [u64; 5],
    /// The words of each raw token, `[K or V][head][dim]`.
    pub raw: Vec<Vec<u8>>,
    /// The first position and the live tokens of each block, and the codes of its heads.
    pub blocks: Vec<(u64, u64, Vec<Vec<u8>>)>,
    pub state: Vec<u8>,
}

pub struct Page {
    pub sequence: u64,
    pub fingerprint: Vec<u8>,
    pub layers: BTreeMap<u64, Layer>,
    pub sections: BTreeMap<String, Vec<u8>>,
    /// All bytes that are used, ascending.
    pub used: Vec<Range<usize>>,
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: u64) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len as usize);
        self.0 = rest;
        taken
    }

    fn fixed(&mut self, len: u64) -> u64 {
        self.take(len).iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    fn number(&mut self) -> u64 {
        let len = self.0.iter().position(|byte| *byte < 128).unwrap() + 1;
        let bytes = self.take(len as u64);
        assert!(len == 1 || bytes[len - 1] != 0, "not the shortest form");
        bytes.iter().rev().fold(0, |number, byte| number << 7 | u64::from(byte & 127))
    }

    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.number()).map(|_| item(self)).collect()
    }
}

impl Page {
    pub fn read(image: &[u8]) -> Self {
        assert_eq!(&image[..14], b"MNKVCHAT\x01\0\x01\0\x01\0");
        assert_eq!(xxh3_64_with_seed(&image[..504], 0), u64_at(image, 504));
        let len = u64_at(image, 16) as u32 as usize;
        let fingerprint = image[2560..2560 + len].to_vec();
        assert_eq!(xxh3_64(&fingerprint), u64_at(image, 24));
        // sequence; offset, length and checksum of the index; end; checksum and length of the fingerprint.
        let [first, second] = [512, 1536].map(|offset| {
            let [one, two] = [offset, offset + 512].map(|offset| {
                let sector = &image[offset..offset + 512];
                assert_eq!(&sector[..8], b"MNKVSLOT");
                assert_eq!(xxh3_64_with_seed(&sector[..504], offset as u64), u64_at(sector, 504));
                [8, 16, 24, 32, 40, 48, 56].map(|at| u64_at(sector, at))
            });
            assert_eq!(one, two);
            one
        });
        let [sequence, at, len, sum, end, ..] = if second[0] > first[0] { second } else { first };
        assert_eq!([first[0].max(second[0]) - first[0].min(second[0]), end], [1, image.len() as u64]);
        let (layers, sections) = (BTreeMap::new(), BTreeMap::new());
        let start = 0..2560 + fingerprint.len();
        let mut page = Page { sequence, fingerprint, layers, sections, used: Vec::from([start]) };
        let mut index = Reader(page.at(image, [at, len, sum]));
        assert_eq!(index.number(), sequence);
        // What the session has kept for working memory.
        index.number();
        for (layer, at) in index.list(|index| (index.number(), extent(index))) {
            let table = page.at(image, at);
            let layer_of = page.layer(image, Reader(table));
            page.layers.insert(layer, layer_of);
        }
        for (name, at) in index.list(|index| (index.counted().to_vec(), extent(index))) {
            let bytes = page.at(image, at).to_vec();
            page.sections.insert(String::from_utf8(name).unwrap(), bytes);
        }
        assert!(index.0.is_empty());
        page.used.sort_by_key(|range| range.start);
        assert!(page.used.windows(2).all(|pair| pair[0].end <= pair[1].start), "bytes are used twice");
        page
    }

    fn at<'a>(&mut self, image: &'a [u8], [at, len, sum]: [u64; 3]) -> &'a [u8] {
        let range = at as usize..(at + len) as usize;
        self.used.push(range.clone());
        assert_eq!(xxh3_64(&image[range.clone()]), sum);
        &image[range]
    }

    fn layer(&mut self, image: &[u8], mut table: Reader<'_>) -> Layer {
        assert_eq!(table.number(), 2);
        let [heads, dims, logical] = [(); 3].map(|()| table.number());
        let [key, value] = [(); 2].map(|()| table.fixed(1));
        let mut layer = Layer { shape: [heads, dims, logical, key, value], ..Layer::default() };
        let pieces = table.list(|table| (extent(table), table.number()));
        let pieces: Vec<Vec<Vec<u8>>> =
            pieces.into_iter().map(|(at, tokens)| piece(self.at(image, at), heads, tokens)).collect();
        for [piece, offset, count] in table.list(|table| [(); 3].map(|()| table.number() as usize)) {
            layer.raw.extend_from_slice(&pieces[piece][offset..offset + count]);
        }
        if table.fixed(1) == 1 {
            let at = extent(&mut table);
            self.at(image, at);
        }
        let tiles = table.list(|table| (extent(table), table.number()));
        let tiles: Vec<Vec<Vec<Vec<u8>>>> =
            tiles.into_iter().map(|(at, blocks)| self.tile(image, at, (blocks, heads))).collect();
        let (mut next, mut end) = ((0, 0), 0);
        layer.blocks = table.list(|table| {
            let flags = table.fixed(1);
            let (tile, first) = match flags & 2 {
                0 => ((table.number(), table.number()), table.number()),
                _ => (next, end),
            };
            let live = if flags & 1 == 1 { u64::MAX } else { table.fixed(8) };
            (next, end) = ((tile.0, tile.1 + 1), first + u64::from(live.count_ones()));
            (first, live, tiles[tile.0 as usize][tile.1 as usize].clone())
        });
        table.take(4 * layer.blocks.len() as u64 * heads);
        layer.state = table.counted().to_vec();
        assert!(table.0.is_empty());
        layer
    }

    /// The codes of each head of each block.
    fn tile(&mut self, image: &[u8], at: [u64; 3], (blocks, heads): (u64, u64)) -> Vec<Vec<Vec<u8>>> {
        let mut tile = Reader(self.at(image, at));
        // Of each block where its codes and sketches are, of each head its lines, the first of them and their checksum.
        assert_eq!(tile.0.len() as u64, blocks * (24 + heads * 16));
        let list = (0..blocks).map(|_| {
            let (start, len) = (tile.fixed(8) as usize, tile.fixed(4) as usize);
            self.used.push(start..start + len);
            let (sketches, stride) = (tile.fixed(8) as usize, tile.fixed(4) as usize);
            let heads = (0..heads as usize).map(|head| {
                let [lines, first, sum] = [4, 4, 8].map(|len| tile.fixed(len));
                let codes = &image[start..start + len][first as usize * 64..][..lines as usize * 64];
                assert_eq!(xxh3_64(codes), sum);
                // 64 tokens of 32 directions and a scale, and a checksum that is seeded with that of the codes.
                let sketch = sketches + head * stride..sketches + head * stride + 64 * (16 + 2) + 8;
                self.used.push(sketch.clone());
                let (sketch, own) = image[sketch].split_at(64 * (16 + 2));
                assert_eq!(xxh3_64_with_seed(sketch, sum), u64_at(own, 0));
                codes.to_vec()
            });
            heads.collect()
        });
        let list = list.collect();
        assert!(tile.0.is_empty());
        list
    }
}

impl<'a> Reader<'a> {
    fn counted(&mut self) -> &'a [u8] {
        let len = self.number();
        self.take(len)
    }
}

/// Offset, length and checksum.
fn extent(reader: &mut Reader<'_>) -> [u64; 3] {
    [reader.number(), reader.number(), reader.fixed(8)]
}

/// The words of each token of a piece.
fn piece(bytes: &[u8], heads: u64, tokens: u64) -> Vec<Vec<u8>> {
    let mut reader = Reader(bytes);
    let lens: Vec<u64> = (0..2 * heads).map(|_| reader.number()).collect();
    let mut all = vec![Vec::new(); tokens as usize];
    for len in lens {
        let frame = reader.take(len);
        assert_eq!(&frame[..10], b"\0\0\0\0MNKV\x04\x01");
        let words = v1_reader::words(&frame[26..], 2);
        assert_eq!([words.len() as u64 / 2, xxh3_64(&words)], [10, 18].map(|at| u64_at(frame, at)));
        all.iter_mut().zip(words.chunks(words.len() / tokens as usize)).for_each(|(token, row)| token.extend(row));
    }
    assert!(reader.0.is_empty());
    all
}
