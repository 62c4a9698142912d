//! Clearing tokens, with or without giving their memory back.

use super::plane::{Plane, Span};
use super::{Layout, TokenRange};
use crate::status::Result;

/// Sets every element of a range of tokens to zero bits.
pub fn zero(layout: &Layout, key: &mut [u8], value: &mut [u8], range: TokenRange) -> Result<()> {
    release(layout, key, value, range, &mut |run| {
        run.fill(0);
        0
    })
    .map(|_| ())
}

/// Hands every longest run of neighbouring bytes that belong to the range to `give_back`, which must leave zeros in
/// it and answers how many bytes went back to the system. Returns their sum.
pub fn release(
    layout: &Layout,
    key: &mut [u8],
    value: &mut [u8],
    range: TokenRange,
    give_back: &mut dyn FnMut(&mut [u8]) -> u64,
) -> Result<u64> {
    layout.check_buffers(key, value)?;
    Ok(release_plane(&layout.key, key, range, give_back) + release_plane(&layout.value, value, range, give_back))
}

fn release_plane(
    plane: &Plane,
    packed: &mut [u8],
    range: TokenRange,
    give_back: &mut dyn FnMut(&mut [u8]) -> u64,
) -> u64 {
    let bytes = plane.element_bytes();
    let mut released = 0;
    let mut pending = 0..0;
    let mut flush = |run: std::ops::Range<usize>| {
        if !run.is_empty() {
            released += give_back(&mut packed[run.start * bytes..run.end * bytes]);
        }
    };
    for head in plane.head_ranges() {
        for span in plane.spans(range) {
            runs(plane, span, |start, len| {
                let start = head.start + start;
                if pending.end == start {
                    pending.end += len;
                } else {
                    flush(std::mem::replace(&mut pending, start..start + len));
                }
            });
        }
    }
    flush(pending);
    released
}

/// Calls `visit` with runs of neighbouring elements that cover the real elements of a span exactly once.
fn runs(plane: &Plane, span: Span, mut visit: impl FnMut(usize, usize)) {
    if span.count == plane.block() && plane.is_solid() {
        return visit(span.base, plane.block_stride());
    }
    let lanes = plane.lanes();
    plane.tiles(span, |tile| {
        if tile.dim_stride == 1 && tile.token_stride == tile.dims {
            visit(tile.start, tile.tokens * tile.dims);
        } else if tile.dim_stride == 1 {
            (0..tile.tokens).for_each(|t| visit(tile.start + t * tile.token_stride, tile.dims));
        } else if lanes > 1 && tile.tokens == lanes {
            visit(tile.start, tile.dims * lanes);
        } else {
            (0..tile.dims).for_each(|d| visit(tile.start + d * tile.dim_stride, tile.tokens));
        }
    });
}
