//! A blob to words.

use super::frame::{self, Backend, Blob};
use super::split::{self, Width};
use super::{predict, rle, zstd};
use crate::status::{self, Error, Result};
use zstd_safe::DCtx;

/// Decodes blobs. Holds a ZSTD context and as much working memory as the largest output, made on first use and kept
/// for the next call.
#[derive(Default)]
pub struct Decoder {
    dctx: Option<DCtx<'static>>,
    lanes: Vec<u8>,
}

impl Decoder {
    /// A decoder that holds no memory yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Decodes `blob` to the start of `words` and returns the length in bytes. Reads nothing past `blob`, allocates
    /// no more than `words` is long, and writes to `words` only after the whole blob proved sound.
    pub fn decode(&mut self, blob: &[u8], width: Width, words: &mut [u8]) -> Result<usize> {
        let Blob { words: count, decoded_len: len, frames } = frame::parse(blob, width)?;
        if words.len() < len {
            return Err(Error::too_small("dst_cap (bytes)", words.len(), len));
        }
        status::resize(&mut self.lanes, len)?;
        for (lane, frame) in self.lanes.chunks_exact_mut(count).zip(&frames) {
            match frame.backend {
                Backend::Rle => rle::decode(frame.payload, lane)?,
                Backend::Zstd => {
                    let dctx = match &mut self.dctx {
                        Some(dctx) => dctx,
                        none => none.insert(zstd::decompressor()?),
                    };
                    zstd::decode(dctx, frame.payload, lane)?;
                }
            }
            predict::restore(frame.predictor, lane);
        }
        split::merge(width, &self.lanes, &mut words[..len]);
        Ok(len)
    }
}
