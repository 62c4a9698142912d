//! A chat: a session with a cache for each layer, and the attention over what the caches have.

use super::attention::{Block, FLASH_BLOCK, Packed, Work};
use super::rounding::Rounding;
use crate::head_sums::HeadSums;
use crate::transformer::{Projected, Shape};
use mnnkv::arch::PANEL;
use mnnkv::attend::Step;
use mnnkv::dtype::Dtype;
use mnnkv::layout::{self, Cache, Int8Unit, Layout, Spec};
use mnnkv::session::{Host, Queries, ScoredRows, Session};
use mnnkv::status::Result;
use std::ops::Range;
use zerocopy::IntoBytes;

/// Query rows that attend at once.
const ROWS: usize = 64;

/// A layer: its packed buffers, as [`Packed`] describes them.
struct Layer {
    key: Vec<[f32; PANEL]>,
    value: Vec<[f32; PANEL]>,
    /// Tokens that they have.
    len: u32,
    /// Tokens that a row attends to, its own included; all of them if none.
    window: Option<u32>,
}

/// Tokens over the steps of a chat: those in the caches that tokens are evicted from, and the chat's.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Measured {
    pub(super) resident: u64,
    pub(super) logical: u64,
}

/// A session and its caches.
pub(super) struct Chat {
    session: Session,
    shape: Shape,
    layout: Layout,
    layers: Vec<Layer>,
    /// First layer that is measured, if it has no window.
    evicted: usize,
    pub(super) measured: Measured,
    /// Of rows that are appended.
    pub(super) rounding: Option<Rounding>,
    work: Work,
    /// K and V of a step, `[head][row][dim]`.
    dense: [Vec<f32>; 2],
    tile: Vec<f32>,
}

impl Chat {
    /// An empty chat with room for `tokens` tokens. Layers from `first_evicted` on that have no window are measured.
    pub(super) fn new(shape: &Shape, config: &str, tokens: usize, first_evicted: usize) -> Result<Chat> {
        let layout = Layout::new(&Spec {
            key: Dtype::F32.into(),
            value: Dtype::F32.into(),
            kv_heads: shape.kv_heads as u32,
            head_dim: shape.dims as u32,
            l_pack: 1,
            h_pack: PANEL as u32,
            int8: Int8Unit::default(),
            flash_block: FLASH_BLOCK as u32,
            max_tokens: tokens.next_multiple_of(FLASH_BLOCK) as u32,
            key_head_stride: 0,
            value_head_stride: 0,
            key_token_stride: 0,
            value_token_stride: 0,
        })?;
        let panels = |bytes: usize| vec![[0.0; PANEL]; bytes / size_of::<[f32; PANEL]>()];
        let host = Host { attends: true };
        let session = Session::with_host(config.as_bytes(), b"", shape.layers as u32, 1, host)?;
        for number in 0..shape.layers {
            session.set_window(Some(number as u32), shape.window(number).unwrap_or(0), 0)?;
        }
        let layer = |number: usize| Layer {
            key: panels(layout.key_bytes()),
            value: panels(layout.value_bytes()),
            len: 0,
            window: shape.window(number),
        };
        Ok(Chat {
            session,
            shape: *shape,
            layers: (0..shape.layers).map(layer).collect(),
            layout,
            evicted: first_evicted,
            measured: Measured::default(),
            rounding: None,
            work: Work::default(),
            dense: Default::default(),
            tile: Vec::new(),
        })
    }

    /// Its session.
    #[cfg(test)]
    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// One step of a layer: appends keys and values, and attends with the queries of the last of their rows. Adds the
    /// outputs of these to `output`, `[row][query head][dim]`.
    pub(super) fn step(&mut self, layer: usize, rows: &Projected<'_>, output: &mut [f32]) -> Result<()> {
        let Shape { heads, kv_heads, dims, .. } = self.shape;
        let (number, added) = (layer as u32, rows.key.len() / (kv_heads * dims));
        let query = rows.query;

        let own = &mut self.layers[layer];
        let before = own.len;
        let begun = self.session.begin(number, Some(own.cache(&self.layout)?), before)?;
        own.len = begun.kv_len;
        self.append(layer, rows, added)?;

        let queries = Queries {
            dtype: Dtype::F32,
            heads,
            rows: query.len() / (heads * dims),
            dims,
            head_stride: dims * size_of::<f32>(),
            row_stride: heads * dims * size_of::<f32>(),
            scale: 0.0,
            data: query.as_bytes(),
        };
        let (attends, scored) = (begun.attends, begun.scored_rows(added as u32));
        let counted = if attends { queries.rows } else { added };
        if attends {
            let own = &mut self.layers[layer];
            let (len, window, cache) = (own.len, own.window, own.cache(&self.layout)?);
            let step = Step { queries, is_causal: true, window, soft_cap: None, sinks: None, mask: None };
            let mut write = |row: usize, head: usize, numbers: &[f32]| {
                let to = &mut output[(row * heads + head) * dims..][..dims];
                to.iter_mut().zip(numbers).for_each(|(to, x)| *to += x);
            };
            self.session.attend(number, (&cache.as_ref(), len), &step, (0, 1), &mut write)?;
        } else {
            self.attend(layer, query, added, scored, output)?;
        }

        let scored_heads = if scored.rows > 0 { heads as u32 } else { 0 };
        let own = &mut self.layers[layer];
        let len = own.len;
        self.session.end(number, scored_heads, counted as u32, own.cache(&self.layout)?, len)?;
        self.measure(layer)
    }

