//! Pieces: runs of a layer's tokens, encoded as dense rows on all cores. Parked blocks and chat files are made of them.

use super::blob::Blob;
use super::codec::Codec;
use super::gather;
use super::kv::KvBytes;
use crate::gear::{Effort, Format, Options};
use crate::layout::{CacheRef, Rows, TokenRange};
use crate::status::{Result, bail};
use crate::sys::{Mutex, memory, parallel};
use std::sync::atomic::{AtomicBool, Ordering};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Most tokens of a piece. It bounds the copy of its rows; equal tokens of one piece are found.
pub(super) const MOST_TOKENS: u32 = 8192;

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

/// The pieces of tokens `begin .. end`, as (begin, count).
pub(super) fn pieces(begin: u32, end: u32) -> impl Iterator<Item = (u32, u32)> {
    (begin..end).step_by(MOST_TOKENS as usize).map(move |begin| (begin, MOST_TOKENS.min(end - begin)))
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

/// [`encode`], of a range of a cache. `raw` is working memory.
pub(super) fn encode_range(
    cache: &CacheRef<'_>,
    range: TokenRange,
    raw: &mut KvBytes,
    packing: &Packing,
    stop: &AtomicBool,
) -> Result<(Blob, u64)> {
    gather(raw, cache, range)?;
    encode(&cache.layout.rows(), raw, packing, stop)
}

/// Encodes the rows of a piece, `[head][token][dim]`. Returns the blob, and the [`RawSum`].
/// BUSY: if `stop` was set meanwhile.
pub(super) fn encode(rows: &Rows, raw: &KvBytes, packing: &Packing, stop: &AtomicBool) -> Result<(Blob, u64)> {
    let parts = rows.parts();
    let mut encoded = Vec::new();
    memory::reserve(&mut encoded, 2 * parts)?;
    for _ in 0..2 * parts {
        memory::push(&mut encoded, Mutex::new(None))?;
    }
    parallel::for_each(2 * parts, packing.threads, |codec: &mut Codec, at| {
        if stop.load(Ordering::Relaxed) {
            bail!(Busy, "the session was interrupted");
        }
        let kind = if at < parts { rows.key } else { rows.value };
        let part = part(raw, parts, at);
        let options = Options { effort: packing.effort, ..Options::new(Format::Checked) };
        let blob = Blob::of_part(codec.encode_words(part, kind, &options)?)?;
        if let Ok(mut slot) = encoded[at].lock() {
            *slot = Some((blob, xxh3_64(part)));
        }
        Ok(())
    })?;

    let mut blobs = Vec::new();
    memory::reserve(&mut blobs, encoded.len())?;
    let mut sum = RawSum::default();
    for slot in encoded {
        let Some((blob, part_sum)): Option<Encoded> = slot.into_inner().ok().flatten() else {
            bail!(Internal, "a part was not encoded");
        };
        memory::push(&mut blobs, blob)?;
        sum.add_sum(part_sum);
    }
    Ok((Blob::joined(blobs)?, sum.get()))
}

/// The rows of a part: K of each, then V.
pub(super) fn part(raw: &KvBytes, parts: usize, at: usize) -> &[u8] {
    let bytes = if at < parts { raw.key() } else { raw.value() };
    let len = bytes.len() / parts;
    &bytes[at % parts * len..][..len]
}
