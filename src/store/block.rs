//! One block: its tokens, and the segments of them that edits of the cache have left.

use super::blob::Blob;
use super::codec::BlockShape;
use super::saved::SavedRun;
use crate::layout::{self, Layout, TokenRange};
use crate::status::{Result, bail};
use crate::sys::{Shared, memory};
use std::ops::Range;

/// Where the bytes of a block are. Raw bytes are in the cache in every state but the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockState {
    /// A copy waits for a worker or is with one.
    Encoding,
    /// There is no blob and there will be none: it would not be smaller, encoding failed, or the block was a sample.
    Raw,
    /// In the cache and in the blobs.
    Resident,
    /// Only in the blobs.
    Released,
}

/// Tokens of a block that the cache still has: `count` from `offset` of the block on, now at `begin` of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LiveSegment {
    pub(super) offset: u32,
    pub(super) begin: u32,
    pub(super) count: u32,
}

impl LiveSegment {
    pub(super) fn end(&self) -> u32 {
        self.begin + self.count
    }

    /// The parts of the segment that an edit keeps.
    pub(super) fn kept(self, kept: &[KeptRun]) -> impl Iterator<Item = LiveSegment> {
        let first = kept.partition_point(|range| range.end <= self.begin);
        kept[first..].iter().take_while(move |range| range.begin < self.end()).map(move |range| {
            let (first, end) = (self.begin.max(range.begin), self.end().min(range.end));
            let begin = range.now + (first - range.begin);
            LiveSegment { offset: self.offset + (first - self.begin), begin, count: end - first }
        })
    }

    /// Its tokens before `len`.
    pub(super) fn before(self, len: u32) -> Self {
        LiveSegment { count: self.count.min(len.saturating_sub(self.begin)), ..self }
    }

    /// Copies this segment's tokens out of `rows`, `[head][token][dim]` of `tokens` tokens.
    pub(super) fn cut(&self, rows: &[u8], heads: usize, tokens: usize, part: &mut Vec<u8>) -> Result<()> {
        let count = self.count as usize;
        memory::resize(part, rows.len() / tokens * count)?;
        layout::copy_dense(heads, count, (rows, (self.offset as usize, tokens)), (part, (0, count)));
        Ok(())
    }
}

/// Tokens `begin..end` that an edit keeps; the first of them is at `now` afterwards.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeptRun {
    pub(super) begin: u32,
    pub(super) end: u32,
    pub(super) now: u32,
}

/// A submitted range of tokens.
#[derive(Debug)]
pub(super) struct Block {
    /// Ticket, rows (the packing of a layout may differ), tokens in the blobs, and their digest.
    pub(super) shape: BlockShape,
    /// See [`Block::segments`].
    segments: Vec<LiveSegment>,
    pub(super) state: BlockState,
    pub(super) blob: Option<Shared<Blob>>,
    /// The raw bytes were compared with the digest, or come from the blobs.
    pub(super) verified: bool,
    /// The blobs have replaced raw bytes at least once.
    pub(super) claimed: bool,
    /// A decode job waits for a worker or is with one.
    pub(super) decoding: bool,
    /// The blob is a piece of a parked layer.
    pub(super) is_parked: bool,
}

impl Block {
    pub(super) fn new(shape: BlockShape, range: TokenRange) -> Result<Self> {
        let segment = LiveSegment { offset: 0, begin: range.begin() as u32, count: range.count() as u32 };
        Ok(Block {
            shape,
            segments: memory::copied(&[segment])?,
            state: BlockState::Encoding,
            blob: None,
            verified: false,
            claimed: false,
            decoding: false,
            is_parked: false,
        })
    }

    /// A released block of a parked layer.
    pub(super) fn parked(shape: BlockShape, range: TokenRange, blob: Shared<Blob>) -> Result<Self> {
        let (state, blob) = (BlockState::Released, Some(blob));
        Ok(Block { state, blob, verified: true, claimed: true, is_parked: true, ..Block::new(shape, range)? })
    }