    /// Writes the rows of a step behind the tokens of a layer.
    fn append(&mut self, layer: usize, rows: &Projected<'_>, added: usize) -> Result<()> {
        let Shape { kv_heads, dims, .. } = self.shape;
        let Chat { layout, layers, rounding, dense, .. } = self;
        let own = &mut layers[layer];
        let [key, value] = dense;
        by_head(rows.key, kv_heads, dims, key);
        by_head(rows.value, kv_heads, dims, value);
        if let Some(rounding) = rounding {
            rounding.keys(key, dims);
            rounding.values(value);
        }
        let appended = layout.range(own.len, added as u32)?;
        layout::scatter(&mut own.cache(layout)?, appended, key.as_bytes(), value.as_bytes())?;
        own.len += added as u32;
        Ok(())
    }

    /// Attends with the queries of the last of `added` rows, and hands the block sums of those that are scored to the session.
    fn attend(
        &mut self,
        layer: usize,
        query: &[f32],
        added: usize,
        rows: ScoredRows,
        output: &mut [f32],
    ) -> Result<()> {
        let scored = rows.rows as usize;
        let Shape { heads, kv_heads, dims, .. } = self.shape;
        let (group, attending) = (heads / kv_heads, query.len() / (heads * dims));
        let seen = self.seen(layer, added, attending)?;
        let Chat { session, shape, layers, work, tile, .. } = self;
        let own = &layers[layer];
        let (len, cache) = (own.len as usize, Packed { key: &own.key, value: &own.value });
        let score = |tile: &[f32]| -> Result<()> {
            let mut sums = HeadSums::new(rows, len as u32);
            tile.chunks_exact(len).enumerate().for_each(|(row, weights)| sums.set(row, weights, 1.0));
            sums.give(session, layer as u32)?;
            Ok(())
        };
        if added == 1 && attending == 1 {
            // Heads that share keys are the rows of a block.
            let seen = vec![seen[0].clone(); group];
            for kv_head in 0..kv_heads {
                let block = Block { kv_head, first: kv_head * group * dims, stride: dims, seen: &seen };
                let first = block.tokens().start;
                for row in block.attend(shape, query, cache, work, output) {
                    if scored > 0 {
                        tile.clear();
                        tile.resize(first, 0.0);
                        tile.extend_from_slice(&row[..len - first]);
                        score(tile)?;
                    }
                }
            }
            return Ok(());
        }
        for head in 0..heads {
            // The rows that count are the last of a tile, so that it needs no others.
            tile.clear();
            tile.resize(scored * len, 0.0);
            for (number, seen) in seen.chunks(ROWS).enumerate() {
                let (row, stride) = (number * ROWS, heads * dims);
                let block = Block { kv_head: head / group, first: (row * heads + head) * dims, stride, seen };
                let first = block.tokens().start;
                let rows = block.attend(shape, query, cache, work, output);
                for (row, (values, seen)) in (row..).zip(rows.zip(seen)) {
                    if let Some(at) = (scored + row).checked_sub(attending) {
                        let values = &values[seen.start - first..seen.end - first];
                        tile[at * len..][seen.clone()].copy_from_slice(values);
                    }
                }
            }
            if scored > 0 {
                score(tile)?;
            }
        }
        Ok(())
    }

    /// The tokens of a layer's cache that each of the last `attending` of `added` rows sees. A window is one of logical positions:
    /// tokens between those in the cache may have been evicted.
    fn seen(&self, layer: usize, added: usize, attending: usize) -> Result<Vec<Range<usize>>> {
        let own = &self.layers[layer];
        let ends = own.len as usize - attending + 1..=own.len as usize;
        let Some(window) = own.window else { return Ok(ends.map(|end| 0..end).collect()) };
        let before = self.session.positions(layer as u32, None)?;
        let next = self.session.lengths(layer as u32)?.logical;
        let before = before.into_iter().flat_map(|[first, count]| first as u32..(first + count) as u32);
        let positions: Vec<u32> = before.chain(next..next + added as u32).collect();
        let begin = |end: usize| positions.partition_point(|position| position + window <= positions[end - 1]);
        Ok(ends.map(|end| begin(end)..end).collect())
    }

    /// Counts the tokens of a layer: in the cache, or in 8 and 4 bits. Nothing is lost behind a window.
    fn measure(&mut self, layer: usize) -> Result<()> {
        if layer >= self.evicted && self.layers[layer].window.is_none() {
            let lengths = self.session.lengths(layer as u32)?;
            let quantised = self.session.metrics(Some(layer as u32))?.quant_tokens as u64;
            self.measured.resident += u64::from(lengths.physical) + quantised;
            self.measured.logical += u64::from(lengths.logical);
        }
        Ok(())
    }
}

impl Layer {
    fn cache<'a>(&'a mut self, layout: &'a Layout) -> Result<Cache<'a>> {
        Cache::new(layout, self.key.as_mut_slice().as_mut_bytes(), self.value.as_mut_slice().as_mut_bytes())
    }
}

/// Rows `[row][head][dim]` as `[head][row][dim]`.
fn by_head(rows: &[f32], heads: usize, dims: usize, to: &mut Vec<f32>) {
    to.clear();
    for head in 0..heads {
        to.extend(rows.chunks_exact(heads * dims).flat_map(|row| &row[head * dims..][..dims]));
    }
}
