//! One block: its tokens, and the segments of them that edits of the cache have left.

use super::blob::Blob;
use super::codec::BlockShape;
use crate::layout::{Layout, TokenRange};
use crate::run::Run;
use crate::status::{Result, bail};
use crate::sys::Shared;
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

/// A submitted range of tokens.
#[derive(Debug)]
pub(super) struct Block {
    /// Ticket, rows (the packing of a layout may differ), tokens in the blobs, and their digest.
    pub(super) shape: BlockShape,
    /// The tokens that the cache still has. Unless the block is released, one segment has all of them.
    pub(super) segments: Vec<Run>,
    pub(super) state: BlockState,
    pub(super) blob: Option<Shared<Blob>>,
    /// The raw bytes were compared with the digest, or come from the blobs.
    pub(super) verified: bool,
    /// The blobs have replaced raw bytes at least once.
    pub(super) claimed: bool,
    /// A decode job waits for a worker or is with one.
    pub(super) decoding: bool,
}

impl Block {
    pub(super) fn new(shape: BlockShape, segments: Vec<Run>) -> Self {
        Block {
            shape,
            segments,
            state: BlockState::Encoding,
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
        Run::within(&self.segments, range.clone()).next().is_some()
    }

    /// Raw bytes of the tokens that the cache still has.
    pub(super) fn live_bytes(&self) -> usize {
        self.segments.iter().map(|segment| segment.count as usize).sum::<usize>() * self.shape.rows.token_bytes()
    }

    /// STALE: if the block cannot be written to a cache of this layout.
    pub(super) fn check_fits(&self, layer: u32, layout: &Layout) -> Result<()> {
        let (mine, given) = (self.shape.rows, layout.rows());
        if mine != given {
            bail!(Stale, "block {} of layer {layer} has {mine}; the layout has {given:#}", self.ticket());
        }
        let end = self.segments.last().map_or(0, Run::end) as usize;
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

    /// Whether an edit has left too little: a released block lives while it has a token, any other while it is whole.
    pub(super) fn is_gone(&self) -> bool {
        self.segments.is_empty() || !(self.is_released() || self.is_whole())
    }
}
