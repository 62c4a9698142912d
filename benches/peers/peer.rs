//! The candidates: words to a blob that the candidate owns, and back.

use super::dump::Dump;
use super::rans::Rans;
use super::shuffle::{bit_shuffle, bit_unshuffle, merge, shuffle, split, unshuffle};
use super::stock::{Alone, Copied, Filtered, Lz4, Pco, Zstd};
use half::f16;
use mnnkv::dtype::Dtype;
use mnnkv::gear::{Decoder, Effort, Encoder, Format, Frequencies, Options, Pairing, Positions, Rotation};
use pco::{ChunkConfig, PagingSpec};

pub trait Peer {
    /// Runs once, not timed.
    fn prepare(&mut self, _words: &[u8]) {}
    fn encode(&mut self, words: &[u8]);
    fn decode(&mut self, words: &mut [u8]);
    /// Runs after the checked decode, not timed.
    fn finish(&mut self, _words: &mut [u8]) {}
    fn encoded_len(&self) -> usize;
}

pub type Named = (&'static str, Box<dyn Peer>);

pub const MEMCPY: &str = "memcpy";
pub const SPLIT_3: &str = "split zstd-3";
pub const ALONE_3: &str = "zstd-3 alone on split bytes";
pub const V1_5: &str = "v1 effort 5";
pub const V2_5: &str = "v2 effort 5";
pub const V2_9: &str = "v2 effort 9";
pub const LANES: &str = "lanes";
pub const HINT: &str = "v2 effort 5, hint on K";
pub const PLANE_ZSTD: &str = "zstd-1";
pub const PLANE_RANS: &str = "rANS, 12 bits, 8 states";
pub const PLANE_V1: &str = "v1 effort 1 (Huffman)";

/// All candidates, in the order of the tables.
pub fn all(dump: &Dump) -> Vec<Named> {
    let width = dump.dtype.bytes();
    let whole = dump.words.len();
    let split_by = |level, block, streams, filter| Filtered::new(level, width, block, streams, filter);
    let mut peers: Vec<Named> = vec![
        (MEMCPY, Box::<Copied>::default()),
        ("zstd-1", Box::new(Zstd::new(1))),
        ("zstd-3", Box::new(Zstd::new(3))),
        ("split zstd-1", Box::new(split_by(1, whole, width, (split, merge)))),
        (SPLIT_3, Box::new(split_by(3, whole, width, (split, merge)))),
        (ALONE_3, Box::new(Alone(split_by(3, whole, width, (split, merge))))),
        ("lz4", Box::new(Lz4::new())),
    ];
    let channels = Some((dump.tokens, dump.dim));
    let chunks = PagingSpec::Exact(vec![dump.tokens; whole / width / dump.tokens]);
    for (name, channels, paging) in [
        ("pco", None, PagingSpec::default()),
        ("pco, by channel", channels, PagingSpec::default()),
        ("pco, a chunk per channel", channels, chunks),
    ] {
        let config = ChunkConfig::default().with_paging_spec(paging);
        peers.push(match dump.dtype {
            Dtype::F16 => (name, Box::new(Pco::<f16>::new(config, channels, f16::ZERO))),
            _ => (name, Box::new(Pco::<f32>::new(config, channels, 0.0))),
        });
    }
    // As Blosc2 at low levels: a stream per plane with byte shuffle, one per block with bit shuffle.
    const BLOCK: usize = 256 << 10;
    peers.push(("shuffle + zstd-3, 256 KiB", Box::new(split_by(3, BLOCK, width, (shuffle, unshuffle)))));
    peers.push(("bitshuffle + zstd-3, 256 KiB", Box::new(split_by(3, BLOCK, 1, (bit_shuffle, bit_unshuffle)))));

    for (name, format, effort) in [
        ("v1 effort 1", Format::V1, 1),
        (V1_5, Format::V1, 5),
        ("v1 effort 9", Format::V1, 9),
        ("v2 effort 1", Format::V2, 1),
        (V2_5, Format::V2, 5),
        (V2_9, Format::V2, 9),
        (LANES, Format::Lanes, 0),
    ] {
        peers.push((name, Box::new(Ours::new(dump.dtype, options(format, effort, dump.dim)))));
    }
    if dump.rotary && dump.kind == "k" {
        let rotation = Rotation {
            pairing: Pairing::Half,
            dims: dump.dim,
            frequencies: Frequencies::Theta(10_000.0),
            tokens: dump.tokens,
            positions: Positions::Counting { first: 0 },
        };
        let options = Options { rotation: Some(rotation), ..options(Format::V2, 5, dump.dim) };
        peers.push((HINT, Box::new(Ours::new(dump.dtype, options))));
    }
    peers
}

/// Entropy stages for one plane of bytes.
pub fn for_plane() -> Vec<Named> {
    vec![
        (PLANE_ZSTD, Box::new(Zstd::new(1))),
        (PLANE_RANS, Box::<Rans>::default()),
        // The Huffman coder is private. The plane is passed as words of two bytes: each plane has every other byte.
        (PLANE_V1, Box::new(Ours::new(Dtype::F16, options(Format::V1, 1, 0)))),
    ]
}

pub fn options(format: Format, effort: i32, head_dim: usize) -> Options<'static> {
    Options { effort: Effort::new(effort, "effort").unwrap(), head_dim, ..Options::new(format) }
}

struct Ours {
    dtype: Dtype,
    options: Options<'static>,
    encoder: Encoder,
    decoder: Decoder,
    blob: Vec<u8>,
}

impl Ours {
    fn new(dtype: Dtype, options: Options<'static>) -> Self {
        Ours { dtype, options, encoder: Encoder::new(), decoder: Decoder::new(), blob: Vec::new() }
    }
}

impl Peer for Ours {
    /// A copy of the encoder's blob for the decoder, not timed.
    fn prepare(&mut self, words: &[u8]) {
        self.blob = self.encoder.encode(words, self.dtype, &self.options).unwrap().to_vec();
    }

    fn encode(&mut self, words: &[u8]) {
        let blob = self.encoder.encode(words, self.dtype, &self.options).unwrap();
        assert_eq!(blob.len(), self.blob.len());
    }

    fn decode(&mut self, words: &mut [u8]) {
        self.decoder.decode(&self.blob, self.dtype, words).unwrap();
    }

    fn encoded_len(&self) -> usize {
        self.blob.len()
    }
}
