//! Exports of the session room: the softmax tiles of a step.

use super::handle::{mnnkv_session, with};
use crate::ffi::panic::guard;
use crate::ffi::pointer::{self, Out, Sized32};
use crate::ffi::status::mnnkv_status;
use crate::h2o::{CheckedTile, TileFields, TileSource};
use crate::status::Result;
use std::ffi::c_void;

/// mnnkv_score_tile::flags: the first tile of a query head.
pub const MNNKV_TILE_FIRST: u32 = 1;
/// mnnkv_score_tile::flags: the last tile of a query head. A head of one tile has both.
pub const MNNKV_TILE_LAST: u32 = 2;

/// The softmax values of one query head for some tokens, as attention has them before it multiplies by V.
///
/// data holds exp(x - m) with m the largest x of the row so far (flash attention), or finished probabilities. What the
/// session makes of it is exact: a value times every later update_scale of its row, divided by row_sum.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mnnkv_score_tile {
    /// sizeof(mnnkv_score_tile)
    pub struct_size: u32,
    /// MNNKV_DTYPE_F16, BF16 or F32: of data.
    pub dtype: u32,
    /// Order of data: [UP(tokens, pack)][queries][pack], with anything in the lanes past the last token; 0 = rows
    /// [queries][tokens]. MNN's tiles have 4, 8 or 16.
    pub pack: u32,
    /// Query rows, at least 1: all rows of the step, the same in every tile of a head. A host that computes several query
    /// heads together may give them as rows of one tile, which saves calls; see heads. pack then says how far rows are
    /// apart, when it is not less than tokens.
    pub queries: u32,
    /// Tokens, at least 1.
    pub tokens: u32,
    /// Physical position of the first token.
    pub token_begin: u32,
    /// MNNKV_TILE_FIRST, MNNKV_TILE_LAST, both or 0.
    pub flags: u32,
    /// Query heads that the rows belong to: [heads][queries / heads]. Read in the first tile of a head. queries is a multiple
    /// of it. 0 = not said: one head, or outside prompts any number. A step's rows say what a prompt is, so tiles of more
    /// than 64 rows that do not say are added up either way, which takes longer; and in a prompt of which only some rows
    /// count such a tile is one head.
    pub heads: u32,
    /// The values, 0 or more; no alignment needed. NaN, infinity and negative sums are found with the last tile.
    pub data: *const c_void,
    /// [queries] or NULL (all 1): multiplies what this head gathered so far, before this tile (exp(old maximum - new
    /// maximum)). Not read in the first tile of a head.
    pub update_scale: *const f32,
    /// [queries] or NULL (all 1): the sum of each row over all tokens. With the last tile only.
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

/// Takes one softmax tile of an open layer. Layers and rows that are not scored cost next to nothing. Never blocks.
///
/// lane: a number below the session's lanes; one thread per lane at a time, and none while begin, end or reset runs. Tiles
/// of one head come in order in one lane: the first begins at any token, each later one where the one before ends. Which
/// lane has which heads makes no difference to any result. No pointer is retained.
/// A prompt is a step whose layer was empty at begin, or of more than 64 queries per head (the queries of end). In a
/// prompt only the last kv_h2o_prefill_queries rows of each head count; any other step counts all its rows. Memory: two
/// numbers per row and tile in each lane, never rows times tokens.
/// INVALID_ARGUMENT: no such layer or lane; the layer is not open; the tile is out of order, leaves a gap or overlaps the
/// one before, reaches past token 16,777,215 (whether it fits the cache is for end to say), or has a row_sum or
/// update_scale that cannot be; another thread is in this lane. The tile is not taken then, and the right one may follow.
/// Of a layer that is not scored only the struct is checked. A head whose last tile shows that its attention is no number
/// is dropped, and end will miss it. UNSUPPORTED: INT8 tiles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_session_scores(
    session: *mut mnnkv_session,
    layer: u32,
    lane: u32,
    tile: *const mnnkv_score_tile,
) -> mnnkv_status {
    guard(|| {
        // SAFETY: the caller vouches for its pointers.
        unsafe {
            let session = &pointer::reference(session, "session")?.session;
            let mut room = None;
            let given = GivenTile::new(pointer::in_place(tile, "tile", &mut room)?);
            session.scores(layer, lane, &CheckedTile::new(&given)?)
        }
    })
}

/// Whether mnnkv_session_scores has any use for the tiles of a layer's step of so many queries (the queries of end): in the
/// open step, or in the next while the layer is closed. *wanted is 1, or 0 where they may be left out: of layers that
/// tokens are not evicted from, and of prompts while kv_h2o_prefill_queries is 0. Any thread; blocks while another call is
/// under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mnnkv_session_wants_scores(
    session: *const mnnkv_session,
    layer: u32,
    queries: u32,
    wanted: *mut u32,
) -> mnnkv_status {
    // SAFETY: the caller vouches for its pointers.
    unsafe {
        with(session, |session| {
            let wanted = Out::new(wanted, "wanted")?;
            wanted.set(session.wants_scores(layer, queries)?.into());
            Ok(())
        })
    }
}
