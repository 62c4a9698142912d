//! Clears tokens, with or without a release of their memory.

use super::plane::{Plane, Span};
use super::tensor::Tensor;
use super::{Cache, Layout, TokenRange};
use std::ops::Range;

/// The treatment of padding dims in a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Padding {
    /// Only the elements of tokens.
    Kept,
    /// The padding dims of the tokens, too: they belong to no other token, and would keep pages in memory.
    Dropped,
}

/// Sets every element of a range of tokens to zero bits. The value sums of INT8 V stay, see
/// [`changed`](super::changed).
pub fn zero(cache: &mut Cache<'_>, range: TokenRange) {
    for_each_run(cache, range, Padding::Kept, &mut |run| run.fill(0));
    if let Some(sums) = &cache.layout.key_sums {
        walk(sums, range, Padding::Kept, &mut |run| cache.key_sums[run].fill(0));
    }
}

/// Calls `give_back` with every longest run of neighbouring bytes of the range, with its padding. `give_back` must leave
/// zeros in a run and return the number of bytes that it released to the system. Returns their sum. The first value block
/// of INT8 V is never released as a whole, since all blocks have its scales; side arrays stay.
pub fn release(cache: &mut Cache<'_>, range: TokenRange, give_back: &mut dyn FnMut(&mut [u8]) -> u64) -> u64 {
    release_apart(cache, range, range, give_back)
}

/// [`release`], of one range of K and another of V.
pub fn release_apart(
    cache: &mut Cache<'_>,
    keys: TokenRange,
    values: TokenRange,
    give_back: &mut dyn FnMut(&mut [u8]) -> u64,
) -> u64 {
    let mut released = 0;
    walk(&cache.layout.key, keys, Padding::Dropped, &mut |run| released += give_back(&mut cache.key[run]));
    walk(&cache.layout.value, values, Padding::Dropped, &mut |run| released += give_back(&mut cache.value[run]));
    released
}

/// Calls `visit` with every longest run of neighbouring bytes of the range, in both buffers.
pub fn for_each_run(cache: &mut Cache<'_>, range: TokenRange, padding: Padding, visit: &mut dyn FnMut(&mut [u8])) {
    walk(&cache.layout.key, range, padding, &mut |run| visit(&mut cache.key[run]));
    walk(&cache.layout.value, range, padding, &mut |run| visit(&mut cache.value[run]));
}

/// Bytes of the whole pages that a release of the range can return to the system, for buffers at these addresses.
pub fn whole_pages(layout: &Layout, range: TokenRange, addresses: (usize, usize), page: usize) -> u64 {
    let mut bytes = 0;
    for (tensor, address) in [(&layout.key, addresses.0), (&layout.value, addresses.1)] {
        let first = address % page;
        walk(tensor, range, Padding::Dropped, &mut |run| {
            let (start, end) = ((first + run.start).next_multiple_of(page), (first + run.end) / page * page);
            bytes += end.saturating_sub(start) as u64;
        });
    }
    bytes
}

/// Calls `visit` with every longest run of bytes of a tensor.
pub(super) fn walk(tensor: &Tensor, range: TokenRange, padding: Padding, visit: &mut dyn FnMut(Range<usize>)) {
    let mut runs = Joined { pending: 0..0, visit };
    if tensor.heads_share_tokens() {
        // A token's heads are neighbours, so tokens are the outer loop.
        for span in tensor.plane().spans(range) {
            tensor.head_ranges().for_each(|head| runs_of(tensor, span, head.start, padding, &mut |run| runs.join(run)));
        }
    } else {
        for head in tensor.head_ranges() {
            let spans = tensor.plane().spans(range);
            spans.for_each(|span| runs_of(tensor, span, head.start, padding, &mut |run| runs.join(run)));
        }
    }
    runs.flush();
}

/// Makes one run of runs that touch.
struct Joined<'a> {
    pending: Range<usize>,
    visit: &'a mut dyn FnMut(Range<usize>),
}

impl Joined<'_> {
    fn join(&mut self, run: Range<usize>) {
        if self.pending.end == run.start {
            self.pending.end = run.end;
        } else {
            self.flush();
            self.pending = run;
        }
    }

    fn flush(&mut self) {
        if !self.pending.is_empty() {
            (self.visit)(std::mem::take(&mut self.pending));
        }
    }
}

/// Calls `visit` with runs of bytes that cover a span of the head at `head`.
fn runs_of(tensor: &Tensor, span: Span, head: usize, padding: Padding, visit: &mut impl FnMut(Range<usize>)) {
    let is_whole = padding == Padding::Dropped && span.count == tensor.plane().block;
    if let Some(block) = tensor.whole_block(span).filter(|_| is_whole) {
        return visit(head + block.start..head + block.end);
    }
    for part in tensor.parts() {
        // Blocks of every part have the same tokens.
        let (plane, own) = (&part.plane, tensor.plane());
        let block = (span.base - own.offset) / own.block_stride;
        let span = Span { base: plane.offset + block * plane.block_stride, ..span };
        let bytes = plane.element_bytes;
        runs(plane, span, padding, |at, len| visit(head + at * bytes..head + (at + len) * bytes));
    }
}

/// Calls `visit` with runs of neighbouring elements that cover the elements of a span exactly once.
fn runs(plane: &Plane, span: Span, padding: Padding, mut visit: impl FnMut(usize, usize)) {
    let dropped = padding == Padding::Dropped;
    if span.count == plane.block && plane.is_solid() {
        return visit(span.base, plane.block_len());
    }
    let (pack, group) = (plane.pack, plane.group);
    if span.count == plane.block && plane.tail_dims() == 0 && plane.block.is_multiple_of(pack) {
        return (0..plane.full_rows()).for_each(|row| visit(span.base + row * plane.row_stride, plane.row_len()));
    }
    plane.tiles(span, |tile| {
        let dims = if dropped && group > 1 { group } else { tile.dims };
        if tile.dim_stride == 1 && tile.token_stride == dims {
            visit(tile.start, tile.tokens * dims);
        } else if tile.dim_stride == 1 {
            (0..tile.tokens).for_each(|t| visit(tile.start + t * tile.token_stride, dims));
        } else if pack > 1 && tile.tokens == pack {
            visit(tile.start, dims * pack);
        } else {
            (0..dims).for_each(|d| visit(tile.start + d * tile.dim_stride, tile.tokens));
        }
    });
}
