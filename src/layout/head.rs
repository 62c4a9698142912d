//! One head of a cache.

use super::Layout;
use std::ops::Range;

/// K and V of one head, to read.
#[derive(Clone, Copy)]
pub struct Head<'a> {
    /// The checked layout of the cache.
    pub layout: &'a Layout,
    /// K of the head, [`Layout::head_bytes`] long.
    pub key: &'a [u8],
    /// V of the head.
    pub value: &'a [u8],
}

impl Layout {
    /// The bytes of a head in the buffers of K and of V; `None` past the last head.
    pub fn head(&self, head: u32) -> Option<(Range<usize>, Range<usize>)> {
        let head = head as usize;
        self.key.head_ranges().nth(head).zip(self.value.head_ranges().nth(head))
    }

    /// Bytes of a head of K and of V.
    pub fn head_bytes(&self) -> (usize, usize) {
        self.head(0).map_or((0, 0), |(key, value)| (key.len(), value.len()))
    }
}
