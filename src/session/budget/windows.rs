//! The parts of a budget: layers with a window get what they need, the others share the rest by the sizes of
//! their tokens, and of their blocks where these have no fewer bits than k8v4.

use super::{Share, Sizes};
use crate::attend::{BLOCK, Blocks, FEW_ROWS, Format};
use crate::session::layer::Layer;
use crate::session::quant;
use crate::session::window::Window;

/// Layers with a window stay raw where that takes this part of the budget at most, or all of it where there are no others.
const RAW_PART: usize = 4;

/// A layer as a budget sees it.
#[derive(Clone, Copy)]
pub(in crate::session) struct Needs {
    pub(in crate::session) sizes: Sizes,
    pub(in crate::session) window: Option<Window>,
    /// Bytes of the blocks of a layer with a window now.
    pub(in crate::session) blocks: usize,
}

impl Needs {
    /// Of a layer; one that has not been used yet is taken for one with tokens like these.
    pub(in crate::session) fn of(layer: &Layer, unknown: &Sizes) -> Self {
        let sizes = layer.sizes().unwrap_or(*unknown).of(layer);
        let blocks = layer.window.map_or(0, |_| layer.tokens().blocks.bytes());
        Needs { sizes, window: layer.window, blocks }
    }

    /// Bytes that a window takes raw: twice, as [`Share::holds_raw`] asks for.
    fn raw_bytes(&self, window: Window) -> usize {
        let most = (window.most().saturating_add(quant::TURNS) as usize).saturating_add(FEW_ROWS);
        most.saturating_mul(self.sizes.token).saturating_add(Share::new(0, &self.sizes, 1).pages).saturating_mul(2)
    }

    /// Bytes that it takes in 8 and 4 bits, beside the tokens that stay raw.
    fn quantised_bytes(&self, window: Window, least_raw: u32) -> usize {
        let Some(shape) = quant::shape(&self.sizes.rows) else { return self.raw_bytes(window) };
        let block = Blocks::block_bytes(shape, Format::K8V4, self.sizes.rows.heads);
        let blocks = (window.most() as usize).div_ceil(BLOCK).saturating_add(1).saturating_mul(block);
        // Channels in 16 bits take more.
        let blocks = blocks.max(self.blocks + block);
        Share::new(0, &self.sizes, FEW_ROWS as u32).raw(least_raw).saturating_add(blocks)
    }
}

/// How a budget is divided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Division {
    bytes: usize,
    least_raw: u32,
    /// Weights of all layers, and of those without a window.
    all: usize,
    others: usize,
    /// Bytes of the layers with a window.
    windows: usize,
    /// These stay raw.
    pub(super) are_raw: bool,
}

impl Division {
    /// Of so many bytes among these layers.
    pub(super) fn new(bytes: usize, least_raw: u32, layers: impl Iterator<Item = Needs> + Clone) -> Self {
        let (mut all, mut others, mut raw) = (0, 0, 0usize);
        for layer in layers.clone() {
            all += layer.sizes.weight();
            match layer.window {
                Some(window) => raw = raw.saturating_add(layer.raw_bytes(window)),
                None => others += layer.sizes.weight(),
            }
        }
        let are_raw = raw <= if others > 0 { bytes / RAW_PART } else { bytes };
        let mut division = Division { bytes, least_raw, all, others, windows: 0, are_raw };
        if raw > 0 {
            division.windows = layers.filter(|layer| layer.window.is_some()).map(|layer| division.of(&layer)).sum();
        }
        division
    }

    /// Bytes of a layer.
    pub(super) fn of(&self, layer: &Needs) -> usize {
        let part =
            |bytes: usize, all: usize| (bytes as u128 * layer.sizes.weight() as u128 / all.max(1) as u128) as usize;
        let Some(window) = layer.window else { return part(self.bytes - self.windows, self.others) };
        let needed = match self.are_raw {
            true => layer.raw_bytes(window),
            false => layer.quantised_bytes(window, self.least_raw),
        };
        needed.min(part(self.bytes, self.all))
    }
}
