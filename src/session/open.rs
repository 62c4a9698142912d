//! Opening a saved chat: its index and what is known of its blocks are read, and the blocks that were in memory. All is checked
//! before anything of the session changes. Raw tokens come with the next begin.

use super::base::{BaseLayer, BaseUse};
use super::budget::{self, Needs, Share, Sizes};
use super::eviction::SavedEviction;
use super::layer::Layer;
use super::quant::{self, QuantState};
use super::tail;
use super::tier::{self, Tier};
use super::tokens::{CacheLengths, InFile, Runs, Tokens};
use super::window::{self, Window};
use super::{Session, State, find};
use crate::attend::{Basis, Block, Blocks, Offloaded};
use crate::bytes::Reader;
use crate::file::table::{self, Head, Table, TileBlock};
use crate::file::{Access, ChatFile, raw};
use crate::h2o::BlockScores;
use crate::layout::{self, Cache, Pair, Rows};
use crate::status::{Error, Result, Status, bail};
use crate::sys::storage::Storage;
use crate::sys::{self, Mutex, Shared, files, memory, parallel};
use std::ops::Range;
use std::path::Path;

/// A layer of a file, checked.
pub(super) struct OpenedLayer {
    pub(super) number: u32,
    tokens: Tokens,
    rows: Rows,
    eviction: SavedEviction,
    /// `None` where tokens are not evicted.
    scores: Option<BlockScores>,
    value_scales: Vec<u8>,
    last_step: u32,
    quant: QuantState,
    window: Option<Window>,
}

/// Where the blocks of a layer are read from.
pub(super) struct Source<'a> {
    pub(super) file: &'a ChatFile,
    /// It is the session's.
    pub(super) is_own: bool,
    /// Blocks may leave memory: those heads come that were there, the last of them as far as they take `most` bytes.
    pub(super) may_leave: bool,
    pub(super) most: usize,
    /// Blocks that are in memory already.
    pub(super) base: Option<&'a BaseLayer>,
}

/// What the state of a table says beside tokens.
struct LayerState {
    held: u32,
    last_step: u32,
    quant: QuantState,
    eviction: SavedEviction,
    value_scales: Vec<u8>,
    /// The window of the layer, and the first position that it has not left behind.
    window: Option<(Window, u32)>,
}

/// A layer of a file, before its blocks are read.
pub(super) struct FoundLayer {
    table: Table,
    state: LayerState,
}

impl FoundLayer {
    pub(super) fn read(file: &ChatFile, number: u32) -> Result<Self> {
        let table = file.table(number)?;
        let within = |error: Error| error.within(format_args!("layer {number} of {}", file.name()));
        Ok(FoundLayer { state: read_state(&table.state).map_err(within)?, table })
    }
}

