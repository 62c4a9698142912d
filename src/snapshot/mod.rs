//! A file that holds the layers of a chat and grows with it: `docs/format.md` has its bytes.
//!
//! | file | job |
//! |---|---|
//! | `mod` | what can be read |
//! | `save` | a new file, changes, and their commit |
//! | `open` | a file to its newest state |
//! | `sectors` | the header, and the slots that name the newest commit record |
//! | [`state`] | commit records to pieces, layers and sections |
//! | `staged` | changes to a commit record |
//! | `runs` | the tokens of a layer, and a new list as an edit of the old one |
//!
//! Pieces and values are written when they are given. They become part of the file by a commit record behind them, and
//! that by a slot. Bytes that a slot leads to are never written again.

mod open;
mod runs;
mod save;
mod sectors;
mod staged;
mod state;

pub use crate::sys::storage::{Bytes, Medium, Storage};
pub use runs::Run;
pub use state::{Geometry, LayerEntry};

use crate::bytes;
use crate::status::{Error, Result, bail};
use crate::sys::storage::Map;
use crate::sys::{Shared, memory};
use sectors::Slots;
use staged::Staged;
use state::{Extent, Piece, State, Value};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::Ordering;
use xxhash_rust::xxh3::xxh3_64;

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads.
    ReadOnly,
    /// Reads, and commits further states.
    Append,
}

/// XXH3-64.
fn checksum(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// A part of a file, as errors name it.
#[derive(Clone, Copy, Debug)]
enum Place<'a> {
    Header,
    Slot(usize, usize),
    Fingerprint,
    Record(u64),
    Piece { layer: u32, piece: u32, tokens: u32 },
    State(u32),
    Section(&'a str),
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Header => write!(f, "header"),
            Place::Slot(slot, copy) => write!(f, "slot {slot}, copy {}", copy + 1),
            Place::Fingerprint => write!(f, "fingerprint"),
            Place::Record(sequence) => write!(f, "commit record of state {sequence}"),
            Place::Piece { layer, piece, tokens } => write!(f, "layer {layer}, piece {piece} ({tokens} tokens)"),
            Place::State(layer) => write!(f, "state of layer {layer}"),
            Place::Section(name) => write!(f, "section {name:?}"),
        }
    }
}

/// The error of a part of a file.
fn at(place: Place<'_>, offset: u64, storage: &Storage, error: &Error) -> Error {
    error.within(format_args!("{place} at offset {offset} of {}", storage.name()))
}

/// Reads where each part of a piece ends, behind the returned place in its bytes.
fn part_ends(bytes: &[u8], ends: &mut Vec<usize>) -> Result<usize> {
    let mut reader = bytes::Reader::new(bytes);
    let parts = reader.number("the number of parts")?;
    if parts > bytes.len() as u64 {
        bail!(Corrupt, "{parts} parts in {} bytes", bytes.len());
    }
    memory::cleared(ends, parts as usize)?;
    let mut end = 0u64;
    for _ in 0..parts {
        end = end.saturating_add(reader.number("the length of a part")?);
        memory::push(ends, usize::try_from(end).unwrap_or(usize::MAX))?;
    }
    let begin = reader.at();
    if end != (bytes.len() - begin) as u64 {
        bail!(Corrupt, "the parts have {end} bytes; {} follow", bytes.len() - begin);
    }
    Ok(begin)
}

/// A file, its committed state, and changes that are not committed.
#[derive(Debug)]
pub struct Snapshot {
    storage: Shared<Storage>,
    map: Option<Map>,
    access: Access,
    fingerprint: Vec<u8>,
    slots: Slots,
    state: State,
    staged: Staged,
    /// Where the next bytes go.
    cursor: u64,
    /// Whether a sync of staged bytes failed, so that the system may have dropped them.
    is_sync_lost: bool,
    gathered: Vec<u8>,
}

