//! Pieces: runs of a layer's tokens, encoded as dense rows on all cores. Parked blocks and chat files are made of them.

use super::blob::Blob;
use super::codec::Codec;
use super::gather;
use super::kv::KvBytes;
use crate::gear::{Effort, Format, Frequencies, Options, Pairing, Positions, Rotation};
use crate::layout::{CacheRef, Kind, Order, Pair, Rows, TokenRange};
use crate::status::{Result, bail};
use crate::sys::{Mutex, memory, parallel};
use std::sync::atomic::{AtomicBool, Ordering};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Most tokens of a piece. It bounds the copy of its rows; equal tokens of one piece are found.
pub(super) const MOST_TOKENS: u32 = 8192;

/// The longest parts, in bytes, that format lanes may encode in fewer bytes than v2: those of short steps.
const SHORT: usize = 32 << 10;

/// How pieces are encoded.
#[derive(Clone, Copy, Debug)]
pub struct Packing<'a> {
    /// How long the encoder searches.
    pub effort: Effort,
    /// The rotation of floating-point keys.
    pub rotation: Option<KeyRotation<'a>>,
    /// Threads that encode, the caller's included; at least 1.
    pub threads: usize,
}

/// The rotation of a layer's keys by their positions; see [`Rotation`].
#[derive(Clone, Copy, Debug)]
pub struct KeyRotation<'a> {
    /// The two channels of a pair.
    pub pairing: Pairing,
    /// Rotated channels; 0 = all.
    pub dims: usize,
    /// The angles per position.
    pub frequencies: Frequencies<'a>,
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

/// [`encode`], of a range of a cache. `runs`: the logical positions of its tokens; `raw` is working memory.
pub(super) fn encode_range(
    cache: &CacheRef<'_>,
    range: TokenRange,
    runs: &[Pair],
    raw: &mut KvBytes,
    packing: &Packing<'_>,
    stop: &AtomicBool,
) -> Result<(Blob, u64)> {
    gather(raw, cache, range, Order::DENSE)?;
    let positions = positions_of(runs, range.begin(), range.count())?;
    encode(&cache.layout.rows(), &positions, raw, packing, stop)
}

/// Encodes the rows of a piece, `[head][token][dim]`, of tokens at these positions. Returns the blob, and the [`RawSum`].
/// BUSY: if `stop` was set meanwhile.
pub(super) fn encode(
    rows: &Rows,
    positions: &[u32],
    raw: &KvBytes,
    packing: &Packing<'_>,
    stop: &AtomicBool,
) -> Result<(Blob, u64)> {
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
        let is_key = at < parts;
        let (kind, row) = if is_key { (rows.key, rows.key_words()) } else { (rows.value, rows.value_words()) };
        let part = part(raw, parts, at);
        let is_rotated = is_key && matches!(kind, Kind::Float(_));
        let rotation = packing.rotation.filter(|_| is_rotated).map(|rotation| Rotation {
            pairing: rotation.pairing,
            dims: if rotation.dims == 0 { rows.dims } else { rotation.dims },
            frequencies: rotation.frequencies,
            tokens: positions.len(),
            positions: Positions::Given(positions),
        });
        let options = Options { effort: packing.effort, head_dim: row, rotation, ..Options::new(Format::V2) };
        let mut blob = Blob::of_part(codec.encode_words(part, kind, &options)?)?;
        if part.len() <= SHORT {
            // One table costs less than a table for each group of channels.
            let lanes = codec.encode_words(part, kind, &Options::new(Format::Lanes))?;
            if lanes.len() < blob.len() {
                blob = Blob::of_part(lanes)?;
            }
        }
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

/// The logical positions of `count` tokens from `begin` on, of a cache whose tokens have those of `runs`.
pub(super) fn positions_of(runs: &[Pair], begin: usize, count: usize) -> Result<Vec<u32>> {
    let all = runs.iter().flat_map(|run| run[0] as u32..(run[0] + run[1]) as u32);
    memory::collect(all.skip(begin).take(count))
}

/// The rows of a part: K of each, then V.
pub(super) fn part(raw: &KvBytes, parts: usize, at: usize) -> &[u8] {
    let bytes = if at < parts { raw.key() } else { raw.value() };
    let len = bytes.len() / parts;
    &bytes[at % parts * len..][..len]
}
