//! The parked copies of a layer's blocks.

use super::blocks::ones;
use super::workshop::Workshop;
use crate::dtype::Dtype;
use crate::dtype::convert::{Endian, narrow, widen};
use crate::gear::{Format, Options};
use crate::layout::{Kind, Rows};
use crate::recall::arena::{Arena, Slot};
use crate::recall::nibbles;
use crate::session::config::Tier;
use crate::status::{Result, bail};
use crate::sys::memory;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Bytes of the place of a part's end in a blob.
const END: usize = size_of::<u32>();

/// The tokens of a block.
#[derive(Debug)]
pub(super) struct Copy {
    home: Home,
    /// Tokens in the blob.
    tokens: u32,
    /// Those of them that the chat still has.
    live: u64,
    /// The XXH3-64 over those of the parts' rows, K's before V's.
    sum: u64,
}

#[derive(Debug)]
enum Home {
    /// Bit for bit.
    Exact(Slot),
    /// 4 bits per number.
    Four(Slot),
}

impl Copy {
    /// Drops the tokens that `kept` has not, of those that are left.
    pub(super) fn keep(&mut self, kept: u64) {
        let (mut live, mut at) = (0, 0);
        for token in (0..u64::BITS).filter(|token| self.live >> token & 1 == 1) {
            live |= (kept >> at & 1) << token;
            at += 1;
        }
        self.live = live;
    }
}

/// The parts of rows: K of each head, then V.
fn parts<'a>(rows: &Rows, key: &'a [u8], value: &'a [u8]) -> impl Iterator<Item = (&'a [u8], Kind)> {
    let of = |bytes: &'a [u8], kind| bytes.chunks_exact(bytes.len() / rows.parts()).map(move |part| (part, kind));
    of(key, rows.key).chain(of(value, rows.value))
}

/// Parked copies of one layer.
pub(super) struct Vault {
    tier: Tier,
    arena: Arena,
}

impl Vault {
    pub(super) fn new(tier: Tier) -> Self {
        Vault { tier, arena: Arena::default() }
    }

    /// Bytes of memory of the copies.
    pub(super) fn bytes(&self) -> usize {
        self.arena.bytes()
    }

    /// Drops all copies.
    pub(super) fn clear(&mut self) {
        self.arena = Arena::default();
    }

    /// Drops a copy.
    pub(super) fn remove(&mut self, copy: Copy) {
        let (Home::Exact(slot) | Home::Four(slot)) = copy.home;
        self.arena.remove(slot);
    }

    /// Whether a copy is kept of tokens that are in the cache again.
    pub(super) fn keeps(&self, copy: &Copy) -> bool {
        !matches!(copy.home, Home::Four(_))
    }

    /// Parks the rows of `tokens` tokens that the workshop has.
    pub(super) fn put(&mut self, rows: &Rows, tokens: u32, work: &mut Workshop) -> Result<Copy> {
        let live = ones(tokens);
        if self.tier == Tier::Ram4
            && let (Kind::Float(key), Kind::Float(value)) = (rows.key, rows.value)
            && four(rows, key, value, work)?
        {
            return Ok(Copy { home: Home::Four(self.arena.put(&work.blob)?), tokens, live, sum: 0 });
        }
        let sum = exact(rows, work)?;
        Ok(Copy { home: Home::Exact(self.arena.put(&work.blob)?), tokens, live, sum })
    }

    /// Writes the rows of a copy's tokens to the workshop. CORRUPT: if they are not those that were parked.
    pub(super) fn fetch(&self, rows: &Rows, copy: &Copy, work: &mut Workshop) -> Result<()> {
        work.fit(rows, copy.tokens as usize)?;
        match &copy.home {
            Home::Exact(slot) => decode(rows, self.arena.get(slot), copy.sum, work)?,
            Home::Four(slot) => un_four(rows, self.arena.get(slot), work)?,
        }
        if copy.live != ones(copy.tokens) {
            close_up(&mut work.key, rows.parts(), copy.tokens as usize, copy.live);
            close_up(&mut work.value, rows.parts(), copy.tokens as usize, copy.live);
        }
        Ok(())
    }
}

