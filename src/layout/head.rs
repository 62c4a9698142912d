//! One head of a floating-point cache. Its bytes are apart from those of other heads, so that several threads may each
//! write one.

use super::clear::{Padding, walk_head};
use super::plane::Plane;
use super::{Kind, Layout, TokenRange};
use std::ops::Range;

/// Where the tokens of floating-point K and V are within a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places(Plane, Plane);

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

/// K and V of one head, to write: in a cache, or in memory beside it with the same bytes per head.
pub struct HeadMut<'a> {
    /// The checked layout of the cache.
    pub layout: &'a Layout,
    /// K of the head, [`Layout::head_bytes`] long.
    pub key: &'a mut [u8],
    /// V of the head.
    pub value: &'a mut [u8],
}

impl Layout {
    /// Whether no byte of a head lies between those of another, and nothing lies beside the heads: caches of floating-point
    /// elements, except row-major ones whose heads share tokens.
    pub fn has_heads_apart(&self) -> bool {
        let is_float = matches!((self.rows.key, self.rows.value), (Kind::Float(_), Kind::Float(_)));
        is_float && !self.key.heads_share_tokens() && !self.value.heads_share_tokens()
    }

    /// The bytes of a head in the buffers of K and of V; `None` past the last head.
    pub fn head(&self, head: u32) -> Option<(Range<usize>, Range<usize>)> {
        let head = head as usize;
        self.key.head_ranges().nth(head).zip(self.value.head_ranges().nth(head))
    }

    /// The places of tokens within a head, which two layouts may share.
    pub fn places(&self) -> Places {
        Places(*self.key.plane(), *self.value.plane())
    }

    /// Bytes of a head of K and of V.
    pub fn head_bytes(&self) -> (usize, usize) {
        self.head(0).map_or((0, 0), |(key, value)| (key.len(), value.len()))
    }
}

/// Copies tokens between two places of one layout, with their padding. Elements that an engine's kernels read behind the
/// last token are copied, too: up to the end of its block of K, and of its panel of V.
pub fn copy_tokens(from: &Head<'_>, to: &mut HeadMut<'_>, range: TokenRange) {
    let layout = from.layout;
    let up_to = |block: usize, unit: usize| {
        let (begin, in_block) = (range.begin, range.end() % block);
        let more = in_block.next_multiple_of(unit).min(block) - in_block;
        TokenRange { begin, count: range.count + more }
    };
    let (key_block, value) = (layout.key.plane().block, layout.value.plane());
    let (keys, values) = (up_to(key_block, key_block), up_to(value.block, value.pack));
    walk_head(&layout.key, keys, Padding::Dropped, &mut |run| to.key[run.clone()].copy_from_slice(&from.key[run]));
    walk_head(&layout.value, values, Padding::Dropped, &mut |run| {
        to.value[run.clone()].copy_from_slice(&from.value[run]);
    });
}

/// [`super::release`], of one head.
pub fn release_head(head: &mut HeadMut<'_>, range: TokenRange, give_back: &mut dyn FnMut(&mut [u8]) -> u64) -> u64 {
    let (layout, mut released) = (head.layout, 0);
    walk_head(&layout.key, range, Padding::Dropped, &mut |run| released += give_back(&mut head.key[run]));
    walk_head(&layout.value, range, Padding::Dropped, &mut |run| released += give_back(&mut head.value[run]));
    released
}

/// Calls `visit` with every longest run of bytes of a range of one head.
pub fn for_each_run_of_head(head: &mut HeadMut<'_>, range: TokenRange, visit: &mut dyn FnMut(&mut [u8])) {
    let layout = head.layout;
    walk_head(&layout.key, range, Padding::Kept, &mut |run| visit(&mut head.key[run]));
    walk_head(&layout.value, range, Padding::Kept, &mut |run| visit(&mut head.value[run]));
}
