//! The layers of a session in a chat file: a save writes what the file has not, and a loaded layer is parked in it.

use super::budget;
use super::eviction::{self, SavedEviction};
use super::layer::Layer;
use super::quant::SavedQuant;
use super::tokens::{CacheLengths, Runs, Tokens};
use super::{Session, State, find};
use crate::attend::{Blocks, Found};
use crate::bytes::{Reader, push_number};
use crate::h2o::BlockScores;
use crate::layout::{self, Cache, CacheRef, Kind, Rows};
use crate::snapshot::{Geometry, LayerEntry, PieceBytes, Run, Snapshot};
use crate::status::{Error, Result, bail};
use crate::store::{FilePiece, NewPiece, Packer, Packing, SavedRun};
use crate::sys::memory;
use std::sync::atomic::Ordering;

/// The version of a layer's state in a file, and that of one with quantised tokens; docs/format.md has the bytes.
const STATE: u64 = 1;
const STATE_OF_QUANT: u64 = 3;

/// The result of [`Session::save`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    /// Tokens written.
    pub tokens: u32,
    /// Bytes of their pieces.
    pub bytes: u64,
}

/// A layer of a file, checked.
struct LoadedLayer {
    number: u32,
    tokens: Tokens,
    rows: Rows,
    eviction: SavedEviction,
    /// `None` where tokens are not evicted.
    scores: Option<BlockScores>,
    value_scales: Vec<u8>,
    pieces: Vec<FilePiece>,
}

impl Session {
    /// Adds the present state of a closed layer to a file; it is part of the file after [`Snapshot::commit`]. A layer that
    /// is parked needs no cache. On an error the session is unchanged, but for tokens restored from the store.
    /// BUSY: if the session is interrupted.
    pub fn save(
        &self,
        layer: u32,
        mut cache: Option<Cache<'_>>,
        kv_len: u32,
        packing: &Packing,
        to: &mut Snapshot,
    ) -> Result<Saved> {
        let mut state = self.state()?;
        let State { layers, store, budget, .. } = &mut *state;
        let layer = find(layers, layer)?;
        let number = layer.number;
        layer.check_closed(kv_len)?;
        if cache.is_some() {
            layer.check_cache(cache.as_ref(), kv_len)?;
        }
        to.check_writable()?;
        if self.interrupted.load(Ordering::Relaxed) {
            bail!(Busy, "layer {number} was not saved: the session is interrupted until the next begin");
        }
        let Some(rows) = layer.rows else {
            return match to.layer(number).map(|entry| entry.geometry) {
                Some(geometry) => {
                    to.set_layer(number, geometry, &[], &layer.saved_state(None)?).map(|()| Saved::default())
                }
                None => {
                    to.drop_layer(number);
                    Ok(Saved::default())
                }
            };
        };
        let mut known = Vec::new();
        let own = geometry(&rows);
        for run in store.saved(number).iter().filter(|run| to.has_piece(number, own, run.of)) {
            // Runs of one piece follow each other.
            if known.last().is_some_and(|last: &SavedRun| last.of == run.of) || is_whole(to, run.of.0)? {
                memory::push(&mut known, *run)?;
            }
        }
        let known_tokens: u32 = known.iter().map(|run| run.count).sum();
        let is_stored = !store.is_parked(number) && known_tokens < kv_len;
        if let Some((cache, lossless)) = cache.as_mut().zip(layer.lossless.as_mut()).filter(|_| is_stored) {
            lossless.restore(store, cache, kv_len)?;
        }
        layer.step_mut()?.tokens.see_file(|known| Ok(to.has_piece(number, own, known) && is_whole(to, known.0)?))?;
        let mut saved = Saved::default();
        let given = cache.as_ref().map(Cache::as_ref);
        let mut write = |piece: &NewPiece<'_>| {
            saved.tokens += piece.tokens;
            saved.bytes += piece.parts.iter().map(|part| part.len() as u64).sum::<u64>();
            add(to, number, piece)
        };
        let raw = given.map(|cache| Packer { cache, packing, stop: &self.interrupted });
        let runs = store.save(number, kv_len, &known, raw.as_ref(), &mut write)?;
        let mut all = in_file(&runs)?;
        let mut lost = Found::default();
        let offload = budget.as_ref().and_then(|budget| budget.offload.as_ref());
        let blocks = layer.step_mut()?.tokens.save_blocks(offload, &mut lost, &mut write);
        if !lost.lost.is_empty() {
            layer.lose(lost, budget::offload(budget));
        }
        memory::extend(&mut all, &in_file(&blocks?)?)?;
        to.set_layer(number, own, &all, &layer.saved_state(given.as_ref())?)?;
        store.set_saved(number, runs);
        if let Some((cache, lossless)) = cache.zip(layer.lossless.as_mut()) {
            lossless.commit(store, cache);
        }
        Ok(saved)
    }

    /// Replaces a layer, or all, by what a file has of it. The tokens stay in the file: the next begin, whose cache may have
    /// any packing, reads them. Layers that the file has not are reset where all are loaded. On an error nothing has changed.
    /// NOT_FOUND: if the file has not the layer. INVALID_ARGUMENT: if a layer is open, or the file has more layers.
    pub fn load(&self, layer: Option<u32>, from: &Snapshot) -> Result<()> {
        let mut state = self.state()?;
        let working = self.fit_working(&mut state)?;
        let State { layers, store, budget, .. } = &mut *state;
        let mut loaded = Vec::new();
        match layer {
            Some(number) => {
                let Some(entry) = from.layer(number) else {
                    bail!(NotFound, "{} has no layer {number}", from.name());
                };
                memory::push(&mut loaded, find(layers, number)?.loaded(from, entry)?)?;
            }
            None => {
                if let Some(open) = layers.iter().find(|layer| layer.slot.is_open()) {
                    bail!(InvalidArgument, "layer {} is open; end comes first", open.number);
                }
                for (number, entry) in from.layers() {
                    memory::push(&mut loaded, find(layers, number)?.loaded(from, entry)?)?;
                }
            }
        }
        let mut attached = Vec::new();
        memory::reserve(&mut attached, loaded.len())?;
        for layer in &mut loaded {
            memory::push(&mut attached, store.prepare(layer.number, layer.rows, std::mem::take(&mut layer.pieces))?)?;
        }

        let chosen = |own: &&mut Layer| layer.is_none_or(|number| number == own.number);
        layers.iter_mut().filter(chosen).try_for_each(|layer| layer.step_mut().map(drop))?;
        if let Some(budget) = budget.as_mut() {
            let of = |number| loaded.iter().find(|from| from.number == number).map(|from| from.rows);
            let known = layers.iter().map(|own| of(own.number).map(|rows| (&rows).into()).or(own.sizes()));
            // One check is of all layers.
            let first =
                |from: &LoadedLayer| Some((from.rows, layers[from.number as usize].quant.as_ref()?.least_raw()));
            if let Some((rows, least_raw)) = loaded.iter().find_map(first) {
                budget.check(known, &(&rows).into(), least_raw, working)?;
            }
        }
        for layer in layers.iter_mut().filter(chosen) {
            layer.reset(store, budget::offload(budget))?;
        }
        for (mut from, attached) in loaded.into_iter().zip(attached) {
            let layer = &mut layers[from.number as usize];
            store.attach(attached);
            layer.take(from.tokens, from.rows, from.value_scales)?;
            layer.pins = std::mem::take(&mut from.eviction.pins);
            if let Some((eviction, scores)) = layer.eviction.as_mut().zip(from.scores) {
                eviction.take(from.eviction, scores);
            }
        }
        self.fit(&mut state, working).map(drop)
    }
}

