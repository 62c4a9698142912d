//! A block in a chat, and each of its heads: where its codes are.

use super::block::Format;
use super::offload::Offloaded;
use super::sketch::Sketches;
use crate::arch::attend::Line;
use std::ops::Range;

/// A head of a block: in memory, in a file, or both. One that is nowhere was dropped.
#[derive(Debug)]
pub struct Cell {
    pub(super) here: Option<Here>,
    /// In a file.
    pub offloaded: Option<Offloaded>,
}

/// Codes in a slot of those of their format.
#[derive(Debug)]
pub(super) struct Own {
    pub(super) format: Format,
    /// In k8v4, since k4v4 does not hold the numbers.
    pub(super) is_unfit: bool,
    pub(super) slot: u32,
    /// Of channels in 16 bits, which few blocks have.
    pub(super) wide: Box<[Line]>,
}

/// Codes in memory.
#[derive(Debug)]
pub(super) enum Here {
    /// In memory of their own.
    Own(Own),
    /// In a block of the base, by its number.
    Base(u32),
}

/// Where a block is in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The codes of its heads.
    pub codes: Range<u64>,
    /// The sketches of its heads.
    pub sketches: Sketches,
}

/// A block in a chat.
#[derive(Debug)]
pub struct Placed {
    /// The logical position of the first token that is left; the others follow it.
    pub first: u32,
    /// The tokens that are left, one bit each.
    pub live: u64,
    /// Where it is in the file that blocks go to, from when it is on its way there.
    pub place: Option<Place>,
    /// The number of its write, while that has not ended; else 0.
    pub ticket: u64,
    /// Its tile in the file, and its number there, once it was saved.
    pub tile: Option<(u32, u32)>,
}

impl Cell {
    /// Whether its codes are in memory.
    pub fn is_here(&self) -> bool {
        self.here.is_some()
    }

    /// Whether its codes are in memory as those of a base, which they never leave.
    pub fn is_of_base(&self) -> bool {
        matches!(self.here, Some(Here::Base(_)))
    }

    /// Whether its codes in memory may have fewer bits.
    pub(super) fn is_wide(&self) -> bool {
        matches!(self.here, Some(Here::Own(Own { format: Format::K8V4, is_unfit: false, .. })))
    }

    /// Whether its codes are in a file alone.
    pub fn is_away(&self) -> bool {
        self.here.is_none() && self.offloaded.is_some()
    }

    /// Whether it was dropped.
    pub fn is_nowhere(&self) -> bool {
        self.here.is_none() && self.offloaded.is_none()
    }

    pub(super) fn wide_bytes(&self) -> usize {
        match &self.here {
            Some(Here::Own(Own { wide, .. })) => size_of_val(&**wide),
            _ => 0,
        }
    }
}

impl Place {
    /// All of a block of so many heads and dims.
    pub fn ranges(&self, (heads, dims): (usize, usize)) -> impl Iterator<Item = Range<u64>> {
        std::iter::once(self.codes.clone()).chain(self.sketches.places(heads, dims))
    }
}

impl Placed {
    /// Tokens that are left.
    pub fn tokens(&self) -> u32 {
        self.live.count_ones()
    }
}
