//! Folding tokens into the softmax of query vectors: raw ones, and blocks.

use super::step::{FEW_ROWS, Run, Step, Unit, Work};
use super::tokens::Tile;
use crate::arch::attend::{BLOCK, HeadBlock, Keys, QUERIES, VALUE_GROUP, sums_len};
use crate::arch::estimates::LANES;
use crate::arch::{self, Product};
use crate::layout::{self, Head, TokenRange};
use crate::status::Result;
use std::ops::Range;

/// The numbers of a tile in the panels of the working memory.
#[derive(Clone, Copy)]
pub(super) struct Panels {
    tokens: usize,
    /// A bit for each.
    live: u64,
    /// The first of a query vector's sums that V is added to.
    sums: usize,
}

/// See [`Run::raw`].
type RawTile<'a> = (Head<'a>, TokenRange, (usize, u64));

impl Run<'_> {
    /// Folds raw tokens of a KV head into `running` and `sums` of the working memory.
    pub(super) fn fold_raw(&self, unit: &Unit, tile: usize, head: usize, work: &mut Work) -> Result<()> {
        if let Some((from, range, tokens)) = self.raw(unit, tile, head)? {
            layout::keys_to_panels(&from, range, &mut work.keys);
            layout::values_to_panels(&from, range, &mut work.values, tokens.0);
            let panels = Panels { tokens: tokens.0, live: tokens.1, sums: 0 };
            self.fold_floats(unit, Tile::Raw(tile), head, panels, work);
        }
        Ok(())
    }

    /// Raw tokens of a KV head: where they are, how many, and a bit for each; `None` where no row attends to one.
    pub(super) fn raw(&self, unit: &Unit, tile: usize, head: usize) -> Result<Option<RawTile<'_>>> {
        let tokens = self.tokens;
        let Range { start: first, end } = tokens.raw_tile(tile);
        let count = end - first;
        if self.step.is_causal && first > self.last(unit.row + unit.rows - 1) {
            return Ok(None);
        }
        let layout = tokens.cache.layout;
        let Some((key, value)) = layout.head(head as u32) else { return Ok(None) };
        let from = Head { layout, key: &tokens.cache.key[key], value: &tokens.cache.value[value] };
        let range = layout.range(first as u32, count as u32)?;
        Ok(Some((from, range, (count, u64::MAX >> (BLOCK - count)))))
    }

    /// Folds the `at`th of the blocks of a KV head that are in memory.
    pub(super) fn fold_here(&self, unit: &Unit, head: usize, at: usize, work: &mut Work) -> Result<()> {
        let blocks = self.tokens.blocks;
        let block = blocks.here(head)[at];
        let lines = |block: Option<&u32>, head| blocks.lines(*block?, head);
        let next = lines(blocks.here(head).get(at + 1), head);
        let next = next.or_else(|| lines(blocks.here(head + 1).first(), head + 1)).unwrap_or(&[]);
        let Some(codes) = blocks.view(block, head, next) else { return Ok(()) };
        self.fold_block(unit, block, head, &codes, work)
    }

    /// Folds a head of a block.
    pub(super) fn fold_block(
        &self,
        unit: &Unit,
        at: u32,
        head: usize,
        block: &HeadBlock,
        work: &mut Work,
    ) -> Result<()> {
        if !self.sees(unit, at) {
            return Ok(());
        }
        let (shape, live) = (self.tokens.shape, self.tokens.blocks.list()[at as usize].live);
        let (tile, range) = (Tile::Block(at), self.vectors(unit, head));
        if self.tokens.weighs {
            work.shares.begin(&work.running[range.clone()])?;
        }
        if self.step.queries.rows > FEW_ROWS {
            (self.kernels.decode)(block, &mut work.keys, &mut work.values);
            let sums = if block.is_rotated() { sums_len(shape.dims) } else { 0 };
            self.fold_floats(unit, tile, head, Panels { tokens: BLOCK, live, sums }, work);
        } else {
            self.places(tile, live, work);
            let (lanes, len) = (shape.lanes() * LANES, self.len);
            let Work { queries, sorted, running, sums, logits, places, scratch: Some(scratch), .. } = work else {
                return Ok(());
            };
            let mut queries = &queries[range.start * lanes..range.end * lanes];
            if let Keys::Bits { widths, .. } = block.keys {
                sorted.sort(head, widths, queries, lanes)?;
                queries = &sorted.queries;
            }
            let logits = logits.as_chunks_mut::<BLOCK>().0;
            let vectors =
                running[range.clone()].chunks_mut(QUERIES).zip(sums[range.start * len..].chunks_mut(QUERIES * len));
            for (first, (running, sums)) in (0..).step_by(QUERIES).zip(vectors) {
                let some = running.len();
                let mut rows = [&[][..]; QUERIES];
                rows.iter_mut().zip(queries[first * lanes..].chunks_exact(lanes)).for_each(|(to, row)| *to = row);
                let logits = &mut logits[..some];
                (self.kernels.logits)(block, &rows[..some], logits, scratch);
                for (i, logits) in logits.iter_mut().enumerate() {
                    self.adjust(self.vector(unit, range.start + first + i).0, tile, live, places, logits);
                }
                (self.kernels.values)(block, logits, running, &mut sums[..some * len], scratch);
            }
        }
        if self.tokens.weighs {
            work.shares.end((at, head), &work.running[range])?;
        }
        Ok(())
    }

    /// Whether a row of the unit attends to a token of the block.
    pub(super) fn sees(&self, unit: &Unit, block: u32) -> bool {
        let placed = &self.tokens.blocks.list()[block as usize];
        let end = (placed.first + placed.tokens()) as usize;
        self.step.window.is_none_or(|window| end + window as usize > self.own(unit.row) + 1)
    }

    /// The logits of a tile of a KV head, whose keys are in the panels of the working memory, for each query vector. Returns
    /// the distance between vectors.
    pub(super) fn float_logits(
        &self,
        unit: &Unit,
        tile: Tile,
        head: usize,
        (tokens, live): (usize, u64),
        work: &mut Work,
    ) -> usize {
        self.places(tile, live, work);
        let (shape, range) = (self.tokens.shape, self.vectors(unit, head));
        let (lanes, count, key_panels) = (shape.lanes() * LANES, range.len(), tokens.div_ceil(LANES));
        let Work { queries, logits, keys, zeros, places, .. } = work;
        let queries = &queries[range.start * lanes..range.end * lanes];
        let stride = key_panels * LANES;
        let logits = &mut logits[..count * stride];
        let panels = &keys[..key_panels * shape.dims];
        let product = Product { a: queries, stride: lanes, depth: shape.dims, panels, bias: &zeros[..key_panels] };
        (arch::kernels().product)(&product, logits.as_chunks_mut::<LANES>().0);
        for (i, logits) in logits.chunks_exact_mut(stride).enumerate() {
            self.adjust(self.vector(unit, range.start + i).0, tile, live, places, logits);
        }
        stride
    }

    /// Folds a tile of a KV head.
    fn fold_floats(&self, unit: &Unit, tile: Tile, head: usize, panels: Panels, work: &mut Work) {
        let Panels { tokens, live, sums: first } = panels;
        let stride = self.float_logits(unit, tile, head, (tokens, live), work);
        let (shape, range) = (self.tokens.shape, self.vectors(unit, head));
        let (len, count, value_panels) = (self.len, range.len(), shape.groups() * VALUE_GROUP / LANES);
        let Work { running, sums, logits, values, products, zeros, .. } = work;
        let (running, sums) = (&mut running[range.clone()], &mut sums[range.start * len..range.end * len]);
        let logits = &mut logits[..count * stride];
        for (i, (logits, running)) in logits.chunks_exact_mut(stride).zip(running).enumerate() {
            let factor = (self.kernels.soften)(logits.as_chunks_mut::<LANES>().0, running);
            if factor != 1.0 {
                sums[i * len..(i + 1) * len].iter_mut().for_each(|sum| *sum *= factor);
            }
        }
        let panels = &values[..value_panels * tokens];
        let product = Product { a: logits, stride, depth: tokens, panels, bias: &zeros[..value_panels] };
        let products = &mut products[..count * value_panels];
        (arch::kernels().product)(&product, products);
        for (sums, products) in sums.chunks_exact_mut(len).zip(products.chunks_exact(value_panels)) {
            sums[first..].iter_mut().zip(products.as_flattened()).for_each(|(sum, x)| *sum += x);
        }
    }

    /// The logical positions of a tile's tokens, where they matter.
    pub(super) fn places(&self, tile: Tile, live: u64, work: &mut Work) {
        if self.step.window.is_some() || self.step.mask.is_some() {
            self.tokens.places(tile, live, &mut work.places);
        }
    }

    /// Applies the soft cap and the mask to the logits of a tile for a row, and removes tokens that it does not attend to.
    pub(super) fn adjust(&self, row: usize, tile: Tile, live: u64, places: &[u32], logits: &mut [f32]) {
        let Step { is_causal, window, soft_cap, mask, .. } = self.step;
        if let Some(cap) = soft_cap {
            (self.kernels.soft_cap)(logits.as_chunks_mut::<LANES>().0, *cap);
        }
        let own = self.own(row);
        if let Some(mask) = mask {
            let (row, first) = (&mask.data[row * mask.stride..], self.tokens.logical - mask.tokens);
            for (x, place) in logits.iter_mut().zip(places).filter(|(_, place)| (first..u32::MAX).contains(place)) {
                let addend = row[(place - first) as usize];
                // Of a token that is not attended to K need not be finite.
                *x = if addend == f32::NEG_INFINITY { addend } else { *x + addend };
            }
        }
        if let Some(window) = window {
            let seen = |place: &u32| *place as usize + *window as usize > own;
            logits.iter_mut().zip(places).filter(|(_, place)| !seen(place)).for_each(|(x, _)| *x = f32::NEG_INFINITY);
        }
        let mut live = live;
        if let Tile::Raw(tile) = tile
            && *is_causal
        {
            match (self.last(row) + 1).saturating_sub(self.tokens.raw_tile(tile).start) {
                0 => live = 0,
                seen => live &= u64::MAX >> (BLOCK - seen.min(BLOCK)),
            }
        }
        if live != u64::MAX {
            for (token, x) in logits.iter_mut().enumerate() {
                if live >> token & 1 == 0 {
                    *x = f32::NEG_INFINITY;
                }
            }
        }
    }

    /// The last raw token that a causal row attends to.
    pub(super) fn last(&self, row: usize) -> usize {
        self.tokens.raw - self.step.queries.rows + row
    }
}
