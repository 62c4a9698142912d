//! What a budget holds, before a chat runs.

use super::windows::{Division, Needs};
use super::{LEAST_BLOCKS, LEAST_WORKING, MOST_LISTS, Model, Share, Sizes, WRITING_PART};
use crate::attend::{BLOCK, Basis, Blocks, Format};
use crate::layout::Rows;
use crate::session::config;
use crate::session::quant;
use crate::session::window::Window;
use crate::status::Result;
use crate::sys::memory;

/// Tokens of a chat that a budget holds. All layers have the same rows, and each step appends one token. Working memory
/// takes its part first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holds {
    /// The least budget that is accepted.
    pub least_bytes: u64,
    /// All of them raw: half of the budget, the rest of which the host's buffers take as they grow.
    pub raw_tokens: u64,
    /// In k4v4, but for the first and the newest; those of rows that stay raw. Without a file, tokens of a longer
    /// chat are dropped.
    pub quantised_tokens: u64,
    /// With a file that has room: what is known of its blocks fits. Tokens of a longer chat are dropped.
    pub file_tokens: u64,
}

impl Holds {
    /// As many as a chat can have.
    pub const ALL: u64 = i32::MAX as u64;

    /// Of a session of `layers` layers, whose config sets nothing but the budget, before it has working memory. `windows`: those of
    /// the layers that have one. `None` where such rows stay raw, whatever they take: K or V is quantised, or blocks cannot have
    /// heads of this size.
    pub fn of(bytes: u64, layers: u32, rows: &Rows, windows: &[u32]) -> Result<Option<Self>> {
        let windows = memory::collect(windows.iter().map(|tokens| Window { tokens: *tokens, rollback: 0 }))?;
        let least_raw = quant::least_raw(config::SINK_TOKENS);
        let model =
            Model { layers: layers as usize, sizes: rows.into(), least_raw, working: 0, windows, k8v4_layers: 0 };
        Ok(quant::shape(rows).map(|_| Holds::new(bytes, &model)))
    }

    pub(in crate::session) fn new(bytes: u64, model: &Model) -> Self {
        let Model { sizes, least_raw, .. } = *model;
        let (layers, rows) = (model.layers.max(1), &sizes.rows);
        let working = model.working.max(LEAST_WORKING) as u64;
        let all = usize::try_from(bytes.saturating_sub(working)).unwrap_or(usize::MAX);
        let needs = |window: Option<&Window>| Needs { sizes, window: window.copied(), blocks: 0 };
        let others = layers.saturating_sub(model.windows.len());
        let k8v4 = Needs { sizes: Sizes { fewest: Format::K8V4, ..sizes }, window: None, blocks: 0 };
        let k8v4_layers = model.k8v4_layers.min(others);
        let each = model.windows.iter().map(|window| needs(Some(window)));
        let each = each.chain(std::iter::repeat_n(needs(None), others - k8v4_layers));
        let each = each.chain(std::iter::repeat_n(k8v4, k8v4_layers));
        let least_bytes = least_bytes(each.clone().map(|layer| layer.sizes), least_raw, model.working);
        let division = Division::new(all, least_raw, each);
        // Tokens of a chat from which on a layer with a window has fewer bits.
        let windows_raw = match model.windows.first().map(|window| division.of(&needs(Some(window)))) {
            Some(bytes) if !division.are_raw => Share::new(bytes, &sizes, 1).raw_tokens(),
            _ => u64::MAX,
        };
        if others == 0 {
            let raw_tokens = windows_raw.min(Holds::ALL);
            return Holds { least_bytes, raw_tokens, quantised_tokens: Holds::ALL, file_tokens: Holds::ALL };
        }
        // The share of a layer in k8v4 is as much greater as its blocks are: others tell how many tokens fit.
        let each = if k8v4_layers < others { needs(None) } else { k8v4 };
        let (share, fewest) = (Share::new(division.of(&each), &sizes, 1), each.sizes.fewest);
        let Some(shape) = quant::shape(rows) else {
            // They stay raw, whatever they take.
            let raw_tokens = (share.bytes.saturating_sub(share.pages) / share.token.max(1)) as u64;
            return Holds { least_bytes, raw_tokens, quantised_tokens: raw_tokens, file_tokens: raw_tokens };
        };
        let raw_tokens = share.raw_tokens().min(windows_raw);
        let raw_tokens = raw_tokens.saturating_sub(quant::TURNS.min(layers as u32).saturating_sub(1).into());
        let (block, room) = (Blocks::block_bytes(shape, fewest, rows.heads), share.for_blocks(least_raw));
        let tokens = |blocks: usize| (blocks * BLOCK) as u64 + u64::from(least_raw);
        let quantised_tokens = tokens(room / block);
        // Blocks on their way to the file take their part first, and directions of sketches theirs.
        let room = room
            .saturating_sub(share.bytes / WRITING_PART as usize)
            .saturating_sub(Basis::bytes_of(rows.heads, rows.dims));
        let away = room / 8 * MOST_LISTS / Blocks::away_bytes(rows.heads);
        Holds { least_bytes, raw_tokens, quantised_tokens, file_tokens: tokens(away).max(quantised_tokens) }
    }
}

/// The least share of a layer.
fn layer_bytes(sizes: &Sizes, least_raw: u32) -> u64 {
    let (share, rows) = (Share::new(0, sizes, 1), &sizes.rows);
    let blocks =
        quant::shape(rows).map_or(0, |shape| LEAST_BLOCKS * Blocks::block_bytes(shape, Format::K8V4, rows.heads));
    let raw = u64::from(least_raw) + u64::from(share.next);
    raw.saturating_mul(share.token as u64) + (share.pages + blocks) as u64
}

/// The least budget of layers with such tokens, whose shares are by their weights.
pub(super) fn least_bytes(layers: impl Iterator<Item = Sizes> + Clone, least_raw: u32, working: usize) -> u64 {
    let all: u128 = layers.clone().map(|sizes| sizes.weight() as u128).sum();
    let needed = |sizes: Sizes| (layer_bytes(&sizes, least_raw) as u128 * all).div_ceil(sizes.weight().max(1) as u128);
    let most = layers.map(needed).max().unwrap_or(0);
    u64::try_from(most).unwrap_or(u64::MAX).saturating_add(working.max(LEAST_WORKING) as u64)
}
