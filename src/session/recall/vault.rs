//! The parked copies of a layer's blocks.

use super::blocks::ones;
use super::desk::Desk;
use super::stats::FileCounts;
use super::workshop::Workshop;
use crate::dtype::Dtype;
use crate::dtype::convert::{Endian, narrow, widen};
use crate::gear::{Format, Options};
use crate::layout::{Kind, Rows};
use crate::recall::arena::{Arena, Slot};
use crate::recall::nibbles;
use crate::session::config::Tier;
use crate::snapshot::{ParkedPiece, Run};
use crate::status::{Result, Status, bail};
use crate::store::RawSum;
use crate::sys::storage::Bytes;
use crate::sys::{Shared, memory};

/// Bytes of the place of a part's end in a blob.
const END: usize = size_of::<u32>();

/// The tokens of a block.
#[derive(Debug)]
pub(super) struct Copy {
    home: Home,
    /// Tokens that were parked.
    tokens: u32,
    /// Those of them that the chat still has.
    live: u64,
    /// The [`RawSum`].
    sum: u64,
    /// A piece of a file that has the tokens, too: its number and checksum.
    in_file: Option<(u32, u64)>,
    /// The file has other bytes than were parked.
    is_lost: bool,
}

#[derive(Debug)]
enum Home {
    /// In memory, bit for bit.
    Exact(Slot),
    /// 4 bits per number.
    Four(Slot),
    /// In the file of the session, bit for bit.
    File(ParkedPiece),
    /// In a file from which the chat was loaded, bit for bit.
    View(View),
}

/// Tokens of a piece of a file.
#[derive(Debug)]
pub(in crate::session) struct View {
    /// All parts.
    pub(in crate::session) bytes: Bytes,
    /// Where each part ends.
    pub(in crate::session) ends: Vec<usize>,
    /// Tokens of the piece.
    pub(in crate::session) tokens: u32,
    /// The [`RawSum`].
    pub(in crate::session) raw_sum: u64,
    /// The number of the piece, and the checksum of its stored bytes.
    pub(in crate::session) piece: (u32, u64),
    /// The tokens.
    pub(in crate::session) runs: Vec<Run>,
}

impl View {
    /// A part of the tokens.
    pub(super) fn part(&self, first: u32, count: u32) -> Result<View> {
        let runs = Run::clip(&self.runs, first, count)?;
        let View { tokens, raw_sum, piece, .. } = *self;
        Ok(View { bytes: self.bytes.clone(), ends: memory::copied(&self.ends)?, tokens, raw_sum, piece, runs })
    }
}

impl Copy {
    /// Tokens of a file, at most 64.
    pub(super) fn of_view(view: View) -> Result<Self> {
        let tokens = view.runs.iter().map(|run| run.count).sum();
        let (sum, in_file) = (view.raw_sum, Some(view.piece));
        Ok(Copy { tokens, live: ones(tokens), sum, in_file, home: Home::View(view), is_lost: false })
    }

    /// Whether the tokens cannot be read any more.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// The piece of the file that the chat was loaded from, and the checksum of its stored bytes.
    pub(super) fn view(&self) -> Option<(u32, u64)> {
        if let Home::View(view) = &self.home { Some(view.piece) } else { None }
    }

    /// The piece of a file that has the tokens.
    pub(super) fn in_file(&self) -> Option<(u32, u64)> {
        self.in_file
    }

    pub(super) fn set_in_file(&mut self, piece: Option<(u32, u64)>) {
        self.in_file = piece;
    }

    /// Drops the tokens that `kept` has not, of those that are left.
    pub(super) fn keep(&mut self, kept: u64) {
        let (mut live, mut at) = (0, 0);
        for token in (0..u64::BITS).filter(|token| self.live >> token & 1 == 1) {
            live |= (kept >> at & 1) << token;
            at += 1;
        }
        self.live = live;
    }

