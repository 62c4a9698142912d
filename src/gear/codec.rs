//! The encoder and the decoder of every format and type.

use super::budget::{Budget, held};
use super::lanes;
use super::options::{Format, Options};
use super::v1::{self, Width};
use super::v2;
use super::zstd;
use crate::dtype::Dtype;
use crate::status::{Result, bail};

/// Working memory that encoders of all formats share, each part up to a little over the length of the words.
#[derive(Default)]
pub(super) struct Buffers {
    pub(super) blob: Vec<u8>,
    /// A blob that may prove shorter.
    pub(super) other: Vec<u8>,
    pub(super) planes: Vec<u8>,
    pub(super) grouped: Vec<u8>,
}

impl Buffers {
    /// Frees all buffers but that of the blob.
    pub(super) fn release(&mut self) {
        *self = Buffers { blob: std::mem::take(&mut self.blob), ..Buffers::default() };
    }

    pub(super) fn swap_blobs(&mut self) {
        std::mem::swap(&mut self.blob, &mut self.other);
    }

    /// Bytes that are held.
    pub(super) fn held(&self) -> usize {
        [&self.blob, &self.other, &self.planes, &self.grouped].map(held).iter().sum()
    }
}

/// An encoder of words. Retains the working memory of a call, which [`Encoder::encode`] bounds, for the next.
#[derive(Default)]
pub struct Encoder {
    zstd: zstd::Compressor,
    buffers: Buffers,
    v2: v2::Encoder,
}

impl Encoder {
    /// An encoder without memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Encodes `words`, a whole number of words of `dtype` and at least one. The blob lives in the encoder until the
    /// next call. Holds at most six times the largest input and 2 MiB.
    pub fn encode(&mut self, words: &[u8], dtype: Dtype, options: &Options<'_>) -> Result<&[u8]> {
        match options.format {
            Format::V1 => v1::encode(words, Width::of(dtype)?, options, &mut self.zstd, &mut self.buffers),
            Format::V2 => self.v2.encode(words, dtype, options, &mut self.zstd, &mut self.buffers),
            Format::Lanes => lanes::encode(words, dtype, &mut self.buffers),
        }
    }
}

/// A decoder of every format. Retains the working memory of a call, which [`Decoder::decode`] bounds, for the next.
#[derive(Default)]
pub struct Decoder {
    zstd: zstd::Decompressor,
    buffers: v2::DecodeBuffers,
    lanes: lanes::Decoder,
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
        if lanes::is_lanes(blob) {
            return self.lanes.decode(blob, dtype, words);
        }
        let mut held = self.zstd.held() + self.buffers.held();
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
        let Decoder { zstd, buffers, .. } = self;
        if v2::is_v2(blob) {
            return v2::decode(blob, dtype, words, &mut Context { zstd, budget }, buffers);
        }
        v1::decode(blob, v1_width(dtype)?, words, &mut Context { zstd, budget }, &mut buffers.planes)
    }
}

/// The means of every part of a decoder.
pub(super) struct Context<'a> {
    pub(super) zstd: &'a mut zstd::Decompressor,
    pub(super) budget: &'a mut Budget,
}

impl Context<'_> {
    /// Decompresses `src`, which must be exactly one ZSTD frame, into exactly `out`.
    pub(super) fn unzstd(&mut self, src: &[u8], out: &mut [u8]) -> Result<()> {
        self.zstd.decode(src, out, self.budget)
    }
}

/// The width of the words of a blob that begins neither as one of v2 nor of lanes.
fn v1_width(dtype: Dtype) -> Result<Width> {
    if dtype == Dtype::Int8 {
        bail!(Corrupt, "the blob does not begin as one of format v2 or lanes, the only ones with INT8");
    }
    Width::of(dtype)
}

/// The decoded length in bytes that a blob announces, after a check of all headers.
pub fn decoded_len(blob: &[u8], dtype: Dtype) -> Result<usize> {
    len_of(blob, dtype, v2::decoded_len)
}

/// [`decoded_len`] of a blob that may be damaged: a v2 blob is not read beyond its header.
pub fn announced_len(blob: &[u8], dtype: Dtype) -> Result<usize> {
    len_of(blob, dtype, v2::announced_len)
}

fn len_of(blob: &[u8], dtype: Dtype, of_v2: fn(&[u8], Dtype) -> Result<usize>) -> Result<usize> {
    if lanes::is_lanes(blob) {
        return lanes::decoded_len(blob, dtype);
    }
    if v2::is_v2(blob) { of_v2(blob, dtype) } else { v1::decoded_len(blob, v1_width(dtype)?) }
}

/// The largest blob of any format for `src_len` bytes, or `None` if no format can hold them.
pub fn bound(src_len: usize, dtype: Dtype) -> Option<usize> {
    let v1 = Width::of(dtype).ok().and_then(|width| v1::bound(src_len, width));
    v2::bound(src_len, dtype).max(v1).max(lanes::bound(src_len, dtype))
}
