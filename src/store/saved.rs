//! The tokens of a layer that a chat file has, so that the next save writes the others alone.

use super::Store;
use super::blob::{Blob, Place};
use super::block::Block;
use super::codec::BlockShape;
use super::kv::KvBytes;
use super::piece::{self, Packer};
use crate::gear;
use crate::layout::Rows;
use crate::run::Run;
use crate::status::{Result, bail};
use crate::sys::storage::Bytes;
use crate::sys::{Shared, memory};
use std::iter;
use std::ops::Range;

/// Tokens of a piece of a file: the number of the piece, and the checksum of its stored bytes. Another file, and a piece that
/// was discarded, have another.
pub type SavedRun = Run<(u32, u64)>;

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
    /// Its number, and the checksum of its stored bytes.
    pub number: (u32, u64),
    /// Tokens.
    pub tokens: u32,
    /// All parts.
    pub bytes: Bytes,
    /// Where the piece begins in the file.
    pub offset: u64,
    /// Where each part ends.
    pub ends: Vec<usize>,
    /// The XXH3-64 over those of the parts' rows.
    pub raw_sum: u64,
    /// The tokens of the piece that the cache has.
    pub runs: Vec<Run>,
}

/// A layer that is parked in a file.
pub struct Attached {
    layer: u32,
    blocks: Vec<Block>,
    saved: Vec<SavedRun>,
}

impl Store {
    /// The tokens of a layer that a file has.
    pub fn saved(&self, layer: u32) -> &[SavedRun] {
        self.layers.get(&layer).map_or(&[], |entry| &entry.saved)
    }

    /// Replaces what a file has of a layer, as [`Store::save`] returned it.
    pub fn set_saved(&mut self, layer: u32, runs: Vec<SavedRun>) {
        if let Some(entry) = self.layers.get_mut(&layer) {
            entry.saved = runs;
        }
    }

    /// Writes the tokens of a layer that `known` has not as pieces: parked ones as they are, the others from the cache of `raw`.
    /// Returns where each of the `len` tokens is. The store does not change.
    /// BUSY: if the packer was stopped meanwhile. CORRUPT: if the file of a parked token has changed.
    pub fn save(
        &mut self,
        layer: u32,
        len: u32,
        known: &[SavedRun],
        raw: Option<&Packer<'_>>,
        write: &mut WritePiece<'_>,
    ) -> Result<Vec<SavedRun>> {
        // So that `set_saved` cannot fail.
        self.layer_or_new(layer)?;
        let mut runs = self.save_parked(layer, known, write)?;
        let gaps = memory::collect(Run::gaps(&runs, 0..len))?;
        let Some(raw) = raw else {
            if gaps.is_empty() {
                return Ok(runs);
            }
            bail!(
                InvalidArgument,
                "layer {layer} has tokens that are neither parked nor in the file, and no cache is given"
            )
        };
        let mut rows = KvBytes::new(0, 0)?;
        for range in gaps.into_iter().flat_map(piece::pieces) {
            let (begin, count) = (range.start, range.len() as u32);
            let (blob, raw_sum) = raw.encode(range, &mut rows)?;
            let of = write_blob(&blob, count, raw_sum, write)?;
            memory::push(&mut runs, Run { of, offset: 0, begin, count })?;
        }
        runs.sort_unstable_by_key(|run| run.begin);
        Ok(runs)
    }

    /// Writes the parked blocks of which `known` has not all tokens. Returns those that are known or written.
    fn save_parked(&self, layer: u32, known: &[SavedRun], write: &mut WritePiece<'_>) -> Result<Vec<SavedRun>> {
        let mut runs = memory::copied(known)?;
        let blocks = self.layers.get(&layer).map_or(&[][..], |entry| &entry.blocks);
        for block in blocks.iter().filter(|block| block.is_parked) {
            if block.segments.iter().all(|s| Run::gaps(known, s.begin..s.end()).next().is_none()) {
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
            runs.retain(|run| !block.overlaps(&(run.begin..run.end())));
            for segment in &block.segments {
                memory::push(&mut runs, segment.with((piece, sum)))?;
            }
        }
        runs.sort_unstable_by_key(|run| run.begin);
        Ok(runs)
    }

    /// Makes all that [`Store::attach`] needs.
    pub fn prepare(&mut self, layer: u32, rows: Rows, pieces: Vec<FilePiece>) -> Result<Attached> {
        let (mut blocks, mut saved) = (Vec::new(), Vec::new());
        for piece in pieces {
            check_lengths(&rows, &piece)?;
            let ticket = self.next_ticket;
            self.next_ticket += 1;
            let shape = BlockShape { ticket, rows, tokens: piece.tokens as usize, digest: piece.raw_sum.into() };
            let place = Place { offset: piece.offset, sum: piece.number.1 };
            let blob = Shared::new(Blob::of_file(piece.bytes, place, &piece.ends)?)?;
            for run in &piece.runs {
                memory::push(&mut saved, run.with(piece.number))?;
            }
            memory::push(&mut blocks, Block::parked(shape, piece.runs, blob))?;
        }
        saved.sort_unstable_by_key(|run| run.begin);
        self.layer_or_new(layer)?.reserve(saved.len())?;
        Ok(Attached { layer, blocks, saved })
    }

    /// Takes the tokens of a layer, which must have none, from pieces of a file, as of a parked layer.
    pub fn attach(&mut self, attached: Attached) {
        let Attached { layer, blocks, saved } = attached;
        if let Some(entry) = self.layers.get_mut(&layer) {
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

/// Ranges of tokens that are wholly in the file or not at all: a layer that is parked in these is saved without those that the
/// file has.
pub(super) fn regions(saved: &[SavedRun], len: u32) -> Result<Vec<Range<u32>>> {
    let (mut regions, mut at) = (Vec::new(), 0);
    for gap in Run::gaps(saved, 0..len).chain(iter::once(len..len)) {
        for range in piece::pieces(at..gap.start).chain(piece::pieces(gap.clone())) {
            memory::push(&mut regions, range)?;
        }
        at = gap.end;
    }
    Ok(regions)
}
