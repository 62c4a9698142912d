//! Reads weights files and refuses invalid ones.

use super::shape::Shapes;
use super::{
    BLOCK_COUNTS, BLOCK_HEADER_BYTES, BlockInfo, Compressor, DTYPES, HEADER_BYTES, Header, MAGIC, Place, VERSION,
};
use crate::file::Source;
use mnnkv::dtype::convert::{Endian, largest_magnitude, widen};
use mnnkv::status::{Result, bail};
use mnnkv::sys::memory;

/// Elements per check.
const RUN: usize = 4096;

impl Compressor {
    /// Reads and checks a file: first the header and the shapes of all blocks, which allocates no more than those; then
    /// every number.
    ///
    /// CORRUPT: if the format differs, the file is cut off, its parts contradict each other, or a weight is not finite.
    /// UNSUPPORTED: if the version or element type differs. Messages have offset and field. As other
    /// readers do, it skips metadata, what is set in reserved bits, and bytes behind the last block.
    pub fn read(source: &(impl Source + ?Sized)) -> Result<Self> {
        let header = read_header(source)?;
        let data_offset = HEADER_BYTES + u64::from(header.metadata_bytes);
        let (mut blocks, end) = read_blocks(source, &header, data_offset)?;
        let head_dim = check_head_dim(&header, &blocks[0])?;
        let data = source.read_vec(data_offset, end - data_offset)?;
        check_numbers(&header, &mut blocks, &data, data_offset)?;
        Ok(Compressor { header, head_dim, blocks, data, data_offset, file_bytes: source.len() })
    }
}

fn read_header(source: &(impl Source + ?Sized)) -> Result<Header> {
    let len = source.len();
    if len < HEADER_BYTES {
        bail!(Corrupt, "offset 0: the header has {HEADER_BYTES} bytes, the file {len}");
    }
    let mut bytes = [0; HEADER_BYTES as usize];
    source.read_at(0, &mut bytes)?;
    let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    if u32_at(0) != MAGIC {
        bail!(Corrupt, "offset 0: magic is {:#010x}; {MAGIC:#010x} expected, compressor weights", u32_at(0));
    }
    if u32_at(4) != VERSION {
        bail!(Unsupported, "offset 4: version is {}; {VERSION} expected", u32_at(4));
    }
    let Some(dtype) = DTYPES.get(usize::from(u16_at(8))) else {
        bail!(Unsupported, "offset 8: dtype is {}; 0 (fp16), 1 (bf16) or 2 (fp32) expected", u16_at(8));
    };
    let header = Header {
        dtype: *dtype,
        layers: u32_at(12),
        num_heads: u32_at(16),
        head_dim: u32_at(20),
        hidden_size: u32_at(24),
        factor: u32_at(28),
        min_seq_len: u32_at(32),
        blocks_per_layer: u32_at(36),
        metadata_bytes: u32_at(40),
    };
    let Header { layers, hidden_size, factor, blocks_per_layer, metadata_bytes, .. } = header;
    if layers == 0 {
        bail!(Corrupt, "offset 12: num_layers is 0; at least 1 expected");
    }
    if factor < 2 {
        bail!(Corrupt, "offset 28: compression_factor is {factor}; at least 2 expected");
    }
    // Converters write the columns of the first linear layer, for any head_dim option.
    if hidden_size == 0 || hidden_size % factor != 0 {
        bail!(Corrupt, "offset 24: hidden_size is {hidden_size}; a multiple of compression_factor {factor} expected");
    }
    if !BLOCK_COUNTS.contains(&blocks_per_layer) {
        bail!(Corrupt, "offset 36: weight_count_per_layer is {blocks_per_layer}; 6 or 12 expected");
    }
    let left = len - HEADER_BYTES;
    let Some(left) = left.checked_sub(metadata_bytes.into()) else {
        bail!(Corrupt, "offset 40: metadata_size_bytes is {metadata_bytes}; {left} bytes are left");
    };
    // 32 bits, 4 bits and 4 bits: no overflow.
    let headers = u64::from(layers) * u64::from(blocks_per_layer) * BLOCK_HEADER_BYTES;
    if headers > left {
        bail!(
            Corrupt,
            "offset 12: num_layers is {layers}; headers of {blocks_per_layer} blocks each have {headers} bytes, {left} \
             are left behind the metadata"
        );
    }
    Ok(header)
}

