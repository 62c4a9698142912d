//! Where blobs live: slabs whose free pages go back to the system.
//!
//! A general allocator keeps freed memory that lies between live objects, so a store on top of it would hold on to
//! what eviction frees. Here every page without a live byte is given back as soon as a blob is freed.

use super::pages;
use crate::status::{self, Result};
use std::ops::Range;

/// Large enough that few are needed, small enough that a nearly empty one costs little address space.
const SLAB_BYTES: usize = 1 << 20;

/// Bytes in a heap. Neither copied nor dropped on its own: [`Heap::free`] takes it back.
#[derive(Debug)]
#[must_use = "a blob that is not freed stays in its heap"]
pub(super) struct Blob {
    slab: usize,
    at: Range<usize>,
}

impl Blob {
    pub(super) fn len(&self) -> usize {
        self.at.len()
    }
}

struct Slab {
    memory: Vec<u8>,
    /// Free ranges, ascending, never touching.
    free: Vec<Range<usize>>,
}

/// Slabs; an empty one leaves a gap, so that numbers stay.
#[derive(Default)]
pub(super) struct Heap {
    slabs: Vec<Option<Slab>>,
}

impl Heap {
    /// Copies bytes in, to the first place with room.
    pub(super) fn insert(&mut self, bytes: &[u8]) -> Result<Blob> {
        let found =
            self.slabs.iter_mut().enumerate().find_map(|(i, slab)| Some((i, slab.as_mut()?.take(bytes.len())?)));
        let (slab, at) = match found {
            Some(place) => place,
            None => self.grow(bytes.len())?,
        };
        let blob = Blob { slab, at };
        self.bytes_mut(&blob).copy_from_slice(bytes);
        Ok(blob)
    }

    /// A new slab whose first `len` bytes are taken.
    fn grow(&mut self, len: usize) -> Result<(usize, Range<usize>)> {
        let size = len.max(SLAB_BYTES);
        let mut memory = Vec::new();
        status::resize(&mut memory, size)?;
        // Filling it with zeros may have touched every page.
        pages::give_back(&mut memory);
        let gap = self.slabs.iter().position(Option::is_none);
        if gap.is_none() {
            status::reserve(&mut self.slabs, 1)?;
        }
        let free = (len < size).then_some(len..size).into_iter().collect();
        let slab = Slab { memory, free };
        let i = gap.unwrap_or(self.slabs.len());
        if gap.is_some() {
            self.slabs[i] = Some(slab)
        } else {
            self.slabs.push(Some(slab))
        }
        Ok((i, 0..len))
    }

    pub(super) fn bytes(&self, blob: &Blob) -> &[u8] {
        let slab = self.slabs[blob.slab].as_ref().expect("a slab with a blob is not empty");
        &slab.memory[blob.at.clone()]
    }

    pub(super) fn bytes_mut(&mut self, blob: &Blob) -> &mut [u8] {
        let slab = self.slabs[blob.slab].as_mut().expect("a slab with a blob is not empty");
        &mut slab.memory[blob.at.clone()]
    }

    /// Takes a blob back, and gives back every page that has no live byte left.
    pub(super) fn free(&mut self, blob: Blob) {
        let entry = &mut self.slabs[blob.slab];
        let slab = entry.as_mut().expect("a slab with a blob is not empty");
        let run = slab.put(blob.at);
        pages::give_back(&mut slab.memory[run.clone()]);
        if run.len() == slab.memory.len() {
            *entry = None;
        }
    }
}

impl Slab {
    /// The first free range of at least `len` bytes, cut to it.
    fn take(&mut self, len: usize) -> Option<Range<usize>> {
        let i = self.free.iter().position(|run| run.len() >= len)?;
        let run = &mut self.free[i];
        let taken = run.start..run.start + len;
        run.start = taken.end;
        if run.start == run.end {
            self.free.remove(i);
        }
        Some(taken)
    }

    /// Marks a range free; answers the whole free run it is now in.
    fn put(&mut self, range: Range<usize>) -> Range<usize> {
        let i = self.free.partition_point(|run| run.start < range.start);
        self.free.insert(i, range);
        if i + 1 < self.free.len() && self.free[i].end == self.free[i + 1].start {
            self.free[i].end = self.free.remove(i + 1).end;
        }
        if i > 0 && self.free[i - 1].end == self.free[i].start {
            self.free[i - 1].end = self.free.remove(i).end;
            return self.free[i - 1].clone();
        }
        self.free[i].clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn blobs_keep_their_bytes_and_freed_ones_leave_nothing(
            steps in prop::collection::vec((any::<bool>(), 1usize..400_000, any::<prop::sample::Index>()), 1..60),
        ) {
            let mut heap = Heap::default();
            let mut live: Vec<(Blob, Vec<u8>)> = Vec::new();
            for (n, (insert, len, which)) in steps.into_iter().enumerate() {
                if insert || live.is_empty() {
                    let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + n) as u8 | 1).collect();
                    live.push((heap.insert(&bytes).unwrap(), bytes));
                } else {
                    heap.free(live.swap_remove(which.index(live.len())).0);
                }
                for (blob, bytes) in &live {
                    prop_assert!(heap.bytes(blob) == bytes);
                }
                let free: usize = heap.slabs.iter().flatten().flat_map(|s| &s.free).map(Range::len).sum();
                let all: usize = heap.slabs.iter().flatten().map(|s| s.memory.len()).sum();
                prop_assert_eq!(all - free, live.iter().map(|(blob, _)| blob.len()).sum::<usize>());
            }
            live.into_iter().for_each(|(blob, _)| heap.free(blob));
            prop_assert!(heap.slabs.iter().all(Option::is_none));
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn pages_between_live_blobs_go_back_when_theirs_is_freed() {
        let mut heap = Heap::default();
        let [first, middle, last] = [100, 400_000, 100].map(|len| heap.insert(&vec![1; len]).unwrap());
        let at = middle.at.clone();
        heap.free(middle);
        let slab = heap.slabs[0].as_mut().unwrap();
        assert_eq!(pages::give_back(&mut slab.memory[at]), 0, "nothing was left to give back");
        assert!(heap.bytes(&first).iter().chain(heap.bytes(&last)).all(|b| *b == 1));
    }

    #[test]
    fn a_blob_larger_than_a_slab_has_its_own() {
        let mut heap = Heap::default();
        let blob = heap.insert(&vec![3; 3 * SLAB_BYTES]).unwrap();
        assert!(heap.bytes(&blob).iter().all(|b| *b == 3));
        heap.free(blob);
    }
}
