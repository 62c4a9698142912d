//! A tile with what it points to, for the tests of attention and of sessions.

use super::Tile;
use crate::dtype::Dtype;

#[derive(Clone, Debug)]
pub(crate) struct OwnedTile {
    pub(crate) dtype: Dtype,
    pub(crate) pack: usize,
    pub(crate) queries: usize,
    pub(crate) heads: usize,
    pub(crate) tokens: usize,
    pub(crate) token_begin: usize,
    pub(crate) first: bool,
    pub(crate) last: bool,
    pub(crate) data: Vec<u8>,
    pub(crate) update_scale: Option<Vec<f32>>,
    pub(crate) row_sum: Option<Vec<f32>>,
}

impl OwnedTile {
    pub(crate) fn tile(&self) -> Tile<'_> {
        Tile {
            dtype: self.dtype,
            pack: self.pack,
            queries: self.queries,
            heads: self.heads,
            tokens: self.tokens,
            token_begin: self.token_begin,
            first: self.first,
            last: self.last,
            data: &self.data,
            update_scale: self.update_scale.as_deref(),
            row_sum: self.row_sum.as_deref(),
        }
    }
}
