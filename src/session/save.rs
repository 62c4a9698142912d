//! Saving a chat: what the file has not is written, and a commit makes it the chat of the file. Nothing of the session changes
//! before the commit.

use super::base::BaseUse;
use super::eviction;
use super::layer::Layer;
use super::quant::Quant;
use super::tier::{self, Sketching, Tier};
use super::tokens::InFile;
use super::{Session, State};
use crate::attend::{Basis, Blocks, Found, GROUP, Group, Offloaded, Place};
use crate::bytes::push_number;
use crate::file::table::{self, Entry, Head, Piece, Table, Tile};
use crate::file::{ChatFile, Extent, NewState, check_name, raw};
use crate::layout::{self, Cache, CacheRef, Kind};
use crate::run::Run;
use crate::status::{Result, Status, bail};
use crate::sys::storage::Storage;
use crate::sys::{Shared, files, memory};
use std::ops::Range;
use std::path::Path;

/// The cache of a layer, and its tokens there.
pub type LayerCache<'a> = (Option<Cache<'a>>, u32);

/// Where a save has put a block.
struct Moved {
    block: u32,
    tile: (u32, u32),
    place: Place,
    /// What is known of its heads; `None` where it was in the file before.
    heads: Option<Vec<Option<Offloaded>>>,
}

/// What a save makes of a layer.
struct SavedLayer {
    number: usize,
    table: Table,
    moved: Vec<Moved>,
    /// Directions that were chosen.
    basis: Option<Shared<Basis>>,
}

/// What a commit has saved.
struct Saved {
    layers: Vec<SavedLayer>,
    /// Bytes.
    written: u64,
}

