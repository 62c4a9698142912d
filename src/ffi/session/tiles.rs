//! Session: scores

use super::handle::{mnnkv_session, with};
use crate::ffi::panic::body;
use crate::ffi::pointer::{self, Out, Sized32};
use crate::ffi::status::mnnkv_status;
use crate::h2o::{CheckedTile, TileFields, TileSource};
use crate::status::Result;
use std::ffi::c_void;

/// mnnkv_score_tile::flags: the first and the last tile of a query head; both for its only tile.
pub const MNNKV_TILE_FIRST: u32 = 1;
pub const MNNKV_TILE_LAST: u32 = 2;

/// Softmax values of one or more query heads for consecutive tokens, before the product with V.
/// data holds exp(x - m), with m the maximum of the row so far (flash attention), or finished probabilities. The
/// session computes exactly: value * product of the later update_scale of its row / row_sum.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_score_tile {
    pub struct_size: u32,
    /// MNNKV_DTYPE_F16, BF16 or F32.
    pub dtype: u32,
    /// 0 = rows [queries][tokens]. Else [UP(tokens, pack)][queries][pack], where elements past the last token are not
    /// read; 4, 8 or 16 in MNN.
    pub pack: u32,
    /// Rows, at least 1: all rows of the step, the same number in every tile of a head. Rows of several heads may be
    /// one tile, which saves calls. With pack >= tokens, pack is the row stride.
    pub queries: u32,
    /// Tokens, at least 1, and the physical position of the first one.
    pub tokens: u32,
    pub token_begin: u32,
    pub flags: u32,
    /// Heads of the rows, [heads][queries / heads]; divides queries. Read in first tiles. 0 = unknown: one head, and in
    /// steps that are no prompt any number. 0 is slower for more than 64 rows.
    pub heads: u32,
    /// The values, all >= 0 (0 for masked tokens), at any alignment.
    pub data: *const c_void,
    /// [queries], or NULL for all 1: scales what the head has gathered in earlier tiles, exp(old m - new m). Not read
    /// in first tiles.
    pub update_scale: *const f32,
    /// [queries], or NULL for all 1: sum of each row over all tokens. INVALID_ARGUMENT in other tiles than the last.
    pub row_sum: *const f32,
}

// SAFETY: repr(C), begins with a u32, integers and raw pointers only.
unsafe impl Sized32 for mnnkv_score_tile {
    const MIN: usize = size_of::<mnnkv_score_tile>();
}

const _: () = assert!(MNNKV_TILE_FIRST == TileFields::FIRST && MNNKV_TILE_LAST == TileFields::LAST);

/// A tile whose pointers are NULL or readable as its fields say.
struct GivenTile<'a>(&'a mnnkv_score_tile);

impl<'a> GivenTile<'a> {
    /// # Safety
    /// Non-NULL pointers of the tile are readable as its fields say, and the arrays do not change, for `'a`.
    #[inline(always)]
    unsafe fn new(tile: &'a mnnkv_score_tile) -> Self {
        GivenTile(tile)
    }

    #[inline(always)]
    fn per_row(&self, ptr: *const f32, rows: usize, name: &str) -> Result<Option<&'a [f32]>> {
        if ptr.is_null() {
            return Ok(None);
        }
        // SAFETY: as `new` says.
        unsafe { pointer::input(ptr, rows, name) }.map(Some)
    }
}

impl<'a> TileSource<'a> for GivenTile<'a> {
    #[inline(always)]
    fn fields(&self) -> TileFields {
        let mnnkv_score_tile { dtype, pack, queries, tokens, token_begin, flags, heads, .. } = *self.0;
        TileFields { dtype, pack, queries, heads, tokens, token_begin, flags }
    }

    #[inline(always)]
    fn data(&self, bytes: usize) -> Result<&'a [u8]> {
        // SAFETY: as `new` says.
        unsafe { pointer::input_bytes(self.0.data, bytes, "tile->data") }
    }

    #[inline(always)]
    fn update_scale(&self, rows: usize) -> Result<Option<&'a [f32]>> {
        self.per_row(self.0.update_scale, rows, "tile->update_scale")
    }

    #[inline(always)]
    fn row_sum(&self, rows: usize) -> Result<Option<&'a [f32]>> {
        self.per_row(self.0.row_sum, rows, "tile->row_sum")
    }
}

/// Adds a tile of an open layer. Never blocks.
/// lane: below the `lanes` of create; one thread at a time. The tiles of a head are passed in order in one lane: the
/// first begins at any token, each other one where its predecessor ends. Results do not depend on which lane has which
/// head. Memory: two floats per row and tile, in each lane.
///
/// A prompt is a step on an empty layer, or of more than 64 queries per head. Only its last kv_h2o_prefill_queries
/// rows of each head count; all rows of other steps count. Layers that are not scored only check tiles.
/// INVALID_ARGUMENT: if layer or lane is out of range, the layer is not open, or the lane is in use
/// INVALID_ARGUMENT: if the tile is out of order, leaves a gap, overlaps, or reaches past token 16,777,215
/// INVALID_ARGUMENT: if a row_sum is not above 0, an update_scale is below 0, or one of them is not finite
/// INVALID_ARGUMENT: if sums of the head, at its last tile, are NaN, infinite, negative or above 2^32: it is dropped
/// UNSUPPORTED: if dtype is INT8
///
/// After a failure the tile is not added, and the right one may follow; a dropped head begins again.
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_session_scores(
    session: *mut mnnkv_session,
    layer: u32,
    lane: u32,
    tile: *const mnnkv_score_tile,
) -> mnnkv_status {
    body!({
        let session = &pointer::reference(session, "session")?.session;
        let mut room = None;
        let given = GivenTile::new(pointer::in_place(tile, "tile", &mut room)?);
        session.scores(layer, lane, &CheckedTile::new(&given)?)
    })
}

/// Sets *wanted to 1 if a step of `queries` rows per head uses tiles, and to 0 if they may be omitted: layers without
/// eviction, policies other than "mass", prompts while kv_h2o_prefill_queries is 0.
/// Concerns the open step of the layer, else the next one.
/// INVALID_ARGUMENT: if layer is out of range
#[cfg_attr(feature = "capi", unsafe(no_mangle))]
pub unsafe extern "C" fn mnnkv_session_wants_scores(
    session: *const mnnkv_session,
    layer: u32,
    queries: u32,
    wanted: *mut u32,
) -> mnnkv_status {
    body!(with(session, |session| {
        let wanted = Out::new(wanted, "wanted")?;
        wanted.set(session.wants_scores(layer, queries)?.into());
        Ok(())
    }))
}
