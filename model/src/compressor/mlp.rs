//! One network over many rows.

use super::{BlockInfo, Compressor, SLOTS};
use mnnkv::arch::{self, PANEL, Product};
use mnnkv::dtype::Dtype;
use mnnkv::dtype::convert::{Endian, activate, largest_magnitude, narrow, round, rounded, widen};
use mnnkv::status::Result;
use mnnkv::sys::memory;

/// Rows per pass through all layers: intermediate results stay in the caches of the CPU.
pub(super) const ROWS: usize = 48;

/// A linear layer in the order of the kernel.
#[derive(Clone, Debug, Default)]
struct Packed {
    depth: usize,
    /// `[panel][depth][PANEL]`
    panels: Vec<[f32; PANEL]>,
    /// `[panel][PANEL]`
    bias: Vec<[f32; PANEL]>,
}

impl Packed {
    /// Rearranges a weight `[rows][depth]`. A missing bias is zeros. The padding of the last panel is unspecified.
    fn set(&mut self, depth: usize, weight: &[f32], bias: &[f32]) -> Result<()> {
        let panels = (weight.len() / depth).div_ceil(PANEL);
        self.depth = depth;
        memory::resize(&mut self.panels, panels * depth)?;
        memory::resize(&mut self.bias, panels)?;
        arch::pack_panels(weight, depth, &mut self.panels);
        self.bias.fill([0.0; PANEL]);
        self.bias.as_flattened_mut().iter_mut().zip(bias).for_each(|(to, x)| *to = *x);
        Ok(())
    }

    fn apply(&self, a: &[f32], stride: usize, result: &mut [[f32; PANEL]]) {
        let product = Product { a, stride, depth: self.depth, panels: &self.panels, bias: &self.bias };
        (arch::kernels().product)(&product, result);
    }
}

/// Working memory of a network and its rows, reused by every call.
#[derive(Clone, Debug, Default)]
pub(super) struct Mlp {
    dtype: Option<Dtype>,
    layers: [Packed; SLOTS],
    plain: Vec<f32>,
    input: Vec<f32>,
    between: [Vec<[f32; PANEL]>; 2],
}

impl Mlp {
    /// Loads a network for caches of `dtype`, rounded to that type.
    pub(super) fn load(&mut self, file: &Compressor, blocks: &[BlockInfo], dtype: Dtype) -> Result<()> {
        for (layer, block) in self.layers.iter_mut().zip(blocks) {
            let (weight, bias) = file.elements(block);
            let len = block.weight_len() + block.bias_len();
            memory::resize(&mut self.plain, len)?;
            let (weights, biases) = self.plain.split_at_mut(block.weight_len());
            widen(file.header.dtype, Endian::Little, weight, weights);
            widen(file.header.dtype, Endian::Little, bias, biases);
            round(dtype, &mut self.plain);
            let (weights, biases) = self.plain.split_at(block.weight_len());
            layer.set(block.cols, weights, biases)?;
        }
        memory::resize(&mut self.input, ROWS * self.layers[0].depth)?;
        let widest = self.layers.iter().map(|layer| layer.bias.len()).max().unwrap_or(0);
        for rows in &mut self.between {
            memory::resize(rows, ROWS * widest)?;
        }
        self.dtype = Some(dtype);
        Ok(())
    }

    /// Room for the inputs of `rows` rows, at most [`ROWS`].
    pub(super) fn input(&mut self, rows: usize) -> &mut [f32] {
        &mut self.input[..rows * self.layers[0].depth]
    }

    /// Runs the rows in [`Mlp::input`]. Returns rows of [`PANEL`]-wide panels, not yet rounded to the cache's type.
    pub(super) fn run(&mut self, rows: usize) -> InputRows<'_> {
        let dtype = self.dtype.unwrap_or(Dtype::F32);
        let [first, second, third] = &self.layers;
        let [x, y] = &mut self.between;
        let wide = &mut x[..rows * first.bias.len()];
        first.apply(&self.input[..rows * first.depth], first.depth, wide);
        activate(dtype, wide.as_flattened_mut());
        let hidden = &mut y[..rows * second.bias.len()];
        second.apply(wide.as_flattened(), first.bias.len() * PANEL, hidden);
        activate(dtype, hidden.as_flattened_mut());
        let out = &mut x[..rows * third.bias.len()];
        third.apply(hidden.as_flattened(), second.bias.len() * PANEL, out);
        InputRows { dtype, values: out.as_flattened(), stride: third.bias.len() * PANEL }
    }
}

/// Rows of numbers with padding between them.
pub(super) struct InputRows<'a> {
    dtype: Dtype,
    values: &'a [f32],
    stride: usize,
}

impl InputRows<'_> {
    /// Writes `count` rows from `first` on as elements of a cache. Returns the first one that is not finite in the
    /// cache's type.
    pub(super) fn store(&self, first: usize, count: usize, to: &mut [u8]) -> Option<usize> {
        let dims = to.len() / count / self.dtype.bytes();
        let rows = self.values[first * self.stride..].chunks_exact(self.stride);
        let mut bad = None;
        for (row, (values, to)) in rows.zip(to.chunks_exact_mut(dims * self.dtype.bytes())).enumerate() {
            let values = &values[..dims];
            narrow(self.dtype, Endian::Native, values, to);
            if bad.is_none() && !rounded(self.dtype, largest_magnitude(values)).is_finite() {
                bad = Some(row);
            }
        }
        bad
    }
}