impl Layer {
    /// The layer as a file has it.
    fn loaded(&self, from: &Snapshot, entry: &LayerEntry) -> Result<LoadedLayer> {
        let number = self.number;
        if self.slot.is_open() {
            bail!(InvalidArgument, "layer {number} is open; end comes first");
        }
        let state = from.layer_state(number)?;
        let read = || {
            let mut reader = Reader::new(&state);
            let (logical, quantised) = read_head(&mut reader)?;
            let physical = quantised.as_ref().map_or(entry.tokens(), SavedQuant::physical);
            let saved = SavedEviction::read(&mut reader)?;
            let len = reader.number("the scales of V")?;
            let scales = memory::copied(reader.take(len, "the scales of V")?)?;
            let coded = quantised.as_ref().map_or(0, SavedQuant::tokens);
            if physical.checked_add(coded) != Some(entry.tokens()) {
                bail!(Corrupt, "{physical} tokens and {coded} quantised ones; the layer has {}", entry.tokens());
            }
            if let Some(quantised) = &quantised {
                quantised.check(&saved.positions, logical)?;
            }
            let lengths = CacheLengths { logical, physical };
            saved.check(lengths)?;
            Ok((lengths, quantised, saved, scales))
        };
        let within = |e: Error| e.within(format_args!("state of layer {number} of {}", from.name()));
        let (lengths, quantised, saved, value_scales) = read().map_err(within)?;

        let rows = rows(&entry.geometry)?;
        let (blocks, held) = match (&self.quant, &quantised) {
            (_, None) => (Blocks::NONE, 0),
            (Some(_), Some(saved)) => (saved.load(from, &rows, &entry.runs)?, saved.held()),
            (None, Some(_)) => bail!(
                Unsupported,
                "layer {number} of {} has tokens in 8 and 4 bits, and this session keeps that layer raw: kv_memory_mb \
                 must be given, or kv_quant with a kv_quant_layer_start of {number} at most, and \
                 the host must attend (mnnkv_session_attend)",
                from.name()
            ),
        };
        let pieces = pieces(from, &rows, Run::within(&entry.runs, 0..lengths.physical))?;
        let tokens = Tokens { lengths, raw: Runs::of(&saved.positions, lengths.logical)?, blocks, held };
        let scores =
            self.eviction.as_ref().map(|own| own.loaded(&saved, lengths.physical)).transpose().map_err(within)?;
        Ok(LoadedLayer { number, tokens, rows, eviction: saved, scores, value_scales, pieces })
    }

