//! Blobs of any length in a few large regions, which go back to the system.

use crate::status::{Result, bail};
use crate::sys::memory;
use crate::sys::pages::{Region, page_size};

/// Bytes of a region, at least. Later ones are an eighth of all, so that their number stays small.
const LEAST_REGION: usize = 256 * 1024;
/// Blobs begin at multiples of it, which keeps fragments from becoming too small.
const GRAIN: usize = 64;

/// Bytes of one layer.
#[derive(Debug, Default)]
pub struct Arena {
    /// By number; a region without blobs is gone.
    regions: Vec<Option<Region>>,
    /// Free ranges, by region and place. No two of them touch, so there are at most as many as blobs and regions; it
    /// always has the room.
    free: Vec<Range>,
    blobs: usize,
    bytes: usize,
}

/// The place of a blob. It is given back to the arena that made it.
#[derive(Debug)]
pub struct Slot {
    range: Range,
    len: usize,
}

impl Slot {
    /// Bytes of the blob.
    pub fn bytes(&self) -> usize {
        self.len
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Range {
    region: usize,
    start: usize,
    end: usize,
}

impl Range {
    fn len(&self) -> usize {
        self.end - self.start
    }
}

impl Arena {
    /// Copies a blob into the smallest free range that is long enough, or else into a new region. On an error nothing has
    /// changed.
    pub fn put(&mut self, blob: &[u8]) -> Result<Slot> {
        let Some(room) = blob.len().max(1).checked_next_multiple_of(GRAIN) else {
            bail!(InvalidArgument, "a blob has {} bytes, which is too many", blob.len());
        };
        let more = (self.blobs + self.regions.len() + 2).saturating_sub(self.free.len());
        memory::reserve_amortized(&mut self.free, more)?;
        let fits = |(_, range): &(usize, &Range)| range.len() >= room;
        let best = self.free.iter().enumerate().filter(fits).min_by_key(|(_, range)| range.len());
        let at = match best {
            Some((at, _)) => at,
            None => self.grow(room)?,
        };
        let Range { region, start, end } = self.free[at];
        if end - start == room {
            self.free.remove(at);
        } else {
            self.free[at].start += room;
        }
        self.blobs += 1;
        let slot = Slot { range: Range { region, start, end: start + room }, len: blob.len() };
        if let Some(region) = &mut self.regions[region] {
            region[start..start + blob.len()].copy_from_slice(blob);
        }
        Ok(slot)
    }

    /// A blob.
    pub fn get(&self, slot: &Slot) -> &[u8] {
        let region = self.regions[slot.range.region].as_ref();
        region.map_or(&[], |region| &region[slot.range.start..][..slot.len])
    }

    /// Frees a blob. The last one of a region takes it along.
    pub fn remove(&mut self, slot: Slot) {
        let mut range = slot.range;
        let mut at = self.free.partition_point(|free| *free < range);
        if let Some(next) = self.free.get(at).filter(|next| next.region == range.region && next.start == range.end) {
            range.end = next.end;
            self.free.remove(at);
        }
        let before = at.checked_sub(1).map(|before| self.free[before]);
        if let Some(before) = before.filter(|before| before.region == range.region && before.end == range.start) {
            range.start = before.start;
            at -= 1;
            self.free.remove(at);
        }
        self.blobs -= 1;
        let region = &mut self.regions[range.region];
        if region.as_ref().is_some_and(|region| region.len() == range.len()) {
            *region = None;
            self.bytes -= range.len();
        } else {
            #[expect(clippy::disallowed_methods, reason = "each blob was put with room for a range")]
            self.free.insert(at, range);
        }
    }

    /// Bytes of all regions and lists.
    pub fn bytes(&self) -> usize {
        let lists = self.regions.capacity() * size_of::<Option<Region>>() + self.free.capacity() * size_of::<Range>();
        self.bytes + lists
    }

    /// Adds a region for `room` bytes. Returns the index of its range, for which there is room.
    fn grow(&mut self, room: usize) -> Result<usize> {
        let len = room.max(LEAST_REGION).max(self.bytes / 8);
        let Some(len) = len.checked_next_multiple_of(page_size()) else { return Err(memory::out_of_memory(room)) };
        let number = self.regions.iter().position(Option::is_none).unwrap_or(self.regions.len());
        let region = Region::new(len)?;
        if number == self.regions.len() {
            memory::push(&mut self.regions, None)?;
        }
        self.regions[number] = Some(region);
        self.bytes += len;
        let range = Range { region: number, start: 0, end: len };
        let at = self.free.partition_point(|free| *free < range);
        #[expect(clippy::disallowed_methods, reason = "the caller has reserved room")]
        self.free.insert(at, range);
        Ok(at)
    }
}
