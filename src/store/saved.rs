//! The tokens of a layer that a chat file has, so that the next save writes the others alone.

use super::Store;
use super::blob::{Blob, Place};
use super::block::{Block, KeptRun, LiveSegment};
use super::codec::BlockShape;
use super::kv::KvBytes;
use super::piece::{self, Packing};
use crate::gear;
use crate::layout::{CacheRef, Rows};
use crate::status::{Result, bail};
use crate::sys::storage::Bytes;
use crate::sys::{Shared, memory};
use std::sync::atomic::AtomicBool;

/// Consecutive tokens of a cache that are consecutive tokens of a piece of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedRun {
    /// The number of the piece.
    pub piece: u32,
    /// The checksum of its stored bytes. Another file, and a piece that was discarded, have another.
    pub sum: u64,
    /// Tokens of the piece before the first.
    pub offset: u32,
    /// The first token in the cache.
    pub begin: u32,
    /// Tokens.
    pub count: u32,
}

impl SavedRun {
    fn end(&self) -> u32 {
        self.begin + self.count
    }

    /// Its tokens, as those of a block that is the piece.
    pub(super) fn segment(&self) -> LiveSegment {
        LiveSegment { offset: self.offset, begin: self.begin, count: self.count }
    }
}

/// The runs that an edit of the cache leaves.
pub(super) fn cut(runs: &[SavedRun], kept: &[KeptRun]) -> Result<Vec<SavedRun>> {
    let mut left: Vec<SavedRun> = Vec::new();
    for run in runs {
        for LiveSegment { offset, begin, count } in run.segment().kept(kept) {
            memory::push(&mut left, SavedRun { offset, begin, count, ..*run })?;
        }
    }
    Ok(left)
}

/// An encoded piece, as a file takes it: its tokens, its parts, and the XXH3-64 over those of the parts' rows.
pub struct NewPiece<'a> {
    /// Tokens.
    pub tokens: u32,
    /// K of each part, then V.
    pub parts: &'a [&'a [u8]],
    /// The checksum.
    pub raw_sum: u64,
}

/// Writes a piece to a file. Returns its number and the checksum of its stored bytes.
pub type WritePiece<'a> = dyn FnMut(&NewPiece<'_>) -> Result<(u32, u64)> + 'a;

/// Writes a blob as a piece of `tokens` tokens.
pub(super) fn write_blob(blob: &Blob, tokens: u32, raw_sum: u64, write: &mut WritePiece<'_>) -> Result<(u32, u64)> {
    let parts = memory::collect(blob.parts())?;
    write(&NewPiece { tokens, parts: &parts, raw_sum })
}

/// A piece of a file.
pub struct FilePiece {
    /// Tokens.
    pub tokens: u32,
    /// All parts.
    pub bytes: Bytes,
    /// Where the piece begins in the file.
    pub offset: u64,
    /// The checksum of its stored bytes.
    pub sum: u64,
    /// Where each part ends.
    pub ends: Vec<usize>,
    /// The XXH3-64 over those of the parts' rows.
    pub raw_sum: u64,
    /// The tokens of the piece that the cache has, ascending.
    pub runs: Vec<SavedRun>,
}

/// A layer that is parked in a file.
pub struct Attached {
    layer: u32,
    blocks: Vec<Block>,
    saved: Vec<SavedRun>,
}

impl Store {
    /// The tokens of a layer that a file has, ascending.
    pub fn saved(&self, layer: u32) -> &[SavedRun] {
        self.layer(layer).map_or(&[], |entry| &entry.saved)
    }

    /// Replaces what a file has of a layer, as [`Store::save`] returned it.
    pub fn set_saved(&mut self, layer: u32, runs: Vec<SavedRun>) {
        if let Some(entry) = self.layer_mut(layer) {
            entry.saved = runs;
        }
    }

    /// Writes the tokens of a layer that `known` has not as pieces: parked ones as they are, the others from the cache,
    /// which must have them. Returns where each of the `len` tokens is. The store does not change.
    /// BUSY: if `stop` was set meanwhile. CORRUPT: if the file of a parked token has changed.
    #[expect(clippy::too_many_arguments, reason = "a cache, how to encode it, and where to")]
    pub fn save(
        &mut self,
        layer: u32,
        cache: Option<&CacheRef<'_>>,
        len: u32,
        known: &[SavedRun],
        packing: &Packing,
        stop: &AtomicBool,
        write: &mut WritePiece<'_>,
    ) -> Result<Vec<SavedRun>> {
        let mut runs = memory::copied(known)?;
        // So that `set_saved` cannot fail.
        self.layer_or_new(layer)?;
        self.save_parked(layer, known, &mut runs, write)?;
        runs.sort_unstable_by_key(|run| run.begin);
        let gaps = memory::collect(gaps(&runs, 0, len))?;
        match cache {
            Some(cache) => save_raw(cache, &gaps, packing, stop, &mut runs, write)?,
            None if gaps.is_empty() => {}
            None => bail!(
                InvalidArgument,
                "layer {layer} has tokens that are neither parked nor in the file, and no cache is given"
            ),
        }
        runs.sort_unstable_by_key(|run| run.begin);
        Ok(runs)
    }

