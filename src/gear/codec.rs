//! The two objects that callers hold: an encoder and a decoder for every format and type.

use super::options::{Format, Options};
use super::v1::{self, Width};
use super::v2;
use super::zstd;
use crate::dtype::Dtype;
use crate::status::{Result, bail};

/// Encodes words. Holds the working memory of its calls, which [`Encoder::encode`] says, from one call to the next.
#[derive(Default)]
pub struct Encoder {
    zstd: zstd::Compressor,
    v1: v1::Encoder,
    v2: v2::Encoder,
}

impl Encoder {
    /// An encoder that holds no memory yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Encodes `words`, a whole number of words of `dtype` and at least one. The blob lives in the encoder until the
    /// next call. Format v1 keeps about three times the largest input as working memory, v2 four times, with a
    /// rotation hint eight.
    pub fn encode(&mut self, words: &[u8], dtype: Dtype, options: &Options<'_>) -> Result<&[u8]> {
        match options.format {
            Format::V1 => self.v1.encode(words, Width::of(dtype)?, options, &mut self.zstd),
            Format::V2 => self.v2.encode(words, dtype, options, &mut self.zstd),
        }
    }
}

/// Decodes blobs of every format. Holds about three times the largest output as working memory.
#[derive(Default)]
pub struct Decoder {
    zstd: zstd::Decompressor,
    lanes: Vec<u8>,
    v2: v2::Decoder,
}

impl Decoder {
    /// A decoder that holds no memory yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Decodes `blob` to the start of `words` and returns the length in bytes. Reads nothing past `blob`, allocates
    /// no more than a few times what `words` is long, and writes to `words` only after the whole blob proved sound.
    pub fn decode(&mut self, blob: &[u8], dtype: Dtype, words: &mut [u8]) -> Result<usize> {
        if v2::is_v2(blob) {
            return self.v2.decode(blob, dtype, words, &mut self.zstd);
        }
        v1::decode(blob, v1_width(dtype)?, words, &mut self.zstd, &mut self.lanes)
    }
}

/// The width of the words of a blob that does not begin as one of v2.
fn v1_width(dtype: Dtype) -> Result<Width> {
    if dtype == Dtype::Int8 {
        bail!(Corrupt, "the blob does not begin as one of format v2, which is the only one with INT8");
    }
    Width::of(dtype)
}

/// The decoded size in bytes that a blob announces, after checking all of its headers.
pub fn decoded_len(blob: &[u8], dtype: Dtype) -> Result<usize> {
    if v2::is_v2(blob) { v2::decoded_len(blob, dtype) } else { v1::decoded_len(blob, v1_width(dtype)?) }
}

/// The largest blob of any format that can hold `src_len` bytes, or `None` when none can.
pub fn bound(src_len: usize, dtype: Dtype) -> Option<usize> {
    let v1 = Width::of(dtype).ok().and_then(|width| v1::bound(src_len, width));
    v2::bound(src_len, dtype).max(v1)
}