impl Session {
    /// Goes on with the chat that was saved in the session's file, or in the one at `path`, which is its file from then on.
    /// The caches of the next begins may have any packing, and need have no contents. Layers that the chat has not are reset.
    /// On an error nothing has changed.
    /// NOT_FOUND: if there is no file, or no chat was saved in it. STALE: if it is of another model. BUSY: if it is open already.
    /// INVALID_ARGUMENT: if a layer is open, the chat has more layers, or the budget is too small for it.
    /// UNSUPPORTED: if it has blocks and the session keeps that layer raw. CORRUPT: if it is damaged.
    pub fn open(&self, path: Option<&str>) -> Result<()> {
        let mut state = self.state()?;
        let working = self.fit_working(&mut state)?;
        if let Some(open) = state.layers.iter().find(|layer| layer.slot.is_open()) {
            bail!(InvalidArgument, "layer {} is open; end comes first", open.number);
        }
        state.layers.iter_mut().try_for_each(|layer| layer.step_mut().map(drop))?;
        state.finish_writes()?;
        let State { layers, store, budget, tier, sections, has_chat, base, .. } = &mut *state;
        let at = path.map(|path| files::absolute(Path::new(path))).transpose()?;
        let mut other = match (&mut *tier, at) {
            (None, None) => bail!(InvalidArgument, "the chat has no file: path, or kv_memory_file, says where it is"),
            (Some(tier), at) if at.as_ref().is_none_or(|at| at == tier.path()) => {
                tier.opened()?;
                None
            }
            (_, at) => {
                let storage = Storage::edit(Path::new(path.unwrap_or_default()))?;
                if ChatFile::is_left(&storage)? {
                    bail!(NotFound, "no chat was saved in {} yet", storage.name());
                }
                let found = ChatFile::open(storage, Some(&self.fingerprint), Access::Commit)?;
                Some((found, at.unwrap_or_default()))
            }
        };
        let file = match (&other, &*tier) {
            (Some((file, _)), _) => file,
            (None, Some(Tier { file: Some(file), .. })) => file,
            _ => bail!(Internal, "the file was opened"),
        };
        if file.version().is_none() {
            bail!(NotFound, "no chat was saved in {} yet", file.name());
        }
        file.names().try_for_each(|name| file.section(name).map(drop))?;
        let (mut rows, mut tables) = (Vec::new(), Vec::new());
        for number in file.layers() {
            let found = FoundLayer::read(file, number)?;
            let window = find(layers, number)?.window_of(&found.state);
            memory::push(&mut rows, (number, found.table.rows, window))?;
            memory::push(&mut tables, Mutex::new(Some(found)))?;
        }
        let sized = |layer: &Layer| {
            let (_, rows, window) = rows.iter().find(|(number, ..)| *number == layer.number)?;
            Some((Sizes::from(rows), *window))
        };
        if let Some(budget) = budget.as_mut() {
            let known = |own: &Layer| sized(own).map(|(sizes, _)| sizes).or(own.sizes());
            // One check is of all layers.
            let least = |number: u32| layers[number as usize].quant.as_ref().map(|quant| quant.least_raw());
            if let Some((rows, least_raw)) = rows.iter().find_map(|(number, rows, _)| Some((rows, least(*number)?))) {
                budget.check(layers, known, &rows.into(), least_raw, working)?;
            }
        }
        // Shares are those of the chat when all of it is here, or more: what is above them leaves in the end.
        let needs = |layer: &Layer, unknown: &Sizes| match sized(layer) {
            Some((sizes, window)) => Needs { sizes: sizes.of(layer), window, blocks: 0 },
            None => Needs::of(layer, unknown),
        };
        let shares = memory::collect(rows.iter().map(|(number, rows, _)| {
            let (budget, sizes) = (budget.as_ref()?, Sizes::from(rows));
            let all = layers.iter().map(|layer| needs(layer, &sizes));
            Some(budget.share_among(all, &needs(&layers[*number as usize], &sizes), 1, working))
        }))?;
        let found = memory::collect(rows.iter().map(|_| Mutex::new(None)))?;
        parallel::for_each(rows.len(), sys::cores() as usize, |_: &mut (), at| {
            let (number, mut places) = (rows[at].0, Vec::new());
            let Some(from) = tables[at].lock().ok().and_then(|mut found| found.take()) else { return Ok(()) };
            let layer = layers[number as usize].opened((file, from), shares[at].as_ref(), base.as_ref(), &mut places);
            let within = |e: Error| e.within(format_args!("layer {number} of {}", file.name()));
            let layer = layer.map_err(within)?;
            if let Ok(mut found) = found[at].lock() {
                *found = Some((layer, places));
            }
            Ok(())
        })?;
        let (mut opened, mut places) = (Vec::new(), Vec::new());
        for found in found {
            let Some((layer, own)) = found.into_inner().ok().flatten() else { bail!(Internal, "a layer was not read") };
            memory::push(&mut opened, layer)?;
            memory::reserve(&mut places, own.len())?;
            own.into_iter().try_for_each(|place| memory::push(&mut places, place))?;
        }
        let claimed = file.claimed(places)?;
        let other = match other.take() {
            Some((file, path)) => Some(Tier::of(file, path, &self.fingerprint, tier.as_ref())?),
            None => None,
        };
        // Nothing below fails, but for a thread that has attended meanwhile, which no host may have.
        layers.iter_mut().try_for_each(|layer| layer.reset(store, tier.as_mut()))?;
        if other.is_some() {
            *tier = other;
        }
        if let Some(file) = tier.as_mut().and_then(|tier| tier.file.as_mut()) {
            file.take_space(claimed);
        }
        for from in opened {
            layers[from.number as usize].take_opened(from)?;
        }
        if let (Some(budget), Some(file)) = (budget, tier.as_ref().and_then(|tier| tier.file.as_ref())) {
            budget.take_working(file.working());
        }
        (*has_chat, *sections) = (true, Vec::new());
        self.fit(&mut state).map(drop)
    }
}

