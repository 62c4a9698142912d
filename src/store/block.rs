//! One block: which tokens it stands for, and what is left of them after the cache was edited.

use super::heap::{Blob, Heap};
use crate::layout::{Layout, Rows, TokenRange};
use crate::status::{self, Result, bail};

/// Where a block's raw bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Residence {
    /// In the cache, as well as in the blobs.
    Resident,
    /// Only in the blobs.
    Released,
}

/// Tokens of a block that are still in the cache: `count` from `offset` in the block, now at `begin` in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) offset: u32,
    pub(super) begin: u32,
    pub(super) count: u32,
}

impl Segment {
    pub(super) fn end(&self) -> u32 {
        self.begin + self.count
    }

    /// Copies this segment's tokens out of rows `[head][token][dim]` of `tokens` tokens.
    pub(super) fn cut(&self, rows: &[u8], heads: usize, tokens: usize, part: &mut Vec<u8>) -> Result<()> {
        let token_bytes = rows.len() / heads / tokens;
        let (skip, len) = (self.offset as usize * token_bytes, self.count as usize * token_bytes);
        status::resize(part, heads * len)?;
        for (part, rows) in part.chunks_exact_mut(len).zip(rows.chunks_exact(tokens * token_bytes)) {
            part.copy_from_slice(&rows[skip..skip + len]);
        }
        Ok(())
    }
}

/// An encoded range of tokens.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) ticket: u64,
    /// What a layout must agree with; its packing may differ.
    pub(super) rows: Rows,
    /// Tokens in the blobs.
    pub(super) tokens: usize,
    /// The tokens that the cache still has, ascending. A resident block always has all of them in one segment.
    pub(super) segments: Vec<Segment>,
    pub(super) residence: Residence,
    pub(super) key: Blob,
    pub(super) value: Blob,
    pub(super) digest: u128,
}

impl Block {
    pub(super) fn new(ticket: u64, rows: Rows, range: TokenRange, key: Blob, value: Blob, digest: u128) -> Self {
        let segment = Segment { offset: 0, begin: range.begin() as u32, count: range.count() as u32 };
        let segments = vec![segment];
        Block { ticket, rows, tokens: range.count(), segments, residence: Residence::Resident, key, value, digest }
    }

    /// Gives the blobs back.
    pub(super) fn discard(self, heap: &mut Heap) {
        heap.free(self.key);
        heap.free(self.value);
    }

    pub(super) fn is_released(&self) -> bool {
        self.residence == Residence::Released
    }

    /// Whether the cache still has all of the block's tokens, side by side.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self.segments[..], [s] if s.count as usize == self.tokens)
    }

    pub(super) fn is_whole_at(&self, range: TokenRange) -> bool {
        self.is_whole() && self.segments[0].begin as usize == range.begin() && self.tokens == range.count()
    }

    /// The tokens of a whole block, when the layout has room for them.
    pub(super) fn range_in(&self, layout: &Layout) -> Option<TokenRange> {
        let [segment] = self.segments[..] else { return None };
        layout.range(segment.begin, segment.count).ok()
    }

    pub(super) fn overlaps(&self, range: TokenRange) -> bool {
        self.segments.iter().any(|s| (s.begin as usize) < range.end() && range.begin() < s.end() as usize)
    }

    /// Raw bytes of the tokens that the cache still has.
    pub(super) fn live_bytes(&self) -> usize {
        let tokens = self.segments.iter().map(|s| s.count as usize).sum();
        self.rows.key_bytes(tokens) + self.rows.value_bytes(tokens)
    }

    /// Fails when the block cannot be written back to a cache of this layout.
    pub(super) fn check_fits(&self, layer: u32, layout: &Layout) -> Result<()> {
        let (mine, given) = (self.rows, layout.rows());
        if mine != given {
            bail!(
                Stale,
                "block {} of layer {layer} has {} heads x {} ({:?}, {:?}); the layout has {} x {} ({:?}, {:?})",
                self.ticket,
                mine.heads,
                mine.dims,
                mine.key_dtype,
                mine.value_dtype,
                given.heads,
                given.dims,
                given.key_dtype,
                given.value_dtype
            );
        }
        let end = self.segments.last().map_or(0, Segment::end) as usize;
        if end > layout.max_tokens() {
            bail!(
                Stale,
                "block {} of layer {layer} ends at token {end}; the layout has room for {}",
                self.ticket,
                layout.max_tokens()
            );
        }
        Ok(())
    }

    /// Follows an edit of the cache that keeps the given ranges (offset, length; ascending) and closes the gaps.
    /// Answers whether anything is left worth keeping: a released block lives while any of its tokens does, a
    /// resident one only while it is whole.
    pub(super) fn keep(&mut self, ranges: impl Iterator<Item = (u32, u32)>) -> bool {
        let mut segments: Vec<Segment> = Vec::new();
        let mut shifted = 0u32;
        for (offset, len) in ranges {
            for s in &self.segments {
                let (first, end) = (s.begin.max(offset), s.end().min(offset + len));
                if first >= end {
                    continue;
                }
                let piece = Segment {
                    offset: s.offset + (first - s.begin),
                    begin: shifted + (first - offset),
                    count: end - first,
                };
                match segments.last_mut() {
                    Some(last) if last.end() == piece.begin && last.offset + last.count == piece.offset => {
                        last.count += piece.count;
                    }
                    _ => segments.push(piece),
                }
            }
            shifted += len;
        }
        self.segments = segments;
        if self.is_released() { !self.segments.is_empty() } else { self.is_whole() }
    }
}