/// The bytes of a piece.
#[derive(Clone, Debug)]
pub struct PieceBytes {
    /// All parts.
    pub bytes: Bytes,
    /// Where each part ends.
    pub ends: Vec<usize>,
    /// The checksum that was given with the piece.
    pub raw_checksum: u64,
    /// Where the piece begins in the file.
    pub offset: u64,
}

impl PieceBytes {
    /// The bytes of a part.
    pub fn part(&self, part: usize) -> &[u8] {
        &self.bytes[self.range(part)]
    }

    /// Where a part is in the bytes.
    pub fn range(&self, part: usize) -> Range<usize> {
        part.checked_sub(1).map_or(0, |before| self.ends[before])..self.ends[part]
    }
}

/// Bytes of a file by their use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// To the end of the committed state.
    pub file: u64,
    /// Pieces that layers refer to.
    pub pieces: u64,
    /// Sections and states of layers.
    pub values: u64,
    /// Pieces and values that the state no longer has, and what lies between.
    pub dead: u64,
}

impl Snapshot {
    fn new(
        storage: Shared<Storage>,
        map: Option<Map>,
        access: Access,
        fingerprint: Vec<u8>,
        slots: Slots,
        state: State,
    ) -> Self {
        let cursor = state.end;
        let (staged, gathered) = (Staged::default(), Vec::new());
        let is_sync_lost = false;
        Snapshot { storage, map, access, fingerprint, slots, state, staged, cursor, is_sync_lost, gathered }
    }

    /// The name in errors: the path, or what the host gave.
    pub fn name(&self) -> &str {
        self.storage.name()
    }

    /// The fingerprint that the file was made with.
    pub fn fingerprint(&self) -> &[u8] {
        &self.fingerprint
    }

    /// The number of the committed state: 0 for an empty file, and one more with each commit.
    pub fn version(&self) -> u64 {
        self.state.sequence
    }

    /// The layers of the committed state, ascending.
    pub fn layers(&self) -> impl Iterator<Item = (u32, &LayerEntry)> {
        self.state.layers.iter().map(|(layer, entry)| (*layer, entry))
    }

    /// A layer of the committed state.
    pub fn layer(&self, layer: u32) -> Option<&LayerEntry> {
        self.state.layer(layer)
    }

    /// The opaque state of a layer, as committed.
    pub fn layer_state(&self, layer: u32) -> Result<Vec<u8>> {
        match self.layer(layer) {
            Some(entry) => self.value(&entry.state, Place::State(layer)),
            None => bail!(NotFound, "{} has no layer {layer}", self.name()),
        }
    }

