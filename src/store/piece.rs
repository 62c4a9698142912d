//! Pieces: runs of a layer's tokens, encoded as dense rows on all cores. Parked blocks and chat files are made of them.

use super::blob::{Blob, Part};
use super::codec::Codec;
use super::kv::KvBytes;
use crate::gear::{Effort, Format, Frequencies, Options, Pairing, Positions, Rotation};
use crate::layout::{Kind, Pair, Rows, TokenRange};
use crate::status::{Result, bail};
use crate::sys::{memory, parallel};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use xxhash_rust::xxh3::xxh3_64;

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
type Encoded = (Vec<u8>, u64);

/// Encodes the rows of a piece, `[head][token][dim]`, of tokens at these positions. Returns the blob, and the XXH3-64 over
/// those of the parts' rows.
/// BUSY: if `stop` was set meanwhile.
pub(super) fn encode(
    rows: &Rows,
    positions: &[u32],
    raw: &KvBytes,
    packing: &Packing<'_>,
    stop: &AtomicBool,
) -> Result<(Blob, u64)> {
    let parts = parts(rows);
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
        let (raw, kind, row) = match is_key {
            true => (raw.key(), rows.key, rows.key_words()),
            false => (raw.value(), rows.value, rows.value_words()),
        };
        let part = part(raw, parts, at % parts);
        let is_rotated = is_key && matches!(kind, Kind::Float(_));
        let rotation = packing.rotation.filter(|_| is_rotated).map(|rotation| Rotation {
            pairing: rotation.pairing,
            dims: if rotation.dims == 0 { rows.dims } else { rotation.dims },
            frequencies: rotation.frequencies,
            tokens: positions.len(),
            positions: Positions::Given(positions),
        });
        let options = Options { effort: packing.effort, head_dim: row, rotation, ..Options::new(Format::V2) };
        let mut blob = memory::copied(codec.encode_words(part, kind, &options)?)?;
        if part.len() <= SHORT {
            // One table costs less than a table for each group of channels.
            let lanes = codec.encode_words(part, kind, &Options::new(Format::Lanes))?;
            if lanes.len() < blob.len() {
                blob = memory::copied(lanes)?;
            }
        }
        if let Ok(mut slot) = encoded[at].lock() {
            *slot = Some((blob, xxh3_64(part)));
        }
        Ok(())
    })?;

    let mut bytes = Vec::new();
    let mut ends = Vec::new();
    let mut sums = Vec::new();
    for slot in encoded {
        let Some((blob, sum)): Option<Encoded> = slot.into_inner().ok().flatten() else {
            bail!(Internal, "a part was not encoded");
        };
        memory::extend(&mut bytes, &blob)?;
        memory::push(&mut ends, Part { end: bytes.len(), digest: None })?;
        memory::extend(&mut sums, &sum.to_le_bytes())?;
    }
    Ok((Blob::new(&bytes, &ends)?, xxh3_64(&sums)))
}

/// The positions of the tokens of a range, whose cache has them in `runs`.
pub(super) fn positions_of(runs: &[Pair], range: TokenRange) -> Result<Vec<u32>> {
    let all = runs.iter().flat_map(|run| run[0] as u32..(run[0] + run[1]) as u32);
    memory::collect(all.skip(range.begin()).take(range.count()))
}

/// Parts of K, and as many of V: what is encoded apart.
pub(super) fn parts(rows: &Rows) -> usize {
    if rows.is_quantised() { 1 } else { rows.heads }
}

fn part(bytes: &[u8], parts: usize, at: usize) -> &[u8] {
    let len = bytes.len() / parts;
    &bytes[at * len..(at + 1) * len]
}