    /// The tokens of the blob or piece that are left, one by one, in order.
    fn left(&self) -> impl Iterator<Item = u32> + '_ {
        let (runs, parked) = match &self.home {
            Home::View(view) => (&view.runs[..], 0..0),
            _ => (&[][..], 0..self.tokens),
        };
        let places = runs.iter().flat_map(|run| run.offset..run.offset + run.count).chain(parked);
        places.zip(0u32..).filter(|(_, token)| self.live >> token & 1 == 1).map(|(place, _)| place)
    }

    /// The same as runs of (first token, count).
    pub(super) fn runs(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let mut left = self.left().peekable();
        std::iter::from_fn(move || {
            let first = left.next()?;
            let mut count = 1;
            while left.next_if(|next| *next == first + count).is_some() {
                count += 1;
            }
            Some((first, count))
        })
    }

    /// Tokens of the blob or piece.
    fn whole(&self) -> u32 {
        match &self.home {
            Home::View(view) => view.tokens,
            _ => self.tokens,
        }
    }
}

/// The parts of rows: K of each head, then V.
fn parts<'a>(rows: &Rows, key: &'a [u8], value: &'a [u8]) -> impl Iterator<Item = (&'a [u8], Kind)> {
    let of = |bytes: &'a [u8], kind| bytes.chunks_exact(bytes.len() / rows.parts()).map(move |part| (part, kind));
    of(key, rows.key).chain(of(value, rows.value))
}

/// Parked copies of one layer.
pub(super) struct Vault {
    layer: u32,
    tier: Tier,
    arena: Arena,
    /// The file of the tier `file`.
    desk: Option<Shared<Desk>>,
    /// Bytes of blobs in memory that the file is to have.
    waiting: usize,
    counts: FileCounts,
}

impl Vault {
    pub(super) fn new(layer: u32, tier: Tier) -> Self {
        Vault { layer, tier, arena: Arena::default(), desk: None, waiting: 0, counts: FileCounts::default() }
    }

    /// Sets where blobs are written. Must come before the first copy.
    pub(super) fn set_desk(&mut self, desk: Shared<Desk>) {
        self.desk = Some(desk);
    }

    pub(super) fn desk(&self) -> Option<&Desk> {
        self.desk.as_deref()
    }

    pub(super) fn counts(&self) -> FileCounts {
        self.counts
    }

    /// Whether a blob is in memory that a file is to have.
    pub(super) fn has_waiting(&self) -> bool {
        self.waiting > 0
    }

    /// Bytes of memory of the copies.
    pub(super) fn bytes(&self) -> usize {
        self.arena.bytes()
    }

    /// Drops all copies.
    pub(super) fn clear(&mut self) {
        self.arena = Arena::default();
        self.wrote(self.waiting);
    }

    /// Blobs of `len` bytes in all wait no longer.
    fn wrote(&mut self, len: usize) {
        if let Some(desk) = &self.desk {
            desk.remove(len);
            self.waiting -= len;
        }
    }

    /// Drops a copy.
    pub(super) fn remove(&mut self, copy: Copy) {
        match copy.home {
            Home::File(_) | Home::View(_) => {}
            Home::Exact(slot) => {
                self.wrote(if self.desk.is_some() { slot.bytes() } else { 0 });
                self.arena.remove(slot);
            }
            Home::Four(slot) => self.arena.remove(slot),
        }
    }

    /// Whether a copy is kept of tokens that are in the cache again.
    pub(super) fn keeps(&self, copy: &Copy) -> bool {
        !matches!(copy.home, Home::Four(_))
    }

    /// Parks the rows of `tokens` tokens that the workshop has. BUSY: if too much waits to be written already.
    pub(super) fn put(&mut self, rows: &Rows, tokens: u32, work: &mut Workshop) -> Result<Copy> {
        let copy = |home, sum| Copy { home, tokens, live: ones(tokens), sum, in_file: None, is_lost: false };
        if self.tier == Tier::Ram4
            && let (Kind::Float(key), Kind::Float(value)) = (rows.key, rows.value)
            && four(rows, key, value, work)?
        {
            return Ok(copy(Home::Four(self.arena.put(&work.blob)?), 0));
        }
        self.desk.as_ref().map_or(Ok(()), |desk| desk.check_room())?;
        let sum = exact(rows, work)?;
        let len = work.blob.len();
        self.desk.as_ref().map_or(Ok(()), |desk| desk.check_budget(len))?;
        let slot = self.arena.put(&work.blob)?;
        if let Some(desk) = &self.desk {
            desk.add(len);
            self.waiting += len;
        }
        Ok(copy(Home::Exact(slot), sum))
    }

