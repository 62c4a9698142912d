//! Third-party codecs, each at its best within its interface, with reused contexts and buffers.

use super::peer::Peer;
use super::shuffle::transpose;
use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};
use pco::ChunkConfig;
use pco::data_types::Number;
use pco::standalone::{simple_compress_into, simple_decompress_into};

#[derive(Default)]
pub struct Copied(Vec<u8>);

impl Peer for Copied {
    fn prepare(&mut self, words: &[u8]) {
        self.0.resize(words.len(), 0);
    }

    fn encode(&mut self, words: &[u8]) {
        self.0.copy_from_slice(words);
    }

    fn decode(&mut self, words: &mut [u8]) {
        words.copy_from_slice(&self.0);
    }

    fn encoded_len(&self) -> usize {
        self.0.len()
    }
}

/// Concatenated frames. Their lengths are not counted, a few bytes in favour of the rivals.
pub struct Zstd {
    level: i32,
    encoder: zstd_safe::CCtx<'static>,
    decoder: zstd_safe::DCtx<'static>,
    blob: Vec<u8>,
    ends: Vec<usize>,
}

impl Zstd {
    pub fn new(level: i32) -> Self {
        let (encoder, decoder) = (zstd_safe::CCtx::create(), zstd_safe::DCtx::create());
        Zstd { level, encoder, decoder, blob: Vec::new(), ends: Vec::new() }
    }

    fn push(&mut self, bytes: &[u8]) {
        let at = self.encoded_len();
        let end = at + zstd_safe::compress_bound(bytes.len());
        self.blob.resize(end.max(self.blob.len()), 0);
        self.ends.push(at + self.encoder.compress(&mut self.blob[at..], bytes, self.level).unwrap());
    }

    /// Decodes frame `i`, which is `bytes` long.
    fn pull(&mut self, i: usize, bytes: &mut [u8]) {
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        assert_eq!(self.decoder.decompress(bytes, &self.blob[start..self.ends[i]]), Ok(bytes.len()));
    }
}

impl Peer for Zstd {
    fn encode(&mut self, words: &[u8]) {
        self.ends.clear();
        self.push(words);
    }

    fn decode(&mut self, words: &mut [u8]) {
        self.pull(0, words);
    }

    fn encoded_len(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }
}

pub type Order = fn(&[u8], &mut [u8], usize);

/// ZSTD after a change of order, block by block.
pub struct Filtered {
    zstd: Zstd,
    width: usize,
    block: usize,
    /// Frames per block.
    streams: usize,
    filter: (Order, Order),
    planes: Vec<u8>,
    /// The decoder has its own buffer; in a shared one the check could read what the encoder wrote.
    back: Vec<u8>,
}

impl Filtered {
    pub fn new(level: i32, width: usize, block: usize, streams: usize, filter: (Order, Order)) -> Self {
        Filtered { zstd: Zstd::new(level), width, block, streams, filter, planes: Vec::new(), back: Vec::new() }
    }
}

impl Peer for Filtered {
    fn prepare(&mut self, words: &[u8]) {
        self.planes.resize(words.len().min(self.block), 0);
        self.back.resize(self.planes.len(), 0);
    }

    fn encode(&mut self, words: &[u8]) {
        self.zstd.ends.clear();
        for block in words.chunks(self.block) {
            let planes = &mut self.planes[..block.len()];
            self.filter.0(block, planes, self.width);
            for plane in planes.chunks_exact(planes.len() / self.streams) {
                self.zstd.push(plane);
            }
        }
    }

    fn decode(&mut self, words: &mut [u8]) {
        for (i, block) in words.chunks_mut(self.block).enumerate() {
            let planes = &mut self.back[..block.len()];
            let plane_len = planes.len() / self.streams;
            for (j, plane) in planes.chunks_exact_mut(plane_len).enumerate() {
                self.zstd.pull(i * self.streams + j, plane);
            }
            self.filter.1(planes, block, self.width);
        }
    }