impl Layer {
    /// The layer as a file's table has it, which is the session's or that of the base. Adds where its things are to `places`.
    pub(super) fn opened(
        &self,
        (file, from): (&ChatFile, FoundLayer),
        share: Option<&Share>,
        base: Option<&BaseUse>,
        places: &mut Vec<Range<u64>>,
    ) -> Result<OpenedLayer> {
        let is_own = base.is_none_or(|base| !std::ptr::eq(base.file(), file));
        let FoundLayer { table, state } = from;
        let lengths = CacheLengths { logical: table.logical, physical: table.physical() };
        state.eviction.check(lengths)?;
        check_positions(&table, &state.eviction.positions)?;
        for piece in &table.pieces {
            let bytes = file.read(&piece.at, "raw tokens")?;
            raw::check(&bytes, piece.tokens, table.rows)
                .map_err(|error| error.within(format_args!("raw tokens at offset {}", piece.at.offset)))?;
        }
        memory::reserve(places, table.extents().count() + table.blocks.len())?;
        table.extents().try_for_each(|at| memory::push(places, at.range()))?;
        let blocks = match (&self.quant, table.blocks.is_empty()) {
            (_, true) => Blocks::NONE,
            (Some(quant), false) => {
                let (may_leave, base) = (quant.weighs(), base.and_then(|base| base.layer(self.number)));
                let raw = lengths.physical.saturating_sub(budget::chunk(state.last_step));
                let most = share.map_or(0, |share| share.for_blocks(raw));
                read_blocks(&Source { file, is_own, may_leave, most, base }, &table, places, &mut Vec::new())?
            }
            (None, false) => bail!(
                Unsupported,
                "it has tokens in 8 and 4 bits, and this session keeps it raw: kv_memory_mb must be given, or kv_quant with a \
                 kv_quant_layer_start of {} at most, and the host must attend (mnnkv_session_attend)",
                self.number
            ),
        };
        let scores = self
            .eviction
            .as_ref()
            .or(self.set_aside.as_ref())
            .map(|own| own.loaded(&state.eviction, lengths.physical))
            .transpose()?;
        let Table { rows, raw, pieces, tiles, basis, .. } = table;
        let in_file = match is_own {
            true => InFile { pieces, is_away: !raw.is_empty(), raw, tiles, basis, of_base: false },
            false => InFile { pieces, is_away: !raw.is_empty(), raw, of_base: true, ..InFile::default() },
        };
        let raw = Runs::of(&state.eviction.positions, lengths.logical)?;
        let passed = state.window.map_or(0, |(_, passed)| passed);
        let tokens = Tokens { lengths, raw, blocks, held: state.held.min(lengths.physical), passed, in_file };
        let window = self.window_of(&state);
        window::check_wider((self.number, window), &tokens)?;
        let LayerState { last_step, quant, eviction, value_scales, .. } = state;
        Ok(OpenedLayer { number: self.number, tokens, rows, eviction, scores, value_scales, last_step, quant, window })
    }

    /// Its window once it is opened: the host's goes before that of the file.
    fn window_of(&self, found: &LayerState) -> Option<Window> {
        self.own_window.unwrap_or(found.window.map(|(window, _)| window))
    }

