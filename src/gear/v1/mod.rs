//! Format v1, as the reference system reads and writes it: words are split into byte planes ([`split`]), each plane is
//! predicted ([`predict`]) and compressed by run lengths ([`rle`]) or ZSTD, as [`choose`] decides; [`frame`] puts
//! headers around it. `docs/format.md` has the format byte for byte.

mod choose;
mod frame;
mod predict;
mod rle;
mod split;

pub(super) use frame::{bound, decoded_len, word_count};
pub(super) use predict::Predictor;
pub(super) use split::Width;

use super::codec::{Buffers, Context};
use super::options::Options;
use super::zstd;
use crate::status::{Error, Result};
use crate::sys::memory;
use frame::{Backend, Blob};

/// Encodes `words`, a whole number of words and at least one, to `buffers.blob`, behind `header`.
pub(super) fn encode<'a>(
    header: &[u8],
    words: &[u8],
    width: Width,
    options: &Options,
    zstd: &mut zstd::Compressor,
    buffers: &'a mut Buffers,
) -> Result<&'a [u8]> {
    let count = frame::word_count(words.len(), width)?;
    let Buffers { blob, trial, planes, residual } = buffers;
    let planes = memory::at_least(planes, words.len())?;
    let blob = memory::at_least(blob, header.len() + frame::room(count, choose::bound(count as usize), width))?;
    blob[..header.len()].copy_from_slice(header);
    split::split(width, words, planes);
    let mut len = header.len() + frame::begin(&mut blob[header.len()..], count);
    for plane in planes.chunks_exact(count as usize) {
        let (header, payload) = frame::split_header(&mut blob[len..]);
        let choice = choose::encode(plane, options, zstd, residual, trial, payload)?;
        len += frame::put_header(header, count, &choice);
    }
    Ok(&blob[..len])
}

/// Decodes `blob` to the start of `words` and returns the length in bytes. `planes` is working memory. Writes to
/// `words` only after the whole blob proved sound.
pub(super) fn decode(
    blob: &[u8],
    width: Width,
    words: &mut [u8],
    context: &mut Context<'_>,
    planes: &mut Vec<u8>,
) -> Result<usize> {
    let Blob { words: count, decoded_len: len, frames } = frame::parse(blob, width)?;
    if words.len() < len {
        return Err(Error::too_small("dst_cap (bytes)", words.len(), len));
    }
    context.budget.allow(blob.len(), len);
    let planes = context.budget.at_least(planes, len)?;
    for (plane, frame) in planes.chunks_exact_mut(count).zip(&frames) {
        match frame.backend {
            Backend::Rle => rle::decode(frame.payload, plane)?,
            Backend::Zstd => context.unzstd(frame.payload, plane)?,
        }
        predict::restore(frame.predictor, plane);
    }
    split::merge(width, planes, &mut words[..len]);
    Ok(len)
}
