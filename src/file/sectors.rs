//! The sectors at the start of a chat file: the header, and the slots that name the newest index.

use super::{Extent, checksum};
use crate::status::{Result, bail};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The bytes that a disk writes as one.
pub(super) const SECTOR: usize = 512;
/// Where the fingerprint begins: behind the header and the slots.
pub(super) const FINGERPRINT: u64 = 5 * SECTOR as u64;
/// The most bytes of a fingerprint.
const MOST_FINGERPRINT: usize = 64 << 10;

/// INVALID_ARGUMENT: if no file can have this fingerprint.
pub fn check_fingerprint(given: &[u8]) -> Result<()> {
    if given.len() > MOST_FINGERPRINT {
        bail!(InvalidArgument, "the fingerprint has {} bytes; at most {MOST_FINGERPRINT} allowed", given.len());
    }
    Ok(())
}

const MAGIC: [u8; 8] = *b"MNKVCHAT";
const SLOT: [u8; 8] = *b"MNKVSLOT";
/// The first bytes of a file in which no chat was saved yet: its session ends with it, or was killed.
pub(super) const UNSAVED: [u8; 8] = *b"MNKVTEMP";
/// The format that this version writes; also the least that must be known to read it, and to append to it.
const VERSION: u16 = 1;

pub(super) type Sector = [u8; SECTOR];

/// The header, which never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) least_writer: u16,
    pub(super) fingerprint: Extent,
}

/// The newest index when a slot was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    /// The number of the commit, from 0 on.
    pub(super) sequence: u64,
    pub(super) index: Extent,
    /// Behind all bytes that the index leads to.
    pub(super) end: u64,
    pub(super) fingerprint: Extent,
}

fn number(sector: &Sector, at: usize) -> u64 {
    u64::from_le_bytes(*sector[at..].first_chunk().expect("inside a sector"))
}

fn short(sector: &Sector, at: usize) -> u16 {
    u16::from_le_bytes(*sector[at..].first_chunk().expect("inside a sector"))
}

/// Writes the checksum, whose seed is the offset of the sector.
fn seal(mut sector: Sector, offset: u64) -> Sector {
    let sum = xxh3_64_with_seed(&sector[..SECTOR - 8], offset);
    sector[SECTOR - 8..].copy_from_slice(&sum.to_le_bytes());
    sector
}

fn is_sealed(sector: &Sector, offset: u64) -> bool {
    xxh3_64_with_seed(&sector[..SECTOR - 8], offset) == number(sector, SECTOR - 8)
}

impl Header {
    pub(super) fn new(fingerprint: &[u8]) -> Self {
        let (len, sum) = (fingerprint.len() as u64, checksum(fingerprint));
        Header { least_writer: VERSION, fingerprint: Extent { offset: FINGERPRINT, len, sum } }
    }

    pub(super) fn write(&self) -> Sector {
        let mut sector = [0; SECTOR];
        sector[..8].copy_from_slice(&MAGIC);
        for at in [8, 10, 12] {
            sector[at..at + 2].copy_from_slice(&VERSION.to_le_bytes());
        }
        sector[16..20].copy_from_slice(&(self.fingerprint.len as u32).to_le_bytes());
        sector[24..32].copy_from_slice(&self.fingerprint.sum.to_le_bytes());
        seal(sector, 0)
    }

    pub(super) fn read(sector: &Sector) -> Result<Self> {
        if sector[..8] != MAGIC {
            match sector[..8] == UNSAVED {
                true => bail!(Corrupt, "no chat was saved in it yet"),
                false => bail!(Corrupt, "no chat file begins so; the bytes {} expected", MAGIC.escape_ascii()),
            }
        }
        if !is_sealed(sector, 0) {
            bail!(Corrupt, "the checksum does not match");
        }
        let (version, least_reader) = (short(sector, 8), short(sector, 10));
        if least_reader > VERSION {
            bail!(
                Unsupported,
                "the format has version {version} and is for readers of {least_reader} or later; this is {VERSION}"
            );
        }
        let len = number(sector, 16) as u32;
        if len as usize > MOST_FINGERPRINT {
            bail!(Corrupt, "the fingerprint has {len} bytes; at most {MOST_FINGERPRINT} allowed");
        }
        let fingerprint = Extent { offset: FINGERPRINT, len: len.into(), sum: number(sector, 24) };
        Ok(Header { least_writer: short(sector, 12), fingerprint })
    }

    pub(super) fn check_writer(&self) -> Result<()> {
        if self.least_writer > VERSION {
            bail!(
                Unsupported,
                "the format is for writers of version {} or later; this is {VERSION}",
                self.least_writer
            );
        }
        Ok(())
    }
}

/// A copy of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Copied {
    pub(super) slot: usize,
    pub(super) copy: usize,
}