    /// Takes what a file has of the layer, after a reset.
    pub(super) fn take_opened(&mut self, mut from: OpenedLayer) -> Result<()> {
        self.take(from.tokens, from.rows, from.value_scales)?;
        self.last_step = from.last_step;
        self.set_window(from.window);
        // Of a prompt's step that was the last one before the save nothing has changed.
        self.chunk = self.chunk.max(budget::chunk(self.last_step));
        self.pins = std::mem::take(&mut from.eviction.pins);
        if let Some(quant) = &mut self.quant {
            quant.take(from.quant);
        }
        if let Some((eviction, scores)) = self.eviction.as_mut().zip(from.scores) {
            eviction.take(from.eviction, scores);
        }
        Ok(())
    }

    /// Writes raw tokens that are in the file alone to the cache. On an error they are there still.
    pub(super) fn restore_raw(&mut self, file: Option<&ChatFile>, cache: &mut Cache<'_>) -> Result<()> {
        let (len, in_file) = (self.lengths().physical, &self.tokens().in_file);
        if !in_file.is_away {
            return Ok(());
        }
        let Some(file) = file else { bail!(Internal, "raw tokens are in a file, and there is none") };
        let all = cache.layout.range(0, len)?;
        if !self.value_scales.is_empty() {
            layout::scatter_scales(cache, all, &self.value_scales)?;
        }
        for (number, piece) in (0..).zip(&in_file.pieces) {
            let runs = in_file.raw.iter().filter(|run| run.of == number).map(|run| run.with(()));
            if runs.clone().next().is_some() {
                let bytes = file.read(&piece.at, format_args!("raw tokens of layer {}", self.number))?;
                raw::restore(&bytes, piece.tokens, runs, cache)?;
            }
        }
        layout::mended(cache, all, len)?;
        // The buffers may have had other tokens, or have them still.
        tail::discard(cache, len)?;
        self.value_scales = Vec::new();
        let in_file = &mut self.step_mut()?.tokens.in_file;
        in_file.is_away = false;
        if in_file.of_base {
            *in_file = InFile::default();
        }
        Ok(())
    }
}

fn read_state(bytes: &[u8]) -> Result<LayerState> {
    let mut reader = Reader::new(bytes);
    let (held, last_step) = (reader.small("the held tokens")?, reader.small("the last step")?);
    let (quant, eviction) = (QuantState::read(&mut reader)?, SavedEviction::read(&mut reader)?);
    let len = reader.number("the scales of V")?;
    let value_scales = memory::copied(reader.take(len, "the scales of V")?)?;
    let window = match reader.rest() {
        [] => None,
        _ => {
            let window = Window { tokens: reader.small("the window")?.max(1), rollback: reader.small("the rollback")? };
            Some((window, reader.small("what the window has left behind")?))
        }
    };
    reader.end("the state")?;
    Ok(LayerState { held, last_step, quant, eviction, value_scales, window })
}

/// CORRUPT: if a token is in two places.
fn check_positions(table: &Table, raw: &[Pair]) -> Result<()> {
    let mut all = memory::copied(raw)?;
    for block in &table.blocks {
        memory::push(&mut all, [block.first as i32, block.live.count_ones() as i32])?;
    }
    all.sort_unstable();
    match layout::check_pairs(&all, table.logical) {
        Ok(_) => Ok(()),
        Err(error) => bail!(Corrupt, "a token is in two places: {}", error.unless_out_of_memory()?),
    }
}

