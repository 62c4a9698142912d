//! A tile with its arrays, for the tests of attention and of sessions.

use super::{CheckedTile, Tile};
use crate::dtype::Dtype;
use crate::status::Result;

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
    /// A head of one row and one token.
    pub(crate) fn of_one_token() -> Self {
        OwnedTile {
            dtype: Dtype::F32,
            pack: 0,
            queries: 1,
            heads: 1,
            tokens: 1,
            token_begin: 0,
            first: true,
            last: true,
            data: 1f32.to_ne_bytes().to_vec(),
            update_scale: None,
            row_sum: None,
        }
    }

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

    pub(crate) fn checked(&self) -> Result<CheckedTile<'_>> {
        CheckedTile::new(&self.tile())
    }
}