    /// A released block of a layer that is in a file.
    pub(super) fn of_file(shape: BlockShape, runs: &[SavedRun], blob: Shared<Blob>) -> Result<Self> {
        let segments = memory::collect(runs.iter().map(SavedRun::segment))?;
        Ok(Block { segments, ..Block::parked(shape, TokenRange::default(), blob)? })
    }

    /// The tokens that the cache still has, ascending. Unless the block is released, one segment has all of them.
    pub(super) fn segments(&self) -> &[LiveSegment] {
        &self.segments
    }

    pub(super) fn ticket(&self) -> u64 {
        self.shape.ticket
    }

    pub(super) fn blob_bytes(&self) -> usize {
        self.blob.as_ref().map_or(0, |blob| blob.own_len())
    }

    pub(super) fn is_released(&self) -> bool {
        self.state == BlockState::Released
    }

    /// Whether there is a blob, or there may be one.
    pub(super) fn has_content(&self) -> bool {
        self.state != BlockState::Raw
    }

    /// Whether the cache still has all tokens of the block, side by side.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self.segments[..], [s] if s.count as usize == self.shape.tokens)
    }

    pub(super) fn is_whole_at(&self, range: TokenRange) -> bool {
        self.is_whole() && self.segments[0].begin as usize == range.begin() && self.shape.tokens == range.count()
    }

    /// The tokens of a whole block; `None` when the layout has no room for them.
    pub(super) fn range_in(&self, layout: &Layout) -> Option<TokenRange> {
        let [segment] = self.segments[..] else { return None };
        layout.range(segment.begin, segment.count).ok()
    }

    /// Whether the block has tokens of the range.
    pub(super) fn overlaps(&self, range: &Range<u32>) -> bool {
        self.segments.iter().any(|s| s.begin < range.end && range.start < s.end())
    }

    /// Raw bytes of the tokens that the cache still has.
    pub(super) fn live_bytes(&self) -> usize {
        let tokens = self.segments.iter().map(|s| s.count as usize).sum();
        self.shape.rows.key_bytes(tokens) + self.shape.rows.value_bytes(tokens)
    }

    /// STALE: if the block cannot be written to a cache of this layout.
    pub(super) fn check_fits(&self, layer: u32, layout: &Layout) -> Result<()> {
        let (mine, given) = (self.shape.rows, layout.rows());
        if mine != given {
            bail!(Stale, "block {} of layer {layer} has {mine}; the layout has {given:#}", self.ticket());
        }
        let end = self.segments.last().map_or(0, LiveSegment::end) as usize;
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

    /// Appends the segments that an edit leaves: the block's tokens in `kept`, which ascends.
    pub(super) fn cut(&self, kept: &[KeptRun], pieces: &mut Vec<LiveSegment>) -> Result<()> {
        for piece in self.segments.iter().flat_map(|segment| segment.kept(kept)) {
            match pieces.last_mut() {
                Some(last) if last.end() == piece.begin && last.offset + last.count == piece.offset => {
                    last.count += piece.count;
                }
                _ => memory::push(pieces, piece)?,
            }
        }
        Ok(())
    }

    /// Takes the segments that an edit left. A released block lives while it has a token, any other while it is whole;
    /// otherwise it has no segments afterwards.
    pub(super) fn set_segments(&mut self, pieces: Vec<LiveSegment>) {
        self.segments = pieces;
        self.drop_unless_worth_keeping();
    }

    /// Drops the tokens from `len` on.
    pub(super) fn truncate(&mut self, len: u32) {
        self.segments.retain_mut(|s| {
            *s = s.before(len);
            s.count > 0
        });
        self.drop_unless_worth_keeping();
    }

    fn drop_unless_worth_keeping(&mut self) {
        if !self.is_released() && !self.is_whole() {
            self.segments.clear();
        }
    }

    /// Whether an edit has left no segment.
    pub(super) fn is_gone(&self) -> bool {
        self.segments.is_empty()
    }
}