    /// The names of the committed sections, ascending.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.state.sections.iter().map(|(name, _)| name.as_str())
    }

    /// The bytes of a committed section.
    pub fn section(&self, name: &str) -> Result<Vec<u8>> {
        match self.state.section(name) {
            Some(value) => self.value(value, Place::Section(name)),
            None => bail!(NotFound, "{} has no section {name:?}", self.name()),
        }
    }

    /// The number of bytes of a committed section.
    pub fn section_len(&self, name: &str) -> Option<u64> {
        self.state.section(name).map(Value::len)
    }

    fn value(&self, value: &Value, place: Place<'_>) -> Result<Vec<u8>> {
        let read = self.read_value(value, place);
        value.verified.store(read.is_ok(), Ordering::Relaxed);
        read
    }

    fn read_value(&self, value: &Value, place: Place<'_>) -> Result<Vec<u8>> {
        let len = usize::try_from(value.len()).map_err(|_| memory::out_of_memory(usize::MAX))?;
        let mut bytes = memory::filled(0u8, len)?;
        let mut rest = &mut bytes[..];
        for extent in &value.extents {
            let (part, behind) = rest.split_at_mut(extent.len as usize);
            self.storage
                .read_at(extent.offset, part)
                .and_then(|()| match checksum(part) == extent.sum {
                    true => Ok(()),
                    false => bail!(Corrupt, "the checksum of {} bytes does not match", extent.len),
                })
                .map_err(|e| at(place, extent.offset, &self.storage, &e))?;
            rest = behind;
        }
        Ok(bytes)
    }

    /// The numbers of the committed pieces.
    pub fn pieces(&self) -> Range<u32> {
        0..self.state.pieces.len() as u32
    }

    /// The tokens of a piece, committed or not.
    pub fn piece_tokens(&self, piece: u32) -> Option<u32> {
        self.find_piece(piece).map(|found| found.tokens)
    }

    fn find_piece(&self, piece: u32) -> Option<&Piece> {
        self.state.piece(&self.staged.pieces, piece)
    }

    /// The bytes of a piece, committed or not. The first call compares them with their checksum.
    pub fn piece(&self, piece: u32) -> Result<PieceBytes> {
        let Some(found) = self.find_piece(piece) else {
            bail!(NotFound, "{} has no piece {piece}", self.name());
        };
        self.read_piece(found).map_err(|e| at(found.place(piece), found.at.offset, &self.storage, &e))
    }

    /// The checksum of a piece's stored bytes, committed or not.
    pub fn piece_sum(&self, piece: u32) -> Option<u64> {
        self.find_piece(piece).map(|found| found.at.sum)
    }

    /// Whether a piece was compared with its checksum since the file was opened.
    pub fn is_verified(&self, piece: u32) -> bool {
        self.find_piece(piece).is_some_and(|found| found.verified.load(Ordering::Relaxed))
    }

    fn read_piece(&self, piece: &Piece) -> Result<PieceBytes> {
        let Extent { offset, len, sum } = piece.at;
        let all = self.storage.view(self.map.as_ref(), offset..piece.at.end())?;
        // Bytes that are read anew may be others.
        if self.map.is_none() || !piece.verified.load(Ordering::Relaxed) {
            if checksum(&all) != sum {
                bail!(Corrupt, "the checksum of {len} bytes does not match");
            }
            piece.verified.store(true, Ordering::Relaxed);
        }
        let mut ends = Vec::new();
        let begin = part_ends(&all, &mut ends)?;
        let bytes = all.slice(begin..all.len());
        Ok(PieceBytes { bytes, ends, raw_checksum: piece.raw_sum, offset })
    }

    /// Bytes by their use.
    pub fn usage(&self) -> Result<Usage> {
        let mut is_live = memory::filled(false, self.state.pieces.len())?;
        for run in self.state.layers.iter().flat_map(|(_, entry)| &entry.runs) {
            is_live[run.of as usize] = true;
        }
        let live = self.state.pieces.iter().zip(&is_live).filter(|(_, live)| **live);
        let pieces = live.map(|(piece, _)| piece.at.len).sum();
        let states = self.state.layers.iter().map(|(_, entry)| entry.state.len());
        let values = states.chain(self.state.sections.iter().map(|(_, value)| value.len())).sum();
        let start = self.slots.newest().fingerprint.end();
        let dead = self.state.end.saturating_sub(start + pieces + values);
        Ok(Usage { file: self.state.end, pieces, values, dead })
    }

    /// Compares all bytes of the state with their checksums. Calls `found` with each damage; returns the bytes read.
    pub fn verify(&self, mut found: impl FnMut(Error) -> Result<()>) -> Result<u64> {
        let mut bytes = 0;
        for (number, piece) in (0u32..).zip(&self.state.pieces) {
            piece.verified.store(false, Ordering::Relaxed);
            match self.piece(number) {
                Ok(_) => bytes += piece.at.len,
                Err(error) => found(error.unless_out_of_memory()?)?,
            }
        }
        let states = self.state.layers.iter().map(|(layer, entry)| (&entry.state, Place::State(*layer)));
        let sections = self.state.sections.iter().map(|(name, value)| (value, Place::Section(name)));
        for (value, place) in states.chain(sections) {
            match self.value(value, place) {
                Ok(read) => bytes += read.len() as u64,
                Err(error) => found(error.unless_out_of_memory()?)?,
            }
        }
        Ok(bytes)
    }
}