/// Leaves only the live tokens of rows `[part][token][row]`.
fn close_up(bytes: &mut Vec<u8>, parts: usize, tokens: usize, live: u64) {
    let row = bytes.len() / parts / tokens;
    let mut to = 0;
    for part in 0..parts {
        for token in (0..tokens).filter(|token| live >> token & 1 == 1) {
            let from = (part * tokens + token) * row;
            bytes.copy_within(from..from + row, to);
            to += row;
        }
    }
    bytes.truncate(to);
}

/// Encodes the rows of the workshop as a blob: where each part ends, and the parts. Returns the sum of the rows.
fn exact(rows: &Rows, work: &mut Workshop) -> Result<u64> {
    let Workshop { encoder, blob, key, value, .. } = work;
    let head = 2 * rows.parts() * END;
    memory::cleared(blob, head)?;
    memory::resize(blob, head)?;
    let mut hash = Xxh3::new();
    for (at, (part, kind)) in parts(rows, key, value).enumerate() {
        let words = kind.words();
        let format = if words.is_float() { Format::Lanes } else { Format::V2 };
        let row = if at < rows.parts() { rows.key_words() } else { rows.value_words() };
        let encoded = encoder.encode(part, words, &Options { head_dim: row, ..Options::new(format) })?;
        memory::extend(blob, encoded)?;
        let end = (blob.len() as u32).to_le_bytes();
        blob[at * END..(at + 1) * END].copy_from_slice(&end);
        hash.update(&xxh3_64(part).to_le_bytes());
    }
    Ok(hash.digest())
}

/// Decodes a blob of [`exact`].
fn decode(rows: &Rows, blob: &[u8], sum: u64, work: &mut Workshop) -> Result<()> {
    let Workshop { decoder, key, value, .. } = work;
    let heads = rows.parts();
    let (key_part, value_part) = (key.len() / heads, value.len() / heads);
    let keys = key.chunks_exact_mut(key_part).map(|part| (part, rows.key));
    let values = value.chunks_exact_mut(value_part).map(|part| (part, rows.value));
    let (mut begin, mut hash) = (2 * heads * END, Xxh3::new());
    for ((part, kind), end) in keys.chain(values).zip(blob.as_chunks::<END>().0) {
        let end = u32::from_le_bytes(*end) as usize;
        let len = match blob.get(begin..end) {
            Some(encoded) => decoder.decode(encoded, kind.words(), part)?,
            None => 0,
        };
        if len != part.len() {
            bail!(Corrupt, "a part of a parked block has {len} bytes; {} expected", part.len());
        }
        hash.update(&xxh3_64(part).to_le_bytes());
        begin = end;
    }
    if hash.digest() != sum {
        bail!(Corrupt, "a parked block decodes to other tokens than were parked");
    }
    Ok(())
}

/// Encodes floating-point rows with 4 bits per number; false where a number is not finite.
fn four(rows: &Rows, key: Dtype, value: Dtype, work: &mut Workshop) -> Result<bool> {
    let dims = rows.dims;
    let (keys, values) = (work.key.len() / key.bytes(), work.value.len() / value.bytes());
    let len = |numbers: usize| nibbles::encoded_len(numbers / dims, dims);
    memory::resize(&mut work.blob, len(keys) + len(values))?;
    let (key_blob, value_blob) = work.blob.split_at_mut(len(keys));
    for (dtype, numbers, raw, blob) in [(key, keys, &work.key, key_blob), (value, values, &work.value, value_blob)] {
        let floats = memory::at_least(&mut work.floats, numbers)?;
        widen(dtype, Endian::Native, raw, floats);
        if !nibbles::encode(floats, dims, blob) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Decodes a blob of [`four`].
fn un_four(rows: &Rows, blob: &[u8], work: &mut Workshop) -> Result<()> {
    let (Kind::Float(key), Kind::Float(value)) = (rows.key, rows.value) else {
        bail!(Internal, "4 bits per number of a quantised cache");
    };
    let dims = rows.dims;
    let keys = work.key.len() / key.bytes();
    let (key_blob, value_blob) = blob.split_at(nibbles::encoded_len(keys / dims, dims));
    for (dtype, raw, blob) in [(key, &mut work.key, key_blob), (value, &mut work.value, value_blob)] {
        let floats = memory::at_least(&mut work.floats, raw.len() / dtype.bytes())?;
        nibbles::decode(blob, dims, floats);
        narrow(dtype, Endian::Native, floats, raw);
    }
    Ok(())
}
