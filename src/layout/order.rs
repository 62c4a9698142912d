//! The order of a range's elements in rows beside a cache: as they lie in the packed buffers, or dense.
//!
//! A range of whole blocks of K and of V is one run of bytes in each head where blocks lie side by side. Rows in the order
//! of such a run are copied without a look at their elements.

use super::dense::scatter_rows;
use super::head::HeadMut;
use super::{Cache, CacheRef, Kind, Layout, Rows, Spec, TokenRange, gather, scatter};
use crate::status::Result;
use crate::sys::memory;
use std::ops::Range;

/// The packing of rows: `[head]`, and within a head the order of MNN's buffers with these numbers. All 1 is dense,
/// `[head][token][dim]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    l_pack: usize,
    h_pack: usize,
    flash_block: usize,
}

impl Order {
    /// `[head][token][row]`, which every kind of element has.
    pub const DENSE: Order = Order { l_pack: 1, h_pack: 1, flash_block: 1 };

    /// The layout of rows of `heads` heads in this order.
    fn layout(&self, rows: &Rows, heads: usize, tokens: usize) -> Result<Layout> {
        Layout::new(&Spec {
            key: rows.key,
            value: rows.value,
            kv_heads: heads as u32,
            head_dim: rows.dims as u32,
            l_pack: self.l_pack as u32,
            h_pack: self.h_pack as u32,
            int8: Default::default(),
            flash_block: self.flash_block as u32,
            max_tokens: tokens as u32,
            key_head_stride: 0,
            value_head_stride: 0,
            key_token_stride: 0,
            value_token_stride: 0,
        })
    }
}

impl Layout {
    /// The order in which the elements of a range lie side by side in each head; `None` where they do not.
    pub fn run_order(&self, range: TokenRange) -> Option<Order> {
        let (key, value) = (self.key.plane(), self.value.plane());
        let whole = |block: usize| range.begin.is_multiple_of(block) && range.count.is_multiple_of(block);
        let is_float = matches!((self.rows.key, self.rows.value), (Kind::Float(_), Kind::Float(_)));
        let is_run = is_float && key.is_seamless() && value.is_seamless() && whole(key.block) && whole(value.block);
        is_run.then_some(Order { l_pack: key.group, h_pack: key.block, flash_block: value.block })
    }

    /// The bytes of a range within a head of K and of V, where they are runs.
    pub(super) fn runs_in_head(&self, range: TokenRange) -> (Range<usize>, Range<usize>) {
        let run = |plane: &super::plane::Plane| {
            let (start, token) = (plane.place(range.begin).base, plane.dims);
            start * plane.element_bytes..(start + range.count * token) * plane.element_bytes
        };
        (run(self.key.plane()), run(self.value.plane()))
    }
}

/// [`gather`], of rows in `order`, which is the range's [`Layout::run_order`] or dense.
pub fn gather_as(
    cache: &CacheRef<'_>,
    range: TokenRange,
    order: Order,
    key_out: &mut [u8],
    value_out: &mut [u8],
) -> Result<()> {
    let layout = cache.layout;
    if order == Order::DENSE || layout.run_order(range) != Some(order) {
        return gather(cache, range, key_out, value_out);
    }
    let (key, value) = layout.runs_in_head(range);
    for (tensor, packed, run, out) in
        [(&layout.key, cache.key, key, key_out), (&layout.value, cache.value, value, value_out)]
    {
        for (head, out) in tensor.head_ranges().zip(out.chunks_exact_mut(run.len())) {
            out.copy_from_slice(&packed[head][run.clone()]);
        }
    }
    Ok(())
}

/// [`scatter`], of rows in any order. `spare`: working memory.
pub fn scatter_as(
    cache: &mut Cache<'_>,
    range: TokenRange,
    order: Order,
    key_in: &[u8],
    value_in: &[u8],
    spare: &mut (Vec<u8>, Vec<u8>),
) -> Result<()> {
    let layout = cache.layout;
    if order == Order::DENSE {
        return scatter(cache, range, key_in, value_in);
    }
    if layout.run_order(range) != Some(order) {
        dense(&layout.rows(), layout.rows.heads, range.count, order, (key_in, value_in), spare)?;
        return scatter(cache, range, &spare.0, &spare.1);
    }
    let (key, value) = layout.runs_in_head(range);
    for (tensor, packed, run, rows) in
        [(&layout.key, &mut *cache.key, key, key_in), (&layout.value, &mut *cache.value, value, value_in)]
    {
        for (head, rows) in tensor.head_ranges().zip(rows.chunks_exact(run.len())) {
            packed[head][run.clone()].copy_from_slice(rows);
        }
    }
    Ok(())
}

/// Copies rows of `heads` heads in `order` to dense ones, which `out` takes.
pub fn dense(
    rows: &Rows,
    heads: usize,
    tokens: usize,
    order: Order,
    (key, value): (&[u8], &[u8]),
    out: &mut (Vec<u8>, Vec<u8>),
) -> Result<()> {
    memory::resize(&mut out.0, key.len())?;
    memory::resize(&mut out.1, value.len())?;
    if order == Order::DENSE {
        out.0.copy_from_slice(key);
        out.1.copy_from_slice(value);
        return Ok(());
    }
    let layout = order.layout(rows, heads, tokens)?;
    gather(&CacheRef::new(&layout, key, value)?, layout.range(0, tokens as u32)?, &mut out.0, &mut out.1)
}

impl HeadMut<'_> {
    /// The bytes of a range whose rows in `order` lie side by side here.
    pub fn run(&mut self, range: TokenRange, order: Order) -> Option<(&mut [u8], &mut [u8])> {
        self.layout.run_order(range).filter(|lie| *lie == order)?;
        let (key, value) = self.layout.runs_in_head(range);
        Some((&mut self.key[key], &mut self.value[value]))
    }

    /// Writes dense rows of one head to a range of tokens.
    pub fn scatter(&mut self, range: TokenRange, key_in: &[u8], value_in: &[u8]) {
        if !range.is_empty() {
            scatter_rows(&self.layout.key, key_in, range, self.key);
            scatter_rows(&self.layout.value, value_in, range, self.value);
        }
    }
}