    /// Writes a copy that is in memory to the file. Returns false if nothing was written, since a call has the snapshot. On
    /// an error the copy stays in memory.
    pub(super) fn write(&mut self, rows: &Rows, copy: &mut Copy) -> Result<bool> {
        let (Some(desk), Home::Exact(slot)) = (&self.desk, &copy.home) else { return Ok(true) };
        let (blob, len) = (self.arena.get(slot), slot.bytes());
        let parts = memory::collect((0..2 * rows.parts()).filter_map(|part| part_of(blob, rows, part)));
        match parts.and_then(|parts| desk.write(self.layer, copy.tokens, &parts, copy.sum)) {
            Ok(Some(piece)) => {
                self.counts.written_bytes += piece.stored_len();
                copy.in_file = Some((piece.piece(), piece.sum()));
                if let Home::Exact(slot) = std::mem::replace(&mut copy.home, Home::File(piece)) {
                    self.arena.remove(slot);
                }
                self.wrote(len);
                Ok(true)
            }
            Ok(None) => {
                self.counts.late_writes += 1;
                Ok(false)
            }
            Err(error) => {
                self.counts.failed_writes += 1;
                Err(error)
            }
        }
    }

    /// Writes the rows of a copy's tokens to the workshop. CORRUPT: if they are not those that were parked; the copy then is
    /// lost if it is in a file.
    pub(super) fn fetch(&mut self, rows: &Rows, copy: &mut Copy, work: &mut Workshop) -> Result<()> {
        if let Err(error) = self.decode(rows, copy, work) {
            if matches!(copy.home, Home::File(_) | Home::View(_)) {
                self.counts.failed_reads += 1;
                copy.is_lost = error.status() == Status::Corrupt;
            }
            return Err(error);
        }
        if let Home::File(piece) = &copy.home {
            self.counts.read_bytes += piece.stored_len();
        }
        let (tokens, heads) = (copy.whole() as usize, rows.heads);
        if !copy.left().eq(0..copy.whole()) {
            close_up(&mut work.key, heads, tokens, || copy.left());
            close_up(&mut work.value, heads, tokens, || copy.left());
        }
        Ok(())
    }

    /// Writes the rows of all tokens of a copy's blob or piece to the workshop.
    fn decode(&self, rows: &Rows, copy: &Copy, work: &mut Workshop) -> Result<()> {
        work.fit(rows, copy.whole() as usize)?;
        match &copy.home {
            Home::Exact(slot) => {
                let blob = self.arena.get(slot);
                decode(rows, |part| part_of(blob, rows, part), copy.sum, work)
            }
            Home::Four(slot) => un_four(rows, self.arena.get(slot), work),
            Home::File(piece) => {
                let (mut blob, mut ends) = (std::mem::take(&mut work.blob), std::mem::take(&mut work.ends));
                let read = piece.read(&mut blob, &mut ends);
                let decoded = read
                    .and_then(|begin| decode(rows, |part| read_part(blob.get(begin..)?, &ends, part), copy.sum, work));
                (work.blob, work.ends) = (blob, ends);
                decoded
            }
            Home::View(view) => {
                let decoded = decode(rows, |part| read_part(&view.bytes, &view.ends, part), copy.sum, work);
                view.bytes.drop_pages();
                decoded.map_err(|error| error.within(format_args!("piece {}", view.piece.0)))
            }
        }
    }

