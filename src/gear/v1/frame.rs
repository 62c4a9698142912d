//! Wire format v1: headers around the compressed planes.
//!
//! ```text
//! blob  = u32 word_count, one frame per plane
//! frame = u8 mode, u8 codec, u32 raw_len, u32 payload_len, payload
//! ```
//! All integers are little-endian.

use super::choose::Choice;
use super::predict::Predictor;
use super::rle;
use super::split::Width;
use crate::bytes::Reader;
use crate::status::{Result, bail};

const COUNT_LEN: usize = 4;
const HEADER_LEN: usize = 10;

/// The payload of each plane.
const PAYLOADS: [&str; 4] =
    ["the payload of plane 0", "the payload of plane 1", "the payload of plane 2", "the payload of plane 3"];

/// The coder of a plane; the number is the `codec` byte of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Backend {
    Rle = 0,
    Zstd = 1,
}

/// One plane on the wire.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame<'a> {
    pub(super) predictor: Predictor,
    pub(super) backend: Backend,
    pub(super) payload: &'a [u8],
}

/// The number of words of `src_len` bytes. Fails if the format cannot hold them.
pub(in crate::gear) fn word_count(src_len: usize, width: Width) -> Result<u32> {
    let bytes = width.bytes();
    if src_len == 0 {
        bail!(InvalidArgument, "src_len is 0; at least one {bytes}-byte word expected");
    }
    if !src_len.is_multiple_of(bytes) {
        bail!(InvalidArgument, "src_len is {src_len}; a multiple of {bytes} expected");
    }
    match u32::try_from(src_len / bytes) {
        // A payload is never longer than the RLE bound, and its length is 32 bits too.
        Ok(words) if rle::bound(words as usize) <= u32::MAX as usize => Ok(words),
        _ => bail!(
            InvalidArgument,
            "src_len is {src_len}; at most 4261672974 words of {bytes} bytes expected in format v1"
        ),
    }
}

/// The largest blob for `src_len` bytes, or `None` if no such input can be encoded. The RLE candidate guarantees it.
pub fn bound(src_len: usize, width: Width) -> Option<usize> {
    word_count(src_len, width).ok().map(|words| blob_bound(words, width))
}

/// The largest blob for a word count that the format can hold.
pub(super) fn blob_bound(words: u32, width: Width) -> usize {
    COUNT_LEN + width.bytes() * (HEADER_LEN + rle::bound(words as usize))
}

/// The room for a blob whose payloads take `payload` bytes while they are written.
pub(super) fn room(words: u32, payload: usize, width: Width) -> usize {
    blob_bound(words, width) + payload
}

/// Begins a blob with the word count; returns the length.
pub(super) fn begin(blob: &mut [u8], words: u32) -> usize {
    blob[..COUNT_LEN].copy_from_slice(&words.to_le_bytes());
    COUNT_LEN
}

/// The place of a frame's header, and of its payload behind it.
pub(super) fn split_header(frame: &mut [u8]) -> (&mut [u8], &mut [u8]) {
    frame.split_at_mut(HEADER_LEN)
}

/// Writes the header of a frame whose payload is in its place; returns the length of both.
pub(super) fn put_header(header: &mut [u8], words: u32, choice: &Choice) -> usize {
    header[0] = choice.predictor as u8;
    header[1] = choice.backend as u8;
    header[2..6].copy_from_slice(&words.to_le_bytes());
    header[6..10].copy_from_slice(&(choice.len as u32).to_le_bytes());
    HEADER_LEN + choice.len
}

/// The headers of a blob.
pub(super) struct Blob<'a> {
    /// Bytes per plane.
    pub(super) words: usize,
    /// Bytes that the blob decodes to.
    pub(super) decoded_len: usize,
    /// One frame per plane; entries past the width repeat the first and have no meaning.
    pub(super) frames: [Frame<'a>; 4],
}

/// Reads and checks every header.
pub(super) fn parse(blob: &[u8], width: Width) -> Result<Blob<'_>> {
    let mut src = Reader::new(blob);
    let words = src.u32("the word count")?;
    if words == 0 {
        bail!(Corrupt, "word count is 0; a v1 blob holds at least one word");
    }
    let first = take_frame(&mut src, words, 0)?;
    let mut frames = [first; 4];
    for (plane, frame) in frames.iter_mut().enumerate().take(width.bytes()).skip(1) {
        *frame = take_frame(&mut src, words, plane)?;
    }
    src.end("the last frame")?;
    let words = words as usize;
    let Some(decoded_len) = words.checked_mul(width.bytes()) else {
        bail!(Unsupported, "{words} words do not fit this machine's address space");
    };
    Ok(Blob { words, decoded_len, frames })
}

fn take_frame<'a>(src: &mut Reader<'a>, words: u32, plane: usize) -> Result<Frame<'a>> {
    let [mode, codec] = src.array("a frame header")?;
    let raw_len = src.u32("a frame header")?;
    let payload_len = src.u32("a frame header")?;
    let predictor = Predictor::from_wire(mode)?;
    let backend = match codec {
        0 => Backend::Rle,
        1 => Backend::Zstd,
        _ => bail!(Corrupt, "plane {plane}: codec is {codec}; 0 (RLE) or 1 (ZSTD) expected"),
    };
    if raw_len != words {
        bail!(Corrupt, "plane {plane}: raw_len is {raw_len}; the word count {words} expected");
    }
    Ok(Frame { predictor, backend, payload: src.take(payload_len, PAYLOADS[plane])? })
}

/// The decoded length in bytes that a blob announces, after a check of all headers.
pub fn decoded_len(blob: &[u8], width: Width) -> Result<usize> {
    Ok(parse(blob, width)?.decoded_len)
}