/// Walks over the blocks and reads their headers. Returns the end of the last one, too.
fn read_blocks(source: &(impl Source + ?Sized), header: &Header, data_offset: u64) -> Result<(Vec<BlockInfo>, u64)> {
    let element = header.dtype.bytes() as u64;
    let mut shapes = Shapes::new(header.hidden_size.into(), header.factor.into());
    let mut blocks = Vec::new();
    let mut offset = data_offset;
    for layer in 0..header.layers as usize {
        for block in 0..header.blocks_per_layer as usize {
            let place = Place { layer, block };
            let after = offset.saturating_add(BLOCK_HEADER_BYTES);
            let Some(left) = source.len().checked_sub(after) else {
                let left = source.len() - offset;
                bail!(Corrupt, "offset {offset}: {place}: the block header has 12 bytes, {left} are left");
            };
            let mut bytes = [0; BLOCK_HEADER_BYTES as usize];
            source.read_at(offset, &mut bytes)?;
            let [rows, cols, has_bias] =
                [0, 4, 8].map(|at| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]));
            for (at, name, value) in [(0, "rows", rows), (4, "cols", cols)] {
                if value == 0 {
                    bail!(Corrupt, "offset {}: {place}: {name} is 0; at least 1 expected", offset + at);
                }
            }
            if has_bias > 1 {
                bail!(Corrupt, "offset {}: {place}: has_bias is {has_bias}; 0 or 1 expected", offset + 8);
            }
            let (rows, cols) = (u64::from(rows), u64::from(cols));
            // 64 bits hold the element count, but not always the byte count.
            let Some(bias_left) = rows.checked_mul(cols * element).and_then(|weight| left.checked_sub(weight)) else {
                bail!(
                    Corrupt,
                    "offset {after}: {place}: a weight of {rows} x {cols} elements of {element} bytes is cut, {left} \
                     bytes are left"
                );
            };
            let bias = if has_bias == 1 { rows * element } else { 0 };
            let Some(behind) = bias_left.checked_sub(bias) else {
                bail!(
                    Corrupt,
                    "offset {}: {place}: a bias of {rows} elements of {element} bytes is cut, {bias_left} bytes left",
                    source.len() - bias_left
                );
            };
            if let Err(why) = shapes.next(block, rows, cols) {
                let (at, name, value) = if why.rows { (offset, "rows", rows) } else { (offset + 4, "cols", cols) };
                bail!(Corrupt, "offset {at}: {place}: {name} is {value}; {why}");
            }
            // The file has these elements, and its bytes fit memory.
            let (rows, cols) = (usize::try_from(rows), usize::try_from(cols));
            let (Ok(rows), Ok(cols)) = (rows, cols) else {
                bail!(OutOfMemory, "offset {offset}: {place}: no memory for the weight");
            };
            memory::push(&mut blocks, BlockInfo { offset, rows, cols, has_bias: has_bias == 1, largest: 0.0 })?;
            offset = source.len() - behind;
        }
    }
    Ok((blocks, offset))
}

/// The head_dim of the weights. Another one in the header is damage, except the value that converters write by default:
/// the rows of the first linear layer, which are head_dim in networks as wide as a head.
fn check_head_dim(header: &Header, first: &BlockInfo) -> Result<usize> {
    let head_dim = header.hidden_size / header.factor;
    if header.head_dim != head_dim && header.head_dim as usize != first.rows {
        let Header { head_dim: found, hidden_size, factor, .. } = header;
        bail!(
            Corrupt,
            "offset 20: head_dim is {found}; {head_dim} expected, hidden_size {hidden_size} / compression_factor {factor}"
        );
    }
    Ok(head_dim as usize)
}

/// Checks every weight and bias, and finds the largest of each block.
fn check_numbers(header: &Header, blocks: &mut [BlockInfo], data: &[u8], data_offset: u64) -> Result<()> {
    let bytes = header.dtype.bytes();
    let mut run = [0.0; RUN];
    for (index, block) in blocks.iter_mut().enumerate() {
        let per_layer = header.blocks_per_layer as usize;
        let place = Place { layer: index / per_layer, block: index % per_layer };
        let begin = (block.offset + BLOCK_HEADER_BYTES - data_offset) as usize;
        let all = &data[begin..begin + (block.weight_len() + block.bias_len()) * bytes];
        for (number, from) in all.chunks(RUN * bytes).enumerate() {
            let run = &mut run[..from.len() / bytes];
            widen(header.dtype, Endian::Little, from, run);
            let largest = largest_magnitude(run);
            if largest.is_finite() {
                block.largest = block.largest.max(largest);
                continue;
            }
            let at = run.iter().position(|x| !x.is_finite()).unwrap_or(0);
            let (element, value) = (number * RUN + at, run[at]);
            let offset = block.offset + BLOCK_HEADER_BYTES + (element * bytes) as u64;
            let what = WeightPlace::of(block, element);
            bail!(Corrupt, "offset {offset}: {place}: {what} is {value}; a finite number expected");
        }
    }
    Ok(())
}

/// The place of a number in a block.
pub(super) enum WeightPlace {
    Weight { row: usize, col: usize },
    Bias { row: usize },
}

impl WeightPlace {
    /// The place of number `index` of weight and bias together.
    fn of(block: &BlockInfo, index: usize) -> Self {
        match index.checked_sub(block.weight_len()) {
            Some(row) => WeightPlace::Bias { row },
            None => WeightPlace::Weight { row: index / block.cols, col: index % block.cols },
        }
    }
}

impl std::fmt::Display for WeightPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            WeightPlace::Weight { row, col } => write!(f, "weight[{row}][{col}]"),
            WeightPlace::Bias { row } => write!(f, "bias[{row}]"),
        }
    }
}