    /// Calls `write` with a copy's tokens as a piece of a file: their number, its parts, and the checksum of their rows.
    pub(super) fn export<R>(
        &self,
        rows: &Rows,
        copy: &Copy,
        work: &mut Workshop,
        write: impl FnOnce(u32, &[&[u8]], u64) -> Result<R>,
    ) -> Result<R> {
        let count = 2 * rows.parts();
        match &copy.home {
            Home::Exact(slot) => {
                let blob = self.arena.get(slot);
                let parts = memory::collect((0..count).filter_map(|part| part_of(blob, rows, part)))?;
                write(copy.whole(), &parts, copy.sum)
            }
            Home::View(view) => {
                let part = |part| read_part(&view.bytes, &view.ends, part);
                write(copy.whole(), &memory::collect((0..count).filter_map(part))?, copy.sum)
            }
            Home::File(_) | Home::Four(_) => {
                self.decode(rows, copy, work)?;
                let sum = exact(rows, work)?;
                let parts = memory::collect((0..count).filter_map(|part| part_of(&work.blob, rows, part)))?;
                write(copy.whole(), &parts, sum)
            }
        }
    }
}

/// A part of a piece, of which `bytes` has all and `ends` says where each ends.
fn read_part<'a>(bytes: &'a [u8], ends: &[usize], part: usize) -> Option<&'a [u8]> {
    let begin = part.checked_sub(1).map_or(Some(0), |before| ends.get(before).copied())?;
    bytes.get(begin..*ends.get(part)?)
}

/// Leaves only some tokens of rows `[head][token][row]`.
fn close_up<I: Iterator<Item = u32>>(bytes: &mut Vec<u8>, heads: usize, tokens: usize, left: impl Fn() -> I) {
    let row = bytes.len() / heads / tokens;
    let mut to = 0;
    for head in 0..heads {
        for token in left() {
            let from = (head * tokens + token as usize) * row;
            bytes.copy_within(from..from + row, to);
            to += row;
        }
    }
    bytes.truncate(to);
}

/// A part of a blob of [`exact`].
fn part_of<'a>(blob: &'a [u8], rows: &Rows, part: usize) -> Option<&'a [u8]> {
    let ends = blob.get(..2 * rows.parts() * END)?.as_chunks::<END>().0;
    let end = |part: usize| u32::from_le_bytes(ends[part]) as usize;
    blob.get(part.checked_sub(1).map_or(2 * rows.parts() * END, end)..end(part))
}

/// Encodes the rows of the workshop as a blob: where each part ends, and the parts. Returns the sum of the rows.
fn exact(rows: &Rows, work: &mut Workshop) -> Result<u64> {
    let Workshop { encoder, blob, key, value, .. } = work;
    let head = 2 * rows.parts() * END;
    memory::cleared(blob, head)?;
    memory::resize(blob, head)?;
    let mut sum = RawSum::default();
    for (at, (part, kind)) in parts(rows, key, value).enumerate() {
        let words = kind.words();
        let format = if words.is_float() { Format::Lanes } else { Format::V2 };
        let row = if at < rows.parts() { rows.key_words() } else { rows.value_words() };
        let encoded = encoder.encode(part, words, &Options { head_dim: row, ..Options::new(format) })?;
        memory::extend(blob, encoded)?;
        let end = (blob.len() as u32).to_le_bytes();
        blob[at * END..(at + 1) * END].copy_from_slice(&end);
        sum.add(part);
    }
    Ok(sum.get())
}

/// Decodes encoded parts to the rows of the workshop. CORRUPT: if the sum of the rows is not that of the parked ones.
fn decode<'a>(
    rows: &Rows,
    encoded: impl Fn(usize) -> Option<&'a [u8]>,
    parked_sum: u64,
    work: &mut Workshop,
) -> Result<()> {
    let Workshop { decoder, key, value, .. } = work;
    let heads = rows.parts();
    let (key_part, value_part) = (key.len() / heads, value.len() / heads);
    let keys = key.chunks_exact_mut(key_part).map(|part| (part, rows.key));
    let values = value.chunks_exact_mut(value_part).map(|part| (part, rows.value));
    let mut sum = RawSum::default();
    for (at, (part, kind)) in keys.chain(values).enumerate() {
        let len = encoded(at).map_or(Ok(0), |encoded| decoder.decode(encoded, kind.words(), part))?;
        if len != part.len() {
            bail!(Corrupt, "part {at} of a parked block has {len} bytes; {} expected", part.len());
        }
        sum.add(part);
    }
    if sum.get() != parked_sum {
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
