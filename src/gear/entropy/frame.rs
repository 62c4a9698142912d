//! Headers of frames, blocks and literals sections (RFC 8878, 3.1.1).

/// The longest block, and the longest window a block may assume.
pub(super) const BLOCK_MAX: usize = 1 << 17;
/// The longest frame header: magic, descriptor, an eight-byte content size.
pub(super) const HEADER_MAX: usize = 13;
pub(super) const BLOCK_HEADER: usize = 3;
/// The last byte of a compressed block without sequences: their number.
pub(super) const NO_SEQUENCES: u8 = 0;

const MAGIC: u32 = 0xFD2F_B528;
/// The bit of the descriptor that makes the content size the window size.
const SINGLE_SEGMENT: u8 = 1 << 5;

/// The type of a block on the wire.
#[derive(Clone, Copy)]
pub(super) enum Block {
    Raw = 0,
    Rle = 1,
    Compressed = 2,
}

/// The start of a literals section; the number is its type on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tree {
    /// The description of its tree.
    Own = 2,
    /// Nothing: the tree of the block before.
    Previous = 3,
}

/// Writes the header of a frame of `len` bytes, which fits every decoder that has room for the content; returns its
/// length.
pub(super) fn begin(len: usize, out: &mut [u8]) -> usize {
    // The two-byte form counts from 256.
    let (flag, field, field_len) = match len {
        0..256 => (0, len, 1),
        256..65_792 => (1, len - 256, 2),
        _ if len <= u32::MAX as usize => (2, len, 4),
        _ => (3, len, 8),
    };
    out[..4].copy_from_slice(&MAGIC.to_le_bytes());
    out[4] = flag << 6 | SINGLE_SEGMENT;
    out[5..5 + field_len].copy_from_slice(&(field as u64).to_le_bytes()[..field_len]);
    5 + field_len
}

/// The header of a block. `size` counts what follows, for RLE what it yields.
pub(super) fn block_header(block: Block, size: usize, last: bool) -> [u8; BLOCK_HEADER] {
    let [a, b, c, _] = ((size as u32) << 3 | (block as u32) << 1 | last as u32).to_le_bytes();
    [a, b, c]
}

/// Writes a block that stores `src`; returns its length.
pub(super) fn raw_block(src: &[u8], last: bool, out: &mut [u8]) -> usize {
    out[..BLOCK_HEADER].copy_from_slice(&block_header(Block::Raw, src.len(), last));
    out[BLOCK_HEADER..][..src.len()].copy_from_slice(src);
    BLOCK_HEADER + src.len()
}

/// The layout of a literals section.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    pub(super) header_len: usize,
    /// One or four.
    pub(super) streams: usize,
    size_format: u64,
    size_bits: u32,
}

/// The layout for `len` literals. One stream is always shorter than four, but only short sections may have one.
pub(super) const fn layout(len: usize) -> Layout {
    match len {
        0..1024 => Layout { header_len: 3, streams: 1, size_format: 0, size_bits: 10 },
        1024..16_384 => Layout { header_len: 4, streams: 4, size_format: 2, size_bits: 14 },
        _ => Layout { header_len: 5, streams: 4, size_format: 3, size_bits: 18 },
    }
}

impl Layout {
    /// Writes the header. `compressed` counts tree, jump table and streams, and is less than `len`.
    pub(super) fn write(&self, tree: Tree, len: usize, compressed: usize, out: &mut [u8]) {
        let sizes = len as u64 | (compressed as u64) << self.size_bits;
        let header = tree as u64 | self.size_format << 2 | sizes << 4;
        out[..self.header_len].copy_from_slice(&header.to_le_bytes()[..self.header_len]);
    }
}
