//! Clears tokens, with or without a release of their memory.

use super::plane::{Plane, Span};
use super::{Layout, TokenRange};
use crate::status::Result;
use std::ops::Range;

/// The treatment of padding dims in a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Padding {
    /// Only the elements of tokens.
    Kept,
    /// The padding dims of the tokens, too: they belong to no other token, and would keep pages in memory.
    Dropped,
}

/// Sets every element of a range of tokens to zero bits.
pub fn zero(layout: &Layout, key: &mut [u8], value: &mut [u8], range: TokenRange) -> Result<()> {
    for_each_run(layout, key, value, range, Padding::Kept, &mut |run| run.fill(0))
}

/// Calls `give_back` with every longest run of neighbouring bytes of the range, with its padding. `give_back` must leave
/// zeros in a run and return the number of bytes that it released to the system. Returns their sum.
pub fn release(
    layout: &Layout,
    key: &mut [u8],
    value: &mut [u8],
    range: TokenRange,
    give_back: &mut dyn FnMut(&mut [u8]) -> u64,
) -> Result<u64> {
    let mut released = 0;
    for_each_run(layout, key, value, range, Padding::Dropped, &mut |run| released += give_back(run))?;
    Ok(released)
}

/// Calls `visit` with every longest run of neighbouring bytes of the range, in both buffers.
pub fn for_each_run(
    layout: &Layout,
    key: &mut [u8],
    value: &mut [u8],
    range: TokenRange,
    padding: Padding,
    visit: &mut dyn FnMut(&mut [u8]),
) -> Result<()> {
    layout.check_buffers(key, value)?;
    walk(&layout.key, range, padding, &mut |run| visit(&mut key[run]));
    walk(&layout.value, range, padding, &mut |run| visit(&mut value[run]));
    Ok(())
}

/// Bytes of the whole pages that a release of the range can return to the system, for buffers at these addresses.
pub fn whole_pages(layout: &Layout, range: TokenRange, addresses: (usize, usize), page: usize) -> u64 {
    let mut bytes = 0;
    for (plane, address) in [(&layout.key, addresses.0), (&layout.value, addresses.1)] {
        let first = address % page;
        walk(plane, range, Padding::Dropped, &mut |run| {
            let (start, end) = ((first + run.start).next_multiple_of(page), (first + run.end) / page * page);
            bytes += end.saturating_sub(start) as u64;
        });
    }
    bytes
}

/// Calls `visit` with the bytes of every longest run of a plane.
fn walk(plane: &Plane, range: TokenRange, padding: Padding, visit: &mut dyn FnMut(Range<usize>)) {
    let bytes = plane.element_bytes();
    let mut pending = 0..0;
    let mut flush = |run: Range<usize>| {
        if !run.is_empty() {
            visit(run.start * bytes..run.end * bytes);
        }
    };
    let mut join = |start: usize, len: usize| {
        if pending.end == start {
            pending.end += len;
        } else {
            flush(std::mem::replace(&mut pending, start..start + len));
        }
    };
    if plane.heads_share_tokens() {
        // A token's heads are neighbours, so tokens are the outer loop.
        for span in plane.spans(range) {
            plane.head_ranges().for_each(|head| runs(plane, span, padding, |at, len| join(head.start + at, len)));
        }
    } else {
        for head in plane.head_ranges() {
            plane.spans(range).for_each(|span| runs(plane, span, padding, |at, len| join(head.start + at, len)));
        }
    }
    flush(pending);
}

/// Calls `visit` with runs of neighbouring elements that cover the elements of a span exactly once.
fn runs(plane: &Plane, span: Span, padding: Padding, mut visit: impl FnMut(usize, usize)) {
    let dropped = padding == Padding::Dropped;
    if span.count == plane.block() && (dropped || plane.is_solid()) {
        return visit(span.base, plane.block_len());
    }
    let (pack, group) = (plane.pack(), plane.group());
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
