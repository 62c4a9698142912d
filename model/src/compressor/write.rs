//! Writes weights files.

use super::read::WeightPlace;
use super::shape::Shapes;
use super::{BLOCK_COUNTS, BLOCK_HEADER_BYTES, Compressor, DTYPES, HEADER_BYTES, MAGIC, Place, VERSION};
use crate::file::NewFile;
use mnnkv::dtype::Dtype;
use mnnkv::dtype::convert::{Endian, narrow, rounded, widen};
use mnnkv::status::{Result, bail};
use mnnkv::sys::memory;
use std::borrow::Cow;
use std::path::Path;

/// Elements per conversion.
const RUN: usize = 4096;

/// A linear layer: `y[r] = weight[r][0] * x[0] + weight[r][1] * x[1] + ... + bias[r]`.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearWeights<'a> {
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// `[rows][cols]`
    pub weight: Cow<'a, [f32]>,
    /// `[rows]`
    pub bias: Option<Cow<'a, [f32]>>,
}

/// The networks of a new weights file.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights<'a> {
    /// Element type in the file: F16, BF16 or F32.
    pub dtype: Dtype,
    /// KV heads of the model, for information; 0 is usual.
    pub num_heads: u32,
    /// Elements per head and token.
    pub head_dim: u32,
    /// Tokens that become one, at least 2.
    pub factor: u32,
    /// Groups that a segment must have to be compressed; 2 is usual.
    pub min_seq_len: u32,
    /// For each layer 6 blocks (tk and tv, slots 0 to 2) or 12 (tk, tv, ik, iv).
    pub layers: Vec<Vec<LinearWeights<'a>>>,
}

impl Weights<'_> {
    /// Passes the file to `put` in pieces. Numbers are rounded to nearest even.
    ///
    /// INVALID_ARGUMENT, before the first piece: if readers would refuse the shapes, or a number is not finite in the
    /// file's type. The message names the block.
    pub fn write(&self, mut put: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        self.check()?;
        put(&self.header())?;
        let mut bytes = [0; RUN * 4];
        for block in self.layers.iter().flatten() {
            let mut header = [0; BLOCK_HEADER_BYTES as usize];
            let fields = [block.rows as u32, block.cols as u32, block.bias.is_some().into()];
            header.as_chunks_mut::<4>().0.iter_mut().zip(fields).for_each(|(to, field)| *to = field.to_le_bytes());
            put(&header)?;
            for run in block.weight.chunks(RUN).chain(block.bias.as_deref().unwrap_or_default().chunks(RUN)) {
                let bytes = &mut bytes[..run.len() * self.dtype.bytes()];
                narrow(self.dtype, Endian::Little, run, bytes);
                put(bytes)?;
            }
        }
        Ok(())
    }

    /// The file as bytes in memory.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut file = Vec::new();
        memory::reserve(&mut file, usize::try_from(self.file_bytes()).unwrap_or(usize::MAX))?;
        self.write(|bytes| memory::extend(&mut file, bytes))?;
        Ok(file)
    }

    /// Writes a file of that name, completely or not at all.
    pub fn to_file(&self, path: &Path) -> Result<()> {
        self.check()?;
        let mut file = NewFile::create(path)?;
        self.write(|bytes| file.write(bytes))?;
        file.finish()
    }

    /// Bytes of the file.
    pub fn file_bytes(&self) -> u64 {
        let elements = |b: &LinearWeights| b.weight.len() + b.bias.as_ref().map_or(0, |bias| bias.len());
        let block = |b: &LinearWeights| BLOCK_HEADER_BYTES + (elements(b) * self.dtype.bytes()) as u64;
        HEADER_BYTES + self.layers.iter().flatten().map(block).sum::<u64>()
    }

    /// Fails on shapes that readers refuse, then on numbers outside the file's type: none is read before all shapes fit.
    pub fn check(&self) -> Result<()> {
        let Weights { dtype, head_dim, factor, ref layers, .. } = *self;
        if !DTYPES.contains(&dtype) {
            bail!(InvalidArgument, "dtype is {}; F16, BF16 or F32 expected", dtype.name());
        }
        if factor < 2 {
            bail!(InvalidArgument, "compression_factor is {factor}; at least 2 expected");
        }
        let Some(input) = factor.checked_mul(head_dim).filter(|input| *input > 0) else {
            bail!(InvalidArgument, "head_dim is {head_dim}; 1 to {} expected for this factor", u32::MAX / factor);
        };
        let per_layer = layers.first().map_or(0, Vec::len);
        if !BLOCK_COUNTS.iter().any(|count| *count as usize == per_layer) || u32::try_from(layers.len()).is_err() {
            bail!(InvalidArgument, "{} layers of {per_layer} blocks; 6 or 12 blocks expected", layers.len());
        }
        let mut shapes = Shapes::new(input.into(), factor.into());
        for (layer, blocks) in layers.iter().enumerate() {
            if blocks.len() != per_layer {
                bail!(InvalidArgument, "layer {layer} has {} blocks; {per_layer} expected, as layer 0", blocks.len());
            }
            for (index, block) in blocks.iter().enumerate() {
                check_shape(&mut shapes, Place { layer, block: index }, block)?;
            }
        }
        for (layer, blocks) in layers.iter().enumerate() {
            for (index, block) in blocks.iter().enumerate() {
                self.check_numbers(Place { layer, block: index }, block)?;
            }
        }
        Ok(())
    }

    fn check_numbers(&self, place: Place, block: &LinearWeights) -> Result<()> {
        let LinearWeights { cols, ref weight, ref bias, .. } = *block;
        let largest = largest_finite(self.dtype);
        // False for NaN. Some numbers above the largest are rounded down to it.
        #[allow(clippy::neg_cmp_op_on_partial_ord)]
        let lost = |x: &f32| !(x.abs() <= largest) && !rounded(self.dtype, *x).is_finite();
        let bias = bias.as_deref().unwrap_or_default();
        let (x, what) = match (weight.iter().position(lost), bias.iter().position(lost)) {
            (Some(i), _) => (weight[i], WeightPlace::Weight { row: i / cols, col: i % cols }),
            (None, Some(row)) => (bias[row], WeightPlace::Bias { row }),
            (None, None) => return Ok(()),
        };
        bail!(InvalidArgument, "{place}: {what} is {x}, not finite in {}", self.dtype.name())
    }

    fn header(&self) -> [u8; HEADER_BYTES as usize] {
        let dtype = DTYPES.iter().position(|dtype| *dtype == self.dtype).unwrap_or(0) as u32;
        let per_layer = self.layers.first().map_or(0, Vec::len);
        // The third number holds dtype and reserved, 16 bits each.
        let fields = [
            MAGIC,
            VERSION,
            dtype,
            self.layers.len() as u32,
            self.num_heads,
            self.head_dim,
            self.factor * self.head_dim,
            self.factor,
            self.min_seq_len,
            per_layer as u32,
            0,
        ];
        let mut bytes = [0; HEADER_BYTES as usize];
        bytes.as_chunks_mut::<4>().0.iter_mut().zip(fields).for_each(|(to, field)| *to = field.to_le_bytes());
        bytes
    }
}

