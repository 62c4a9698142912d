//! The learned compressor of KV caches (FastCache, arXiv 2503.08461) in InfiniLM's weights file of version 1.
//!
//! For every layer of a model the file has networks of three linear layers: one for K and one for V of text, and mostly
//! two more for K and V of an image at the start of the prompt. A network turns the rows of `factor` neighbouring
//! tokens of a head into the row of one token. [`Compressor::read`] checks a file, [`Compressor::plan`] computes the
//! new length, [`Compressor::run`] computes the rows, and [`Weights`] writes a file.
//!
//! ```text
//! offset size field, little-endian
//!  0      4   magic 0x4B56434D
//!  4      4   version, 1
//!  8      2   dtype: 0 F16, 1 BF16, 2 F32, of every weight and bias
//! 10      2   reserved
//! 12      4   num_layers
//!  16      4   num_heads; ignored
//! 20      4   head_dim: rows of the last linear layer
//! 24      4   hidden_size: columns of the first linear layer, factor * head_dim
//! 28      4   compression_factor
//!  32      4   min_seq_len: a segment of fewer groups stays unchanged
//! 36      4   weight_count_per_layer: 6 (text) or 12 (text and image)
//!  40      4   metadata_size_bytes, followed by the metadata
//!             the blocks, layer by layer: rows u32 | cols u32 | has_bias u32 | weight [rows][cols] | bias [rows]
//! ```
//!
//! Nothing is aligned or padded. The blocks of a layer are tk, tv, ik and iv (text or image, K or V), slots 0 to 2
//! each.

mod forward;
mod mlp;
mod plan;
mod read;
mod shape;
mod write;

pub use forward::{Tokens, Workspace};
pub use plan::{CompressorOptions, LengthPlan, Segment, Segments};
pub use write::{LinearWeights, Weights};

use mnnkv::dtype::Dtype;
use mnnkv::status::{Result, bail};
use std::fmt;

/// First number of a file, little-endian.
pub const MAGIC: u32 = 0x4B56_434D;
/// The version of the format.
pub const VERSION: u32 = 1;
/// Bytes before the metadata.
pub const HEADER_BYTES: u64 = 44;
/// Bytes before the weight of a block.
pub const BLOCK_HEADER_BYTES: u64 = 12;
/// Linear layers of a network.
pub const SLOTS: usize = 3;
/// Blocks per layer: text only, text and images.
pub const BLOCK_COUNTS: [u32; 2] = [6, 12];
/// Element types by their number in a file.
const DTYPES: [Dtype; 3] = [Dtype::F16, Dtype::Bf16, Dtype::F32];

/// The header of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Element type of weights and biases.
    pub dtype: Dtype,
    /// Layers of the model.
    pub layers: u32,
    /// KV heads as the converter wrote them, mostly 0. All heads share the networks.
    pub num_heads: u32,
    /// Elements per head and token according to the header; [`Compressor::head_dim`] is that of the weights.
    pub head_dim: u32,
    /// Inputs of a network.
    pub hidden_size: u32,
    /// Tokens that become one.
    pub factor: u32,
    /// Groups that a segment must have to be compressed.
    pub min_seq_len: u32,
    /// 6 or 12.
    pub blocks_per_layer: u32,
    /// Bytes between the header and the first block.
    pub metadata_bytes: u32,
}

/// A linear layer in a file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockInfo {
    /// Offset of its header in the file.
    pub offset: u64,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Whether a bias of `rows` elements follows the weight.
    pub has_bias: bool,
    /// The largest magnitude among weight and bias.
    largest: f32,
}

impl BlockInfo {
    fn weight_len(&self) -> usize {
        self.rows * self.cols
    }

    fn bias_len(&self) -> usize {
        if self.has_bias { self.rows } else { 0 }
    }
}

/// A weights file in memory. Any thread may use it.
#[derive(Clone, Debug)]
pub struct Compressor {
    header: Header,
    head_dim: usize,
    /// `[layer][block]`
    blocks: Vec<BlockInfo>,
    /// The bytes of the file from the first block to the end of the last.
    data: Vec<u8>,
    data_offset: u64,
    file_bytes: u64,
}

impl Compressor {
    /// The header of the file.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Elements per head and token of the caches.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Layers of the model.
    pub fn layers(&self) -> usize {
        self.header.layers as usize
    }

    /// Whether there are networks for images.
    pub fn has_image(&self) -> bool {
        self.header.blocks_per_layer == BLOCK_COUNTS[1]
    }

    /// Bytes of the whole file.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// The blocks of a layer, 6 or 12. INVALID_ARGUMENT: if the layer does not exist.
    pub fn blocks(&self, layer: usize) -> Result<&[BlockInfo]> {
        let per_layer = self.header.blocks_per_layer as usize;
        match self.blocks.chunks_exact(per_layer).nth(layer) {
            Some(blocks) => Ok(blocks),
            None => bail!(InvalidArgument, "layer is {layer}; the weights file has {} layers", self.layers()),
        }
    }

    /// The bytes of a block's weight and bias.
    fn elements(&self, block: &BlockInfo) -> (&[u8], &[u8]) {
        let bytes = self.header.dtype.bytes();
        let begin = (block.offset + BLOCK_HEADER_BYTES - self.data_offset) as usize;
        let end = begin + block.weight_len() * bytes;
        (&self.data[begin..end], &self.data[end..end + block.bias_len() * bytes])
    }
}

/// Names a block in errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    layer: usize,
    /// Number within the layer.
    block: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = ["tk", "tv", "ik", "iv"].get(self.block / SLOTS).unwrap_or(&"?");
        write!(f, "layer {}, block {} ({prefix} slot {})", self.layer, self.block, self.block % SLOTS)
    }
}