    fn encoded_len(&self) -> usize {
        self.zstd.encoded_len()
    }
}

/// The share of ZSTD in the time of a [`Filtered`] of one block.
pub struct Alone(pub Filtered);

impl Peer for Alone {
    fn prepare(&mut self, words: &[u8]) {
        self.0.prepare(words);
        self.0.filter.0(words, &mut self.0.planes, self.0.width);
    }

    fn encode(&mut self, _words: &[u8]) {
        let Filtered { zstd, planes, streams, .. } = &mut self.0;
        zstd.ends.clear();
        planes.chunks_exact(planes.len() / *streams).for_each(|plane| zstd.push(plane));
    }

    fn decode(&mut self, _words: &mut [u8]) {
        let Filtered { zstd, back, streams, .. } = &mut self.0;
        let plane_len = back.len() / *streams;
        back.chunks_exact_mut(plane_len).enumerate().for_each(|(i, plane)| zstd.pull(i, plane));
    }

    fn finish(&mut self, words: &mut [u8]) {
        self.0.filter.1(&self.0.back, words, self.0.width);
    }

    fn encoded_len(&self) -> usize {
        self.0.encoded_len()
    }
}

pub struct Lz4 {
    table: CompressTable,
    blob: Vec<u8>,
    len: usize,
}

impl Lz4 {
    pub fn new() -> Self {
        Lz4 { table: CompressTable::large(), blob: Vec::new(), len: 0 }
    }
}

impl Peer for Lz4 {
    fn prepare(&mut self, words: &[u8]) {
        self.blob.resize(get_maximum_output_size(words.len()), 0);
    }

    fn encode(&mut self, words: &[u8]) {
        self.len = compress_into_with_table(words, &mut self.blob, &mut self.table).unwrap();
    }

    fn decode(&mut self, words: &mut [u8]) {
        decompress_into(&self.blob[..self.len], words).unwrap();
    }

    fn encoded_len(&self) -> usize {
        self.len
    }
}

pub struct Pco<T> {
    config: ChunkConfig,
    /// Tokens and channels of a head; the tokens of a channel are coded consecutively.
    channels: Option<(usize, usize)>,
    zero: T,
    turned: Vec<T>,
    back: Vec<T>,
    blob: Vec<u8>,
}

impl<T: Number> Pco<T> {
    pub fn new(config: ChunkConfig, channels: Option<(usize, usize)>, zero: T) -> Self {
        Pco { config, channels, zero, turned: Vec::new(), back: Vec::new(), blob: Vec::new() }
    }
}

impl<T: Number> Peer for Pco<T> {
    fn prepare(&mut self, words: &[u8]) {
        self.turned.resize(words.len() / size_of::<T>(), self.zero);
        self.back.resize(self.turned.len(), self.zero);
    }

    fn encode(&mut self, words: &[u8]) {
        // SAFETY: T is f16 or f32, for which all bits are valid.
        let (unaligned, mut numbers, _) = unsafe { words.align_to::<T>() };
        assert!(unaligned.is_empty());
        if let Some((tokens, dim)) = self.channels {
            transpose(numbers, &mut self.turned, tokens, dim);
            numbers = &self.turned;
        }
        self.blob.clear();
        simple_compress_into(numbers, &self.config, &mut self.blob).unwrap();
    }

    fn decode(&mut self, words: &mut [u8]) {
        // SAFETY: T is f16 or f32, for which all bits are valid.
        let (unaligned, numbers, _) = unsafe { words.align_to_mut::<T>() };
        assert!(unaligned.is_empty());
        if let Some((tokens, dim)) = self.channels {
            simple_decompress_into(&self.blob, &mut self.back).unwrap();
            transpose(&self.back, numbers, dim, tokens);
        } else {
            simple_decompress_into(&self.blob, numbers).unwrap();
        }
    }

    fn encoded_len(&self) -> usize {
        self.blob.len()
    }
}