    fn save_parked(
        &self,
        layer: u32,
        known: &[SavedRun],
        runs: &mut Vec<SavedRun>,
        write: &mut WritePiece<'_>,
    ) -> Result<()> {
        let blocks = self.layer(layer).map_or(&[][..], |entry| entry.blocks());
        for block in blocks.iter().filter(|block| block.is_parked) {
            let segments = || block.segments().iter();
            if segments().all(|s| gaps(known, s.begin, s.end()).next().is_none()) {
                continue;
            }
            let blob = block.blob.as_ref().expect("a parked block has a blob");
            let (piece, sum) = write_blob(blob, block.shape.tokens as u32, block.shape.digest as u64, write)?;
            // Equal parts are equal bytes, so that a copy has the checksum of its original.
            if let Some(place) = blob.place().filter(|place| place.sum != sum) {
                bail!(
                    Corrupt,
                    "layer {layer}: the piece at offset {} of its file is not the one that was loaded",
                    place.offset
                );
            }
            runs.retain(|run| !segments().any(|s| s.begin < run.end() && run.begin < s.end()));
            for s in segments() {
                let run = SavedRun { piece, sum, offset: s.offset, begin: s.begin, count: s.count };
                memory::push(runs, run)?;
            }
        }
        Ok(())
    }

    /// Makes all that [`Store::attach`] needs.
    pub fn prepare(&mut self, layer: u32, rows: Rows, pieces: Vec<FilePiece>) -> Result<Attached> {
        let (mut blocks, mut saved) = (Vec::new(), Vec::new());
        for piece in pieces {
            check_lengths(&rows, &piece)?;
            let ticket = self.next_ticket;
            self.next_ticket += 1;
            let shape = BlockShape { ticket, rows, tokens: piece.tokens as usize, digest: piece.raw_sum.into() };
            let blob =
                Shared::new(Blob::of_file(piece.bytes, Place { offset: piece.offset, sum: piece.sum }, &piece.ends)?)?;
            memory::extend(&mut saved, &piece.runs)?;
            memory::push(&mut blocks, Block::of_file(shape, &piece.runs, blob)?)?;
        }
        saved.sort_unstable_by_key(|run: &SavedRun| run.begin);
        self.layer_or_new(layer)?.reserve(saved.len())?;
        Ok(Attached { layer, blocks, saved })
    }

    /// Takes the tokens of a layer, which must have none, from pieces of a file, as of a parked layer.
    pub fn attach(&mut self, attached: Attached) {
        let Attached { layer, blocks, saved } = attached;
        if let Some(entry) = self.layer_mut(layer) {
            entry.saved = saved;
            blocks.into_iter().for_each(|block| entry.push(block));
        }
    }
}

/// CORRUPT: if a part of a piece says that it is longer or shorter than its tokens.
pub(super) fn check_lengths(rows: &Rows, piece: &FilePiece) -> Result<()> {
    let (tokens, parts) = (piece.tokens as usize, rows.parts());
    let (key, value) = (rows.key_bytes(tokens) / parts, rows.value_bytes(tokens) / parts);
    let mut begin = 0;
    for (part, end) in piece.ends.iter().enumerate() {
        let (words, expected) = if part < parts { (rows.key.words(), key) } else { (rows.value.words(), value) };
        let len = match gear::announced_len(&piece.bytes[begin..*end], words) {
            Ok(len) => len,
            Err(error) => bail!(Corrupt, "part {part} of the piece at offset {}: {error}", piece.offset),
        };
        if len != expected {
            bail!(
                Corrupt,
                "part {part} of the piece at offset {} has {len} bytes; {expected} expected for {tokens} tokens",
                piece.offset
            );
        }
        begin = *end;
    }
    Ok(())
}

/// The parts of `begin .. end` that no run has.
fn gaps(runs: &[SavedRun], begin: u32, end: u32) -> impl Iterator<Item = (u32, u32)> {
    let mut at = begin;
    let runs = runs.iter().filter(move |run| run.begin < end && begin < run.end());
    let ends = runs.map(|run| (run.begin, run.end())).chain([(end, end)]);
    ends.filter_map(move |(first, last)| {
        let gap = (at < first).then_some((at, first));
        at = at.max(last);
        gap
    })
}

/// Ranges of tokens, as (begin, count), that are wholly in the file or not at all: a layer that is parked in these is saved
/// without those that the file has.
pub(super) fn regions(runs: &[SavedRun], len: u32) -> Result<Vec<(u32, u32)>> {
    let (mut regions, mut at) = (Vec::new(), 0);
    for (begin, end) in gaps(runs, 0, len).chain([(len, len)]) {
        for (begin, end) in [(at, begin), (begin, end)] {
            for piece in piece::pieces(begin, end) {
                memory::push(&mut regions, piece)?;
            }
        }
        at = end;
    }
    Ok(regions)
}

/// Writes the tokens of `ranges` (begin, end) from a cache.
fn save_raw(
    cache: &CacheRef<'_>,
    ranges: &[(u32, u32)],
    packing: &Packing,
    stop: &AtomicBool,
    runs: &mut Vec<SavedRun>,
    write: &mut WritePiece<'_>,
) -> Result<()> {
    let mut raw = KvBytes::new(0, 0)?;
    for (begin, count) in ranges.iter().flat_map(|&(begin, end)| piece::pieces(begin, end)) {
        let range = cache.layout.range(begin, count)?;
        let (blob, raw_sum) = piece::encode_range(cache, range, &mut raw, packing, stop)?;
        let (piece, sum) = write_blob(&blob, count, raw_sum, write)?;
        memory::push(runs, SavedRun { piece, sum, offset: 0, begin, count })?;
    }
    Ok(())
}
