//! One block: which tokens it stands for, and what is left of them after the cache was edited.

use super::codec::Shape;
use super::kv::Kv;
use crate::layout::{Layout, TokenRange};
use crate::status::{Result, bail};
use crate::sys::memory;
use std::sync::Arc;

/// Where a block's tokens are. Raw bytes are in the cache in every state but the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// A copy is with a worker.
    Encoding,
    /// There is no blob and will be none: it would not be smaller, could not be made, or was only a sample.
    Raw,
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
        memory::resize(part, heads * len)?;
        for (part, rows) in part.chunks_exact_mut(len).zip(rows.chunks_exact(tokens * token_bytes)) {
            part.copy_from_slice(&rows[skip..skip + len]);
        }
        Ok(())
    }
}

/// A range of tokens that was submitted.
#[derive(Debug)]
pub(super) struct Block {
    /// The ticket, what a layout must agree with (its packing may differ), tokens in the blobs, and their digest.
    pub(super) shape: Shape,
    /// The tokens that the cache still has, ascending. Unless the block is released, all of them in one segment.
    pub(super) segments: Vec<Segment>,
    pub(super) state: State,
    pub(super) blob: Option<Arc<Kv>>,
    /// The raw bytes are known to be those of the blobs, unless a host writes without saying so.
    pub(super) verified: bool,
    /// Its blobs have replaced raw bytes at least once.
    pub(super) claimed: bool,
    /// A worker has been asked to decode it.
    pub(super) decoding: bool,
}

/// Where the block of a ticket is in a layer's blocks, which are in the order of their tickets.
pub(super) fn find(blocks: &[Block], ticket: u64) -> Option<usize> {
    blocks.binary_search_by_key(&ticket, Block::ticket).ok()
}

impl Block {
    pub(super) fn new(shape: Shape, range: TokenRange) -> Self {
        let segment = Segment { offset: 0, begin: range.begin() as u32, count: range.count() as u32 };
        Block {
            shape,
            segments: vec![segment],
            state: State::Encoding,
            blob: None,
            verified: false,
            claimed: false,
            decoding: false,
        }
    }

    pub(super) fn ticket(&self) -> u64 {
        self.shape.ticket
    }

    pub(super) fn blob_bytes(&self) -> usize {
        self.blob.as_ref().map_or(0, |blob| blob.len())
    }

    pub(super) fn is_released(&self) -> bool {
        self.state == State::Released
    }

    /// Whether the cache still has all of the block's tokens, side by side.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self.segments[..], [s] if s.count as usize == self.shape.tokens)
    }

    pub(super) fn is_whole_at(&self, range: TokenRange) -> bool {
        self.is_whole() && self.segments[0].begin as usize == range.begin() && self.shape.tokens == range.count()
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
        self.shape.rows.key_bytes(tokens) + self.shape.rows.value_bytes(tokens)
    }

    /// Fails when the block cannot be written back to a cache of this layout.
    pub(super) fn check_fits(&self, layer: u32, layout: &Layout) -> Result<()> {
        let (mine, given) = (self.shape.rows, layout.rows());
        if mine != given {
            bail!(
                Stale,
                "block {} of layer {layer} has {} heads x {} ({:?}, {:?}); the layout has {} x {} ({:?}, {:?})",
                self.ticket(),
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
                self.ticket(),
                layout.max_tokens()
            );
        }
        Ok(())
    }

    /// Follows an edit of the cache that keeps the given ranges (offset, length; ascending) and closes the gaps.
    /// Answers whether anything is left worth keeping: a released block lives while any of its tokens does, any other
    /// only while it is whole.
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