/// All copies, in the order of the file.
pub(super) const COPIES: [Copied; 4] = [
    Copied { slot: 0, copy: 0 },
    Copied { slot: 0, copy: 1 },
    Copied { slot: 1, copy: 0 },
    Copied { slot: 1, copy: 1 },
];

impl Copied {
    pub(super) fn offset(self) -> u64 {
        ((1 + 2 * self.slot + self.copy) * SECTOR) as u64
    }

    /// The name in errors.
    pub(super) fn name(self) -> &'static str {
        ["slot 0, copy 1", "slot 0, copy 2", "slot 1, copy 1", "slot 1, copy 2"][2 * self.slot + self.copy]
    }
}

impl Slot {
    pub(super) fn write(&self, offset: u64) -> Sector {
        let mut sector = [0; SECTOR];
        sector[..8].copy_from_slice(&SLOT);
        let Slot { sequence, index, end, fingerprint } = self;
        let fields = [*sequence, index.offset, index.len, index.sum, *end, fingerprint.sum, fingerprint.len];
        for (i, field) in fields.into_iter().enumerate() {
            sector[8 + 8 * i..][..8].copy_from_slice(&field.to_le_bytes());
        }
        seal(sector, offset)
    }

    /// `None`: no slot was written here as a whole.
    pub(super) fn read(sector: &Sector, offset: u64) -> Option<Self> {
        if sector[..8] != SLOT || !is_sealed(sector, offset) {
            return None;
        }
        let [sequence, offset, len, sum, end, fingerprint_sum, fingerprint_len] =
            std::array::from_fn(|i| number(sector, 8 + 8 * i));
        let index = Extent { offset, len, sum };
        let fingerprint = Extent { offset: FINGERPRINT, len: fingerprint_len, sum: fingerprint_sum };
        let is_whole = fingerprint_len <= MOST_FINGERPRINT as u64
            && (offset >= fingerprint.end() && len > 0)
            && offset.checked_add(len).is_some_and(|behind| behind <= end);
        is_whole.then_some(Slot { sequence, index, end, fingerprint })
    }
}

/// The contents of the four copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slots {
    /// What each slot says.
    pub(super) slots: [Slot; 2],
    /// A copy that a save left behind when it was killed; it must be written before the next save.
    pub(super) unfinished: Option<Copied>,
}

impl Slots {
    /// Tells a save that was killed from damage.
    ///
    /// Commit n writes copy 1 of slot n % 2, then copy 2, each durable before the next write. So at most one copy
    /// is not as a finished save leaves it: copy 1 of the slot that commit n + 1 would go to, or copy 2 of the slot of n.
    pub(super) fn read(copies: &[Option<Slot>; 4]) -> std::result::Result<Self, (Copied, &'static str)> {
        let damaged = |i: usize, why: &'static str| (COPIES[i], why);
        let value = |slot: usize| copies[2 * slot].or(copies[2 * slot + 1]);
        let (Some(first), Some(second)) = (value(0), value(1)) else {
            let slot = usize::from(value(0).is_some());
            return Err(damaged(2 * slot, "neither copy has its checksum"));
        };
        if first.fingerprint != second.fingerprint {
            return Err(damaged(2, "the fingerprint is not that of slot 0"));
        }
        let newest = usize::from(second.sequence > first.sequence);
        let slots = [first, second];
        let sequence = slots[newest].sequence;
        let other = slots[1 - newest].sequence;
        let is_first = sequence == 0 && other == 0;
        if !is_first && (sequence % 2 != newest as u64 || other + 1 != sequence) {
            let why = "the sequence is not that of the other slot and one";
            return Err(damaged(2 * newest, why));
        }
        let mut unfinished = None;
        for (i, copy) in COPIES.into_iter().enumerate() {
            let is_newest = !is_first && copy.slot == newest;
            // The slot that the next save writes first.
            let is_next = copy.slot as u64 == (sequence + 1) % 2;
            let as_killed = match (copies[i], copy.copy) {
                (Some(found), _) if found == slots[copy.slot] => continue,
                (None, 0) => is_next,
                (None, _) => is_newest,
                (Some(found), _) => is_newest && found.sequence == sequence.saturating_sub(2),
            };
            if !as_killed {
                let why = if copies[i].is_some() {
                    "it has another commit than copy 1"
                } else {
                    "the checksum does not match"
                };
                return Err(damaged(i, why));
            }
            if unfinished.replace(copy).is_some() {
                return Err(damaged(i, "a killed save leaves one copy unfinished, and this is the second"));
            }
        }
        Ok(Slots { slots, unfinished })
    }

    /// The slot of the newest commit.
    pub(super) fn newest(&self) -> &Slot {
        let [first, second] = &self.slots;
        if second.sequence > first.sequence { second } else { first }
    }
}

#[cfg(test)]
mod tests;
