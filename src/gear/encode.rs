//! Words to a blob.

use super::choose::{self, Scratch};
use super::frame;
use super::options::Options;
use super::split::{self, Width};
use super::zstd;
use crate::status::{self, Result};
use zstd_safe::CCtx;

/// Encodes word streams. Holds a ZSTD context and about three times the largest input as working memory, made on
/// first use and kept for the next call.
#[derive(Default)]
pub struct Encoder {
    cctx: Option<CCtx<'static>>,
    lanes: Vec<u8>,
    scratch: Scratch,
    blob: Vec<u8>,
}

impl Encoder {
    /// An encoder that holds no memory yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Encodes `words`, a whole number of words and at least one, in format v1. The blob lives in the encoder until
    /// the next call.
    pub fn encode(&mut self, words: &[u8], width: Width, options: &Options) -> Result<&[u8]> {
        let count = frame::word_count(words.len(), width)?;
        status::resize(&mut self.lanes, words.len())?;
        self.blob.clear();
        status::reserve(&mut self.blob, frame::blob_bound(count, width))?;
        let cctx = match &mut self.cctx {
            Some(cctx) => cctx,
            none => none.insert(zstd::compressor()?),
        };

        split::split(width, words, &mut self.lanes);
        frame::begin(&mut self.blob, count);
        for lane in self.lanes.chunks_exact(count as usize) {
            let frame = choose::smallest(lane, options, cctx, &mut self.scratch)?;
            frame::push(&mut self.blob, count, &frame);
        }
        Ok(&self.blob)
    }
}
