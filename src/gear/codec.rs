//! The encoder and the decoder of both formats and of every type.

use super::budget::{Budget, held};
use super::checked;
use super::options::{Format, Options};
use super::v1::{self, Width};
use super::zstd;
use crate::dtype::Dtype;
use crate::status::{Error, Result};

/// Working memory of an encoder, each part up to a little over the length of the words.
#[derive(Default)]
pub(super) struct Buffers {
    pub(super) blob: Vec<u8>,
    /// A payload that may prove shorter.
    pub(super) trial: Vec<u8>,
    pub(super) planes: Vec<u8>,
    pub(super) residual: Vec<u8>,
}

/// An encoder of words. Retains the working memory of a call, which [`Encoder::encode`] bounds, for the next.
#[derive(Default)]
pub struct Encoder {
    zstd: zstd::Compressor,
    buffers: Buffers,
}

impl Encoder {
    /// An encoder without memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Encodes `words`, a whole number of words of `dtype` and at least one. The blob lives in the encoder until the
    /// next call. Holds at most six times the largest input and 2 MiB.
    pub fn encode(&mut self, words: &[u8], dtype: Dtype, options: &Options) -> Result<&[u8]> {
        let header = match options.format {
            Format::V1 => None,
            Format::Checked => Some(checked::header(words, dtype)?),
        };
        let header = header.as_ref().map_or(&[][..], |header| header);
        v1::encode(header, words, Width::of(dtype), options, &mut self.zstd, &mut self.buffers)
    }
}

/// A decoder of both formats. Retains the working memory of a call, which [`Decoder::decode`] bounds, for the next.
#[derive(Default)]
pub struct Decoder {
    zstd: zstd::Decompressor,
    planes: Vec<u8>,
}

impl Decoder {
    /// A decoder without memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Decodes `blob` to the start of `words` and returns the length in bytes. After CORRUPT, UNSUPPORTED or OUT_OF_MEMORY
    /// the decoded length of `words` is undefined; bytes after it are never written. Holds at most three times the
    /// lengths of the blob and the words, and 256 KiB: OUT_OF_MEMORY for a blob that takes more, which no encoder of
    /// this library writes.
    pub fn decode(&mut self, blob: &[u8], dtype: Dtype, words: &mut [u8]) -> Result<usize> {
        self.decode_within(blob, dtype, words, None)
    }

    /// As [`Decoder::decode`], with a limit of `max_working_bytes` in place of the default.
    pub fn decode_within(
        &mut self,
        blob: &[u8],
        dtype: Dtype,
        words: &mut [u8],
        max_working_bytes: Option<usize>,
    ) -> Result<usize> {
        let mut held = self.zstd.held() + held(&self.planes);
        if max_working_bytes.is_some_and(|max| max < held) {
            *self = Decoder::default();
            held = 0;
        }
        let mut budget = Budget::new(max_working_bytes, held);
        match self.run(blob, dtype, words, &mut budget) {
            // Memory that other blobs left may be the excess.
            Err(_) if budget.was_exceeded() && held > 0 => {
                *self = Decoder::default();
                self.run(blob, dtype, words, &mut Budget::new(max_working_bytes, 0))
            }
            result => result,
        }
    }

    fn run(&mut self, blob: &[u8], dtype: Dtype, words: &mut [u8], budget: &mut Budget) -> Result<usize> {
        let Decoder { zstd, planes } = self;
        let mut context = Context { zstd, budget };
        if !checked::is_checked(blob) {
            return v1::decode(blob, Width::of(dtype), words, &mut context, planes);
        }
        let (header, frame) = checked::open(blob, dtype)?;
        if words.len() < header.len {
            return Err(Error::too_small("dst_cap (bytes)", words.len(), header.len));
        }
        let len = v1::decode(frame, Width::of(dtype), words, &mut context, planes)?;
        header.check(&words[..len])?;
        Ok(len)
    }
}

/// The means of every part of a decoder.
pub(super) struct Context<'a> {
    zstd: &'a mut zstd::Decompressor,
    pub(super) budget: &'a mut Budget,
}

impl Context<'_> {
    /// Decompresses `src`, which must be exactly one ZSTD frame, into exactly `out`.
    pub(super) fn unzstd(&mut self, src: &[u8], out: &mut [u8]) -> Result<()> {
        self.zstd.decode(src, out, self.budget)
    }
}

/// The decoded length in bytes that a blob announces, after a check of all headers.
pub fn decoded_len(blob: &[u8], dtype: Dtype) -> Result<usize> {
    match checked::is_checked(blob) {
        true => Ok(checked::open(blob, dtype)?.0.len),
        false => v1::decoded_len(blob, Width::of(dtype)),
    }
}

/// [`decoded_len`] of a blob that may be damaged: a checked one is not read beyond its header.
pub fn announced_len(blob: &[u8], dtype: Dtype) -> Result<usize> {
    match checked::is_checked(blob) {
        true => Ok(checked::parse(blob, dtype)?.0.len),
        false => v1::decoded_len(blob, Width::of(dtype)),
    }
}

/// The largest blob of either format for `src_len` bytes, or `None` if neither can hold them.
pub fn bound(src_len: usize, dtype: Dtype) -> Option<usize> {
    checked::bound(src_len, dtype)
}