    /// Returns the bytes that a file has of the layer beside its tokens.
    fn saved_state(&self, cache: Option<&CacheRef<'_>>) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        let quant = self.tokens().saved()?;
        push_number(&mut out, if quant.is_some() { STATE_OF_QUANT } else { STATE })?;
        push_number(&mut out, self.lengths().logical.into())?;
        if let Some(quant) = &quant {
            quant.put(&mut out)?;
        }
        eviction::save(self.eviction.as_ref(), &self.tokens().raw, &self.pins, &mut out)?;
        let mut scales = memory::copied(&self.value_scales)?;
        match cache {
            Some(cache) if scales.is_empty() => {
                memory::resize(&mut scales, cache.layout.scale_bytes())?;
                layout::gather_scales(cache, &mut scales)?;
            }
            None if scales.is_empty() && self.rows.is_some_and(|rows| rows.value == Kind::Int8) => {
                bail!(
                    InvalidArgument,
                    "layer {} has V INT8, whose scales are in its cache, and no cache is given",
                    self.number
                )
            }
            _ => {}
        }
        push_number(&mut out, scales.len() as u64)?;
        memory::extend(&mut out, &scales)?;
        Ok(out)
    }
}

/// The rows of a layer of a file.
fn rows(geometry: &Geometry) -> Result<Rows> {
    let Geometry { heads, head_dim, key, value } = *geometry;
    Ok(Rows {
        key: Kind::from_code(key.into(), "the type of K")?,
        value: Kind::from_code(value.into(), "the type of V")?,
        heads: heads as usize,
        dims: head_dim as usize,
    })
}

/// The pieces of these tokens of a layer, compared with their checksums: a chat must not be replaced by one that cannot be read.
fn pieces(from: &Snapshot, rows: &Rows, runs: impl Iterator<Item = Run>) -> Result<Vec<FilePiece>> {
    let mut pieces = Vec::<FilePiece>::new();
    for run in runs {
        let piece = run.of;
        match pieces.iter_mut().find(|known| known.number.0 == piece) {
            Some(known) => memory::push(&mut known.runs, run.with(()))?,
            None => {
                let found = piece_of(from, rows, piece)?;
                let number = (piece, from.piece_sum(piece).unwrap_or_default());
                let tokens = from.piece_tokens(piece).unwrap_or_default();
                let runs = memory::copied(&[run.with(())])?;
                let (bytes, offset, ends, raw_sum) = (found.bytes, found.offset, found.ends, found.raw_checksum);
                memory::push(&mut pieces, FilePiece { number, tokens, bytes, offset, ends, raw_sum, runs })?;
            }
        }
    }
    Ok(pieces)
}

/// Whether the bytes of a piece are those that were written, by one comparison in the life of the handle: tokens of a
/// damaged one are written again from where there is a copy.
fn is_whole(file: &Snapshot, piece: u32) -> Result<bool> {
    if file.is_verified(piece) {
        return Ok(true);
    }
    match file.piece(piece) {
        Ok(found) => {
            found.bytes.drop_pages();
            Ok(true)
        }
        Err(error) => error.unless_out_of_memory().map(|_| false),
    }
}

/// A piece with the parts of these rows.
fn piece_of(from: &Snapshot, rows: &Rows, piece: u32) -> Result<PieceBytes> {
    let (found, parts) = (from.piece(piece)?, 2 * rows.parts());
    if found.ends.len() != parts {
        bail!(Corrupt, "piece {piece} of {} has {} parts; {parts} expected", from.name(), found.ends.len());
    }
    found.bytes.drop_pages();
    Ok(found)
}

/// Writes a piece of a layer. Returns its number and the checksum of its stored bytes.
fn add(to: &mut Snapshot, layer: u32, piece: &NewPiece<'_>) -> Result<(u32, u64)> {
    let at = to.add_piece(layer, piece.tokens, piece.parts, piece.raw_sum)?;
    match to.piece_sum(at) {
        Some(sum) => Ok((at, sum)),
        None => bail!(Internal, "piece {at} was not added"),
    }
}

/// The tokens of a layer as a file lists them.
fn in_file(runs: &[SavedRun]) -> Result<Vec<Run>> {
    memory::collect(runs.iter().map(|run| run.with(run.of.0)))
}

/// The head of a layer's state: tokens of the chat, and what is quantised.
fn read_head(reader: &mut Reader<'_>) -> Result<(u32, Option<SavedQuant>)> {
    let version = reader.number("the version")?;
    if ![STATE, STATE_OF_QUANT].contains(&version) {
        bail!(Unsupported, "version {version}; {STATE} and {STATE_OF_QUANT} are known");
    }
    let logical = reader.small("the length")?;
    if logical > i32::MAX as u32 {
        bail!(Corrupt, "{logical} tokens; at most {} allowed", i32::MAX);
    }
    let quantised = if version == STATE_OF_QUANT { Some(SavedQuant::read(reader, logical)?) } else { None };
    Ok((logical, quantised))
}

fn geometry(rows: &Rows) -> Geometry {
    let (heads, head_dim) = (rows.heads as u32, rows.dims as u32);
    Geometry { heads, head_dim, key: rows.key.code() as u8, value: rows.value.code() as u8 }
}