impl Session {
    /// Gives the bytes of a section, which the next [`Session::save`] writes.
    /// INVALID_ARGUMENT: if the name is empty or too long.
    pub fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        check_name(name)?;
        let mut state = self.state()?;
        let section = (memory::text(name)?, memory::copied(bytes)?);
        memory::reserve_amortized(&mut state.sections, 1)?;
        state.sections.retain(|(other, _)| other != name);
        memory::push(&mut state.sections, section)
    }

    /// The bytes of a section: those that were given last, or those of the chat's file.
    /// NOT_FOUND: if there is none of this name.
    pub fn section(&self, name: &str) -> Result<Vec<u8>> {
        let state = self.state()?;
        if let Some((_, bytes)) = state.sections.iter().find(|(other, _)| other == name) {
            return memory::copied(bytes);
        }
        let own = state.tier.as_ref().and_then(|tier| tier.file.as_ref()).filter(|_| state.has_chat);
        match own.or_else(|| state.base.as_ref().map(BaseUse::file)) {
            Some(file) => file.section(name),
            None => bail!(NotFound, "the chat has no section {name:?}"),
        }
    }

    /// Saves the chat to its file, or to a new one at `path`, which is its file from then on. `caches` are those of all layers,
    /// none of which is open; a layer whose raw tokens are all in the file needs none. Returns the bytes written.
    /// On an error the last commit stands, and the session is as before, but for tokens restored from the store.
    /// INVALID_ARGUMENT: if a layer is open or a cache does not fit it, or there is no path, or another file is there.
    /// CORRUPT: if blocks that the file alone had are damaged there: they are dropped, and a repeated call saves the rest.
    pub fn save(&self, path: Option<&str>, caches: &mut [LayerCache<'_>]) -> Result<u64> {
        let mut state = self.state()?;
        state.check_caches(caches)?;
        let has_file = state.tier.is_some();
        self.save_state(&mut state, path, caches).inspect_err(|_| {
            if !has_file {
                state.tier = None;
            }
        })
    }

    fn save_state(&self, state: &mut State, path: Option<&str>, caches: &mut [LayerCache<'_>]) -> Result<u64> {
        state.finish_writes()?;
        let working = self.fit_working(state)? as u64;
        let path = path.map(|path| files::absolute(Path::new(path))).transpose()?;
        let path = match (&mut state.tier, path) {
            (None, None) => {
                bail!(InvalidArgument, "the chat has no file: path, or kv_memory_file, says where it is to be")
            }
            (tier @ None, Some(path)) => {
                *tier = Some(Tier::create(path, &self.fingerprint)?);
                None
            }
            (Some(tier), path) => path.filter(|path| path != tier.path()),
        };
        let State { layers, store, tier, .. } = &mut *state;
        for (layer, (cache, kv_len)) in layers.iter_mut().zip(&mut *caches) {
            if let (Some(cache), Some(lossless)) = (cache, &mut layer.lossless) {
                lossless.restore(store, cache, *kv_len)?;
            }
        }
        let (tier, mut lost) = (Tier::given(tier)?, 0);
        for layer in layers.iter_mut() {
            lost += layer.check_copies(tier)?;
        }
        if lost > 0 {
            let path = tier.path().display();
            bail!(Corrupt, "{lost} heads of blocks that {path} alone had are damaged there, and lost");
        }
        let saved = match path {
            Some(path) => {
                let mut file = tier::create(&path, &self.fingerprint, Storage::create)?;
                let saved = state.write_chat(Some(&mut file), caches, working)?;
                Tier::given(&mut state.tier)?.move_to(file, path);
                saved
            }
            None => state.write_to_own(caches, working)?,
        };
        (state.has_chat, state.sections) = (true, Vec::new());
        let State { layers, store, .. } = &mut *state;
        saved.layers.into_iter().for_each(|saved| layers[saved.number].saved(saved));
        for (layer, (cache, _)) in layers.iter_mut().zip(caches) {
            if let (Some(cache), Some(lossless)) = (cache, &mut layer.lossless) {
                lossless.commit(store, cache.reborrow());
            }
        }
        self.fit(state)?;
        // Until then a power failure may bring back the last save.
        Tier::given(&mut state.tier)?.sync_name()?;
        Ok(saved.written)
    }
}

impl State {
    /// Writes the chat to its file, or to one that takes its place.
    fn write_to_own(&mut self, caches: &[LayerCache<'_>], working: u64) -> Result<Saved> {
        let tier = Tier::given(&mut self.tier)?;
        match tier.opened() {
            // No chat of the session's is lost: another file has its path.
            Err(error) if error.status() == Status::Corrupt => bail!(Io, "{error}"),
            opened => drop(opened?),
        }
        let Some(mut file) = tier.anew()? else { return self.write_chat(None, caches, working) };
        let written = self.write_chat(Some(&mut file), caches, working);
        let tier = Tier::given(&mut self.tier)?;
        match written.and_then(|saved| tier.replace(file).map(|()| saved)) {
            // The disk may have room for what is new.
            Err(error) if error.status() == Status::Io && tier.keeps() => self.write_chat(None, caches, working),
            written => written,
        }
    }

    /// Writes and commits the chat to its file, of what the file has not, or to a new one.
    fn write_chat(&mut self, mut to: Option<&mut ChatFile>, caches: &[LayerCache<'_>], working: u64) -> Result<Saved> {
        let State { layers, tier, sections, has_chat, base, .. } = self;
        let tier = Tier::given(tier)?;
        let mut new = NewState { keeps_sections: *has_chat, working, ..NewState::default() };
        sections.iter().try_for_each(|(name, bytes)| new.put(name, bytes))?;
        let is_own = to.is_none();
        let mut writer = match (&mut to, &mut tier.file) {
            (Some(file), own) => Writer::new(file, own.as_ref()),
            (None, Some(file)) => Writer::new(file, None),
            (None, None) => bail!(Internal, "the file was opened"),
        };
        writer.base = base.as_ref().map(BaseUse::file);
        if let (Some(from), true) = (writer.from, *has_chat) {
            let given = |name: &&str| sections.iter().any(|(other, _)| other == name);
            from.names().filter(|name| !given(name)).try_for_each(|name| new.put(name, &from.section(name)?))?;
        }
        let before = writer.file.written();
        let mut lost = Vec::new();
        let saved = writer.layers(layers, caches, &mut new, &mut lost);
        match saved.and_then(|saved| writer.file.commit(new).map(|()| saved)) {
            Ok(saved) => Ok(Saved { layers: saved, written: writer.file.written() - before }),
            Err(error) => {
                if is_own {
                    writer.undo();
                }
                lost.into_iter().for_each(|(number, found): (usize, _)| layers[number].lose(found, Some(tier)));
                Err(error)
            }
        }
    }

    /// INVALID_ARGUMENT: if the caches are not those of all layers, or a layer is open. BUSY: if a thread still attends.
    fn check_caches(&mut self, caches: &[LayerCache<'_>]) -> Result<()> {
        if caches.len() != self.layers.len() {
            bail!(InvalidArgument, "{} caches are given; the session has {} layers", caches.len(), self.layers.len());
        }
        for (layer, (cache, kv_len)) in self.layers.iter_mut().zip(caches) {
            layer.check_closed(*kv_len)?;
            let in_file: u32 = layer.tokens().in_file.raw.iter().map(|run| run.count).sum();
            if cache.is_some() || in_file < *kv_len {
                layer.check_cache(cache.as_ref(), *kv_len)?;
            }
            layer.step_mut()?;
        }
        Ok(())
    }
}

impl NewState {
    /// Adds a section, in place of one of the same name that was not given before.
    fn put(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        if !self.sections.iter().any(|(other, _)| other == name) {
            memory::push(&mut self.sections, (memory::text(name)?, memory::copied(bytes)?))?;
        }
        Ok(())
    }
}

/// What writes a chat to a file.
struct Writer<'a> {
    file: &'a mut ChatFile,
    /// The file that has the chat, where it is another.
    from: Option<&'a ChatFile>,
    /// The file of the base.
    base: Option<&'a ChatFile>,
    /// What was written.
    places: Vec<Range<u64>>,
    work: Sketching,
}

impl<'a> Writer<'a> {
    fn new(file: &'a mut ChatFile, from: Option<&'a ChatFile>) -> Self {
        Writer { file, from, base: None, places: Vec::new(), work: Sketching::default() }
    }

    /// The commit has failed.
    fn undo(&mut self) {
        if self.file.is_settled() {
            self.places.drain(..).for_each(|place| self.file.free(place));
            // A disk that is full gets back what it gave.
            self.file.cut();
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<Extent> {
        let at = self.file.write(bytes)?;
        memory::push(&mut self.places, at.range())?;
        Ok(at)
    }

    /// Writes all layers. CORRUPT: if the file has some heads of blocks no more; `lost` has them, by layer.
    fn layers(
        &mut self,
        layers: &[Layer],
        caches: &[LayerCache<'_>],
        new: &mut NewState,
        lost: &mut Vec<(usize, Found)>,
    ) -> Result<Vec<SavedLayer>> {
        let (mut all, mut failure) = (Vec::new(), None);
        for (number, (layer, (cache, kv_len))) in layers.iter().zip(caches).enumerate() {
            let Some(rows) = layer.rows else { continue };
            let mut saved = SavedLayer {
                number,
                table: Table {
                    rows,
                    logical: layer.lengths().logical,
                    raw: Vec::new(),
                    pieces: Vec::new(),
                    blocks: Vec::new(),
                    heads: Vec::new(),
                    tiles: Vec::new(),
                    basis: None,
                    state: layer.state(cache.as_ref())?,
                },
                moved: Vec::new(),
                basis: None,
            };
            self.raw(layer, (cache.as_ref().map(Cache::as_ref), *kv_len), &mut saved.table)?;
            let mut found = Found::default();
            match self.blocks(layer, &mut saved, new, &mut found) {
                Ok(()) => {}
                Err(error) if error.status() == Status::Corrupt && !found.lost.is_empty() => {
                    memory::push(lost, (number, found))?;
                    failure.get_or_insert(error);
                    continue;
                }
                Err(error) => return Err(error),
            }
            memory::reserve(&mut new.places, saved.table.extents().count())?;
            saved.table.extents().try_for_each(|at| memory::push(&mut new.places, at.range()))?;
            memory::push(&mut new.layers, (number as u32, saved.table.write()?))?;
            memory::push(&mut all, saved)?;
        }
        failure.map_or(Ok(all), Err)
    }

    /// Writes the raw tokens that the file has not.
    fn raw(&mut self, layer: &Layer, (cache, kv_len): (Option<CacheRef<'_>>, u32), to: &mut Table) -> Result<()> {
        let in_file = &layer.tokens().in_file;
        let (mut pieces, mut runs) = (Vec::new(), memory::copied(&in_file.raw)?);
        for (number, piece) in (0..).zip(&in_file.pieces) {
            let mut at = piece.at;
            let from = if in_file.of_base { self.base } else { self.from };
            if let Some(from) = from.filter(|_| runs.iter().any(|run| run.of == number)) {
                match from.read(&piece.at, "raw tokens") {
                    Ok(bytes) => at = self.write(&bytes)?,
                    // The cache has them, too.
                    Err(error) if error.status() == Status::Corrupt && cache.is_some() && !in_file.is_away => {
                        runs.retain(|run| run.of != number);
                    }
                    Err(error) => return Err(error),
                }
            }
            memory::push(&mut pieces, Piece { at, ..*piece })?;
        }
        let gaps = memory::collect(Run::gaps(&runs, 0..kv_len))?;
        for tokens in gaps.into_iter().flat_map(raw::pieces) {
            let Some(cache) = &cache else { bail!(Internal, "a layer without a cache is in its file") };
            let (begin, count) = (tokens.start, tokens.len() as u32);
            let at = self.write(&raw::encode(cache, tokens)?)?;
            memory::push(&mut runs, Run { of: pieces.len() as u32, offset: 0, begin, count })?;
            memory::push(&mut pieces, Piece { at, tokens: count })?;
        }
        runs.sort_unstable_by_key(|run| run.begin);
        // Pieces are numbered as they come, and those that nothing is left of go.
        let mut numbers = memory::filled(None::<u32>, pieces.len())?;
        for run in runs {
            let number = match numbers[run.of as usize] {
                Some(number) => number,
                None => {
                    memory::push(&mut to.pieces, pieces[run.of as usize])?;
                    *numbers[run.of as usize].insert(to.pieces.len() as u32 - 1)
                }
            };
            memory::push(&mut to.raw, run.with(number))?;
        }
        Ok(())
    }

    /// Writes the blocks that the file has not, and what is known of those that are in no tile.
    fn blocks(&mut self, layer: &Layer, to: &mut SavedLayer, new: &mut NewState, lost: &mut Found) -> Result<()> {
        let (tokens, stays) = (layer.tokens(), self.from.is_none());
        let (blocks, heads) = (&tokens.blocks, tokens.blocks.heads());
        if blocks.list().is_empty() {
            return Ok(());
        }
        let basis = match &blocks.basis {
            Some(basis) => basis.clone(),
            None => {
                let (keys, count) = blocks.samples()?;
                let learnt = Basis::learn(&keys, count, heads, blocks.shape().dims)?;
                to.basis.insert(Shared::new(learnt)?).clone()
            }
        };
        to.table.basis = match tokens.in_file.basis.filter(|_| stays && to.basis.is_none()) {
            Some(at) => Some(at),
            None => Some(self.write(&basis.to_bytes()?)?),
        };
        let mut numbers = memory::filled(None::<u32>, tokens.in_file.tiles.len())?;
        let (mut tile, mut failure, mut group) = (Vec::new(), None, Group::NONE);
        let mut left = (0..blocks.list().len() as u32).filter(|at| !(stays && layer.is_in_file(*at))).count();
        for (at, placed) in (0..).zip(blocks.list()) {
            let is_whole = stays && layer.is_in_file(at);
            let mut number = None;
            if let (true, Some((old, in_tile))) = (is_whole, placed.tile) {
                let kept = match numbers[old as usize] {
                    Some(kept) => kept,
                    None => {
                        memory::push(&mut to.table.tiles, tokens.in_file.tiles[old as usize])?;
                        *numbers[old as usize].insert(to.table.tiles.len() as u32 - 1)
                    }
                };
                number = Some((kept, in_tile));
            }
            let (place, found) = match (is_whole, &placed.place) {
                (true, Some(place)) => (place.clone(), None),
                _ => match self.block((blocks, at), &basis, (&mut group, &mut left), lost) {
                    Ok((place, found)) => (place, Some(found)),
                    Err(error) if error.status() == Status::Corrupt => {
                        failure.get_or_insert(error);
                        continue;
                    }
                    Err(error) => return Err(error),
                },
            };
            place.ranges(blocks.size()).try_for_each(|range| memory::push(&mut new.places, range))?;
            // Those of the new tile get its number once it is known.
            let in_tile = number.unwrap_or((u32::MAX, tile.len() as u32));
            if number.is_none() {
                memory::push(&mut tile, to.moved.len())?;
            }
            memory::push(&mut to.moved, Moved { block: at, tile: in_tile, place, heads: found })?;
            memory::push(&mut to.table.blocks, Entry { tile: in_tile, first: placed.first, live: placed.live })?;
            for (head, cell) in blocks.cells_of(at).iter().enumerate() {
                let score = blocks.score(at, head);
                let head = match cell {
                    _ if cell.is_here() => Head::Here(score),
                    _ if cell.is_away() => Head::Away(score),
                    _ => Head::Gone,
                };
                memory::push(&mut to.table.heads, head)?;
            }
        }
        failure.map_or(Ok(()), Err)?;
        if tile.is_empty() {
            return Ok(());
        }
        let mut bytes = Vec::new();
        for Moved { block, place, heads: found, .. } in tile.iter().map(|at| &to.moved[*at]) {
            let cells = blocks.cells_of(*block).iter();
            let heads = cells.enumerate().map(|(head, cell)| match found {
                Some(found) => found[head],
                None => cell.offloaded,
            });
            table::put_block(&mut bytes, place, heads)?;
        }
        let last = to.table.tiles.len() as u32;
        let at = self.write(&bytes)?;
        memory::push(&mut to.table.tiles, Tile { at, blocks: tile.len() as u32 })?;
        let given =
            to.moved.iter_mut().map(|moved| &mut moved.tile).chain(to.table.blocks.iter_mut().map(|b| &mut b.tile));
        given.filter(|tile| tile.0 == u32::MAX).for_each(|tile| tile.0 = last);
        Ok(())
    }

    /// Writes a block, one of so many that are `left`, and its sketches to a group. CORRUPT: if the file that has it has it no more;
    /// `lost` has its heads that are lost.
    fn block(
        &mut self,
        (blocks, block): (&Blocks, u32),
        basis: &Basis,
        (group, left): (&mut Group, &mut usize),
        lost: &mut Found,
    ) -> Result<NewPlace> {
        let (mut bytes, mut ends, mut part, mut failure) = (Vec::new(), Vec::new(), Vec::new(), None);
        for head in 0..blocks.heads() {
            if !blocks.copy(block, head, &mut bytes)? {
                match tier::read(self.from.unwrap_or(self.file), blocks, (block, head), &mut part) {
                    Ok(true) => memory::extend(&mut bytes, &part)?,
                    Ok(false) => {}
                    Err(error) if error.status() == Status::Corrupt => {
                        lost.lose(block, head)?;
                        failure.get_or_insert(error);
                    }
                    Err(error) => return Err(error),
                }
            }
            memory::push(&mut ends, bytes.len())?;
        }
        failure.map_or(Ok(()), Err)?;
        let known = self.work.heads(blocks.shape(), (&bytes, &ends), basis)?;
        let sketches = group.next((*left).clamp(1, GROUP), blocks.size(), |len| {
            let place = self.file.place(len, None)?;
            memory::push(&mut self.places, place.clone())?;
            Ok(place.start)
        })?;
        self.work.sketches(blocks.shape(), sketches).try_for_each(|(at, bytes)| self.file.write_at(at, bytes))?;
        group.advance(blocks.shape().dims);
        *left = left.saturating_sub(1);
        Ok((Place { codes: self.write(&bytes)?.range(), sketches }, known))
    }
}

/// A block's place in a file, and what is known of its heads there.
type NewPlace = (Place, Vec<Option<Offloaded>>);

impl Layer {
    /// Whether the file has all of a block that is not gone.
    fn is_in_file(&self, block: u32) -> bool {
        let blocks = &self.tokens().blocks;
        let placed = &blocks.list()[block as usize];
        let is_known = blocks.cells_of(block).iter().all(|cell| cell.is_nowhere() || cell.offloaded.is_some());
        let never_leaves = !self.weighs() || blocks.cell(block, 0).is_of_base();
        placed.place.is_some() && placed.ticket == 0 && (is_known || never_leaves && placed.tile.is_some())
    }

    /// Whether its blocks may leave memory.
    fn weighs(&self) -> bool {
        self.quant.as_ref().is_some_and(Quant::weighs)
    }

    /// A save has ended.
    fn saved(&mut self, saved: SavedLayer) {
        let weighs = self.weighs();
        let Some(step) = self.step.get_mut() else { return };
        let (tokens, table) = (&mut step.tokens, saved.table);
        saved.basis.into_iter().for_each(|basis| tokens.blocks.set_basis(basis));
        // The commit has made it free.
        tokens.blocks.group = Group::NONE;
        for Moved { block, tile, place, heads } in saved.moved {
            let may_leave = weighs && !tokens.blocks.cell(block, 0).is_of_base();
            tokens.blocks.set_saved_in(block, tile, place, heads.filter(|_| may_leave));
        }
        let Table { raw, pieces, tiles, basis, .. } = table;
        tokens.in_file = InFile { pieces, raw, is_away: tokens.in_file.is_away, tiles, basis, of_base: false };
    }

    /// What a table has beside tokens.
    fn state(&self, cache: Option<&Cache<'_>>) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        push_number(&mut out, self.tokens().held.into())?;
        push_number(&mut out, self.last_step.into())?;
        Quant::put(self.quant.as_ref(), &mut out)?;
        eviction::save(self.eviction.as_ref(), &self.tokens().raw, &self.pins, &mut out)?;
        let mut scales = memory::copied(&self.value_scales)?;
        match cache {
            Some(cache) if scales.is_empty() => {
                memory::resize(&mut scales, cache.layout.scale_bytes())?;
                layout::gather_scales(&cache.as_ref(), &mut scales)?;
            }
            None if scales.is_empty() && self.rows.is_some_and(|rows| rows.value == Kind::Int8) => bail!(
                InvalidArgument,
                "layer {} has V INT8, whose scales are in its cache, and no cache is given",
                self.number
            ),
            _ => {}
        }
        push_number(&mut out, scales.len() as u64)?;
        memory::extend(&mut out, &scales)?;
        if let Some(window) = self.window {
            let numbers = [window.tokens, window.rollback, self.tokens().passed];
            numbers.into_iter().try_for_each(|number| push_number(&mut out, number.into()))?;
        }
        Ok(out)
    }
}