fn check_shape(shapes: &mut Shapes, place: Place, block: &LinearWeights) -> Result<()> {
    let LinearWeights { rows, cols, ref weight, ref bias } = *block;
    for (name, value) in [("rows", rows), ("cols", cols)] {
        if value == 0 || u32::try_from(value).is_err() {
            bail!(InvalidArgument, "{place}: {name} is {value}; 1 to 2^32 - 1 expected");
        }
    }
    if rows.checked_mul(cols) != Some(weight.len()) {
        bail!(InvalidArgument, "{place}: {} elements for a weight of {rows} x {cols}", weight.len());
    }
    if bias.as_ref().is_some_and(|bias| bias.len() != rows) {
        let len = bias.as_ref().map_or(0, |bias| bias.len());
        bail!(InvalidArgument, "{place}: {len} elements of bias; {rows} expected, as many as rows");
    }
    if let Err(why) = shapes.next(place.block, rows as u64, cols as u64) {
        let (name, value) = if why.rows { ("rows", rows) } else { ("cols", cols) };
        bail!(InvalidArgument, "{place}: {name} is {value}; {why}");
    }
    Ok(())
}

/// The largest number of a float type.
fn largest_finite(dtype: Dtype) -> f32 {
    match dtype {
        Dtype::F16 => half::f16::MAX.to_f32(),
        Dtype::Bf16 => half::bf16::MAX.to_f32(),
        _ => f32::MAX,
    }
}

impl Compressor {
    /// The contents of the file as f32, for writing: the same bytes where there are no notes.
    pub fn weights(&self) -> Result<Weights<'static>> {
        let numbers = |bytes: &[u8]| {
            let mut numbers = memory::filled(0.0, bytes.len() / self.header.dtype.bytes())?;
            widen(self.header.dtype, Endian::Little, bytes, &mut numbers);
            Ok(Cow::Owned(numbers))
        };
        let linear = |block: &super::BlockInfo| {
            let (weight, bias) = self.elements(block);
            let bias = block.has_bias.then(|| numbers(bias)).transpose()?;
            Ok(LinearWeights { rows: block.rows, cols: block.cols, weight: numbers(weight)?, bias })
        };
        let layers = self.blocks.chunks_exact(self.header.blocks_per_layer as usize);
        Ok(Weights {
            dtype: self.header.dtype,
            num_heads: self.header.num_heads,
            head_dim: self.head_dim as u32,
            factor: self.header.factor,
            min_seq_len: self.header.min_seq_len,
            layers: memory::try_collect(layers.map(|blocks| memory::try_collect(blocks.iter().map(linear))))?,
        })
    }
}