/// The blocks of a table. Adds their places to `places`, and the checksums of their heads to `sums`.
pub(super) fn read_blocks(
    from: &Source<'_>,
    table: &Table,
    places: &mut Vec<Range<u64>>,
    sums: &mut Vec<u64>,
) -> Result<Blocks> {
    let Source { file, is_own, may_leave, base, .. } = *from;
    let (rows, heads) = (&table.rows, table.rows.heads);
    let Some(shape) = quant::shape(rows) else { bail!(Corrupt, "it has {rows} and blocks") };
    let mut tiles = Vec::new();
    for tile in &table.tiles {
        let bytes = file.read(&tile.at, "a tile")?;
        memory::push(&mut tiles, table::read_tile(&bytes, tile.blocks, shape, heads)?)?;
    }
    let basis = match &table.basis {
        Some(at) => Basis::read(&file.read(at, "the directions of sketches")?, heads, shape.dims)?,
        None => bail!(Corrupt, "it has blocks and no directions of sketches"),
    };
    let (mut blocks, mut block, mut work, mut of_base) = (Blocks::NONE, Block::default(), Vec::new(), 0);
    blocks.reserve(shape, heads, table.blocks.len())?;
    blocks.base = base.map(|base| base.blocks.clone());
    blocks.set_basis(Shared::new(basis)?);
    let most = from.most.saturating_sub(blocks.other_bytes());
    let first_here = if may_leave { first_here(table, &tiles, most) } else { 0 };
    for (at, (entry, heads_of)) in table.blocks.iter().zip(table.heads.chunks_exact(heads)).enumerate() {
        let number = at as u32;
        let Some(tile) = tiles[entry.tile.0 as usize].get_mut(entry.tile.1 as usize) else {
            bail!(Corrupt, "block {number} is not in its tile")
        };
        let mut known = std::mem::take(&mut tile.heads);
        if known.len() != heads {
            bail!(Corrupt, "block {number} is in two places");
        }
        tile.place.ranges(blocks.size()).try_for_each(|range| memory::push(places, range))?;
        let sum = |known: &Option<Offloaded>| known.as_ref().map_or(0, |known| known.sum);
        known.iter().try_for_each(|known| memory::push(sums, sum(known)))?;
        if base.is_some_and(|base| base.is(of_base, known.iter().map(sum))) {
            blocks.push_base(of_base as u32, entry.first, entry.live);
            of_base += 1;
        } else {
            for (head, (codes, known)) in block.heads_mut(heads)?.iter_mut().zip(&mut known).enumerate() {
                let is_here = match heads_of[head] {
                    Head::Here(_) => !may_leave || at >= first_here,
                    Head::Away(_) => !may_leave,
                    Head::Gone => {
                        *known = None;
                        false
                    }
                };
                let found = match (is_here, &*known) {
                    (true, Some(known)) => read_head(file, tile.place.codes.start, known, &mut work)?,
                    _ => &[],
                };
                codes.read(shape, found).map_err(|error| error.within(format_args!("block {number}, head {head}")))?;
            }
            blocks.push(&block, entry.first, entry.live)?;
        }
        let is_of_base = blocks.cell(number, 0).is_of_base();
        if is_own {
            let known = (may_leave && !is_of_base).then_some(known);
            blocks.set_saved_in(number, entry.tile, tile.place.clone(), known);
        }
        for (head, found) in heads_of.iter().enumerate() {
            if let Head::Here(score) | Head::Away(score) = found {
                blocks.set_score(number, head, *score);
            }
        }
    }
    Ok(blocks)
}

/// The first block from which on the heads that were in memory take `most` bytes.
fn first_here(table: &Table, tiles: &[Vec<TileBlock>], most: usize) -> usize {
    let heads = table.rows.heads;
    let mut left = most;
    for (at, (entry, found)) in table.blocks.iter().zip(table.heads.chunks_exact(heads)).enumerate().rev() {
        let known = tiles[entry.tile.0 as usize].get(entry.tile.1 as usize).map_or(&[][..], |tile| &tile.heads);
        let here = known.iter().zip(found).filter(|(_, head)| matches!(head, Head::Here(_)));
        let bytes: u64 =
            here.filter_map(|(known, _)| known.as_ref()).map(|known| known.bytes().end - known.bytes().start).sum();
        match left.checked_sub(bytes as usize) {
            Some(rest) => left = rest,
            None => return at + 1,
        }
    }
    0
}

/// The codes of a head of a block that begins at an offset.
fn read_head<'a>(file: &ChatFile, offset: u64, head: &Offloaded, bytes: &'a mut Vec<u8>) -> Result<&'a [u8]> {
    match tier::read_at(file, offset, head, bytes) {
        Ok(()) => Ok(bytes),
        Err(error) if error.status() == Status::Corrupt => Err(error),
        Err(error) => Err(error.within("a block")),
    }
}
