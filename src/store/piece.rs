//! Pieces: runs of a layer's tokens, encoded as dense rows on all cores. Parked blocks and chat files are made of them.

use super::blob::{Blob, Part};
use super::codec::Codec;
use super::gather;
use super::kv::KvBytes;
use crate::gear::{Effort, Format, Options};
use crate::layout::CacheRef;
use crate::status::{Result, bail};
use crate::sys::{Mutex, memory, parallel};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Most tokens of a piece. It bounds the copy of its rows; equal tokens of one piece are found.
const MOST_TOKENS: u32 = 8192;

/// How pieces are encoded.
#[derive(Clone, Copy, Debug)]
pub struct Packing {
    /// How long the encoder searches.
    pub effort: Effort,
    /// Threads that encode, the caller's included; at least 1.
    pub threads: usize,
}

/// An encoded part, and the XXH3-64 of its rows.
type Encoded = (Blob, u64);

/// The pieces of a range of tokens.
pub(super) fn pieces(range: Range<u32>) -> impl Iterator<Item = Range<u32>> {
    let end = range.end;
    range.step_by(MOST_TOKENS as usize).map(move |begin| begin..begin.saturating_add(MOST_TOKENS).min(end))
}

/// The XXH3-64 over those of the parts' rows, K's before V's.
#[derive(Default)]
pub struct RawSum(Xxh3);

impl RawSum {
    /// Takes the rows of the next part.
    pub fn add(&mut self, part: &[u8]) {
        self.add_sum(xxh3_64(part));
    }

    fn add_sum(&mut self, sum: u64) {
        self.0.update(&sum.to_le_bytes());
    }

    /// The sum.
    pub fn get(&self) -> u64 {
        self.0.digest()
    }
}

/// The tokens of a cache as pieces.
pub struct Packer<'a> {
    /// The cache.
    pub cache: CacheRef<'a>,
    /// How pieces are encoded.
    pub packing: &'a Packing,
    /// Set by another thread to end the call.
    pub stop: &'a AtomicBool,
}

impl Packer<'_> {
    /// Encodes a piece; `raw` is working memory. Returns the blob, and the [`RawSum`].
    /// BUSY: if `stop` was set meanwhile.
    pub(super) fn encode(&self, range: Range<u32>, raw: &mut KvBytes) -> Result<(Blob, u64)> {
        let rows = self.cache.layout.rows();
        gather(raw, &self.cache, self.cache.layout.range(range.start, range.len() as u32)?)?;
        let parts = rows.parts();
        let encoded = memory::collect((0..2 * parts).map(|_| Mutex::new(None::<Encoded>)))?;
        parallel::for_each(2 * parts, self.packing.threads, |codec: &mut Codec, at| {
            if self.stop.load(Ordering::Relaxed) {
                bail!(Busy, "the session was interrupted");
            }
            let (kind, bytes) = if at < parts { (rows.key, raw.key()) } else { (rows.value, raw.value()) };
            let len = bytes.len() / parts;
            let part = &bytes[at % parts * len..][..len];
            let options = Options { effort: self.packing.effort, ..Options::new(Format::Checked) };
            let blob = codec.encode_words(part, kind, &options)?;
            let blob = Blob::new(blob, &[Part { end: blob.len(), digest: None }])?;
            if let Ok(mut slot) = encoded[at].lock() {
                *slot = Some((blob, xxh3_64(part)));
            }
            Ok(())
        })?;

        let mut blobs = Vec::new();
        memory::reserve(&mut blobs, encoded.len())?;
        let mut sum = RawSum::default();
        for slot in encoded {
            let Some((blob, part_sum)) = slot.into_inner().ok().flatten() else {
                bail!(Internal, "a part was not encoded");
            };
            memory::push(&mut blobs, blob)?;
            sum.add_sum(part_sum);
        }
        Ok((Blob::joined(blobs)?, sum.get()))
    }
}
